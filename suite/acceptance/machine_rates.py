"""The rates of a node's parts: flop/s of products, byte/s of copies, as a calibration timed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reference_runs.accelerator import accelerator
from reference_runs.errors import InputError
from reference_runs.this_cpu import THIS_CPU
from suite.calibration.plan import TABLE, Planned
from suite.job.calibration_job import TimedTask
from suite.machine.profile import Profile
from suite.machine.timing_tables import Subject
from suite.machine.timings import median

HOST_DEVICE = ("host_to_device", "device_to_host")
SQUARE, MOVES = "square_product", ("copy", "triad")


def rate_tasks(planned: Sequence[Planned], ranks: int) -> list[Planned]:
    """The tasks of a calibration whose times are rates, by all ranks at once; predictions need the others too."""
    return [entry for entry in planned if entry.task.subject.ranks == ranks and _is_rate(entry)]


def _is_rate(entry: Planned) -> bool:
    subject = entry.task.subject
    if subject.operation in (SQUARE, *HOST_DEVICE):
        return True
    product = subject.operation == "product" and subject.dtype == "bf16"
    return entry.kind == TABLE and (product or subject.operation in MOVES)


def part_rates(
    planned: Sequence[Planned], points: Mapping[tuple[int, int], list[TimedTask]], ranks: int
) -> tuple[list[float], list[float], list[float]]:
    """By rank, while all measured: flop/s of the fastest 16-bit product, byte/s of copies and of triads.

    On a GPU of the large square products; otherwise of the miniatures' shapes.

    Args:
        points: by rank and number of the task, its rounds.
    """
    matrix, squares, copy, triad = ([0.0] * ranks for _ in range(4))
    for (rank, number), rounds in points.items():
        subject, sizes = planned[number].task.subject, planned[number].task.sizes
        if subject.ranks != ranks or not _is_rate(planned[number]):
            continue
        if subject.operation == SQUARE:
            squares[rank] = max(flop / _seconds(rounds, point) for point, (flop,) in enumerate(sizes))
        elif subject.operation == "product":
            rates = (2.0 * m * n * k / _seconds(rounds, point) for point, (m, n, k) in enumerate(sizes))
            matrix[rank] = max(matrix[rank], *rates)
        elif subject.operation in MOVES:
            (copy if subject.operation == "copy" else triad)[rank] = sizes[-1][0] / _seconds(rounds, -1)
    return squares if all(squares) else matrix, copy, triad


def _seconds(rounds: list[TimedTask], point: int) -> float:
    """The median over a point's repetitions in all rounds, without the slow phases of the machine."""
    return median(seconds for measured in rounds for seconds in measured.points[point].seconds)


def product_points(profile: Profile) -> int:
    """Number of shapes of 16-bit products timed on all ranks at once: with more, the fastest is faster, and predictions
    are closer."""
    return sum(
        len(table.timings)
        for table in profile.tables
        if (table.subject.operation, table.subject.dtype) == ("product", "bf16")
        and table.subject.ranks == profile.conditions.ranks
    )


def host_device_rates(profile: Profile) -> dict[str, float]:
    """byte/s by direction; empty where the profile has no such copies."""
    rates = {}
    for operation in HOST_DEVICE:
        try:
            line = profile.line(Subject(operation=operation, ranks=profile.conditions.ranks))
        except InputError:
            continue
        rates[operation.replace("_", " ")] = line.sizes[-1] / line.timings[-1].median
    return rates


def peak_of_rank(profile: Profile, ranks: int) -> tuple[float | None, str]:
    """A CPU's dense peak of one rank in flop/s, and its source; none of a GPU, which floors judge."""
    if profile.fingerprint.device == "cuda":
        return None, ""
    try:
        peaks = accelerator(THIS_CPU).peak_flop_per_second
    except InputError:
        return None, ""
    dtype = "bf16" if "bf16" in peaks else "fp32"
    source = f"1/{ranks} of this CPU's {dtype} peak, {peaks[dtype] / 1e9:,.0f} Gflop/s by its clock and vector width"
    return peaks[dtype] / ranks, source
