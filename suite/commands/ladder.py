"""Climb GPT-2's ladder: a naive script made smaller and faster one rung at a time, predicted and measured."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from reference_runs.errors import InputError
from suite.commands import exit_codes
from suite.commands.machine_profile import profile_for
from suite.job.corpus import tokenised_documents
from suite.job.events import Event
from suite.ladder.climb import Climb, Verdict, climb, unclimbed, verdict
from suite.ladder.extra_profiles import ranks_missing, with_messages, with_more_ranks
from suite.ladder.plan import climber, fitted, planned
from suite.ladder.run import Errand, Height, trace_of
from suite.ladder.rungs import RUNGS, STEPS, Setting, Walk
from suite.ladder.tokenisation import sample_seconds
from suite.launch.interruption import end_as_interrupted
from suite.launch.multi_host import check_reachable
from suite.machine.devices import cuda_memory_bytes, resolved_device
from suite.paths import ROOT
from suite.records.store import new_identity, records_directory, writable, write_new
from suite.report.html.ladder import DIRECTORY
from suite.report.terminal.ladder import as_json, print_climb, print_rungs
from suite.report.terminal.tables import console
from suite.reproduce.trace_file import checked_trace

PLOT_NEEDS = "matplotlib"
HOSTS = 2  # of the rung ddp-hosts
EXIT_CODES = {
    Verdict.PASS: exit_codes.PASS,
    Verdict.FAIL: exit_codes.FAIL,
    Verdict.INCONCLUSIVE: exit_codes.INCONCLUSIVE,
    Verdict.EXECUTION_FAILED: exit_codes.EXECUTION_FAILED,
    Verdict.INTERRUPTED: exit_codes.INTERRUPTED,
}


def ladder_command(
    name: Annotated[str | None, typer.Argument(help="gpt2-mini; on CUDA also gpt2-124m to gpt2-1558m.")] = None,
    rungs: Annotated[
        str | None, typer.Option(help="These alone, and what they are compared with: --rungs accumulate,compile.")
    ] = None,
    walk: Annotated[str | None, typer.Option(help="memory or speed; default both: --walk memory.")] = None,
    start: Annotated[str | None, typer.Option("--from", help="From this rung of its walk on: --from bf16.")] = None,
    repeat: Annotated[int, typer.Option(help="Launches of every rung: --repeat 3. Times are medians.")] = 1,
    broken: Annotated[
        str | None,
        typer.Option(
            "--break",
            help="Leave the optimisation of these rungs out, and see that it is noticed; no twins: --break workers.",
        ),
    ] = None,
    twins: Annotated[
        bool, typer.Option("--twins/--no-twins", help="Launch each walk's top without each of its rungs too.")
    ] = True,
    traces: Annotated[
        Path | None,
        typer.Option(readable=False, help="Directory for RUNG.json, a trace of two steps of each: --traces /tmp/t."),
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(help="For ddp-hosts: two that ssh enters without a password: --hosts node1,node2."),
    ] = None,
    interface: Annotated[
        str | None, typer.Option(help="Network interface between --hosts, whose bytes are counted: --interface eth0.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of weights and sample order: --seed 2.")] = 1,
    corpus: Annotated[
        Path | None, typer.Option(readable=False, help="Text file or directory; default: Python's standard library.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Where records, plot and profile are stored.")] = ROOT / "results",
    may_calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate/--no-calibrate",
            envvar="SUITE_CALIBRATE",
            help="Measure the machine first where no valid profile of it is stored.",
        ),
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="One JSON object; progress goes to stderr.")] = False,
) -> None:
    """Climb the ladder: each rung changes one thing of a naive GPT-2 training script, is predicted, and is measured.

    Two walks: memory, and speed. Each rung's peak memory must be predicted to 5 %, its losses be what it promises, and
    its gain over the rung below have the predicted sign and order of size. What does not apply here is NOT RUN, with
    the reason. Without NAME: list the rungs. docs/ladder.md explains them.

    Examples: python -m suite ladder gpt2-mini; python -m suite ladder gpt2-mini --rungs workers --break workers

    Exit codes: 0 all promises kept, 1 one was not, 2 bad input, 3 nothing ran or one cannot be judged, 4 a launch
    failed, 130 interrupted.
    """
    began = time.monotonic()
    if name is None:
        print_rungs(console())
        return
    chosen = chosen_rungs(rungs=rungs, walk=walk, start=start)
    lacking = named_rungs(broken, "--break") if broken else frozenset()
    if not lacking <= chosen:
        stray = ", ".join(sorted(lacking - chosen))
        raise InputError("a broken rung is not climbed", got=stray, allowed="one of --rungs", where="--break")
    if bases := sorted(rung.name for rung in RUNGS if rung.name in lacking and rung.is_base):
        raise InputError("a baseline has nothing to break", got=", ".join(bases), where="--break")
    if repeat < 1:
        raise InputError("launches", got=repeat, allowed="1 or more", where="--repeat")
    resolved, devices = resolved_device(device)
    climbing = msgspec.structs.replace(
        climber(name, device=resolved, seed=seed),
        gpus=devices if resolved == "cuda" else None,
        host_names=checked_hosts(hosts, interface),
        interface=interface,
    )
    if (nothing := unclimbed(climbing, chosen)) is not None:
        raise typer.Exit(_told(nothing, "none: nothing ran", json=json))
    for rung in RUNGS if traces is not None else ():
        if rung.name in chosen and (path := trace_of(traces, rung)) is not None:
            checked_trace(path, ranks=1, device=climbing.device, steps=STEPS, where="--traces")
    end_as_interrupted()
    messages = console(stderr=True)
    with messages.status("reading the corpus"):
        tokens, texts = tokenised_documents(
            corpus,
            vocabulary=climbing.architecture.vocabulary,
            least_tokens=Setting().samples * climbing.architecture.sequence + 1,
        )
    if climbing.device == "cuda":
        climbing = fitted(climbing, cuda_memory_bytes(), texts)
    check_reachable(climbing.host_names, Path(tempfile.gettempdir()), Path(tokens.tokens_file), interface)
    try:
        records_directory(results, f"{name}-ladder")
        ranks = min(2, climbing.gpus or 2)
        two = planned(climbing, Setting(data_parallel=ranks, micro_batch=16), "", texts)
        profile, source = profile_for(two, results, may_calibrate=may_calibrate, messages=messages)
        with messages.status("tokenising samples"):
            seconds = sample_seconds(texts, tokens=tokens.tokens, sequence=climbing.architecture.sequence, seed=seed)
        errand = Errand(
            climbing=climbing,
            corpus=tokens,
            texts=texts,
            results=results,
            chosen=chosen,
            broken=lacking,
            repeat=repeat,
            twins=twins,
            profile=profile,
            profile_source=source,
            sample_seconds=seconds,
            traces=traces,
            began=began,
        )

        with messages.status("timing messages between hosts"):
            errand = with_messages(errand, _quiet)
        if (most := ranks_missing(errand)) is not None and may_calibrate:
            with messages.status(f"timing {most} ranks at once"):
                errand = with_more_ranks(errand, most, _quiet)

        def say(height: Height) -> None:
            messages.print(f"[dim]{escape(_line(height))}[/]", soft_wrap=True)

        found = climb(errand, say, _quiet)
        plot = _kept(found, results)
    except OSError as error:  # no room or no access for records or scratch files
        messages.print(f"[bold red]{escape(f'{error.strerror}: {error.filename}')}[/]", soft_wrap=True)
        raise typer.Exit(exit_codes.EXECUTION_FAILED) from error
    raise typer.Exit(_told(found, plot, json=json))


def named_rungs(names: str, where: str) -> frozenset[str]:
    """The rungs of a list of names.

    Raises:
        InputError: an unknown one.
    """
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


def chosen_rungs(*, rungs: str | None, walk: str | None, start: str | None) -> frozenset[str]:
    """The names of the rungs that were asked for.

    Raises:
        InputError: an unknown rung or walk, or nothing in common.
    """
    if walk is not None and walk not in list(Walk):
        raise InputError("unknown walk", got=repr(walk), allowed=", ".join(Walk), where="--walk")
    chosen = [rung for rung in RUNGS if walk is None or rung.walk == walk]
    if start is not None:
        (first,) = named_rungs(start, "--from") if "," not in start else (start,)
        places = {rung.name: place for place, rung in enumerate(RUNGS)}
        if first not in places:
            raise InputError("one rung to start from", got=repr(start), allowed="a name", where="--from")
        own = RUNGS[places[first]].walk
        chosen = [rung for rung in chosen if rung.walk is own and places[rung.name] >= places[first]]
    if rungs is not None:
        asked = named_rungs(rungs, "--rungs")
        chosen = [rung for rung in chosen if rung.name in asked]
    if not chosen:
        raise InputError("no rung is left", got="--rungs, --walk and --from together", allowed="one or more")
    return frozenset(rung.name for rung in chosen)


def _quiet(_rank: int, _event: Event) -> None:
    """Nothing: a rung takes seconds."""


def _told(found: Climb, plot: str, *, json: bool) -> int:
    """Print a climb and where its picture is; the exit code."""
    if json:
        sys.stdout.write(msgspec.json.encode(as_json(found) | {"plot": plot}).decode() + "\n")
    else:
        print_climb(console(), found)
        console().print(f"plot {escape(plot)}", soft_wrap=True)
    return _exit_code(found)


def _line(height: Height) -> str:
    if height.not_run:
        return f"{height.rung.name}: NOT RUN: {height.not_run}"
    if height.measured is None or height.failed:
        return f"{height.rung.name}: {height.failed}"
    found = height.measured
    checks = ", ".join(f"{check.name} {check.mark} ({check.says})" for check in height.checks)
    return (
        f"{height.rung.name}: {found.peak_bytes / 2**20:,.1f} MiB, {found.step_seconds * 1e3:,.0f} ms a step, "
        f"{found.token_seconds * 1e6:,.0f} us a token; {checks}"
    )


def _kept(found: Climb, results: Path) -> str:
    """Store the climb, for the page, and its picture; the picture's path, or why there is none."""
    from importlib.util import find_spec

    if not any(height.measured for height in found.heights):
        return "none: nothing ran"
    path = writable(results / DIRECTORY, results) / f"{found.run}__{new_identity()}.json"
    write_new(path, msgspec.json.encode(found))
    if find_spec(PLOT_NEEDS) is None:
        return f"none: {PLOT_NEEDS} is not installed; nox -s ladder brings it"
    from suite.report.plots.ladder import write_plot

    picture = path.with_suffix(".png")
    write_plot(found, picture)
    return str(picture)


def _exit_code(found: Climb) -> int:
    return EXIT_CODES[verdict(found)]
