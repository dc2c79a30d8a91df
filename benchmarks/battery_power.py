"""How often `accept` rejects a good node, and finds a bad one, counted in recorded batteries and in drawn ones.

    python -m benchmarks.battery_power results/recorded DIRECTORY --drawn 300

Recorded batteries count as good nodes' but for those that are named with --bad. A drawn battery takes its
micro-measurements and launches from one recorded battery of the machine, and its exchanges from another; a fault is
planted into it. It is judged as `accept` judges, against a past of as many drawn ones: up to ten launches, and up to
three measurements of what fails, each from other recorded batteries. So what is measured again in one battery is taken
to differ as batteries do. Machines with fewer than 3 recorded batteries say nothing of how these differ.

Exit codes: 0 as promised, 1 not, 2 bad usage, 3 too few recorded batteries.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import NamedTuple

import msgspec

from reference_runs.errors import InputError
from suite.acceptance.battery_record import PhaseEvidence
from suite.acceptance.check_table import ALL_REDUCE, ATTRIBUTION, MATRIX, MEMORY, PEER, SPREAD, STEP_TIME, STRAGGLER
from suite.acceptance.evidence import Evidence, LaunchPurpose, Load, MicroMeasurements, MiniatureLaunch, ProbeResult
from suite.acceptance.findings import confirmed, decision
from suite.acceptance.judge.judge import battery_findings
from suite.acceptance.past_batteries import History
from suite.acceptance.phases import EXCHANGES, MEASURED_BY_TIMES, NEEDS_MICRO
from suite.acceptance.presets import EFFORTS
from suite.commands import exit_codes
from suite.job.calibration_job import RankMoments
from suite.job.events import Status
from suite.paths import ROOT
from suite.records.battery import BatteryBegin, BatteryEnd, CheckFinding, CheckVerdict, Decision, read_half

CHECKS = (MATRIX, SPREAD, MEMORY, PEER, ALL_REDUCE, STEP_TIME, ATTRIBUTION, STRAGGLER)
FEWEST = 3  # recorded batteries of a machine
PAST = 10  # accepted batteries before the one that is judged
OF_ONE_PAST = 10  # drawn batteries that are judged against the same past
LEAST_FOUND = 0.95
MOST_FALSE = 0.01
LOOKS = EFFORTS["quick"].looks
RANK, SLOWER_RANK, SLOWER_MEMORY, SLOWER_LINK = 1, 1.1, 0.8, 0.5
CONFIDENCE = 0.95


class RecordedBattery(NamedTuple):
    """Measurements of one battery by clocks, and its decision."""

    path: str
    machine: str
    decision: Decision
    micro: list[MicroMeasurements]
    launches: list[MiniatureLaunch]
    probes: list[ProbeResult]

    @property
    def is_whole(self) -> bool:
        """Whether it has all that a drawn battery needs."""
        return bool(self.micro and len(self.launches) >= LOOKS[0] and self.probes)


class DrawnBattery(NamedTuple):
    """Evidence of one battery: each part is drawn anew where it is measured again."""

    micro: MicroMeasurements
    launches: list[MiniatureLaunch]
    probe: ProbeResult


PlantedFault = Callable[[DrawnBattery], DrawnBattery]


def recorded_batteries(directories: Sequence[Path]) -> list[RecordedBattery]:
    """All batteries with a verdict below the directories, that were launched for times too; others are left out."""
    found = []
    for path in sorted(path for directory in directories for path in directory.rglob("acceptance/*.end.json")):
        try:
            end = read_half(path, BatteryEnd)
            begin_path = path.with_name(path.name.replace(".end.", ".begin."))
            begin = read_half(begin_path, BatteryBegin)
            evidence = _evidence(path)
        except (OSError, InputError) as error:
            sys.stderr.write(f"left out: {error}\n")
            continue
        good = [item for item in evidence if isinstance(item, Load) and item.status is Status.OK]
        found.append(
            RecordedBattery(
                path=str(path),
                machine=f"{begin.hardware.get('cpu', 'unknown')}, {begin.hardware.get('gpus', '')}, {end.node}",
                decision=end.decision,
                micro=[item for item in good if isinstance(item, MicroMeasurements) and not item.set_aside],
                launches=[
                    item
                    for item in good
                    if isinstance(item, MiniatureLaunch) and item.purpose is LaunchPurpose.TIMES and not item.set_aside
                ],
                probes=[item for item in good if isinstance(item, ProbeResult) and item.exchanges],
            )
        )
    return found


def _evidence(end: Path) -> list[Evidence]:
    phases = sorted(end.parent.glob(f"{end.name.removesuffix('.end.json')}.*.phase.json"))
    return [item for path in phases for item in read_half(path, PhaseEvidence).evidence]


def drawn_battery(chance: random.Random, one: RecordedBattery, other: RecordedBattery, launches: int) -> DrawnBattery:
    """Micro-measurements with launches of one battery, which share its speed, and exchanges of another one.

    A launch is drawn twice only where more are asked for than there are: five drawn with replacement are 3.4 different
    ones, which spread less than five launches do. Nobody computed beside it: what others disturb is measured again,
    which is not drawn here.
    """
    alone = {"others_share": 0.0, "steal_share": 0.0}
    drawn = chance.sample(one.launches, min(launches, len(one.launches)))
    drawn += chance.choices(one.launches, k=launches - len(drawn))
    return DrawnBattery(
        micro=msgspec.structs.replace(chance.choice(one.micro), **alone),
        launches=[msgspec.structs.replace(launch, **alone) for launch in drawn],
        probe=msgspec.structs.replace(chance.choice(other.probes), replays=[], soaks=[], **alone),
    )


class DrawnNode:
    """A node with a fault; each call measures it anew, with figures of other recorded batteries while there are some.

    A measurement that is drawn again would confirm itself.
    """

    def __init__(
        self, chance: random.Random, batteries: Sequence[RecordedBattery], fault: PlantedFault | None = None
    ) -> None:
        self._chance, self._fault = chance, fault or no_fault
        self._ones, self._others = (itertools.cycle(chance.sample(batteries, len(batteries))) for _ in range(2))

    def __call__(self, launches: int) -> DrawnBattery:
        """A battery with so many launches."""
        return self._fault(drawn_battery(self._chance, next(self._ones), next(self._others), launches))


def no_fault(battery: DrawnBattery) -> DrawnBattery:
    """As it was measured."""
    return battery


def slow_rank(battery: DrawnBattery) -> DrawnBattery:
    """A rank computes 10 % longer, and the others wait for it."""
    matrix = [rate / SLOWER_RANK if rank == RANK else rate for rank, rate in enumerate(battery.micro.matrix)]
    launches = []
    for launch in battery.launches:
        compute = [
            seconds * SLOWER_RANK if rank == RANK else seconds for rank, seconds in enumerate(launch.compute_seconds)
        ]
        longer = max(compute, default=0.0) - max(launch.compute_seconds, default=0.0)
        whole = None if launch.step_seconds is None else launch.step_seconds + max(0.0, longer)
        launches.append(msgspec.structs.replace(launch, compute_seconds=compute, step_seconds=whole))
    moments = [_slower(of_rank) if rank == RANK else of_rank for rank, of_rank in enumerate(battery.micro.moments)]
    micro = msgspec.structs.replace(battery.micro, matrix=matrix, moments=moments)
    return battery._replace(micro=micro, launches=launches)


def _slower(of_rank: RankMoments) -> RankMoments:
    """The battery's turns, with arithmetic that takes longer; waiting for memory does not."""
    fastest, middle = (
        msgspec.structs.replace(
            sample,
            host=sample.host * SLOWER_RANK,
            product=sample.product * SLOWER_RANK,
            elementwise=sample.elementwise * SLOWER_RANK,
        )
        for sample in (of_rank.fastest, of_rank.middle)
    )
    product = of_rank.product and of_rank.product * SLOWER_RANK
    return msgspec.structs.replace(of_rank, fastest=fastest, middle=middle, product=product)


