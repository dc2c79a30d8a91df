"""Effects that rows have in common: what they do to a fit, and that they are found again."""

from __future__ import annotations

import msgspec
import numpy
import pytest

pytest.importorskip("scipy", reason="the fit of the machine model needs scipy, of the extra `fit`")

from reference_runs.machine_model import machine_model
from reference_runs.published import PublishedRow, load_table
from reference_runs.published_tables import PUBLISHED
from suite.predict.machine_model.spreads import blocks, estimated, laboratory_of, size_of

SPREADS = machine_model().spreads


def rows_of(*tables: str) -> list[PublishedRow]:
    return [row for table in tables for row in load_table(PUBLISHED / f"{table}.csv").rows if row.step_seconds]


def test_whitened_rows_are_independent_with_variance_1() -> None:
    rows = rows_of("korthikanti2022_table5", "real_runs")
    for block in blocks(rows, SPREADS):
        own = [rows[number] for number in block.rows]
        covariance = numpy.array(
            [
                [
                    SPREADS.laboratory**2 * (laboratory_of(a) == laboratory_of(b))
                    + SPREADS.size**2 * (size_of(a) == size_of(b))
                    + SPREADS.row**2 * (a is b)
                    for a in own
                ]
                for b in own
            ]
        )
        assert block.whitening @ covariance @ block.whitening.T == pytest.approx(numpy.eye(len(own)), abs=1e-9)


def test_every_row_is_in_the_block_of_its_table() -> None:
    rows = rows_of("vtrain_single_h1024", "korthikanti2022_table5")
    found = blocks(rows, SPREADS)
    assert [{rows[number].table for number in block.rows} for block in found] == [
        {"vtrain_single_h1024"},
        {"korthikanti2022_table5"},
    ]
    assert sorted(number for block in found for number in block.rows) == list(range(len(rows)))


def test_a_recorded_run_is_a_laboratory_of_its_own() -> None:
    assert len({laboratory_of(row) for row in rows_of("real_runs")}) == 5
    assert len({laboratory_of(row) for row in rows_of("mosaicml_a100_40gb")}) == 1


def test_a_composed_table_weighs_what_its_independent_layers_are_worth() -> None:
    """720 rows of 16 layers tell of their common level no more than the 16 do, and the laboratory."""
    rows = rows_of("vtrain_single_h1024")
    (block,) = blocks(rows, SPREADS)
    ones = block.whitening @ numpy.ones(len(rows))
    variance = 1 / float(ones @ ones)
    layers = len({(row.layout.tensor_parallel, row.layout.micro_batch) for row in rows})
    assert (len(rows), layers) == (720, 16)
    assert variance > SPREADS.laboratory**2 + SPREADS.part**2 / layers


def test_spreads_are_found_again_in_residuals_that_have_them() -> None:
    true = msgspec.structs.replace(SPREADS, laboratory=0.04, size=0.02, row=0.03)
    rows = rows_of("mosaicml_a100_40gb", "megatron_sc21_table1", "dgxc_24_11_bf16", "korthikanti2022_table5")
    found = []
    for seed in range(3):
        draw = numpy.random.default_rng(seed)
        residuals = numpy.zeros(len(rows))
        for block in blocks(rows, true):
            residuals[block.rows] = numpy.linalg.solve(block.whitening, draw.standard_normal(len(block.rows)))
        found.append(estimated(rows, list(residuals), SPREADS))
    # 131 rows: the standard error of `row` is 0.03 / sqrt(2 * 131), 6 %, and four of them are 25 %
    for each in found:
        assert each.row == pytest.approx(true.row, rel=0.25)
    # a standard deviation of four laboratories is known to a factor of two
    assert true.laboratory / 2 < numpy.mean([each.laboratory for each in found]) < 2 * true.laboratory
