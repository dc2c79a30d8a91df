"""A machine profile as tables: what the machine can do, how well lines and interpolation describe it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

import msgspec
from rich.console import Console

from reference_runs.units import printed
from suite.machine.half_precision import kernels_for
from suite.machine.operations import COLLECTIVES, moved_bytes
from suite.machine.profile import Check, Profile, disturbed
from suite.machine.timing_tables import Line, Subject, Table
from suite.machine.timings import Timing, median, quantile
from suite.metrics.difference_words import Direction, difference_in_words
from suite.predict.simulation.step_correction import StepCorrection, step_correction
from suite.report.terminal.tables import print_folded, print_table


class Rate(NamedTuple):
    """The best point of a table: its sizes, timing, and work a second."""

    sizes: tuple[float, ...]
    timing: Timing
    unit: str
    per_second: float


def best_rate(table: Table) -> Rate:
    """The point of the table with the most work a second; of copy and triad the last one, beyond every cache."""
    points = list(product(*(axis.points for axis in table.axes)))
    unit, _ = work(table.subject, points[0])
    rates = [
        Rate(p, t, unit, work(table.subject, p)[1] / t.seconds) for p, t in zip(points, table.timings, strict=True)
    ]
    return rates[-1] if len(table.axes) == 1 else max(rates, key=lambda rate: rate.per_second)


def work(subject: Subject, sizes: tuple[float, ...]) -> tuple[str, float]:
    """Unit of the rate and amount of work at one point of a table.

    Flop of products (2 M N K) and attention (causal: half of 4 T^2 K a head forward, 2.5 times as much backward: five
    products in place of two); least bytes of all else.
    """
    if subject.operation == "product":
        return "flop/s", 2 * sizes[0] * sizes[1] * sizes[2]
    if subject.operation in ("batched_product", "attention"):
        share = 2.5 if subject.variant == "backward" else 1.0
        return "flop/s", share * 2 * sizes[0] * sizes[1] ** 2 * sizes[2]
    if subject.operation in ("copy", "triad"):
        return "byte/s", sizes[0]
    return "byte/s", moved_bytes(subject.operation, subject.variant, subject.dtype) * sizes[0] * sizes[1]


def _spread(timing: Timing) -> str:
    """Middle three fifths of the calls, in percent of the median."""
    return f"{100 * timing.low / timing.median:.0f} to {100 * timing.high / timing.median:.0f} %"


def _by_ranks(subjects: Iterable[Subject]) -> dict[Subject, set[int]]:
    """Subjects without their ranks, in order -> the numbers of ranks that were measured at once."""
    ranks_of: dict[Subject, set[int]] = {}
    for subject in subjects:
        ranks_of.setdefault(msgspec.structs.replace(subject, ranks=0), set()).add(subject.ranks)
    return ranks_of


def _rates(profile: Profile, counts: list[int]) -> Iterator[list[str]]:
    for subject in _by_ranks(table.subject for table in profile.tables):
        row, sizes = [_name(subject)], ""
        for ranks in counts:
            of_ranks = msgspec.structs.replace(subject, ranks=ranks)
            best = max(
                (best_rate(t) for t in profile.tables if t.subject == of_ranks), key=lambda rate: rate.per_second
            )
            row += [f"{printed(best.per_second, best.unit)}{best.unit}", _spread(best.timing)]
            sizes = " x ".join(f"{size:,.0f}" for size in best.sizes)
        yield [*row, sizes]


def _operators(profile: Profile, counts: list[int]) -> Iterator[list[str]]:
    lines = {line.subject: line for line in profile.lines if line.subject.operation not in COLLECTIVES}
    for subject in _by_ranks(lines):
        row = [_name(subject)]
        for ranks in counts:
            row += _cells(lines[msgspec.structs.replace(subject, ranks=ranks)])[:3]
        yield row


def _name(subject: Subject) -> str:
    return " ".join(
        word
        for word in (subject.operation, subject.variant, subject.dtype, "compiled" if subject.compiled else "")
        if word
    )


def _cells(line: Line) -> list[str]:
    """Fixed seconds, bandwidth, residual, worst residual."""
    subject, moved = line.subject, 0
    if line.unit in ("byte", "element"):
        moved = 1 if line.unit == "byte" else moved_bytes(subject.operation, subject.variant, subject.dtype)
    each = "-"
    if moved and line.seconds_per_unit:
        each = f"{printed(moved * line.units_per_second, 'byte/s')}byte/s"
    elif line.unit in ("tensor", "call"):
        each = f"{line.seconds_per_unit * 1e6:,.3g} us a {line.unit}"
    return [f"{line.fixed_seconds * 1e6:,.4g}", each, f"{line.residual:.0%}", f"{line.worst:.0%}"]


def check_rows(checks: list[Check]) -> Iterator[list[str]]:
    """Errors by kind, operation and ranks at once: points, median, 90 % quantile, largest; and the median in words."""
    grouped: dict[tuple[str, str, int], list[float]] = {}
    for check in checks:
        key = (check.subject.operation, check.kind, check.subject.ranks)
        grouped.setdefault(key, []).append(check.error)
    for (operation, kind, ranks), errors in sorted(grouped.items()):
        sizes = [abs(error) for error in errors]
        middle, most = f"{median(sizes):.1%}", f"{max(sizes):.1%}"
        tail, words = f"{quantile(sizes, 0.9):.1%}", difference_in_words(1.0, 1 + median(errors), Direction.TIME)
        yield [operation, kind, str(ranks), str(len(errors)), middle, tail, most, words]


def step_corrections(profile: Profile) -> list[StepCorrection]:
    """Reference steps next to the sum of their parts, as the profile has these."""
    device = profile.fingerprint.device
    return [
        step_correction(profile, timed, kernels=kernels_for(timed.step.recipe.precision, device))
        for timed in profile.reference_steps
    ]


def _reference_step_rows(profile: Profile) -> Iterator[list[str]]:
    for correction in step_corrections(profile):
        step, timing = correction.timed.step, correction.timed.timing
        yield [
            "compiled" if step.compiled else "eager",
            str(step.layout.ranks),
            f"{1000 * correction.parts_seconds:.4g}",
            f"{1000 * timing.seconds:.4g}",
            _spread(timing),
            str(timing.repetitions),
            f"{correction.factor:.2f}",
        ]


def print_profile(out: Console, profile: Profile) -> None:
    """Print the machine, its rates, its lines, the errors of interpolation, and what disturbed the measurement."""
    conditions = profile.conditions
    hardware = profile.fingerprint.hardware
    measured = f"{conditions.ranks} ranks at once in {conditions.seconds:.0f} s"
    machine = f"{hardware.get('cpu')}, {hardware.get('cores')} cores, GPUs: {hardware.get('gpus')}"
    print_folded(out, f"{machine}; measured on {profile.fingerprint.device} with up to {measured}", "")
    counts = sorted({1, conditions.ranks})  # what lies between is in the file
    titles = [title for ranks in counts for title in (f"{ranks} at once", f"{ranks}: 20-80 %")]
    print_table(out, _rates(profile, counts), ["best rate", *titles, "at"])
    titles = [title for ranks in counts for title in (f"{ranks} at once: us", f"{ranks}: each", f"{ranks}: residual")]
    print_table(out, _operators(profile, counts), ["operator", *titles])
    between = [line for line in profile.lines if line.subject.operation in COLLECTIVES]
    if between:
        rows = [[_name(line.subject), str(line.subject.ranks), *_cells(line)] for line in between]
        print_table(out, rows, ["collective", "ranks", "latency us", "bandwidth", "residual", "worst"])
    if profile.reference_steps:
        titles = ["ranks", "its parts: ms", "it took: ms", "20-80 %", "steps", "took over parts"]
        print_table(out, _reference_step_rows(profile), ["reference step", *titles])
    titles = ["kind", "ranks", "points", "median", "90 %", "largest", "measured is"]
    print_table(out, check_rows(profile.checks), ["interpolation error", *titles])
    print_folded(out, disturbance(profile))
    for fact in ("hurried", "over_budget"):
        if fact in conditions.facts:
            print_folded(out, conditions.facts[fact], "yellow")
    if why := disturbed(profile):
        print_folded(out, f"{why}: no step is predicted from it; calibrate again when they are done", "yellow")


def disturbance(profile: Profile) -> str:
    """Everything else that the machine did meanwhile, in one line."""
    conditions = profile.conditions
    said = ("governor", "gpu_log", "rounds")
    parts = [f"{name} {value}" for name, value in sorted(conditions.facts.items()) if name in said]
    if conditions.load_before is not None and conditions.load_after is not None:
        parts.append(f"load {conditions.load_before:.1f} before, {conditions.load_after:.1f} after")
    if conditions.others_share is not None:
        parts.append(f"other processes took {conditions.others_share:.0%} of the processors")
    if conditions.steal_share is not None:
        parts.append(f"other guests {conditions.steal_share:.1%}")
    return "; ".join(parts)