def slow_memory(battery: DrawnBattery) -> DrawnBattery:
    """Copies and triads at 0.8 of their rate; steps as they were, which makes it harder to find."""
    rates = {name: [SLOWER_MEMORY * rate for rate in getattr(battery.micro, name)] for name in ("copy", "triad")}
    moments = [
        msgspec.structs.replace(
            of_rank, **{name: tuple(SLOWER_MEMORY * rate for rate in getattr(of_rank, name)) for name in rates}
        )
        for of_rank in battery.micro.moments
    ]
    return battery._replace(micro=msgspec.structs.replace(battery.micro, **rates, moments=moments))


def slow_link(battery: DrawnBattery) -> DrawnBattery:
    """All messages at half their rate."""
    slower = [
        msgspec.structs.replace(exchange, bytes_per_second=SLOWER_LINK * exchange.bytes_per_second)
        for exchange in battery.probe.exchanges
    ]
    return battery._replace(probe=msgspec.structs.replace(battery.probe, exchanges=slower))


# by name: the fault, and words of the part that must be named
FAULTS: dict[str, tuple[PlantedFault, str]] = {
    "none": (no_fault, ""),
    "a rank 10 % slower": (slow_rank, f"rank {RANK}"),
    "memory 20 % slower": (slow_memory, "memory bandwidth"),
    "links at half rate": (slow_link, "link"),
}


