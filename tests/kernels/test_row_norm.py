"""How rows of each length are launched: what stays in registers, what is loaded ahead, how many warps there are."""

from __future__ import annotations

import pytest
import torch

from kernels import row_norm
from kernels.layer_norm import layer_norm
from tests.kernels.agreement import DEVICE
from tests.kernels.launches import recorded_launches


@pytest.mark.parametrize(
    ("columns", "dtype", "holds", "stages", "warps"),
    [
        (4096, torch.bfloat16, False, 1, 8),  # many programs share a multiprocessor: one loads while others compute
        (4097, torch.bfloat16, True, 2, 16),  # a block of 8192: weight and bias take 32 of a thread's registers
        (8193, torch.bfloat16, False, 2, 16),
        (16_385, torch.bfloat16, False, 2, 32),  # more than 32 columns in each of 512 threads
        (16_385, torch.float32, False, 1, 32),  # shared memory holds no second pass of 3 * 128 KiB
    ],
)
def test_a_forward_pass_loads_rows_ahead_where_few_programs_share_a_multiprocessor(
    columns: int, dtype: torch.dtype, holds: bool, stages: int, warps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = recorded_launches(row_norm, monkeypatch)
    x, weight = (torch.zeros(*shape, dtype=dtype, device=DEVICE) for shape in ((100, columns), (columns,)))
    layer_norm(x, weight, weight, 1e-5)
    ((programs, settings),) = launches
    found = {name: settings[name] for name in ("HOLDS", "STAGES", "LOOPS", "num_warps")}
    assert found == {"HOLDS": holds, "STAGES": stages, "LOOPS": stages > 1, "num_warps": warps}
    rows = settings["ROWS"]
    assert programs <= 100 if stages > 1 else programs == -(-100 // rows)
