"""Launch runs, compare them with their baselines, and say whether anything became slower, bigger or wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from reference_runs.errors import InputError
from reference_runs.miniature import DEFAULT_STEPS
from suite.commands import exit_codes
from suite.commands.new_file import Force, check_new
from suite.commands.options import name_left_out, print_json
from suite.job.events import Status
from suite.launch.interruption import OutOfTimeError, check_interrupted, check_minutes, end_as_interrupted, time_limit
from suite.launch.rank_starts import check_rank_starts
from suite.machine.environments import Environment, differences, environment_of
from suite.machine.interpreter import OWN, Interpreter
from suite.machine.packages import require
from suite.machine.scratch import scratch_directory
from suite.paths import RESULTS, ROOT
from suite.records.index import launches as all_launches
from suite.records.kernel_runs import kernel_runs
from suite.records.store import records_directory
from suite.regression.accepted_spread import USUAL_LAUNCHES, AcceptedSpread, accepted_spread, spread_lines
from suite.regression.baselines import accept, accepted, baseline, resolved
from suite.regression.check import Comparison, OtherEnvironment, RegressionCheck
from suite.regression.kernel_benchmarks import changed_software, compared_sides, kernel_findings
from suite.regression.turns import CheckedRun, LaunchFailedError, OldSide, TimeOverError
from suite.regression.verdicts import LIMIT, ChangeVerdict
from suite.report.regression import junit, markdown, print_check
from suite.report.terminal.progress import training_progress
from suite.report.terminal.tables import console, print_folded, refusal
from suite.reproduce.other_code import OldCodeError, old_launch
from suite.reproduce.plan import MOST_LAUNCHES, Plan, corpus_for, plan
from suite.reproduce.reproduce import LaunchResult, reproduce
from suite.reproduce.request import Compiled, Device, Request

NEEDED = ("numpy", "scipy", "ruptures")
KERNELS = "kernels"
MOST_LIMIT = 100.0  # of a slow-down: a step that takes 101 times as long
NO_PROFILE = "regress predicts no step time"


def regress_command(  # noqa: PLR0913  # long: the command's options
    names: Annotated[
        list[str] | None, typer.Argument(help="Miniatures such as bloom-mini, run files, or kernels: those stored.")
    ] = None,
    launches: Annotated[
        int, typer.Option(help="Launches of every run: 7 to gate, at least 5 to find anything, as in --launches 7.")
    ] = USUAL_LAUNCHES,
    reference: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            help="A record's id, a commit (launched alternately where it is not recorded, as in --baseline main), or "
            "best, the fastest stretch of the history (default: what was accepted last).",
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="OLD",
            help="Compare with another environment in place of a baseline: its Python, as in --python old/bin/python. "
            "Both are launched alternately, with this code.",
        ),
    ] = None,
    until_decided: Annotated[
        float | None,
        typer.Option(
            metavar="MINUTES",
            help="Go on launching until the check is decided, for at most so many minutes: --until-decided 30.",
        ),
    ] = None,
    accepts: Annotated[
        bool, typer.Option("--accept", help="Make these launches the baseline, and say what moved.")
    ] = False,
    limit: Annotated[
        float,
        typer.Option(help="Slow-down that has to be seen; where less is visible, no change is inconclusive: 0.05."),
    ] = LIMIT,
    ranks: Annotated[int | None, typer.Option(help="Number of processes, as in `reproduce`.")] = None,
    layout: Annotated[str | None, typer.Option(help="Layout, as in `reproduce`: --layout dp2,zero1.")] = None,
    device: Device = "auto",
    compiled: Compiled = None,
    kernels: Annotated[str, typer.Option(help="Kernels, as in `reproduce`: torch or triton.")] = "torch",
    steps: Annotated[int, typer.Option(help="Number of steps of each launch.")] = DEFAULT_STEPS,
    results: Annotated[Path, typer.Option(help="Where records and baselines are.")] = RESULTS,
    json: Annotated[bool, typer.Option("--json", help="One JSON object with every comparison, for machines.")] = False,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", readable=False, help="Write JUnit XML too: --junit regress.xml.")
    ] = None,
    force: Force = False,
    markdown_file: Annotated[
        Path | None,
        typer.Option("--markdown", readable=False, help='Append a summary: --markdown "$GITHUB_STEP_SUMMARY".'),
    ] = None,
) -> None:
    """Launch runs and compare them with the baseline of the same hardware and policy; software may differ.

    Counts, state, traffic and losses are decided by one launch, memory within 2 %; step seconds by launches, with the
    rules of docs/regressions.md. A change of time is called a regression only after old and new code were launched in
    turn again, which takes the old code's commit. Where launches spread so much that a slow-down by --limit would not
    be seen, no change is inconclusive. --python compares two environments, for instance two builds of PyTorch.

    Examples: python -m suite regress bloom-mini --accept; python -m suite regress bloom-mini gpt2-mini --baseline main;
    python -m suite regress bloom-mini --python old/bin/python --launches 10

    Exit codes: 0 no regression (or accepted), 1 a regression, 2 bad input, 3 no baseline, not calibrated or
    inconclusive, 4 the execution failed, 128 + n ended by signal n.
    """
    messages = console(stderr=True)
    asked = _checked_names(names, launches, accepts=accepts)
    if not 0 < limit <= MOST_LIMIT:
        allowed = f"above 0, as in 0.1, and up to {MOST_LIMIT:g}"
        raise InputError("slow-down that has to be seen", got=limit, allowed=allowed, where="--limit")
    _check_excluding(asked, python=python, until_decided=until_decided, reference=reference, accepts=accepts)
    check_new(junit_file, "--junit", force=force)
    check_new(markdown_file, "--markdown", force=True)  # to which a summary is appended
    if KERNELS in asked:
        compared = [_kernels(results, reference, limit)]
        raise typer.Exit(_reported(Outcome(compared, _exit_code(compared)), json, junit_file, markdown_file))
    end_as_interrupted()
    request = Request(name="", ranks=ranks, layout=layout, device=device, compiled=compiled, results=results)
    requests = [msgspec.structs.replace(request, name=name, kernels=kernels, steps=steps) for name in asked]
    runs = [(request, plan(request)) for request in requests]
    for _, planned in runs:
        if slow := check_rank_starts(planned.ranks, planned.device, "--layout" if layout else "--ranks"):
            messages.print(slow, soft_wrap=True)
    known, damaged = all_launches(results, recorded=False)
    reference = resolved(reference, known, results, ROOT)
    name_left_out([*damaged, *accepted(results)[1]])
    environments = None if python is None else _environments(python, messages)
    with messages.status("reading the corpus"):
        checked = [_run(request, planned) for request, planned in runs]
    for run in checked:
        records_directory(results, run.plan.name)
    with ExitStack() as stack:
        launchers = Launchers(results, messages)
        if environments is not None:
            launchers.use(environments, Path(stack.enter_context(scratch_directory(kind="caches-"))))
        check = RegressionCheck(
            checked, results, launchers.now, launchers.by_code, launchers.say, limit, launchers.other
        )
        if until_decided is not None:
            stack.enter_context(time_limit(60 * until_decided))
        outcome = _outcome(check, reference, launches, accepts=accepts, until_decided=until_decided is not None)
    if accepts and outcome.compared:
        moved = [_accept(results, comparison, limit) for comparison in outcome.compared]
        lines = [line for lines, _ in moved for line in lines]
        outcome = outcome._replace(moved=lines, baselines=[found for _, found in moved], code=exit_codes.PASS)
    raise typer.Exit(_reported(outcome, json, junit_file, markdown_file))


class Outcome(NamedTuple):
    """The comparisons, or why there are none in `failed`; what was accepted, in lines, and its spread."""

    compared: list[Comparison]
    code: int
    failed: str = ""
    moved: Sequence[str] = ()
    baselines: Sequence[AcceptedSpread] = ()


def _checked_names(names: list[str] | None, launches: int, *, accepts: bool) -> list[str]:
    """The names, once the request makes sense and no package is missing."""
    if not names:
        raise InputError("no run", allowed="one or more, such as bloom-mini", where="NAME")
    if not 1 <= launches <= MOST_LAUNCHES:
        raise InputError("launches", got=launches, allowed=f"1 to {MOST_LAUNCHES:,}", where="--launches")
    if len({*names}) < len(names):
        raise InputError("a run twice", got=" ".join(names), where="NAME")
    if KERNELS in names and (len(names) > 1 or accepts):
        raise InputError("kernels are compared alone, and need no --accept", got=" ".join(names), where="NAME")
    require(*NEEDED, *(() if KERNELS in names else ("torch",)))
    return names


def _check_excluding(
    names: Sequence[str], *, python: str | None, until_decided: float | None, reference: str | None, accepts: bool
) -> None:
    """Refuse options that say two things."""
    check_minutes(until_decided, "--until-decided")
    others = {"--accept": accepts, "kernels": KERNELS in names}
    for option, given in (("--python", python is not None), ("--until-decided", until_decided is not None)):
        if given and (other := next((name for name, is_given in others.items() if is_given), None)):
            raise InputError(f"not together with {other}", where=option)
    if python is not None and reference is not None:
        raise InputError("the other environment is the baseline: not together with --baseline", where="--python")


def _environments(python: str, messages: Console) -> tuple[Environment, Environment, list[str]]:
    """The named environment and this one, and how they differ; a line says so before anything is launched."""
    with messages.status("looking at both environments"):
        old = environment_of(python, where="--python")
        new = environment_of(sys.executable, where="--python", foreign=False)
        differing = differences(old, new)
    return old, new, differing


class Launchers:
    """Launch runs once: by this environment, by another one, or by the code of a working tree."""

    def __init__(self, results: Path, messages: Console) -> None:
        self._results, self._messages = results, messages
        self._here = OWN
        self.other: OtherEnvironment | None = None

    def use(self, environments: tuple[Environment, Environment, list[str]], caches: Path) -> None:
        """Launch two environments from now on, each with caches of its own."""
        old, new, differing = environments
        self._here = new.interpreter(caches / "new", foreign=False)
        there = old.interpreter(caches / "old", foreign=True)
        words = f"{old.executable}, launched in turn"
        side = OldSide(words=words, name=old.executable, launched=partial(self._by_environment, there))
        self.other = OtherEnvironment(old=old, new=new, differences=differing, side=side)

    def say(self, line: str) -> None:
        """Tell people what happens."""
        self._messages.print(Text(line, "dim"), soft_wrap=True)

    def now(self, run: CheckedRun) -> LaunchResult:
        """By the code and the environment of this process."""
        return self._launched(run, self._here)

    def by_code(self, tree: Path, run: CheckedRun) -> str:
        """By the code of a working tree; the path of the record."""
        with _in_time():
            return old_launch(tree, [*run.arguments])

    def _by_environment(self, interpreter: Interpreter, run: CheckedRun) -> str:
        result = self._launched(run, interpreter)
        if result.status is not Status.OK:
            raise LaunchFailedError(result, f" by {interpreter.executable}")
        return result.record

    def _launched(self, run: CheckedRun, interpreter: Interpreter) -> LaunchResult:
        with _in_time(), training_progress(run.plan, self._messages) as live:
            return reproduce(
                run.plan, run.corpus, self._results, live, profile_source=NO_PROFILE, interpreter=interpreter
            )


@contextmanager
def _in_time() -> Iterator[None]:
    """Nothing begins after the time limit, and what runs then is ended.

    Raises:
        TimeOverError: so it was.
    """
    try:
        check_interrupted()
        yield
    except OutOfTimeError as error:
        raise TimeOverError from error


def _run(request: Request, planned: Plan) -> CheckedRun:
    """A run with its corpus, and the arguments by which older code plans the same."""
    options = {name: getattr(request, name) for name in ("ranks", "layout", "device", "kernels", "steps")}
    arguments = [text for name, value in options.items() if value is not None for text in (f"--{name}", str(value))]
    if request.compiled is not None:
        arguments.append("--compile" if request.compiled else "--no-compile")
    name = str(Path(request.run).absolute()) if request.run.endswith(".toml") else request.run
    whole = (name, *arguments, "--results", str(request.results.absolute()))
    return CheckedRun(plan=planned, corpus=corpus_for(planned, None), arguments=whole)


def _outcome(
    check: RegressionCheck, reference: str | None, launches: int, *, accepts: bool, until_decided: bool
) -> Outcome:
    try:
        compared = check.compared(reference, launches=launches, accepts=accepts, until_decided=until_decided)
        return Outcome(compared, _exit_code(compared))
    except (LaunchFailedError, OldCodeError) as error:
        stopped = isinstance(error, LaunchFailedError) and error.result.status is Status.INTERRUPTED
        return Outcome([], exit_codes.INTERRUPTED if stopped else exit_codes.EXECUTION_FAILED, str(error))
    except OSError as error:  # no room or no access for records or scratch files
        return Outcome([], exit_codes.EXECUTION_FAILED, refusal(error))


def _kernels(results: Path, reference: str | None, limit: float) -> Comparison:
    """The newest stored run of the kernels next to its baseline."""
    storage = results / KERNELS
    runs, damaged = kernel_runs(storage)
    name_left_out(damaged)
    if not runs:
        raise InputError("no stored kernel benchmark", got=str(storage), allowed="what nox -s bench stores")
    before, after = compared_sides(runs, reference)
    most = len(after) if before else 0
    return Comparison(
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
        findings=kernel_findings(before, after, runs, limit) if before else [],
        best=None,
        hint="nox -s bench on another commit, with the same storage, makes one",
    )


def _exit_code(compared: Sequence[Comparison]) -> int:
    changes = {finding.change for comparison in compared for finding in comparison.findings}
    if ChangeVerdict.REGRESSION in changes:
        return exit_codes.FAIL
    undecided = {ChangeVerdict.INCONCLUSIVE, ChangeVerdict.UNCALIBRATED} & changes
    return (
        exit_codes.INCONCLUSIVE
        if undecided or any(not comparison.findings for comparison in compared)
        else exit_codes.PASS
    )


def _accept(results: Path, comparison: Comparison, limit: float) -> tuple[list[str], AcceptedSpread]:
    """Move the baseline; what moved and what it will show, in words, and the latter in numbers."""
    known, _ = all_launches(results, run=comparison.run, recorded=False)
    now = [launch for launch in known if launch.id in comparison.after]
    before = baseline(None, comparison.setup, known, results)
    found = accepted_spread(now, known, limit=limit)
    accept(results, comparison.setup, now, before, found)
    new = f"{len(now)} launches of {comparison.suite}, {_seconds(found.median_seconds)}"
    if before is None:
        moved = f"{comparison.run}: first baseline: {new}"
    else:
        suites = ", ".join(dict.fromkeys(launch.suite for launch in before.launches))
        moved = f"{comparison.run}: baseline moved from {len(before.launches)} launches of {suites}, " + (
            f"{_seconds(before.median)}, to {new}"
        )
    return [moved, *(f"{comparison.run}: {line}" for line in spread_lines(found))], found


def _seconds(median: float | None) -> str:
    return "no time" if median is None else f"median {median:.4g} s"


def _reported(outcome: Outcome, json: bool, junit_file: Path | None, markdown_file: Path | None) -> int:
    """Print what came of it and write the files; the exit code."""
    compared, code, failed, moved, baselines = outcome
    if json:
        facts = {"exit_code": code, "failed": failed, "accepted": moved, "baselines": baselines}
        print_json({**facts, "comparisons": compared})
    else:
        _print(console(), outcome)
    files = ((junit_file, "w", junit, "--junit"), (markdown_file, "a", markdown, "--markdown"))
    for file, mode, text_of, where in files:
        try:
            if file is not None:
                with file.open(mode, encoding="utf-8") as opened:
                    opened.write(text_of(compared, failed))
        except OSError as error:
            raise InputError(f"cannot write: {error.strerror}", got=str(file), where=where) from error
    return code


def _print(out: Console, outcome: Outcome) -> None:
    print_check(out, outcome.compared)
    for line in outcome.moved:
        print_folded(out, f"accepted: {line}", "")
    if outcome.failed:
        out.print(Text(outcome.failed, "bold red"), soft_wrap=True)
    verdicts = {
        exit_codes.PASS: ("accepted" if outcome.moved else "no regression", "green"),
        exit_codes.FAIL: ("regression", "bold red"),
        exit_codes.INCONCLUSIVE: ("not decided", "yellow"),
    }
    if outcome.code in verdicts:
        out.print(Text(*verdicts[outcome.code]))
