"""Products of experts read and write the sums that they add to."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs.layout import Layout
from reference_runs.run import Workload
from reference_runs.stack import Accumulation
from suite.predict.analytic.expert_time import adding_seconds
from suite.predict.analytic.layer_time import layer_time
from tests.support.machines import A100
from tests.support.steps_with import having
from tests.support.strategies import BLOOM

MIXTURE = msgspec.structs.replace(
    BLOOM.architecture, sequence=64, experts=64, experts_per_token=2, feed_forward_bias=False
)


def test_the_gradient_of_an_experts_weight_reads_and_writes_the_sum_that_its_product_adds_it_to() -> None:
    workload = Workload(MIXTURE, BLOOM.recipe, Layout())
    slow = msgspec.structs.replace(A100, memory_bytes_per_second=1e9)  # bytes alone take time
    adding, apart = (
        layer_time(workload, having(slow, accumulation=how)).backward_seconds
        for how in (Accumulation.IN_PRODUCT, Accumulation.SEPARATE)
    )
    weights = 64 * 2 * MIXTURE.hidden * MIXTURE.ffn_hidden  # two matrices of each
    assert adding - apart == pytest.approx(weights * (2 * 4 - 2) / slow.achievable_memory_bytes_per_second, rel=1e-9)


def test_arithmetic_that_takes_long_enough_hides_those_bytes() -> None:
    adding = having(A100, accumulation=Accumulation.IN_PRODUCT)
    workload = Workload(MIXTURE, BLOOM.recipe, Layout())
    assert adding_seconds(workload, adding, (10**5, 4096, 4096), in_format=False) == 0
    assert adding_seconds(workload, adding, (8, 4096, 4096), in_format=False) > 0
