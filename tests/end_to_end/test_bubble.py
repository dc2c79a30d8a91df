"""The pipeline's idle share, measured on stages of equal work with a processor each."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from reference_runs.layout import Layout, parse_layout
from suite.machine.devices import usable_cores
from suite.metrics.comparison import Row, Verdict
from suite.metrics.figures import Quantity
from suite.reproduce.plan import Plan
from tests.support.launches import FP32_WITHOUT_DROPOUT, launched, small_plan

pytestmark = pytest.mark.timing

MICRO_BATCHES = 4


def pipelined_plan(words: str, *, padded_vocabulary: int) -> Plan:
    """Eight layers of 320 on two stages. Passes take tens of milliseconds, so that a message's time hardly counts."""
    plan = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT)
    architecture = msgspec.structs.replace(
        plan.architecture,
        layers=8,
        hidden=320,
        heads=5,
        head_dim=64,
        kv_heads=5,
        ffn_hidden=1280,
        vocabulary=padded_vocabulary,
        padded_vocabulary=padded_vocabulary,
        sequence=128,
    )
    layout = parse_layout(words, base=Layout(micro_batch=2))
    recipe = msgspec.structs.replace(plan.recipe, global_batch=2 * MICRO_BATCHES)
    return msgspec.structs.replace(plan, architecture=architecture, recipe=recipe, layout=layout, steps=8)


def bubble_row(plan: Plan, results: Path) -> Row:
    (row,) = [row for row in launched(plan, results).rows if row.quantity == Quantity.BUBBLE_FRACTION]
    return row


def undisturbed_bubble_row(plan: Plan, results: Path) -> Row:
    """Of up to three launches: whatever else runs on these processors makes one of the stages wait longer."""
    for _ in range(3):
        row = bubble_row(plan, results)
        if row.verdict is Verdict.PASS:
            break
    return row


@pytest.mark.skipif(usable_cores() < 2, reason="NOT RUN: needs a processor for each of two stages")
@pytest.mark.parametrize(
    ("words", "bubble"),
    [
        ("pp2,1f1b", 1 / 5),
        pytest.param("pp2,zero-bubble", 1 / 13, marks=pytest.mark.rare),
        pytest.param("pp2,gpipe", 1 / 5, marks=pytest.mark.rare),
        pytest.param("pp2,1f1b,interleave2", 1 / 9, marks=pytest.mark.rare),
    ],
)
def test_equal_stages_wait_for_the_predicted_bubble(words: str, bubble: float, tmp_path: Path) -> None:
    row = undisturbed_bubble_row(pipelined_plan(words, padded_vocabulary=304), tmp_path)
    assert row.left == pytest.approx(bubble, abs=0.01)  # the head is 4 % of a chunk
    assert row.verdict is Verdict.PASS, row


@pytest.mark.rare
def test_stages_of_unequal_flop_are_shown_and_not_judged(tmp_path: Path) -> None:
    row = bubble_row(pipelined_plan("pp2,1f1b", padded_vocabulary=1504), tmp_path)
    assert (row.tolerance, row.verdict) == (None, Verdict.SHOWN)
    assert "unequal" in row.why
