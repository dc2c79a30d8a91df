"""How near the shipped machine model comes to the shipped tables: no change may take it farther away."""

from __future__ import annotations

import pytest

from reference_runs.published import load_table
from reference_runs.published_tables import PUBLISHED, shipped_tables
from suite.predict.validation.published_tables import table_score

# Mean absolute error of the step times in percent: the smallest multiple of 0.5 above what the stored parameters reach.
# The model was built for 5, 3, 2, 7.1, 5.1, 4.5, 3.05 and 8 in the first eight; for the last two nothing was asked.
MOST_PERCENT = {
    "real_runs": 4.0,
    "megatron_sc21_table1": 2.0,
    "korthikanti2022_table5": 2.0,
    "vtrain_multi_small": 7.0,
    "vtrain_single_h1024": 5.0,
    "mosaicml_a100_40gb": 4.0,
    "dgxc_24_11_bf16": 3.0,
    "playbook_h100_1b": 8.0,
    "megatron_readme_2021_01": 3.5,
    "megatron_sc21_table2": 3.5,
}


def test_every_shipped_table_has_a_bound() -> None:
    assert set(MOST_PERCENT) == {path.stem for path in shipped_tables()}


@pytest.mark.parametrize("name", MOST_PERCENT)
def test_step_times_of_a_table_are_within_its_bound(name: str) -> None:
    score = table_score(load_table(PUBLISHED / f"{name}.csv"), worst=0)
    assert score.step_seconds_mape is not None
    assert score.constant_mfu_mape is not None
    assert score.step_seconds_mape <= MOST_PERCENT[name]
    # a model of one number, the best for this very table, must not do as well
    assert score.step_seconds_mape < score.constant_mfu_mape
