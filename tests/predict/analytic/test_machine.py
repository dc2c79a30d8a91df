from __future__ import annotations

import pytest

from suite.predict.analytic.gemm import efficiency
from suite.predict.analytic.machine import attention_clock_share
from tests.support.machines import A100


def test_a_machine_reaches_its_share_of_each_peak() -> None:
    assert A100.achievable_memory_bytes_per_second == 2039e9 * A100.memory_efficiency
    assert A100.achievable_link_bytes_per_second == 300e9 * A100.link_efficiency
    assert A100.achievable_network_bytes_per_second == 50e9 * A100.network_efficiency
    for M, N, K in ((1, 1, 1), (4096, 4096, 4096), (10**6, 8, 3)):
        assert efficiency(A100.matrix_efficiency, M=M, N=N, K=K, element_bytes=2) == 0.75


@pytest.mark.parametrize("share", [0.05, 0.2, 0.35, 0.6, 0.687])
def test_a_limit_of_power_holds_the_clock_of_a_slower_kernel_down_less(share: float) -> None:
    """Dynamic power, in proportion to rate at full clock times clock cubed, is at most that of large products."""
    clock, products = 0.843, 0.687
    allowed = products * clock**3
    found = attention_clock_share(clock, matrix=products, attention=share)
    assert clock <= found <= 1
    if found < 1:
        assert share * found**3 == pytest.approx(allowed)
    else:
        assert share <= allowed
    assert attention_clock_share(1.0, matrix=products, attention=0.9) == 1.0
