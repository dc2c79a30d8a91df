"""torchtitan's published rows, which take part in no fit: step times, peaks, and what selective recomputation keeps."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from reference_runs.layout import Layout, Recomputation, parse_layout
from reference_runs.published import PublishedRow, load_table
from reference_runs.published_tables import PUBLISHED, held_out_tables, shipped_tables
from reference_runs.stack import stack
from suite.predict.analytic.activations import kept_by_operator
from suite.predict.analytic.flop import layer_forward_flop, recomputed_flop
from suite.predict.validation.published_tables import row_prediction

TABLE, LARGE = PUBLISHED / "torchtitan_202412.csv", PUBLISHED / "torchtitan_202412_405b.csv"
KEEPING = {name: stack(name).switches.keeping for name in ("torchtitan", "torchtitan-compiled")}


def _errors(path: Path) -> tuple[list[float], list[float]]:
    """Relative errors of step times and of peaks."""
    rows = load_table(path).rows
    found = [row_prediction(row) for row in rows]
    return _times(rows), [each.peak_bytes / (row.peak_bytes or 0.0) - 1 for each, row in zip(found, rows, strict=True)]


def _times(rows: Sequence[PublishedRow]) -> list[float]:
    return [row_prediction(row).step_seconds / (row.step_seconds or 0.0) - 1 for row in rows]


def _mean(errors: list[float]) -> float:
    return sum(map(abs, errors)) / len(errors)


def test_no_row_of_torchtitan_takes_part_in_a_fit() -> None:
    assert {TABLE, LARGE} <= set(held_out_tables())
    assert {TABLE, LARGE}.isdisjoint(shipped_tables())


def test_peaks_of_all_twelve_rows_are_within_8_percent_in_the_mean() -> None:
    _, peaks = _errors(TABLE)
    assert len(peaks) == 12
    assert _mean(peaks) < 0.08


def test_step_times_of_both_tables_are_within_6_percent_in_the_mean() -> None:
    for path, rows in ((TABLE, 12), (LARGE, 6)):
        times, _ = _errors(path)
        assert len(times) == rows
        assert _mean(times) < 0.06


def test_a_ring_on_4_and_8_ranks_is_that_of_consecutive_parts() -> None:
    """Balanced rings would take a third less than was measured."""
    rows = [row for row in load_table(TABLE).rows if row.layout.context_parallel >= 4]
    balanced = [msgspec.structs.replace(row, stack="torchtitan-compiled") for row in rows]
    assert _mean(_times(rows)) < 0.06
    assert max(_times(balanced)) < -0.3


def test_eager_and_compiled_steps_are_within_6_percent_each() -> None:
    rows = load_table(TABLE).rows
    times = _times([row for row in rows if row.layout.recomputation is Recomputation.SELECTIVE_OP])
    assert len(times) == 6
    assert max(map(abs, times)) < 0.06


def test_whole_gradients_of_pipeline_stages_explain_the_peaks_of_405b() -> None:
    _, peaks = _errors(LARGE)
    assert max(map(abs, peaks)) < 0.19


def test_selective_op_keeps_every_other_product_and_attention() -> None:
    row = load_table(TABLE).rows[0]
    a, tokens = row.architecture, 2 * 8192
    widths = a.query_width + a.kv_heads * a.head_dim + a.ffn_hidden + a.hidden  # query, value, gate, down
    kept = kept_by_operator(row.workload, KEEPING["torchtitan"])
    scores = 4 * a.heads * tokens
    assert sum(kept.values()) == 2 * tokens * (a.hidden + widths + a.context_width) + scores
    compiled = kept_by_operator(row.workload, KEEPING["torchtitan-compiled"])
    assert sum(kept.values()) - sum(compiled.values()) == 2 * tokens * a.hidden  # no gradient reads the last one


def test_selective_op_repeats_key_projection_and_up() -> None:
    a = load_table(TABLE).rows[0].architecture
    layer = layer_forward_flop(a, samples=1)
    columns = a.kv_heads * a.head_dim + a.query_width + a.ffn_hidden
    again = recomputed_flop(a, samples=1, recomputation=Recomputation.SELECTIVE_OP, layers=3)
    assert again == 3 * 2 * a.sequence * a.hidden * columns
    assert again < 3 * sum(layer.values())


@pytest.mark.parametrize("word", ["selective-op", "recompute-selective-op"])
def test_layouts_know_both_words(word: str) -> None:
    assert parse_layout(f"dp8,zero3,{word}", base=Layout()).recomputation is Recomputation.SELECTIVE_OP


def test_rows_are_those_of_the_source() -> None:
    with TABLE.open() as file:
        rows = list(csv.DictReader(file))
    # printed tokens per second of an accelerator, lines 2 to 13
    printed = [5762, 6667, 8532, 5605, 6514, 8380, 3890, 2540, 1071, 548, 829, 876]
    found = [
        round(
            float(row["global_batch"]) * float(row["seq_len"]) / float(row["measured_step_time_s"]) / int(row["gpus"])
        )
        for row in rows
    ]
    assert found == printed
