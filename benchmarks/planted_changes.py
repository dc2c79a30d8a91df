"""Plant slow-downs into recorded launches of identical code, and count how often the rule for regressions finds them.

    python -m benchmarks.planted_changes
    python -m benchmarks.planted_changes --samples my_launches.json --comparisons 1000 --json

Launches of one code are dealt, without replacement, into those that calibrate the machine, and for every comparison
into baseline, now, and the old and new ones of a re-run. All steps of the new ones are stretched by 0, 1, 2 and 4 times
the least detectable change that is printed for that calibration. The same seed gives the same result.

Exit codes: 0 as promised (of identical code at most 1 regression in 100; of 1, 2 and 4 times 9 of 10 found), 1 not, 2
bad usage.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from suite.metrics.noise_floor import Floor, least_detectable, noise_floor
from suite.regression.verdicts import ChangeVerdict, Sets, judged

SAMPLES = Path(__file__).parent.parent / "results" / "recorded" / "identical_launches" / "gpt2_mini.json"
MULTIPLES = (0, 1, 2, 4)
CALIBRATIONS = 50
POWER, FALSE = 0.9, 0.01


class TimedLaunch(msgspec.Struct, frozen=True):
    """One recorded launch."""

    timed_step_seconds: list[float]


class Samples(msgspec.Struct, frozen=True):
    """Launches of one code on one machine."""

    run: str
    machine: str
    date: str
    launches: list[TimedLaunch]

    @property
    def medians(self) -> list[float]:
        """One value a launch: the median of its timed steps."""
        return [statistics.median(launch.timed_step_seconds) for launch in self.launches]


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of comparisons with one planted multiple of the least detectable change.

    Args:
        slow_down: the planted one, mean over calibrations.
        by_test: found by the rank test alone; `by_rule` by all conditions but the re-run.
    """

    multiple: int
    slow_down: float
    comparisons: int
    by_test: int
    by_rule: int
    regressions: int
    improved: int


def experiment(
    medians: Sequence[float],
    *,
    comparisons: int,
    launches: int,
    calibration: int,
    seed: int,
    calibrations: int = CALIBRATIONS,
) -> list[Counted]:
    """Counts by multiple, over so many calibrations, with an equal part of the comparisons each.

    Raises:
        ValueError: there are too few launches to deal.
    """
    if len(medians) < calibration + 4 * launches:
        raise ValueError(f"{calibration} + 4 x {launches} launches are needed, got {len(medians)}")
    chance = random.Random(seed)
    outcomes: dict[int, list[tuple[float, bool, bool, ChangeVerdict]]] = {multiple: [] for multiple in MULTIPLES}
    for _ in range(calibrations):
        dealt = chance.sample(list(medians), len(medians))
        floor, rest = noise_floor([dealt[:calibration]]), dealt[calibration:]
        least = None if floor is None else least_detectable(floor, launches, launches, family=1, rerun=launches)
        if floor is None or least is None:
            raise ValueError(f"{launches} launches and a calibration by {calibration} find nothing")
        for multiple in MULTIPLES:
            for _ in range(comparisons // calibrations):
                outcomes[multiple].append(_compared(chance.sample(rest, 4 * launches), floor, multiple * least))
    return [
        Counted(
            multiple=multiple,
            slow_down=statistics.fmean(slow_down for slow_down, *_ in of_multiple),
            comparisons=len(of_multiple),
            by_test=sum(test for _, test, _, _ in of_multiple),
            by_rule=sum(rule for _, _, rule, _ in of_multiple),
            regressions=sum(change is ChangeVerdict.REGRESSION for *_, change in of_multiple),
            improved=sum(change is ChangeVerdict.IMPROVED for *_, change in of_multiple),
        )
        for multiple, of_multiple in outcomes.items()
    ]


def _compared(drawn: list[float], floor: Floor, slow_down: float) -> tuple[float, bool, bool, ChangeVerdict]:
    count = len(drawn) // 4
    old, new, old_again, new_again = (tuple(drawn[n * count : (n + 1) * count]) for n in range(4))
    new, new_again = (tuple((1 + slow_down) * value for value in values) for values in (new, new_again))
    sets = Sets(before=old, after=new, floor=floor)
    (first,) = judged([sets])
    change = first.change
    if first.to_confirm:
        (confirmed,) = judged([msgspec.structs.replace(sets, rerun=(old_again, new_again))])
        change = confirmed.change
    return slow_down, first.q < 0.05, first.to_confirm, change


def as_promised(counted: Sequence[Counted]) -> bool:
    """Identical code: no more false regressions than 1 in 100; at 1 time the least detectable change 9 of 10 found."""
    return all(
        count.regressions <= FALSE * count.comparisons
        if count.multiple == 0
        else count.regressions >= POWER * count.comparisons
        for count in counted
    )


def main(arguments: Sequence[str]) -> int:
    """Run the experiment and print its counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=Path, default=SAMPLES, help="JSON as in results/recorded/identical_launches/")
    parser.add_argument("--comparisons", type=int, default=300, help="of each multiple, a multiple of 50")
    parser.add_argument("--launches", type=int, default=7, help="of a set, as in --launches 5")
    parser.add_argument("--calibration", type=int, default=14, help="identical launches that the floor knows")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    asked = parser.parse_args(arguments)
    try:
        samples = msgspec.json.decode(asked.samples.read_bytes(), type=Samples)
        counted = experiment(
            samples.medians,
            comparisons=asked.comparisons,
            launches=asked.launches,
            calibration=asked.calibration,
            seed=asked.seed,
        )
    except (OSError, msgspec.MsgspecError, ValueError, statistics.StatisticsError) as error:
        sys.stderr.write(f"error: {asked.samples}: {error}\n")
        return 2
    promised = as_promised(counted)
    if asked.json:
        sys.stdout.write(msgspec.json.encode({"as_promised": promised, "counts": counted}).decode() + "\n")
        return 0 if promised else 1
    print(
        f"{samples.run}, {len(samples.launches)} launches of one code, {samples.machine}, {samples.date}; "
        f"{asked.launches} launches a set, {asked.calibration} to calibrate"
    )
    print("planted     slow-down  comparisons  rank test  before re-run  regression  improved")
    for count in counted:
        shares = (count.by_test, count.by_rule, count.regressions, count.improved)
        texts = [f"{share / count.comparisons:.1%}" for share in shares]
        print(
            f"{count.multiple} x least  {count.slow_down:9.1%}  {count.comparisons:11}  {texts[0]:>9}  {texts[1]:>13}"
            f"  {texts[2]:>10}  {texts[3]:>8}"
        )
    print("as promised" if promised else "not as promised")
    return 0 if promised else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
