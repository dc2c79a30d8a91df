"""Injects faults into real batteries, one at a time: python -m benchmarks.accept_selftest --only nan,slow-link

Each injection is one `python -m suite accept`, whose exit code, finding and record must be as expected.
`--clean 5` first runs 5 quick batteries without a fault, which must be accepted; each has the earlier ones as its past.
Exit codes: 0 all caught, and all clean ones accepted; 1 one was not; 2 bad usage; 3 some did not run
(`--allow-not-run`: none did); 130 interrupted: the battery that ran has ended.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.accept_selftest.child import child
from benchmarks.accept_selftest.faults import INJECTIONS
from benchmarks.accept_selftest.injection import AcceptedBefore, Injection, InjectionDirectories
from suite.acceptance.battery_record import PhaseEvidence
from suite.acceptance.evidence import PhaseTiming
from suite.acceptance.presets import EFFORTS
from suite.commands import exit_codes
from suite.launch.interruption import end_as_interrupted
from suite.records.battery import BatteryEnd, CheckVerdict, Decision, read_half

LIMIT_SECONDS = 1800.0
START_SECONDS = 10.0  # of the command, before its battery begins and after it ended
FRAMES = re.compile(r"^rank (\d+):\n(.*?)(?=^rank \d+:\n|\Z)", re.MULTILINE | re.DOTALL)  # of one rank


class Answer(NamedTuple):
    """Exit code, output and duration of one command."""

    code: int
    out: str
    err: str
    seconds: float


def main() -> int:
    """Run the injections that are asked for; print one line for each, or one JSON object."""
    names = [injection.name for injection in INJECTIONS]
    parser = argparse.ArgumentParser(prog="nox -s accept_selftest --", description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=f"comma-separated, of: {', '.join(names)}; or none")
    parser.add_argument("--clean", type=int, default=0, metavar="N", help="quick batteries without a fault, in a row")
    parser.add_argument("--open", type=int, default=0, metavar="N", help="clean batteries that may be not decidable")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="results directory of the clean batteries")
    parser.add_argument("--allow-not-run", action="store_true", help="exit code 0 also where some cannot run here")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else names
    wanted = [] if wanted == ["none"] else wanted
    if arguments.clean < 0:
        parser.error(f"--clean: {arguments.clean}; allowed: 0 or more")
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; allowed: {', '.join(names)}")
    chosen = [injection for injection in INJECTIONS if injection.name in wanted]
    caught = ran = 0
    not_run: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="suite-selftest-") as scratch:
        kept = arguments.keep or Path(scratch) / "clean"
        clean = _clean(arguments.clean, kept, as_json=arguments.json)
        results = Path(scratch) / "results"
        for injection in chosen:
            why_not = injection.needs()
            if why_not is None:
                why_not = _baseline(results, injection.past or AcceptedBefore.LINKS)
            if why_not is not None:
                not_run[why_not] += 1
                _print_outcome(injection.name, {"outcome": "NOT RUN", "why": why_not}, as_json=arguments.json)
                continue
            ran += 1
            directory = Path(scratch) / injection.name
            directory.mkdir()
            problems, answer = _injected(injection, InjectionDirectories(results, directory))
            caught += not problems
            outcome = _outcome("missed" if problems else "caught", answer, "; ".join(problems))
            _print_outcome(injection.name, outcome, as_json=arguments.json)
    reasons = "; ".join(f"{count}: {why}" for why, count in not_run.items())
    left = f"{not_run.total()} not run" + (f" ({reasons})" if reasons else "")
    of_clean = f"{_clean_words(clean)}, " if arguments.clean else ""
    sys.stderr.write(f"{of_clean}{caught} of {ran} injections caught, {left}\n")
    if caught < ran or not _clean_is_good(clean, allowed_open=arguments.open):
        return exit_codes.FAIL
    nothing = not ran and not arguments.clean
    return exit_codes.INCONCLUSIVE if nothing or (not_run and not arguments.allow_not_run) else exit_codes.PASS


class CleanBattery(NamedTuple):
    """The decision of a battery without a fault, and its seconds."""

    decision: str
    seconds: float


def _clean_words(clean: Sequence[CleanBattery]) -> str:
    """Verdicts and times in one line."""
    counts = Counter(battery.decision for battery in clean)
    others = "".join(f", {count} {name}" for name, count in sorted(counts.items()) if name != Decision.ACCEPTED)
    longest = max(battery.seconds for battery in clean)
    whole = sum(battery.seconds for battery in clean)
    accepted = counts[Decision.ACCEPTED]
    times = f"{whole / len(clean):.0f} s each, {longest:.0f} s at most"
    return f"{accepted} of {len(clean)} clean batteries accepted{others}; {times}"


def _clean_is_good(clean: Sequence[CleanBattery], *, allowed_open: int) -> bool:
    """Whether all were accepted, but for so many that were not decidable, and each within its limit and a start."""
    counts = Counter(battery.decision for battery in clean)
    in_time = all(battery.seconds <= EFFORTS["quick"].limit_seconds + START_SECONDS for battery in clean)
    return (
        in_time
        and counts[Decision.UNDECIDED] <= allowed_open
        and not counts.keys() - {Decision.ACCEPTED, Decision.UNDECIDED}
    )


def _clean(count: int, results: Path, *, as_json: bool) -> list[CleanBattery]:
    """Run quick batteries without a fault into the same results, with an operator's limits."""
    clean: list[CleanBattery] = []
    for number in range(1, count + 1):
        answer = _accept(["--results", str(results), "--json"], {}, [])
        try:
            report = json.loads(answer.out)
            decision, why = report["decision"], "" if answer.code == exit_codes.PASS else report["summary"]
        except (json.JSONDecodeError, KeyError):
            decision, why = "no report", answer.err[-300:]
        if (answer.code == exit_codes.PASS) != (decision == Decision.ACCEPTED):
            decision, why = f"exit code {answer.code}", f"{decision}; {why}"
        clean.append(CleanBattery(decision, answer.seconds))
        _print_outcome(f"clean {number} of {count}", _outcome(decision, answer, why), as_json=as_json)
    return clean


