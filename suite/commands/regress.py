"""Launch runs, compare them with their baselines, and say whether anything became slower, bigger or wrong."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from reference_runs.errors import InputError
from reference_runs.miniature import DEFAULT_STEPS
from suite.commands import exit_codes
from suite.job.events import Status
from suite.launch.interruption import end_as_interrupted
from suite.paths import ROOT, stores
from suite.records.index import launches as all_launches
from suite.records.kernel_runs import kernel_runs
from suite.records.store import records_directory
from suite.regression.baseline_checkout import OldCodeError
from suite.regression.baselines import Baseline, accept, accepted, baseline, resolved
from suite.regression.check import CheckedRun, Comparison, LaunchFailedError, RegressionCheck
from suite.regression.kernel_benchmarks import changed_software, compared_sides, kernel_findings
from suite.regression.verdicts import ChangeVerdict
from suite.report.markdown.regression import junit, markdown
from suite.report.terminal.progress import TrainingProgress
from suite.report.terminal.regression import print_check
from suite.report.terminal.tables import console
from suite.reproduce.plan import Plan, Request, corpus_for, plan
from suite.reproduce.reproduce import LaunchResult, reproduce

NEEDED = ("numpy", "scipy", "ruptures")
KERNELS = "kernels"
NO_PROFILE = "regress predicts no step time"


def regress_command(  # noqa: PLR0913  # long: the command's options
    names: Annotated[
        list[str] | None, typer.Argument(help="Miniatures such as bloom-mini, run files, or kernels: those stored.")
    ] = None,
    launches: Annotated[
        int, typer.Option(help="Of every run: 7 to gate, 5 at least to find anything, as in --launches 7.")
    ] = 7,
    reference: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            help="A record's id, a commit (launched in turn where it is not recorded, as in --baseline main), or "
            "best, the fastest stretch of the history; default: what was accepted last.",
        ),
    ] = None,
    accepts: Annotated[
        bool, typer.Option("--accept", help="Make these launches the baseline, and say what moved.")
    ] = False,
    ranks: Annotated[int | None, typer.Option(help="As of reproduce: --ranks 2.")] = None,
    layout: Annotated[str | None, typer.Option(help="As of reproduce: --layout dp2,zero1.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    compiled: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="torch.compile; default on CUDA only.")
    ] = None,
    kernels: Annotated[str, typer.Option(help="torch or triton, as of reproduce.")] = "torch",
    steps: Annotated[int, typer.Option(help="Of each launch, as of reproduce: --steps 30.")] = DEFAULT_STEPS,
    results: Annotated[Path, typer.Option(help="Where records and baselines are.")] = ROOT / "results",
    json: Annotated[bool, typer.Option("--json", help="One JSON object with every comparison, for machines.")] = False,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", readable=False, help="JUnit XML too: --junit regress.xml.")
    ] = None,
    markdown_file: Annotated[
        Path | None,
        typer.Option("--markdown", readable=False, help='Append a summary: --markdown "$GITHUB_STEP_SUMMARY".'),
    ] = None,
) -> None:
    """Launch runs and compare them with the baseline of the same hardware and policy; software may differ.

    Counts, state, traffic and losses are decided by one launch, memory within 2 %; step seconds by launches, with the
    rules of docs/regressions.md. A change of time is called a regression only after old and new code were launched in
    turn again, which takes the old code's commit.

    Examples: python -m suite regress bloom-mini --accept; python -m suite regress bloom-mini gpt2-mini --baseline main

    Exit codes: 0 no regression (or accepted), 1 a regression, 2 bad input, 3 no baseline, not calibrated or
    inconclusive, 4 the execution failed, 130 interrupted.
    """
    messages = console(stderr=True)
    written = Written(json=json, junit_file=junit_file, markdown_file=markdown_file)
    asked = _checked_names(names, launches, accepts=accepts)
    for file, where in ((junit_file, "--junit"), (markdown_file, "--markdown")):
        _check_writable(file, where)
    if KERNELS in asked:
        storages = [store / KERNELS for store in stores(results)]
        storage = next((path for path in storages if any(path.glob("*/*.json"))), storages[0])
        stored = _kernels(storage, reference, messages)
        raise typer.Exit(_told(stored, "", [], _exit_code(stored), written))
    end_as_interrupted()
    requests = [
        Request(
            name=name,
            ranks=ranks,
            layout=layout,
            device=device,
            compiled=compiled,
            kernels=kernels,
            steps=steps,
            results=results,
        )
        for name in asked
    ]
    runs = [(request, plan(request)) for request in requests]
    known, damaged = all_launches(results)
    reference = resolved(reference, known, results, ROOT)
    for error in [*damaged, *accepted(results)[1]]:
        messages.print(f"left out: {escape(str(error))}", soft_wrap=True)
    with messages.status("reading the corpus"):
        checked = [_run(request, planned) for request, planned in runs]
    for run in checked:
        records_directory(results, run.plan.name)
    check = RegressionCheck(checked, results, _launched(results, messages), lambda line: _tell(messages, line))
    compared, failed, code = _compared(check, reference, launches, accepts=accepts)
    moved: list[str] = []
    if accepts and compared:
        moved, code = [_accept(results, one) for one in compared], exit_codes.PASS
    raise typer.Exit(_told(compared, failed, moved, code, written))


class Written(NamedTuple):
    """Where the outcome goes besides the terminal."""

    json: bool
    junit_file: Path | None
    markdown_file: Path | None


def _checked_names(names: list[str] | None, launches: int, *, accepts: bool) -> list[str]:
    """The names, once the request makes sense.

    Raises:
        InputError: it does not, or a package is missing.
    """
    if not names:
        raise InputError("no run", allowed="one or more, such as bloom-mini", where="NAME")
    if launches < 1:
        raise InputError("launches", got=launches, allowed="1 or more", where="--launches")
    if len({*names}) < len(names):
        raise InputError("a run twice", got=" ".join(names), where="NAME")
    if KERNELS in names and (len(names) > 1 or accepts):
        raise InputError("kernels are compared alone, and need no --accept", got=" ".join(names), where="NAME")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        allowed = "the dependency group regress: nox -s regress"
        raise InputError("packages that are not installed", got=", ".join(missing), allowed=allowed)
    return names


def _run(request: Request, planned: Plan) -> CheckedRun:
    """A run with its corpus, and the arguments by which older code plans the same."""
    options = {name: getattr(request, name) for name in ("ranks", "layout", "device", "kernels", "steps")}
    arguments = [text for name, value in options.items() if value is not None for text in (f"--{name}", str(value))]
    if request.compiled is not None:
        arguments.append("--compile" if request.compiled else "--no-compile")
    name = str(Path(request.name).resolve()) if request.name.endswith(".toml") else request.name
    whole = (name, *arguments, "--results", str(request.results.resolve()))
    return CheckedRun(plan=planned, corpus=corpus_for(planned, None), arguments=whole)


def _compared(
    check: RegressionCheck, reference: str | None, launches: int, *, accepts: bool
) -> tuple[list[Comparison], str, int]:
    """The comparisons, why there are none, and the exit code."""
    try:
        compared = check.compared(reference, launches=launches, accepts=accepts)
        return compared, "", _exit_code(compared)
    except (LaunchFailedError, OldCodeError) as error:
        stopped = isinstance(error, LaunchFailedError) and error.result.status is Status.INTERRUPTED
        return [], str(error), exit_codes.INTERRUPTED if stopped else exit_codes.EXECUTION_FAILED
    except OSError as error:  # no room or no access for records or scratch files
        return [], f"{error.strerror}: {error.filename}", exit_codes.EXECUTION_FAILED


def _told(compared: list[Comparison], failed: str, moved: list[str], code: int, written: Written) -> int:
    """Print what came of it and write the files; the exit code."""
    _report(compared, failed, moved, code, json=written.json)
    if written.junit_file is not None:
        _write(written.junit_file, junit(compared, failed), "--junit", appended=False)
    if written.markdown_file is not None:
        _write(written.markdown_file, markdown(compared, failed), "--markdown", appended=True)
    return code


def _kernels(storage: Path, reference: str | None, messages: Console) -> list[Comparison]:
    """The newest stored run of the kernels next to its baseline, as one comparison."""
    runs, damaged = kernel_runs(storage)
    for error in damaged:
        messages.print(f"left out: {escape(str(error))}", soft_wrap=True)
    if not runs:
        raise InputError("no stored kernel benchmark", got=str(storage), allowed="what nox -s bench stores")
    before, after = compared_sides(runs, reference)
    most = len(after) if before else 0
    return [
        Comparison(
            run=KERNELS,
            setup=after[-1].hardware.get("cpu", ""),
            baseline=f"stored runs {', '.join(run.number for run in before)}" if before else "",
            baseline_suite=before[-1].commit[:12] if before else "",
            suite=after[-1].commit[:12],
            before=[run.path for run in before],
            after=[run.path for run in after],
            again=[],
            changed=changed_software(before, after) if before else "",
            floor=f"one stored run is one launch; {most} of now; 10 of one commit on this machine calibrate",
            findings=kernel_findings(before, after, runs) if before else [],
            best=None,
            hint="nox -s bench on another commit, with the same storage, makes one",
        )
    ]


def _tell(messages: Console, line: str) -> None:
    messages.print(f"[dim]{escape(line)}[/]", soft_wrap=True)


def _launched(results: Path, messages: Console) -> Callable[[CheckedRun], LaunchResult]:
    def launched(run: CheckedRun) -> LaunchResult:
        with TrainingProgress(run.plan, quiet=not messages.is_terminal) as live:
            return reproduce(run.plan, run.corpus, results, live, profile_source=NO_PROFILE)

    return launched


def _exit_code(compared: Sequence[Comparison]) -> int:
    changes = {finding.change for one in compared for finding in one.findings}
    if ChangeVerdict.REGRESSION in changes:
        return exit_codes.FAIL
    undecided = {ChangeVerdict.INCONCLUSIVE, ChangeVerdict.UNCALIBRATED} & changes
    return exit_codes.INCONCLUSIVE if undecided or any(not one.baseline for one in compared) else exit_codes.PASS


def _accept(results: Path, comparison: Comparison) -> str:
    """Move the baseline; what moved, in words."""
    known, _ = all_launches(results, run=comparison.run)
    now = [one for one in known if one.id in comparison.after]
    before = baseline(None, comparison.setup, known, results)
    accept(results, comparison.setup, now, before)
    median = Baseline(launches=tuple(now), words="").median
    new = f"{len(now)} launches of {comparison.suite}, {_seconds(median)}"
    if before is None:
        return f"{comparison.run}: first baseline: {new}"
    suites = ", ".join(dict.fromkeys(one.suite for one in before.launches))
    return f"{comparison.run}: baseline moved from {len(before.launches)} launches of {suites}, " + (
        f"{_seconds(before.median)}, to {new}"
    )


def _seconds(median: float | None) -> str:
    return "no time" if median is None else f"median {median:.4g} s"


def _report(compared: list[Comparison], failed: str, moved: list[str], code: int, *, json: bool) -> None:
    if json:
        entry = {"exit_code": code, "failed": failed, "accepted": moved, "comparisons": compared}
        sys.stdout.write(msgspec.json.encode(entry).decode() + "\n")
        return
    out = console()
    print_check(out, compared)
    for line in moved:
        out.print(f"accepted: {escape(line)}", soft_wrap=True)
    if failed:
        out.print(f"[bold red]{escape(failed)}[/]", soft_wrap=True)
    words = {
        exit_codes.PASS: "accepted" if moved else "no regression",
        exit_codes.FAIL: "regression",
        exit_codes.INCONCLUSIVE: "not decided",
    }
    if code in words:
        colour = {exit_codes.PASS: "green", exit_codes.FAIL: "bold red"}.get(code, "yellow")
        out.print(f"[{colour}]{words[code]}[/]")


def _check_writable(file: Path | None, where: str) -> None:
    if file is None:
        return
    try:
        with file.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", got=str(file), where=where) from error


def _write(file: Path, text: str, where: str, *, appended: bool) -> None:
    try:
        with file.open("a" if appended else "w", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", got=str(file), where=where) from error
