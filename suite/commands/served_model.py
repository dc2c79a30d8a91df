"""`fit --serve`: the memory to serve a model."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer

from reference_runs.accelerator import accelerator
from reference_runs.errors import InputError
from reference_runs.hugging_face.configuration import USUAL_SEQUENCE
from reference_runs.run import Architecture, Position
from suite.commands import exit_codes
from suite.commands.options import print_json, with_parameters
from suite.commands.planned_run import planned_run
from suite.commands.traced_model import answered_or_exit, check_absent, no_formula
from suite.commands.traced_options import TracedOptions
from suite.commands.training_options import Asked
from suite.job.served_job import ServedJob, ServedTrace
from suite.launch.interruption import end_as_interrupted
from suite.machine.packages import require
from suite.predict.analytic.weight_formats import ELEMENT_BYTES
from suite.predict.plan.asked import USUAL_ACCELERATOR, check_positive
from suite.predict.plan.serving import (
    CHUNK,
    MEMORY_SHARE,
    Serving,
    ServingQuestion,
    check_split,
    served_by_formula,
    served_by_trace,
    serving,
    split_widths,
    splitting_ranks,
)
from suite.report.terminal.serving import formula_layers, print_serving, trace_layers
from suite.report.terminal.tables import console
from suite.reproduce.traced import model_source, traced_serving

SERVING_PANEL = "Serving"


class CacheFormat(enum.StrEnum):
    """How key-value caches are stored."""

    BF16 = "bf16"
    FP8 = "fp8"


Serve = Annotated[
    bool, typer.Option("--serve", help="Memory to serve the model, not to train it.", rich_help_panel=SERVING_PANEL)
]
ShowTiers = Annotated[
    bool,
    typer.Option(
        "--tiers",
        help="Which size of model fits which card, served and trained; with RUN: which card fits that model.",
        rich_help_panel=SERVING_PANEL,
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        "--context",
        "--max-model-len",
        help="Tokens of each sequence (default: of a sample in training).",
        rich_help_panel=SERVING_PANEL,
    ),
]
Sequences = Annotated[
    int | None,
    typer.Option(
        "--sequences",
        "--max-num-seqs",
        help="Number of sequences at a time (default 1).",
        rich_help_panel=SERVING_PANEL,
    ),
]
Chunk = Annotated[
    int | None,
    typer.Option(
        "--chunk",
        "--max-num-batched-tokens",
        help=f"Tokens of one forward pass of prefill (default {CHUNK:,}).",
        rich_help_panel=SERVING_PANEL,
    ),
]
Cache = Annotated[
    CacheFormat | None,
    typer.Option(
        "--cache",
        "--kv-cache-dtype",
        help="Format of the key-value cache (default bf16).",
        rich_help_panel=SERVING_PANEL,
    ),
]
MemoryShare = Annotated[
    float | None,
    typer.Option(
        "--memory-share",
        "--gpu-memory-utilization",
        help=f"Share of an accelerator's memory that the software takes (default {MEMORY_SHARE}).",
        rich_help_panel=SERVING_PANEL,
    ),
]


_OPTIONS: dict[str, tuple[Any, object]] = {
    "serve": (Serve, False),
    "tiers": (ShowTiers, False),
    "context": (Context, None),
    "sequences": (Sequences, None),
    "chunk": (Chunk, None),
    "cache": (Cache, None),
    "memory_share": (MemoryShare, None),
}


class AskedServing(NamedTuple):
    """Options of serving; None where one is absent.

    Args:
        serve: whether a model is served.
        tiers: whether all sizes are asked for.
        context: tokens of each sequence.
        sequences: at a time.
        chunk: tokens of a forward pass of prefill.
        cache: format of the key-value cache.
        memory_share: of an accelerator's memory.
    """

    serve: bool
    tiers: bool
    context: int | None
    sequences: int | None
    chunk: int | None
    cache: CacheFormat | None
    memory_share: float | None

    @property
    def options(self) -> dict[str, object | None]:
        """Values by option, of those that say how."""
        return {f"--{name.replace('_', '-')}": getattr(self, name) for name in self._fields[2:]}


def asks_serving(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator of a command: its parameter `serving`, an `AskedServing`, stands for the options of serving."""
    parameters: dict[str, tuple[Any, object]] = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        own = {name: (parameter.annotation, parameter.default)}
        parameters |= _OPTIONS if name == "serving" else own

    @functools.wraps(command)
    def called(**given: Any) -> None:
        command(serving=AskedServing(**{option: given.pop(option) for option in _OPTIONS}), **given)

    return with_parameters(called, parameters)


def check_serving(options: AskedServing, asked: Asked, *, any_software: bool) -> None:
    """Refuse options that do not go together, and numbers that are none.

    Raises:
        InputError: an option of training with --serve or --tiers, one of serving without them, or no usable number.
    """
    given = options.options
    if options.serve and options.tiers:
        raise InputError("does not go with --serve", where="--tiers")
    if not options.serve and not options.tiers:
        check_absent(given, what="is of --serve")
        return
    mode = "--serve" if options.serve else "--tiers"
    machine = {name: value for name, value in asked.options.items() if name in ("--on", "--gpus")}
    of_training = {name: value or None for name, value in asked.options.items() if name not in machine}
    check_absent(of_training | {"--any-software": any_software or None}, what=f"is of training, not of {mode}")
    if options.tiers:
        of_serving = {name: value for name, value in given.items() if name not in ("--context", "--sequences")}
        check_absent(machine | of_serving, what="does not go with --tiers")
    check_positive({"--context": options.context, "--sequences": options.sequences, "--chunk": options.chunk})
    share = options.memory_share
    if share is not None and not 0 < share <= 1:  # nor NaN
        raise InputError("not a share", got=share, allowed="above 0, up to 1", where="--memory-share")


