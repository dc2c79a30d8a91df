"""Counts of a simulated device's log."""

from __future__ import annotations

import pytest

from benchmarks.simulated_step import LOG, LaunchKind, LoggedStep, logged_step, main

LINES = """\
7 10.000000 launch device=0 grid=1,1,1 block=1,1,1 shared=0 triton_poi_fused_add_0
7 11.000000 launch device=0 grid=1,1,1 block=1,1,1 shared=0 triton_poi_fused_add_0
7 11.100000 launch device=0 grid=1,1,1 block=1,1,1 shared=0 cudnn_graph
7 11.200000 matmul device=0 768x65536x2304 count=2 cublasLtMatmul
7 11.200001 matmul device=0 768x65536x2304 count=1 cublasGemmEx
8 11.300000 matmul device=0 1x1x1 count=1 cublasGemmEx
7 11.400000 launch device=0 grid=1,1,1 block=1,1,1 shared=0 _ZN2at6native25multi_tensor_apply_kernelI
7 11.500000 launch device=0 grid=1,1,1 block=1,1,1 shared=0 _ZN2at6native18elementwise_kernel23direct_copy_kernel_cuda
7 11.600000 launch device=0 grid=1,1,1 block=1,1,1 shared=0 _ZN2at6native13reduce_kernel
7 11.700000 fill device=0 bytes=4
7 11.750000 copy device=0 bytes=524288 to_device pinned
7 11.800000 copy device=0 bytes=8 to_host pageable host waits
7 11.900000 wait device=0 stream
7 13.000000 wait device=0 device
"""


def logged(lines: str) -> LoggedStep:
    return logged_step(lines.splitlines(), process=7, start=10.5, end=12.0)


def test_launches_of_the_process_and_the_time_are_counted_by_kind() -> None:
    assert logged(LINES) == LoggedStep(
        launches={
            LaunchKind.COMPILED: 1,
            LaunchKind.ATTENTION: 1,
            LaunchKind.PRODUCT: 2,
            LaunchKind.TENSOR_LISTS: 1,
            LaunchKind.CAST: 1,
            LaunchKind.OTHER: 1,
            LaunchKind.FILL: 1,
            LaunchKind.TRANSFER: 2,
        },
        products=[(768, 65536, 2304, 3)],
        waits=["wait stream"],
    )


def test_copies_from_pageable_memory_are_waits_and_launches_after_a_wait_are_counted() -> None:
    pageable = logged(LINES.replace("to_device pinned", "to_device pageable"))
    assert pageable.waits == ["copy bytes=524288 to_device pageable", "wait stream"]
    late = logged(LINES.replace("7 13.000000 wait device=0 device", "7 11.950000 fill device=0 bytes=4"))
    assert late.launches_after_wait == 1


def test_without_a_simulated_device_one_line_says_how(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(LOG, raising=False)
    assert main(["gpt2-124m"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
