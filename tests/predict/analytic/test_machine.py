from __future__ import annotations

from suite.predict.analytic.gemm import efficiency
from tests.support.machines import A100


def test_a_machine_reaches_its_share_of_each_peak() -> None:
    assert A100.achievable_memory_bytes_per_second == 2039e9 * A100.memory_efficiency
    assert A100.achievable_link_bytes_per_second == 300e9 * A100.link_efficiency
    assert A100.achievable_network_bytes_per_second == 50e9 * A100.network_efficiency
    for M, N, K in ((1, 1, 1), (4096, 4096, 4096), (10**6, 8, 3)):
        assert efficiency(A100.matrix_efficiency, M=M, N=N, K=K, element_bytes=2) == 0.75
