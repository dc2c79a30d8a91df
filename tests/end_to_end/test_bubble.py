"""The pipeline's idle share, measured on stages of equal work with a processor each."""

from __future__ import annotations

import statistics
from pathlib import Path

import msgspec
import pytest

from reference_runs.layout import Layout, parse_layout
from suite.machine.devices import usable_cores
from suite.metrics.comparison import Row, Verdict
from suite.metrics.figures import MEASURED_PASSES, Quantity
from suite.predict.executed_run.pipeline_bubble import BUBBLE_TOLERANCE
from suite.records.store import read
from suite.reproduce.judged_record import judged_rows
from suite.reproduce.plan import Plan
from tests.support.launches import FP32_WITHOUT_DROPOUT, launched, small_plan

pytestmark = pytest.mark.alone

LAUNCHES = 5
MOST_IDLE = 0.05  # of the steady state without flush


def pipelined_plan(
    words: str,
    *,
    padded_vocabulary: int,
    hidden: int = 320,
    micro_batch: int = 2,
    micro_batches: int = 4,
    steps: int = 8,
) -> Plan:
    """Eight layers on two stages. Passes take tens of milliseconds, so that a message's time hardly counts."""
    plan = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT)
    architecture = msgspec.structs.replace(
        plan.architecture,
        layers=8,
        hidden=hidden,
        heads=hidden // 64,
        head_dim=64,
        kv_heads=hidden // 64,
        ffn_hidden=4 * hidden,
        vocabulary=padded_vocabulary,
        padded_vocabulary=padded_vocabulary,
        sequence=128,
    )
    layout = parse_layout(words, base=Layout(micro_batch=micro_batch))
    recipe = msgspec.structs.replace(plan.recipe, global_batch=micro_batch * micro_batches)
    return msgspec.structs.replace(plan, architecture=architecture, recipe=recipe, layout=layout, steps=steps)


def bubble_rows(plan: Plan, results: Path) -> tuple[Row, Row]:
    """Rows for passes as long as their flop, and as long as they were measured; the record says the same."""
    result = launched(plan, results)
    by_flop, of_passes = (row for row in result.rows if row.quantity == Quantity.BUBBLE_FRACTION)
    assert (by_flop.term, of_passes.term) == (None, MEASURED_PASSES)
    assert [row for row in judged_rows(read(Path(result.record))) if row.quantity == Quantity.BUBBLE_FRACTION] == [
        by_flop,
        of_passes,
    ]
    return by_flop, of_passes


def undisturbed_bubble_rows(plan: Plan, results: Path) -> tuple[Row, Row]:
    """Rows of the best of three launches: whatever else runs on these processors makes a stage wait longer."""
    for _ in range(3):
        by_flop, of_passes = bubble_rows(plan, results)
        if by_flop.verdict is not Verdict.FAIL and apart(of_passes) <= BUBBLE_TOLERANCE:
            break
    return by_flop, of_passes


def apart(row: Row) -> float:
    """Measured less simulated."""
    assert row.left is not None
    assert row.right is not None
    return abs(row.right - row.left)


@pytest.mark.skipif(usable_cores() < 2, reason="NOT RUN: needs a processor for each of two stages")
def test_a_launch_of_stages_has_the_bubble_of_their_flop_and_of_their_passes(tmp_path: Path) -> None:
    """How near the waiting comes to it depends on what else runs: rare tests judge that."""
    by_flop, of_passes = bubble_rows(pipelined_plan("pp2,1f1b", padded_vocabulary=304), tmp_path)
    assert by_flop.left == pytest.approx(1 / 5, abs=0.01)  # the head is 4 % of a chunk
    assert by_flop.tolerance is not None
    shares = (by_flop.right, of_passes.left, of_passes.right)
    assert all(share is not None and 0 < share < 1 for share in shares), shares


@pytest.mark.rare
@pytest.mark.skipif(usable_cores() < 2, reason="NOT RUN: needs a processor for each of two stages")
@pytest.mark.parametrize(
    ("words", "bubble"),
    [
        ("pp2,1f1b", 1 / 5),
        ("pp2,zero-bubble", 17 / 197),  # 1 / 13, and attention has no weights' half
        ("pp2,zbv", 1 / 25),
        ("pp2,dualpipev", 1 / 13),
        ("pp2,gpipe", 1 / 5),
        ("pp2,1f1b,interleave2", 1 / 9),
    ],
)
def test_equal_stages_wait_for_the_predicted_bubble(words: str, bubble: float, tmp_path: Path) -> None:
    by_flop, of_passes = undisturbed_bubble_rows(pipelined_plan(words, padded_vocabulary=304), tmp_path)
    assert by_flop.left == pytest.approx(bubble, abs=0.01)  # the head is 4 % of a chunk
    assert by_flop.verdict is Verdict.PASS, by_flop
    assert apart(of_passes) <= BUBBLE_TOLERANCE, of_passes


@pytest.mark.rare
@pytest.mark.skipif(usable_cores() < 2, reason="NOT RUN: needs a processor for each of two stages")
@pytest.mark.parametrize(
    ("words", "micro_batches"), [("pp2,pipedream", 1), ("pp2,pipedream", 4), ("pp2,pipedream-2bw", 4)]
)
def test_without_flush_equal_stages_hardly_wait(words: str, micro_batches: int, tmp_path: Path) -> None:
    """1F1B would wait half of the time with one micro-batch, and a fifth with four: 1 / (m + 1).

    The median of five launches, whose passes take more than 0.1 s: a stage waits for every message.
    """
    steps = 24 if micro_batches == 1 else 12
    sizes = {"padded_vocabulary": 512, "hidden": 512, "micro_batch": 4, "micro_batches": micro_batches}
    plan = pipelined_plan(words, **sizes, steps=steps)
    launches = [bubble_rows(plan, tmp_path) for _ in range(LAUNCHES)]
    assert all(by_flop.left == pytest.approx(0, abs=0.01) for by_flop, _ in launches)  # the head is 4 % of a chunk
    measured = [by_flop.right for by_flop, _ in launches if by_flop.right is not None]
    assert len(measured) == LAUNCHES
    assert statistics.median(measured) < MOST_IDLE, measured
    assert statistics.median(apart(of_passes) for _, of_passes in launches) <= BUBBLE_TOLERANCE


@pytest.mark.rare
def test_stages_of_unequal_flop_wait_as_their_measured_passes_say(tmp_path: Path) -> None:
    by_flop, of_passes = undisturbed_bubble_rows(pipelined_plan("pp2,1f1b", padded_vocabulary=1504), tmp_path)
    assert (by_flop.tolerance, by_flop.verdict) == (None, Verdict.SHOWN)
    assert "unequal" in (by_flop.why or "")
    assert apart(of_passes) <= BUBBLE_TOLERANCE, of_passes
