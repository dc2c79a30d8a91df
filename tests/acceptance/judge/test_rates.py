"""What the micro-measurements say of each rank's products and memory."""

from __future__ import annotations

import msgspec
import pytest

from suite.acceptance.machine_rates import part_rates, product_points
from suite.acceptance.presets import EFFORTS
from suite.calibration.density import Scope
from suite.calibration.plan import LINE, TABLE, Planned, plan
from suite.job.calibration_job import Task, TimedTask
from suite.machine.timing_tables import Subject
from suite.machine.timings import Repetitions
from tests.support.profiles import profile as machine


def entry(operation, sizes, *, ranks=2, kind=TABLE, dtype="bf16"):
    subject = Subject(operation=operation, dtype=dtype, ranks=ranks)
    return Planned(kind, Task(subject=subject, threads=1, sizes=sizes, point_seconds=0.0))


def round_of(task, *seconds):
    """One round of a task: seconds of each point, repeated thrice."""
    return TimedTask(task, 0, tuple(Repetitions((one, one, 9 * one), 0) for one in seconds), 0.0)


def test_the_best_shape_of_all_ranks_at_once_counts_and_the_largest_copy():
    planned = [
        entry("product", ((10, 10, 10), (20, 20, 20))),
        entry("product", ((99, 99, 99),), ranks=1),
        entry("product", ((99, 99, 99),), dtype="fp32"),
        entry("copy", ((100,), (800,)), dtype="fp32"),
        entry("triad", ((100,), (900,)), dtype="fp32"),
    ]
    points = {(rank, task): [round_of(task, *([1.0 + rank] * 2))] for rank in (0, 1) for task in range(5)}
    assert part_rates(planned, points, 2) == ([16000.0, 8000.0], [800.0, 400.0], [900.0, 450.0])


def test_a_finer_grid_has_more_points_of_products_on_all_ranks():
    """Quick calibrations have fewer than those of `accept`: 3 transpositions of 1 point, not of 2 * 2 * 2."""
    tables = [
        msgspec.structs.replace(table, subject=msgspec.structs.replace(table.subject, dtype="bf16"))
        for table in machine().tables
    ]
    found = msgspec.structs.replace(machine(), tables=tables)
    assert product_points(found) == 24
    coarse = [msgspec.structs.replace(table, timings=table.timings[:1]) for table in tables]
    assert product_points(msgspec.structs.replace(found, tables=coarse)) == 3


def test_copies_and_triads_move_as_many_bytes_in_every_profile():
    for device in ("cpu", "cuda"):
        assert len({one.densities[device].memory_bytes for one in EFFORTS.values()}) == 1


def test_large_square_products_count_where_every_rank_timed_them():
    planned = [entry("product", ((10, 10, 10),)), entry("square_product", ((5000,), (90000,)), kind=LINE)]
    points = {(rank, task): [round_of(task, *([2.0] * (1 + task)))] for rank in (0, 1) for task in (0, 1)}
    assert part_rates(planned, points, 2)[0] == [45000.0, 45000.0]
    del points[1, 1]
    assert part_rates(planned, points, 2)[0] == [1000.0, 1000.0]


@pytest.mark.parametrize("profile", ["quick", "accept"])
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_the_plan_of_a_gpu_node_has_what_checks_1_and_3_compare_with_data_sheets(ranks, profile):
    planned = plan(Scope("cuda", ranks, 16, EFFORTS[profile].densities["cuda"]))
    points = {
        (rank, number): [round_of(number, *([1e-3] * len(one.task.sizes)))]
        for number, one in enumerate(planned)
        for rank in range(one.task.subject.ranks)
    }
    matrix, copy, triad = part_rates(planned, points, ranks)
    assert matrix == pytest.approx([2 * 8192**3 / 1e-3] * ranks)
    assert copy == triad == pytest.approx([8e12] * ranks, rel=0.01)
