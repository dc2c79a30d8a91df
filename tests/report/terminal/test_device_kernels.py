"""Kernels of a profiled step, in the kinds that a reader asks for."""

from __future__ import annotations

import pytest

from suite.job.device_kernels import DeviceKernel
from suite.report.terminal.device_kernels import kernel_kind, kernel_rows


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT", "matrix multiplications"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_7_64x64x64", "attention"),
        ("triton_red_fused_native_layer_norm_backward_4", "memory-bound operators"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>(long)", "optimizer"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "all-reduce"),
        ("Memcpy HtoD (Pinned -> Device)", "copies between host and device"),
        ("Memcpy DtoD (Device -> Device)", "memory-bound operators"),
        ("others: 7 names", "others"),
    ],
)
def test_a_kernel_s_kind_follows_from_its_name(name: str, kind: str) -> None:
    assert kernel_kind(name) == kind


def test_kinds_come_by_their_time_with_their_kernels_below_them() -> None:
    kernels = [
        DeviceKernel(name="nvjet_a", calls=24, seconds=0.004),
        DeviceKernel(name="triton_poi_fused_add_0", calls=12, seconds=0.005),
        DeviceKernel(name="nvjet_b", calls=12, seconds=0.003),
    ]
    assert kernel_rows(kernels, each=False) == [
        ["matrix multiplications", "36", "7.000", "58.3%"],
        ["memory-bound operators", "12", "5.000", "41.7%"],
    ]
    assert [row[0] for row in kernel_rows(kernels, each=True)] == [
        "matrix multiplications",
        "  nvjet_a",
        "  nvjet_b",
        "memory-bound operators",
        "  triton_poi_fused_add_0",
    ]
