from __future__ import annotations

import pytest
import torch

from kernels.half_matmul import has_instructions
from reference_runs.run import Precision
from suite.execute.precision import DTYPES
from suite.machine.half_precision import has_half_instructions, kernels_for

AVX512 = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"})


@pytest.mark.parametrize("precision", Precision)
def test_what_the_flags_tell_is_what_torch_says_of_this_cpu(precision: Precision) -> None:
    dtype = DTYPES[precision]
    through_fp32 = dtype is not torch.float32 and not has_instructions(dtype)
    assert kernels_for(precision, "cpu").products_through_fp32 is through_fp32


def test_a_gpu_widens_nothing() -> None:
    kernels = kernels_for(Precision.FP16, "cuda")
    assert kernels.cuda
    assert not kernels.products_through_fp32


@pytest.mark.parametrize(
    ("flags", "bf16", "fp16"),
    [
        ({"avx2"}, False, False),
        ({"avx2", "avx512f"}, False, False),
        (AVX512, True, False),
        (AVX512 | {"avx512_fp16"}, True, True),
        ({"avx2", "avx_ne_convert", "avx_vnni_int8"}, True, True),
        (set(), True, True),
    ],
)
def test_16_bit_products_need_their_instructions(flags: set[str], bf16: bool, fp16: bool) -> None:
    assert has_half_instructions(Precision.BF16, frozenset(flags)) is bf16
    assert has_half_instructions(Precision.FP16_NO_MASTER, frozenset(flags)) is fp16
    assert has_half_instructions(Precision.FP32, frozenset(flags))