def judged(draw: Callable[[int], DrawnBattery], history: History) -> list[CheckFinding]:
    """The findings of `accept`, with further launches where the first look is open and up to two re-runs.

    Args:
        draw: a battery with so many launches; each call is another measurement.
    """
    whole = draw(LOOKS[-1])
    battery = whole._replace(launches=whole.launches[: LOOKS[0]])
    first = _findings(battery, history, LOOKS)
    if _open(first, STEP_TIME):
        first = _findings(whole, history, LOOKS)
    rounds: list[list[CheckFinding]] = []
    for _ in range(2):
        found = confirmed(first, *rounds)
        failed = {one.key for one in first if one.verdict is CheckVerdict.FAIL}
        if not failed or (
            rounds and not any(one.key in failed and one.verdict is CheckVerdict.INCONCLUSIVE for one in found)
        ):
            break
        repeated = _findings(_again(battery, draw(LOOKS[0]), failed), history, LOOKS[:1])
        rounds.append([one for one in repeated if one.key in failed])
    return confirmed(first, *rounds)


def _again(battery: DrawnBattery, anew: DrawnBattery, keys: Set[tuple[int, str]]) -> DrawnBattery:
    """The battery with what its re-run measures anew for findings that failed: see `repetition.planned_reruns`."""
    failed = {check for check, _ in keys}
    of_launches = failed & MEASURED_BY_TIMES or (battery.micro.virtual and SPREAD in failed)
    return DrawnBattery(
        micro=anew.micro if failed & NEEDS_MICRO else battery.micro,
        launches=anew.launches if of_launches else battery.launches,
        probe=anew.probe if failed & EXCHANGES else battery.probe,
    )


def _open(findings: Sequence[CheckFinding], check: int) -> bool:
    return any(one.check == check and one.verdict is CheckVerdict.INCONCLUSIVE for one in findings)


def _findings(battery: DrawnBattery, history: History, looks: Sequence[int]) -> list[CheckFinding]:
    evidence: list[Evidence] = [battery.micro, *battery.launches, battery.probe]
    return battery_findings(evidence, history, others=1.0, looks=looks, selected=CHECKS)


