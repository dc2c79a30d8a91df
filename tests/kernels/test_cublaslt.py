"""Choice among cuBLASLt's algorithms; tests/simulated_cuda/test_cublaslt_simulated.py calls the library's stand-in."""

from __future__ import annotations

import pytest
import torch

from kernels import cublaslt
from kernels.cublaslt import CublasLtError, Epilogue, Gemm, fastest

CLOCK = {"ms": 0.0}


class Event:
    """Events of a device whose clock the ways move."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self) -> None:
        self.at = CLOCK["ms"]

    def synchronize(self) -> None:
        """It has happened."""

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


def product(**changes: object) -> Gemm:
    memory = torch.zeros(1024, dtype=torch.uint8)
    first = -memory.data_ptr() % 256
    matrix = memory[first : first + 256].view(torch.float32).view(8, 8)
    whole = Gemm(matrix, matrix, matrix, (False, False), Epilogue.NONE, None, None, lambda: None)
    return whole._replace(**changes)  # type: ignore[arg-type]  # of the test's own


def test_the_fastest_way_is_kept_and_one_that_is_refused_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)

    def takes(milliseconds: float) -> cublaslt.Way:
        def way(_: Gemm) -> None:
            CLOCK["ms"] += milliseconds

        return way

    def refused(_: Gemm) -> None:
        raise CublasLtError("cublasLtMatmul: not supported")

    slow, fast, plain = takes(3.0), takes(1.0), takes(2.0)
    assert fastest([refused, slow, fast, plain], product()) is fast
    assert fastest([refused, slow, plain], product()) is plain


def test_one_slow_round_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    calls = 0

    def disturbed(_: Gemm) -> None:
        nonlocal calls
        calls += 1
        CLOCK["ms"] += 100.0 if calls == 2 else 1.0

    def steady(_: Gemm) -> None:
        CLOCK["ms"] += 2.0

    assert fastest([disturbed, steady], product()) is disturbed


def test_the_alignment_is_that_of_the_least_aligned_address() -> None:
    assert product().alignment == 256
    memory = product().left.flatten()
    assert product(bias=memory[4:8]).alignment == 16
    assert product(aux=memory[2:4].view(1, 2)).alignment == 8
    assert product(left=memory[16:32].view(4, 4), bias=memory[8:16]).alignment == 32


def test_products_of_other_shapes_strides_and_addresses_are_of_other_kinds() -> None:
    memory = torch.zeros(4096)
    wide = memory[:1024].view(32, 32)
    kinds = {
        product().kind,
        product(left=wide).kind,
        product(left=wide[:8, :8]).kind,
        product(transposed=(True, False)).kind,
        product(epilogue=Epilogue.DGELU).kind,
        product(bias=product().left.flatten()[1:9]).kind,
    }
    assert len(kinds) == 6
