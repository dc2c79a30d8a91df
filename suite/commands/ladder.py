"""Run GPT-2's ladder: a naive script made smaller and faster one rung at a time, predicted and measured."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from reference_runs.errors import InputError
from suite.commands import exit_codes
from suite.commands.machine_profile import profile_for
from suite.commands.new_file import Force
from suite.commands.options import JsonWithProgress, command_of, print_json
from suite.job.corpus import Corpus, tokenised_documents
from suite.job.events import Event
from suite.job.options import Texts
from suite.ladder.extra_profiles import ranks_missing, sample_seconds, with_messages, with_more_ranks
from suite.ladder.plan import Target, target_of, target_that_fits
from suite.ladder.request import LadderRun, trace_of
from suite.ladder.result import DIRECTORY, LadderResult, LadderVerdict, RungResult, verdict
from suite.ladder.run import nothing_applies, run_ladder
from suite.ladder.rung import RUNGS, STEPS, RungSetting, Track
from suite.launch.interruption import end_as_interrupted
from suite.launch.multi_host import check_reachable
from suite.machine.devices import cuda_memory_bytes, resolved_device
from suite.machine.packages import described, lacking, require
from suite.paths import RESULTS
from suite.records.record import shared_fields
from suite.records.store import new_identity, records_directory, writable, write_new
from suite.report.terminal.ladder import as_json, print_ladder, print_rungs, rung_line
from suite.report.terminal.tables import console, print_refusal
from suite.reproduce.checked_options import checked_trace
from suite.reproduce.plan import MOST_LAUNCHES
from suite.reproduce.request import CorpusPath, Device, MayCalibrate

PLOT_NEEDS = "matplotlib"
HOSTS = 2  # of the rung ddp-hosts
EXIT_CODES = {
    LadderVerdict.PASS: exit_codes.PASS,
    LadderVerdict.FAIL: exit_codes.FAIL,
    LadderVerdict.INCONCLUSIVE: exit_codes.INCONCLUSIVE,
    LadderVerdict.EXECUTION_FAILED: exit_codes.EXECUTION_FAILED,
    LadderVerdict.INTERRUPTED: exit_codes.INTERRUPTED,
}


class LadderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `ladder`, in the order of its --help."""

    name: Annotated[str | None, typer.Argument(help="gpt2-mini; on CUDA also gpt2-124m to gpt2-1558m.")] = None
    rungs: Annotated[
        str | None, typer.Option(help="Run these alone, and what they are compared with: --rungs accumulate,compile.")
    ] = None
    track: Annotated[str | None, typer.Option(help="memory or speed, as in --track memory (default: both).")] = None
    start: Annotated[str | None, typer.Option("--from", help="Start at this rung of its track: --from bf16.")] = None
    repeat: Annotated[int, typer.Option(help="Launches of every rung: --repeat 3. Times are medians.")] = 1
    ablated: Annotated[
        str | None,
        typer.Option(
            "--ablate",
            help="Leave the optimisation of these rungs out, and see that it is noticed: --ablate workers. "
            "No leave-one-out launches then.",
        ),
    ] = None
    leave_one_out: Annotated[
        bool, typer.Option("--leave-one-out/--no-leave-one-out", help="Launch each track's top without each rung too.")
    ] = True
    traces: Annotated[
        Path | None,
        typer.Option(readable=False, help="Directory for RUNG.json, a trace of two steps of each: --traces /tmp/t."),
    ] = None
    force: Force = False
    hosts: Annotated[
        str | None,
        typer.Option(help="Two hosts for ddp-hosts that ssh enters without a password: --hosts node1,node2."),
    ] = None
    interface: Annotated[
        str | None, typer.Option(help="Network interface between --hosts, whose bytes are counted: --interface eth0.")
    ] = None
    device: Device = "auto"
    seed: Annotated[int, typer.Option(help="Seed of weights and sample order: --seed 2.")] = 1
    corpus: CorpusPath = None
    results: Annotated[Path, typer.Option(help="Where records, plot and profile are stored.")] = RESULTS
    may_calibrate: MayCalibrate = True
    json: JsonWithProgress = False


GROUPS = {
    "Which rungs": ("rungs", "track", "start", "ablated", "leave_one_out"),
    "Machine and hosts": ("device", "hosts", "interface"),
    "Training": ("repeat", "seed", "corpus", "may_calibrate"),
    "Output": ("results", "traces", "force", "json"),
}


