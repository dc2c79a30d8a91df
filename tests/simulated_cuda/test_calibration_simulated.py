"""Every fused attention of a calibration runs on a GPU, by one kernel for all sizes of a dtype."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from suite.calibration.density import DENSITIES, DTYPES, Scope
from suite.calibration.plan import plan
from suite.execute.calibrate.operators import DTYPES as TORCH_DTYPES
from suite.execute.devices import gpu_facts
from suite.machine.gpu import SdpaBackend, sdpa_backend

# torch's numbers of what scaled_dot_product_attention chooses, SDPBackend
CHOICES = {1: SdpaBackend.FLASH, 2: SdpaBackend.EFFICIENT, 3: SdpaBackend.CUDNN}


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_head_size_that_is_timed_has_the_predicted_kernel_and_no_size_is_refused(dtype: str) -> None:
    before = torch.backends.cuda.math_sdp_enabled()
    torch.backends.cuda.enable_math_sdp(False)  # as ranks have it
    try:
        timed = {
            sizes[2]
            for entry in plan(Scope("cuda", 1, 2, DENSITIES["cuda"]))
            if entry.task.subject.operation == "attention" and entry.task.subject.dtype == dtype
            for sizes in entry.task.sizes
        }
        assert len(timed) > 2
        for head_dim in sorted(timed):
            q = torch.empty(1, 2, 64, head_dim, dtype=TORCH_DTYPES[dtype], device="cuda", requires_grad=True)
            predicted = sdpa_backend(gpu_facts(0), half=dtype != "fp32", head_dim=head_dim)
            assert CHOICES[torch._fused_sdp_choice(q, q, q, is_causal=True)] is predicted
            out = scaled_dot_product_attention(q, q, q, is_causal=True)
            torch.autograd.grad(out, q, torch.empty_like(out))
    finally:
        torch.backends.cuda.enable_math_sdp(before)
