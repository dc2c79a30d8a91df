"""Break one expression at a time, and see whether the module's own tests notice: nox -s mutation -- suite/metrics

    nox -s mutation -- suite/metrics --sample 100
    nox -s mutation -- --changed main            # 10 minutes, modules that differ from a commit
    nox -s mutation                              # 40 of each area, for once a week

Mutants are cosmic-ray's. It changes the text of a module, as Triton's kernels, tables of constants and decorated
functions need; mutmut 3 wraps functions in the running process, and leaves those out. They are tried in a random order
until the sample or the time is used up, in a copy of the checkout, by the tests that run the mutated statement.

Exit codes: 0 every area has the wanted score, 1 one has not, or the trials say nothing (see `score.problems`), 2 bad
usage, 3 the interval of a sample contains the wanted score.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.mutation.area_trials import AreaTrials
from benchmarks.mutation.areas import AREAS, area_of, modules_of
from benchmarks.mutation.mutants import Mutant, mutants
from benchmarks.mutation.score import MutationScore, Tried, equivalents, problems, scored, unused
from benchmarks.mutation.trial import TrialOutcome, import_libraries
from reference_runs.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
OF_CHANGED_SECONDS, MOST_SECONDS = 600.0, 7200.0
WEEKLY_SAMPLE = 40  # of each area
PASS, FAIL, BAD_USAGE, INCONCLUSIVE = 0, 1, 2, 3


def main() -> int:
    """Try mutants, print survivors and scores."""
    parser = argparse.ArgumentParser(prog="nox -s mutation --", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", metavar="PATH", help=f"modules or directories; default: {', '.join(AREAS)}")
    parser.add_argument("--changed", metavar="COMMIT", help="modules that differ from it, in 10 minutes")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N mutants of each area, drawn at random")
    parser.add_argument("--seconds", type=float, help="no mutant is begun afterwards")
    parser.add_argument("--seed", type=int, help="of the order; default: today's date, such as 20261127")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every trial")
    arguments = parser.parse_args()
    if arguments.changed and arguments.paths:
        parser.error("--changed names the modules: no PATH with it")
    for name in ("sample", "seconds"):
        if getattr(arguments, name) is not None and getattr(arguments, name) <= 0:
            parser.error(f"--{name}: {getattr(arguments, name)}; allowed: above 0")
    try:
        modules = _changed(arguments.changed) if arguments.changed else modules_of(ROOT, arguments.paths or [*AREAS])
    except InputError as error:
        parser.error(str(error))
    seconds = arguments.seconds or (OF_CHANGED_SECONDS if arguments.changed else MOST_SECONDS)
    sample = arguments.sample or (None if arguments.changed or arguments.paths else WEEKLY_SAMPLE)
    seed = arguments.seed or int(datetime.datetime.now(datetime.UTC).strftime("%Y%m%d"))
    order: dict[str, list[Mutant]] = {}
    for module in modules:
        order.setdefault(area_of(module), []).extend(mutants(ROOT, module))
    order = {area: some for area, some in order.items() if some}
    population = {area: len(some) for area, some in order.items()}
    for some in order.values():
        random.Random(seed).shuffle(some)
    if not order:
        print("no module of those has anything to mutate")
        return PASS if arguments.changed else FAIL
    count = sum(population.values())
    print(f"{count:,} mutants of {len(modules)} modules, seed {seed}, at most {seconds:,.0f} s", flush=True)
    done, refused = _all_tried({area: some[:sample] for area, some in order.items()}, seconds)
    scores = [
        scored(area, [each for each in done if area_of(each.mutant.module) == area], population[area])
        for area in population
        if any(area_of(each.mutant.module) == area for each in done)
    ]
    _print(scores)
    left = [area for area in population if area not in {score.area for score in scores}]
    for area in left:
        print(f"{area}: none of {population[area]:,} mutants tried, no time was left")
    wrong = [
        *refused,
        *(line for score in scores for line in problems(score)),
        *(f"not equivalent, a test found it: {line}" for line in unused(equivalents(), done)),
    ]
    if not done:
        wrong.append("no mutant ran")
    if arguments.json:
        arguments.json.write_bytes(_report(seed, scores, done))
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return FAIL if wrong else decided(scores, left)


def decided(scores: Sequence[MutationScore], left: Sequence[str] = ()) -> int:
    """The exit code for scores that are sound, with areas that are `left` without one."""
    if any(score.high < score.wanted for score in scores):
        return FAIL
    return INCONCLUSIVE if left or any(score.low < score.wanted for score in scores) else PASS


def _changed(commit: str) -> list[str]:
    """Modules of the areas that differ from a commit."""
    command = ("git", "diff", "--name-only", "--diff-filter=d", commit, "--", *AREAS)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError("no such commit", got=commit, allowed="a commit of this checkout", where="--changed")
    return modules_of(ROOT, [name for name in done.stdout.splitlines() if name.endswith(".py")])


def _all_tried(order: Mapping[str, Sequence[Mutant]], seconds: float) -> tuple[list[Tried], list[str]]:
    """The mutants that were tried, and what fails without any; everything happens in a copy of the checkout.

    Each area has an equal share of the time that the ones before it have left.
    """
    with tempfile.TemporaryDirectory(prefix="suite-mutation-") as scratch:
        Path(scratch).chmod(0o755)  # some tests become another user
        copy = Path(scratch) / "checkout"
        _copied(copy)
        _enter(copy)
        end, done, refused = time.monotonic() + seconds, list[Tried](), list[str]()
        for place, (area, some) in enumerate(order.items()):
            now = time.monotonic()
            trials = AreaTrials(copy, Path(scratch), area, sorted({mutant.module for mutant in some}))
            try:
                refused += [f"{area}: fails without a mutant: {line}" for line in trials.failures]
                print(*refused, sep="\n", end="\n" if refused else "", flush=True)
                done += _until(now + (end - now) / (len(order) - place), some, trials)
            finally:
                trials.close()
            print(f"{area}: {time.monotonic() - now:,.0f} s", flush=True)
        os.chdir(ROOT)
        return done, refused


def _until(end: float, order: Sequence[Mutant], trials: AreaTrials) -> Iterator[Tried]:
    known = equivalents()
    for mutant in order:
        if not trials.tests or time.monotonic() > end:
            return
        one = trials.of(mutant)
        if one is not None:
            why = known.get((mutant.module, one.change.before, one.change.after), "")
            one = one._replace(why=why if one.trial.outcome is TrialOutcome.SURVIVED else "")
            _tell(one)
            yield one


def _copied(copy: Path) -> None:
    """Copy what git knows and what it does not ignore."""
    listed = subprocess.run(
        ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.split("\0"):
        source = ROOT / name
        if name and source.is_file():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    subprocess.run(("git", "init", "--quiet"), cwd=copy, check=True)


def _enter(copy: Path) -> None:
    """Make this process the one whose forks run the tests in the copy: nothing of the project may be imported yet."""
    os.chdir(copy)
    sys.pycache_prefix = None
    sys.path[:] = [str(copy), *(entry for entry in sys.path if entry not in ("", str(ROOT)))]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("suite", "reference_runs", "kernels")]:
        del sys.modules[name]
    os.environ |= {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    os.environ |= {"TESTS_START_RANKS": "fork", "TESTS_RANK_SECONDS": "30"}  # a mutant makes ranks wait for ever
    os.environ["PYTHONPATH"] = str(copy)
    os.environ.pop("PYTHONPYCACHEPREFIX", None)
    import_libraries()
    gc.freeze()


def _tell(one: Tried) -> None:
    trial, mutant = one.trial, one.mutant
    if trial.outcome in (TrialOutcome.ASSERTED, TrialOutcome.RAISED):
        return
    what = f"equivalent: {one.why}" if one.why else str(trial.outcome)
    print(f"{mutant.module}:{mutant.line}: {what}\n    {one.change.before}\n    {one.change.after}", flush=True)


def _print(scores: Sequence[MutationScore]) -> None:
    for score in scores:
        share = "-" if score.score is None else f"{score.score:.1%}"
        found = f"{score.asserted + score.raised} found ({score.asserted} by assertion), {score.survived} survived"
        rest = f"{score.equivalent} equivalent, {score.timed_out} timed out, {score.broken} broken"
        interval = f"[{score.low:.1%}, {score.high:.1%}]" if score.low < score.high else "all"
        of = f"{score.tried} of {score.mutants:,} mutants"
        print(f"{score.area}: {share} {interval}, wanted {score.wanted:.0%}: {of}: {found}, {rest}")


def _report(seed: int, scores: Sequence[MutationScore], done: Sequence[Tried]) -> bytes:
    commit = subprocess.run(("git", "rev-parse", "HEAD"), cwd=ROOT, capture_output=True, text=True, check=False)
    whole = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "seed": seed,
        "scores": scores,
        "trials": [
            {
                "module": each.mutant.module,
                "line": each.mutant.line,
                "operator": each.mutant.operator,
                "before": each.change.before,
                "after": each.change.after,
                "outcome": each.trial.outcome,
                "test": each.trial.test,
                "error": each.trial.error,
                "why": each.why,
            }
            for each in done
        ],
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"


if __name__ == "__main__":
    sys.exit(main())
