"""A run file from the configuration of a model, so that nobody types its facts."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from reference_runs.accelerator import accelerator
from reference_runs.borrowed_recipe import borrowed_facts, borrowed_source
from reference_runs.catalog import load, reference_run
from reference_runs.errors import InputError
from reference_runs.hugging_face.families import OF_OPTIONS, Imported, imported
from reference_runs.mlperf_log import is_mlperf_log
from reference_runs.run_text import run_text
from reference_runs.sourced import Kind, Sourced, Value
from reference_runs.stack import stack as known_stack
from suite.commands.import_log import import_log
from suite.commands.new_file import STDOUT, forced, write_new
from suite.commands.options import print_json
from suite.commands.planned_run import print_command
from suite.commands.training_options import LAYOUT_PANEL, OUTPUT_PANEL, TRAINING_PANEL, Asked, asks_training
from suite.predict.analytic.parameters import parameter_count
from suite.predict.plan.asked import USUAL_ACCELERATOR, asked_run
from suite.report.terminal.tables import console, print_folded


@asks_training
def import_command(  # long: the command's options
    configuration: Annotated[
        Path,
        typer.Argument(
            help="A config.json of Hugging Face's transformers, or its directory; or a result log of MLPerf Training.",
            show_default=False,
            readable=False,
        ),
    ],
    asked: Asked,
    output: Annotated[
        str | None,
        typer.Option(
            help="Run file to write, a new one ending in .toml; - for stdout (default: the model's name).",
            show_default=False,
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    force: forced(OUTPUT_PANEL) = False,  # type: ignore[valid-type]  # an annotation that a function makes
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Recorded run whose recipe is assumed where the configuration has none.",
            show_default=False,
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Shell file of an MLPerf submission's layout (default: the one config_*.sh beside the log).",
            show_default=False,
            rich_help_panel=LAYOUT_PANEL,
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print what was imported as one JSON object.", rich_help_panel=OUTPUT_PANEL)
    ] = False,
) -> None:
    """Write a run file from the configuration of a Hugging Face model, and print the command that asks about it.

    The file has the architecture, the precision that the dtype of its weights suggests, and what options say. What
    nobody says is assumed when a command needs it, and printed. With --recipe it is assumed as in a recorded run, for
    `reproduce --mini`. A key that changes the arithmetic in a way that no key of a run file describes is refused by
    name; the others that nothing comes from are listed.

    A result log of MLPerf Training (lines :::MLLOG) becomes a table of one row for `validate`: step time without
    evaluations, batch, and the layout that the submission's config_*.sh exports. The shell file is not executed.

    Examples: python -m suite import config.json;
    python -m suite import config.json --sequence 4096 --on h200 --gpus 64 --stack megatron-core;
    python -m suite import config.json --recipe llama2-70b --output my_run.toml;
    python -m suite import result_0.txt --config config_DGXH100_64x8x128x4x8_mbs1.sh

    Exit codes: 0 written; 2 bad input, or a configuration that is not described.
    """
    if json and output == STDOUT:
        raise InputError("the run file itself goes to stdout", allowed="a file", where="--output")
    if configuration.is_dir():
        configuration /= "config.json"
    if config is not None or is_mlperf_log(configuration):
        import_log(configuration, config, asked, recipe=recipe, output=output, force=force, as_json=json)
        return
    run = imported(configuration, sequence=asked.training.sequence)
    run = run._replace(facts=run.facts | _option_facts(asked))
    if any(fact.source.startswith("option ") for fact in run.facts.values()):
        run = run._replace(sources=run.sources | {"option": OF_OPTIONS})
    if recipe is not None:
        lender = reference_run(recipe)
        borrowed = borrowed_facts(lender, run.facts)
        run = run._replace(facts=run.facts | borrowed, sources=run.sources | borrowed_source(lender))
    text = run_text(run.title, run.sources, run.facts, comments=_comments(configuration, run))
    if output == STDOUT:
        sys.stdout.write(text)
        return
    path = Path(_file_name(run.name) if output is None else output)
    if path.suffix != ".toml":
        raise InputError("not a run file's name", got=str(path), allowed="one ending in .toml", where="--output")
    is_new = write_new(path, text, force=force)
    try:
        ranks = asked_run(load(path), asked.training, on=None, ranks=None).ranks
    except InputError:  # options and a borrowed recipe may exclude each other: no file stays that no command reads
        if is_new:
            path.unlink(missing_ok=True)
        raise
    if json:
        _print_json(path, run)
    else:
        _print(path, run, asked, ranks)


def _print_json(path: Path, run: Imported) -> None:
    print_json(
        {
            "run": str(path),
            "title": run.title,
            "parameters": parameter_count(run.architecture),
            "notes": run.notes,
            "not_used": run.not_used,
        }
    )


def _print(path: Path, run: Imported, asked: Asked, ranks: int) -> None:
    """Print what was written, and the command that asks whether it fits."""
    out = console()
    print_folded(out, f"{path}: {run.title}, {parameter_count(run.architecture):,} parameters", "bold")
    for note in run.notes:
        print_folded(out, f"note: {note}", "yellow")
    for key, fact in run.facts.items():
        if fact.kind is Kind.ASSUMED and key in ("recipe.precision", "architecture.sequence"):
            print_folded(out, f"assumed: {key.partition('.')[2]} {fact.value}: {fact.why}")
    if run.not_used:
        print_folded(out, f"not used: {', '.join(run.not_used)}")
    machine = {"--on": asked.on or USUAL_ACCELERATOR, "--gpus": str(ranks)}
    typed = machine | {"--micro-batch": asked.options["--micro-batch"]}
    print_command(out, "next", ["fit", str(path)], typed)


def _option_facts(asked: Asked) -> dict[str, Sourced]:
    """Facts that options state; a micro-batch is a layout's, which a file has whole or not at all.

    Raises:
        InputError: no accelerator or stack of that name.
    """
    if asked.stack is not None:
        known_stack(asked.stack)
    on = asked.on
    if on is None and (asked.gpus is not None or asked.network is not None):
        on = USUAL_ACCELERATOR
    if on is not None and not on.endswith(".toml"):  # a file of the user's own is named as it is
        on = accelerator(on).name
    training = asked.training
    network = None if asked.network is None else (asked.network, "Gbit/s")
    stated: dict[str, tuple[str, Value | None, str | None]] = {
        "recipe.precision": ("--precision", training.precision, None),
        "recipe.global_batch": ("--batch", training.batch, "sample"),
        "recipe.tokens": ("--tokens", training.tokens, "token"),
        "cluster.accelerator": ("--on", on, None),
        "cluster.accelerators": ("--gpus", asked.gpus, "1"),
        "cluster.network_interfaces_per_node": ("--network", network and 1, "1"),
        "cluster.network_interface_bandwidth": ("--network", network and network[0], "Gbit/s"),
        "software.stack": ("--stack", asked.stack, None),
    }
    return {
        key: Sourced(kind=Kind.STATED, source=f"option {option}", value=value, unit=unit)
        for key, (option, value, unit) in stated.items()
        if value is not None
    }


def _file_name(model: str) -> str:
    """The file for a model of that name: "meta-llama/Llama-3.1-8B" is written to Llama-3.1-8B.toml."""
    words = re.sub(r"[^\w.-]+", "-", Path(model).name).strip("-.")
    return f"{words or 'model'}.toml"


def _comments(configuration: Path, run: Imported) -> list[str]:
    made = f"Imported from {configuration.name} by `python -m suite import`."
    return [made, *(f"Note: {note}." for note in run.notes)]