@command_of(LadderOptions, GROUPS)
def ladder_command(asked: LadderOptions) -> None:
    """Optimise a naive GPT-2 training script one step at a time; each step is predicted and measured.

    Two tracks: memory, and speed. Each rung's peak memory must be predicted to 5 %, its losses be what it promises, and
    its gain over the rung below have the predicted sign and order of size. What does not apply here is NOT RUN, with
    the reason. Without NAME: list the rungs. docs/ladder.md explains them.

    Examples: python -m suite ladder gpt2-mini; python -m suite ladder gpt2-mini --rungs workers --ablate workers

    Exit codes: 0 all promises kept, 1 one was not, 2 bad input, 3 nothing ran or one cannot be judged, 4 a launch
    failed, 128 + n ended by signal n.
    """
    began = time.monotonic()
    if asked.name is None:
        print_rungs(console())
        return
    require("torch")
    chosen = _chosen_rungs(rungs=asked.rungs, track=asked.track, start=asked.start)
    ablated = _ablated_rungs(asked.ablated, chosen)
    if not 1 <= asked.repeat <= MOST_LAUNCHES:
        raise InputError("launches", got=asked.repeat, allowed=f"1 to {MOST_LAUNCHES:,}", where="--repeat")
    kind, gpus = resolved_device(asked.device)
    target = msgspec.structs.replace(
        target_of(asked.name, device=kind, seed=asked.seed),
        gpus=gpus if kind == "cuda" else None,
        host_names=checked_hosts(asked.hosts, asked.interface),
        interface=asked.interface,
    )
    if (nothing := nothing_applies(target, chosen)) is not None:
        raise typer.Exit(_reported(nothing, "none: nothing ran", json=asked.json))
    for rung in RUNGS:
        if rung.name in chosen and (path := trace_of(asked.traces, rung)) is not None:
            checked_trace(path, ranks=1, device=kind, steps=STEPS, force=asked.force, where="--traces")
    end_as_interrupted()
    target, tokens, texts = _fitted_with_corpus(target, asked.corpus)
    ladder_run = LadderRun(
        **{name: getattr(asked, name) for name in shared_fields(LadderRun, LadderOptions, "ablated", "corpus")},
        target=target,
        corpus=tokens,
        texts=texts,
        chosen=chosen,
        ablated=ablated,
        began=began,
    )
    raise typer.Exit(_ran(ladder_run, may_calibrate=asked.may_calibrate, json=asked.json))


def _fitted_with_corpus(target: Target, corpus: Path | None) -> tuple[Target, Corpus, Texts]:
    """The target with as many samples as the GPU's memory holds, and the corpus, tokenised."""
    with console(stderr=True).status("reading the corpus"):
        tokens, texts = tokenised_documents(
            corpus,
            vocabulary=target.architecture.vocabulary,
            least_tokens=RungSetting().samples * target.architecture.sequence + 1,
        )
    if target.device == "cuda":
        target = target_that_fits(target, cuda_memory_bytes(), texts)
    check_reachable(target.host_names, Path(tempfile.gettempdir()), Path(tokens.tokens_file), target.interface)
    return target, tokens, texts


def _ran(ladder_run: LadderRun, *, may_calibrate: bool, json: bool) -> int:
    """Run the ladder, store and print its result; the exit code."""
    messages = console(stderr=True)

    def print_rung(rung: RungResult) -> None:
        messages.print(f"[dim]{escape(rung_line(rung))}[/]", soft_wrap=True)

    try:
        records_directory(ladder_run.results, f"{ladder_run.target.name}-ladder")
        ladder_run = _with_profiles(ladder_run, may_calibrate=may_calibrate, messages=messages)
        ladder = run_ladder(ladder_run, print_rung, _quiet)
        plot = _stored(ladder, ladder_run.results)
    except OSError as error:  # no room or no access for records or scratch files
        print_refusal(error)
        return exit_codes.EXECUTION_FAILED
    return _reported(ladder, plot, json=json)