def _outcome(outcome: str, answer: Answer, why: str) -> dict[str, Any]:
    return {"outcome": outcome, "exit_code": answer.code, "seconds": round(answer.seconds, 1), "why": why}


def _print_outcome(name: str, outcome: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        line = json.dumps({"injection": name, **outcome})
    else:
        rest = ", ".join(f"{key} {value}" for key, value in outcome.items() if key != "outcome" and value != "")
        line = f"{name:24} {outcome['outcome']:8} {rest}"
    print(line, flush=True)


def _baseline(results: Path, past: AcceptedBefore) -> str | None:
    """Make an accepted battery of these checks in `results`, if there is none; why that failed."""
    mark = results / past.name
    if mark.exists():
        return None
    answer = _accept(["--only", past.value, "--others", "1", "--results", str(results)], {}, [])
    if answer.code != exit_codes.PASS:
        lines = [*answer.err.splitlines(), *answer.out.splitlines()]
        return f"no accepted battery without a fault: {lines[-1] if lines else answer.code}"
    mark.touch()
    return None


def _accept(arguments: list[str], environment: dict[str, str], prefix: list[str]) -> Answer:
    start = time.monotonic()
    command = [*prefix, sys.executable, "-m", "suite", "accept", *arguments]
    with child(command, os.environ | environment, out=subprocess.PIPE, err=subprocess.PIPE) as battery:
        out, err = (printed.decode() for printed in battery.communicate(timeout=LIMIT_SECONDS))
    return Answer(battery.returncode, out, err, time.monotonic() - start)


def _injected(injection: Injection, directories: InjectionDirectories) -> tuple[list[str], Answer]:
    """Run one injection; what is not as expected, and the command's answer."""
    results = directories.scratch / "own" if injection.past is None else directories.results
    with injection.prepare(directories) as prepared:
        arguments = list(injection.only)
        if "--others" not in arguments:
            arguments += ["--others", "1"]  # also on a shared machine the fault must be found
        if "--results" not in prepared.arguments:
            arguments += ["--results", str(results)]
        arguments += [*prepared.arguments, "--json"]
        answer = _accept(arguments, prepared.environment, prepared.prefix)
        return _problems(injection, answer), answer


def _problems(injection: Injection, answer: Answer) -> list[str]:
    problems = []
    if answer.code != injection.code:
        problems.append(f"exit code {answer.code}, not {injection.code}")
    if "Traceback" in answer.err:
        problems.append(f"a traceback: {answer.err.splitlines()[-1]}")
    if injection.check is None:
        if injection.words not in answer.err + answer.out:
            problems.append(f"{injection.words!r} was not printed: {answer.err[-300:]}")
        return problems
    try:
        report = json.loads(answer.out)
    except json.JSONDecodeError:
        return [*problems, f"no report: {answer.err[-300:]}"]
    of_check = [finding for finding in report["findings"] if finding["check"] == injection.check]
    wanted = [verdict for verdict in (injection.verdict, injection.or_verdict) if verdict]
    named = [f for f in of_check if f["verdict"] in wanted and injection.part in f["part"]]
    if not any(injection.words in finding["evidence"] for finding in named):
        seen = "; ".join(f"{f['verdict']} {f['part']!r} {f['evidence']}" for f in of_check)
        verdict = " or ".join(wanted)
        problems.append(f"no {verdict} on {injection.part!r} with {injection.words!r}: {seen[:600]}")
    problems += [
        f"{f['verdict']} on {f['part']!r} does not say what to do next"
        for f in named
        if f["verdict"] not in (CheckVerdict.PASS, CheckVerdict.NOT_RUN) and not (f["action"] and f["to_do"])
    ]
    for check in injection.passes:
        verdicts = [finding["verdict"] for finding in report["findings"] if finding["check"] == check]
        if verdicts != [CheckVerdict.PASS]:
            problems.append(f"check {check} did not pass: {verdicts}")
    path = Path(report["record"])
    if injection.stacks_of:
        problems += _missing_stacks(path, injection.stacks_of)
    closed = read_half(path, BatteryEnd)
    if closed.decision != report["decision"] or len(closed.findings) != len(report["findings"]):
        problems.append("the record has another verdict")
    return problems


def _missing_stacks(record: Path, ranks: Sequence[int]) -> list[str]:
    """Ranks of which the phase that hangs has no Python stacks in the record."""
    stacks = "".join(
        timing.stacks
        for path in record.parent.glob(f"{record.name.removesuffix('.end.json')}.*.phase.json")
        for timing in read_half(path, PhaseEvidence).evidence
        if isinstance(timing, PhaseTiming) and timing.outcome == "hang"
    )
    recorded = {int(rank) for rank, text in FRAMES.findall(stacks) if 'File "' in text}
    return [f"no stacks of rank {rank} in the record" for rank in ranks if rank not in recorded]


if __name__ == "__main__":
    end_as_interrupted()
    try:
        code = main()
    except KeyboardInterrupt:  # the battery and what was injected have ended
        code = exit_codes.INTERRUPTED
    sys.exit(code)