def past(chance: random.Random, batteries: Sequence[RecordedBattery]) -> History:
    """So many accepted drawn batteries, each judged against those before it."""
    values: dict[str, list[CheckFinding]] = {}
    for _ in range(3 * PAST):
        found = judged(DrawnNode(chance, batteries), History(past=values))
        if decision(found) is not Decision.ACCEPTED:
            continue
        for one in found:
            if one.compared_as and one.measured is not None:
                values.setdefault(f"{one.check}:{one.compared_as}", []).append(one)
        if max(map(len, values.values()), default=0) >= PAST:
            break
    return History(past=values)


def outcomes(
    batteries: Sequence[RecordedBattery], drawn: int, fault: PlantedFault, part: str, seed: int
) -> Counter[str]:
    """How many drawn batteries were accepted, rejected, and left open; rejected with another part is "elsewhere"."""
    chance = random.Random(seed)
    counts: Counter[str] = Counter()
    history = History()
    for number in range(drawn):
        if number % OF_ONE_PAST == 0:
            history = past(chance, batteries)
        found = judged(DrawnNode(chance, batteries, fault), history)
        verdict = decision(found)
        is_named = any(part in one.part for one in found if one.verdict is CheckVerdict.FAIL)
        counts["elsewhere" if verdict is Decision.REJECTED and not is_named else verdict.value] += 1
    return counts


def interval(count: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share, by Clopper and Pearson."""
    from scipy.stats import binomtest

    found = binomtest(count, of).proportion_ci(CONFIDENCE, "exact")
    return float(found.low), float(found.high)


def _share(count: int, of: int) -> str:
    low, high = interval(count, of)
    return f"{count} of {of} ({low:.1%} to {high:.1%})"


def report(batteries: Sequence[RecordedBattery], drawn: int, seed: int) -> int:
    """Print the counts; the exit code."""
    rejected = sum(battery.decision is Decision.REJECTED for battery in batteries)
    opened = sum(battery.decision is Decision.UNDECIDED for battery in batteries)
    machines: dict[str, list[RecordedBattery]] = {}
    for battery in batteries:
        machines.setdefault(battery.machine, []).append(battery)
    if batteries:
        of_good = _share(rejected, len(batteries))
        print(f"recorded: {of_good} of good nodes rejected, {opened} not decidable, {len(machines)} machines")
    as_promised, said = True, False
    for machine, of_machine in machines.items():
        whole = [battery for battery in of_machine if battery.is_whole]
        if len(whole) < FEWEST:
            print(f"{machine}: {len(whole)} whole batteries, {FEWEST} needed to draw from")
            continue
        said = True
        print(f"{machine}: drawn from {len(whole)} batteries, each against {PAST} before it")
        for name, (fault, part) in FAULTS.items():
            counts = outcomes(whole, drawn, fault, part, seed)
            bad = counts[Decision.REJECTED.value] + (counts["elsewhere"] if fault is no_fault else 0)
            rest = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
            print(f"  {name:20} rejected {_share(bad, drawn)}: {rest}")
            as_promised &= bad <= MOST_FALSE * drawn if fault is no_fault else bad >= LEAST_FOUND * drawn
    if not said:
        return exit_codes.INCONCLUSIVE
    return exit_codes.PASS if as_promised else exit_codes.FAIL


def main(arguments: Sequence[str]) -> int:
    """Read the batteries, draw, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path, help="directories with batteries; default: results/")
    parser.add_argument("--bad", nargs="*", default=[], metavar="ID", help="batteries of nodes that were bad")
    parser.add_argument("--drawn", type=int, default=200, help="batteries for each fault, a multiple of 10")
    parser.add_argument("--seed", type=int, default=1)
    parsed = parser.parse_args(arguments)
    if parsed.drawn < 1:
        parser.error(f"--drawn: {parsed.drawn}; allowed: 1 or more")
    found = recorded_batteries(parsed.results or [ROOT / "results"])
    good = [battery for battery in found if not any(identity in battery.path for identity in parsed.bad)]
    return report(good, parsed.drawn, parsed.seed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