def serve_model(name: str, asked: Asked, options: AskedServing, *, as_json: bool) -> None:
    """Print the memory to serve the model of that name.

    Raises:
        InputError: no such model or accelerator, or options that do not go together.
        typer.Exit: it does not fit.
    """
    if (reason := no_formula(name, TracedOptions())) is not None:
        _serve_traced(name, asked, options, reason, as_json=as_json)
        return
    architecture = described_architecture(name)
    question, assumed = _question(asked, options, usual=architecture.sequence)
    _check_positions(architecture, question.context)
    widths = split_widths(architecture)
    check_split(question.ranks, widths)
    answer = serving(
        question,
        lambda ranks: served_by_formula(architecture, question, ranks),
        ranks=splitting_ranks(*widths.values()),
    )
    _answer(name, answer, formula_layers(architecture), assumed, as_json=as_json)


def _check_positions(architecture: Architecture, context: int) -> None:
    """Refuse a sequence longer than the table of learned positions.

    Raises:
        InputError: it is.
    """
    if architecture.position is Position.LEARNED and context > architecture.sequence:
        allowed = f"at most {architecture.sequence:,}, as many as it learned positions for"
        raise InputError("too many tokens", got=context, allowed=allowed, where="--context")


def _serve_traced(name: str, asked: Asked, options: AskedServing, reason: str, *, as_json: bool) -> None:
    """As `serve_model`, of a configuration that no formula describes, for that reason."""
    source = model_source(name)
    if source.module:
        what = "a module of one's own has no cache that is known"
        raise InputError(what, got=name, allowed="a run, a run file or a config.json", where="--serve")
    require("torch", "transformers")
    end_as_interrupted()
    chunk = options.chunk or CHUNK
    (trace,) = answered_or_exit(
        lambda: traced_serving([ServedJob(source=source, context=options.context, usual=USUAL_SEQUENCE, chunk=chunk)])
    )
    question, assumed = _question(asked, options, usual=trace.context)
    widths = {} if trace.heads is None else {"heads": trace.heads}
    check_split(question.ranks, widths)
    answer = serving(
        question, lambda ranks: served_by_trace(trace, question, ranks), ranks=splitting_ranks(*widths.values())
    )
    _answer(name, answer, trace_layers(trace), assumed, as_json=as_json, traced=(trace, reason))


def _answer(
    name: str,
    answer: Serving,
    layers: str,
    assumed: list[str],
    *,
    as_json: bool,
    traced: tuple[ServedTrace, str] | None = None,
) -> None:
    """Print the answer.

    Args:
        traced: the trace that it rests on, and why no formula answers.

    Raises:
        typer.Exit: it does not fit.
    """
    if as_json:
        print_json(_entry(name, answer, assumed, traced and traced[0]))
    else:
        print_serving(console(), name, answer, layers=layers, assumed=assumed, traced=traced)
    if not answer.fits:
        raise typer.Exit(exit_codes.FAIL)


def described_architecture(name: str) -> Architecture:
    """The shape of a run, of a run file, or of a configuration that a formula describes.

    Raises:
        InputError: there is none.
    """
    return planned_run(name).architecture


def _question(asked: Asked, options: AskedServing, *, usual: int) -> tuple[ServingQuestion, list[str]]:
    """The question that options ask, and what is assumed in it."""
    assumed = []
    if asked.on is None:
        assumed.append(f"accelerator {USUAL_ACCELERATOR} (--on)")
    if asked.gpus is None:
        assumed.append("one accelerator (--gpus)")
    if options.context is None:
        assumed.append(f"{usual:,} tokens a sequence, as in training (--context)")
    if options.sequences is None:
        assumed.append("one sequence at a time (--sequences)")
    if options.chunk is None:
        assumed.append(f"prefill in chunks of {CHUNK:,} tokens (--chunk)")
    question = ServingQuestion(
        accelerator(asked.on or USUAL_ACCELERATOR),
        asked.gpus or 1,
        options.context or usual,
        options.sequences or 1,
        options.chunk or CHUNK,
        1 if options.cache is CacheFormat.FP8 else ELEMENT_BYTES,
        MEMORY_SHARE if options.memory_share is None else options.memory_share,
    )
    return question, assumed


def _entry(name: str, answer: Serving, assumed: list[str], trace: ServedTrace | None) -> dict[str, Any]:
    question, rank = answer.question, answer.rank
    return {
        "run": name,
        "accelerator": question.device.name,
        "accelerators": question.ranks,
        "assumed": assumed,
        "fits": bool(answer.fits),
        "memory_bytes": answer.room,
        "traced": trace,
        "serving": {
            "context": question.context,
            "sequences": question.sequences,
            "chunk": question.chunk,
            "token_cache_bytes": rank.token,
            "sequence_cache_bytes": rank.sequence,
            "sequence_logit_bytes": rank.logits,
            "prefill_bytes": rank.prefill,
            "formats": [each._asdict() for each in answer.formats],
        },
    }