def _with_profiles(ladder_run: LadderRun, *, may_calibrate: bool, messages: Console) -> LadderRun:
    """The run with what predicts its times: a machine profile, the seconds to tokenise a sample, and extra profiles."""
    target = ladder_run.target
    two = ladder_run.plan(RungSetting(data_parallel=min(2, target.gpus or 2), micro_batch=16))
    profile, source = profile_for(two, ladder_run.results, may_calibrate=may_calibrate, messages=messages, whole=True)
    with messages.status("tokenising samples"):
        seconds = sample_seconds(
            ladder_run.texts, tokens=ladder_run.corpus.tokens, sequence=target.architecture.sequence, seed=target.seed
        )
    ladder_run = msgspec.structs.replace(ladder_run, profile=profile, profile_source=source, sample_seconds=seconds)
    with messages.status("timing messages between hosts"):
        ladder_run = with_messages(ladder_run, _quiet)
    if (most := ranks_missing(ladder_run)) is not None and may_calibrate:
        with messages.status(f"timing {most} ranks at once"):
            ladder_run = with_more_ranks(ladder_run, most, _quiet)
    return ladder_run


def _ablated_rungs(names: str | None, chosen: frozenset[str]) -> frozenset[str]:
    """The rungs whose optimisation is left out."""
    if names is None:
        return frozenset()
    lacking = _named_rungs(names, "--ablate")
    if not lacking <= chosen:
        stray = ", ".join(sorted(lacking - chosen))
        raise InputError("an ablated rung is not run", got=stray, allowed="one of --rungs", where="--ablate")
    if bases := sorted(rung.name for rung in RUNGS if rung.name in lacking and rung.is_base):
        raise InputError("a baseline has nothing to leave out", got=", ".join(bases), where="--ablate")
    return lacking


def _named_rungs(names: str, where: str) -> frozenset[str]:
    """The rungs of a list of names."""
    known = [rung.name for rung in RUNGS]
    asked = [name.strip() for name in names.split(",")]
    for name in asked:
        if name not in known:
            raise InputError("unknown rung", got=repr(name), allowed=", ".join(known), where=where)
    return frozenset(asked)


def checked_hosts(names: str | None, interface: str | None) -> tuple[str, ...]:
    """The hosts of a list of names; none where there is no list.

    Raises:
        InputError: not two, or an interface without hosts.
    """
    if names is None:
        if interface is not None:
            raise InputError("an interface between hosts that are not named", got=interface, where="--interface")
        return ()
    asked = tuple(name.strip() for name in names.split(",") if name.strip())
    if len(set(asked)) != len(asked) or len(asked) != HOSTS or any(name.startswith("-") for name in asked):
        raise InputError("hosts of ddp-hosts", got=repr(names), allowed="two names: node1,node2", where="--hosts")
    return asked


def _chosen_rungs(*, rungs: str | None, track: str | None, start: str | None) -> frozenset[str]:
    """The names of the rungs that were asked for."""
    if track is not None and track not in list(Track):
        raise InputError("unknown track", got=repr(track), allowed=", ".join(Track), where="--track")
    chosen = [rung for rung in RUNGS if track is None or rung.track == track]
    if start is not None:
        (first,) = _named_rungs(start, "--from") if "," not in start else (start,)
        index = {rung.name: number for number, rung in enumerate(RUNGS)}
        if first not in index:
            raise InputError("one rung to start from", got=repr(start), allowed="a name", where="--from")
        above = RUNGS[index[first] :]
        chosen = [rung for rung in chosen if rung in above and rung.track is above[0].track]
    if rungs is not None:
        asked = _named_rungs(rungs, "--rungs")
        chosen = [rung for rung in chosen if rung.name in asked]
    if not chosen:
        raise InputError("no rung is left", got="--rungs, --track and --from together", allowed="one or more")
    return frozenset(rung.name for rung in chosen)


def _quiet(_rank: int, _event: Event) -> None:
    """Nothing: a rung takes seconds."""


def _reported(ladder: LadderResult, plot: str, *, json: bool) -> int:
    """Print a result and where its picture is; the exit code."""
    if json:
        print_json(as_json(ladder) | {"plot": plot})
    else:
        print_ladder(console(), ladder)
        console().print(f"plot {escape(plot)}", soft_wrap=True)
    return EXIT_CODES[verdict(ladder)]


def _stored(ladder: LadderResult, results: Path) -> str:
    """Store the result, for the page, and its picture; the picture's path, or why there is none."""
    if not any(rung.measured for rung in ladder.rungs):
        return "none: nothing ran"
    path = writable(results / DIRECTORY, results) / f"{ladder.run}__{new_identity()}.json"
    write_new(path, msgspec.json.encode(ladder))
    if missing := lacking([PLOT_NEEDS]):
        return f"none for want of {described(missing)}"
    from suite.report.plots.ladder import write_plot

    picture = path.with_suffix(".png")
    write_plot(ladder, picture)
    return str(picture)
