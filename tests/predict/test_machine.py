from __future__ import annotations

import msgspec

from suite.predict.gemm import efficiency
from suite.predict.machine import Machine
from tests.predict.machines import A100, ASSUMED


def test_a_plain_machine_reaches_the_assumed_share_of_each_peak() -> None:
    assert A100.achievable_memory_bytes_per_second == 2039e9 * ASSUMED.memory_efficiency
    assert A100.achievable_link_bytes_per_second == 300e9 * ASSUMED.link_efficiency
    assert A100.achievable_network_bytes_per_second == 50e9 * ASSUMED.network_efficiency
    for M, N, K in ((1, 1, 1), (4096, 4096, 4096), (10**6, 8, 3)):
        assert efficiency(A100.matrix_efficiency, M=M, N=N, K=K, element_bytes=2) == ASSUMED.matrix_efficiency


def test_a_plain_machine_takes_every_assumption() -> None:
    taken = {name: getattr(A100, name) for name in msgspec.structs.asdict(ASSUMED) if name != "matrix_efficiency"}
    assert msgspec.structs.asdict(ASSUMED) == taken | {"matrix_efficiency": ASSUMED.matrix_efficiency}
    assert set(taken) | {"matrix_efficiency"} < set(Machine.__struct_fields__)
