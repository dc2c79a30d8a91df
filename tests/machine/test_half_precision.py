"""Which CPUs multiply 16-bit matrices by instructions of their own, without asking torch."""

from __future__ import annotations

import torch

from kernels.half_matmul import has_instructions
from reference_runs.run import Precision
from suite.execute.precision import DTYPES
from suite.machine.half_precision import has_half_instructions, kernels_for

AVX512 = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"})


def test_what_the_flags_tell_is_what_torch_says_of_this_cpu_and_a_gpu_widens_nothing() -> None:
    halves = {precision: DTYPES[precision] is not torch.float32 for precision in DTYPES}
    widened = {one: half and not has_instructions(DTYPES[one]) for one, half in halves.items()}
    assert {one: kernels_for(one, "cpu").products_through_fp32 for one in DTYPES} == widened
    on_gpu = kernels_for(Precision.FP16, "cuda")
    assert (on_gpu.cuda, on_gpu.products_through_fp32) == (True, False)


def test_16_bit_products_need_their_instructions() -> None:
    needed = {
        frozenset({"avx2"}): (False, False),
        frozenset({"avx2", "avx512f"}): (False, False),
        AVX512: (True, False),
        AVX512 | {"avx512_fp16"}: (True, True),
        frozenset({"avx2", "avx_ne_convert", "avx_vnni_int8"}): (True, True),
        frozenset[str](): (True, True),
    }
    kinds = Precision.BF16, Precision.FP16_NO_MASTER
    assert {flags: tuple(has_half_instructions(kind, flags) for kind in kinds) for flags in needed} == needed
    assert all(has_half_instructions(Precision.FP32, flags) for flags in needed)
