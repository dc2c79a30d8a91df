"""Choice among cuBLASLt's algorithms; tests/simulated_cuda/test_cublaslt_simulated.py calls the library's stand-in."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
import torch
from torch.nn.functional import gelu

from kernels import cublaslt, linear_epilogues
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
    out = memory[first + 256 : first + 512].view(torch.float32).view(8, 8)
    whole = Gemm(matrix, matrix, out, (False, False), Epilogue.NONE, None, None, out.zero_)
    return whole._replace(**changes)  # type: ignore[arg-type]  # of the test's own


def test_the_fastest_way_is_kept_and_one_that_is_refused_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)

    def takes(milliseconds: float) -> cublaslt.Way:
        def way(gemm: Gemm) -> None:
            gemm.plain()
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

    def disturbed(gemm: Gemm) -> None:
        nonlocal calls
        gemm.plain()
        calls += 1
        CLOCK["ms"] += 100.0 if calls == 3 else 1.0  # the first timed call, after two that are not

    def steady(gemm: Gemm) -> None:
        gemm.plain()
        CLOCK["ms"] += 2.0

    assert fastest([disturbed, steady], product()) is disturbed


GELU_OF = Epilogue.GELU_AUX_BIAS
EPILOGUES = [Epilogue.NONE, Epilogue.GELU_AUX, GELU_OF, Epilogue.DGELU, Epilogue.BGRADB]


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_way_whose_results_are_not_pytorchs_is_left_out_and_one_that_rounds_apart_is_kept(
    epilogue: Epilogue, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of 600 by 24, 64 deep. Faults: the last row or column is not written, a part of the depth is left out."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    x, weight, bias, before = drawn(600, 64), drawn(24, 64), drawn(24), drawn(600, 24)
    out = torch.empty(600, 24, dtype=dtype)
    if epilogue is Epilogue.DGELU:
        made = linear_epilogues._gelu_gradient_product(x, weight.t().contiguous(), before, out)
    elif epilogue in (Epilogue.NONE, Epilogue.BGRADB):
        sums = torch.empty(600, dtype=dtype) if epilogue is Epilogue.BGRADB else None
        made = linear_epilogues._gradients_product(x.t().contiguous(), weight.t().contiguous(), out, sums)
    else:
        made = linear_epilogues._gelu_product(x, weight, bias if epilogue is GELU_OF else None, out, before)
    assert made.epilogue is epilogue

    def exact(gemm: Gemm, of_left: slice = slice(None)) -> None:
        """By fp32, rounded once, of a part of the depth."""
        left = gemm.left.t() if gemm.transposed[0] else gemm.left
        right = gemm.right.t() if gemm.transposed[1] else gemm.right
        product = left[:, of_left].float() @ right[of_left].float()
        if gemm.epilogue is Epilogue.DGELU:
            assert gemm.aux is not None
            of = gemm.aux.float()
            product = torch.ops.aten.gelu_backward(product, of, approximate="tanh")
        elif gemm.aux is not None:
            product = product if gemm.bias is None else product + gemm.bias
            gemm.aux.copy_(product)
            product = gelu(product, approximate="tanh")
        elif gemm.bias is not None:
            gemm.bias.copy_(left[:, of_left].float().sum(1))
        gemm.out.copy_(product)

    def half(gemm: Gemm) -> None:
        exact(gemm, slice(32))

    def last_row(gemm: Gemm) -> None:
        exact(gemm)
        gemm.out[-1] = torch.nan

    def last_column(gemm: Gemm) -> None:
        exact(gemm)
        gemm.out[:, -1] = 0.0

    def slow(gemm: Gemm) -> None:
        exact(gemm)
        CLOCK["ms"] += 1.0

    assert fastest([half, last_row, last_column, slow], made) is slow


def test_nothing_is_compared_where_pytorchs_own_results_are_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    out = product().out

    def infinite() -> None:
        out.fill_(torch.inf)

    def plain(gemm: Gemm) -> None:
        gemm.plain()

    assert fastest([plain], product(out=out, plain=infinite)) is plain


def test_the_launch_of_a_first_call_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that was waited for is idle until the host has launched a call, which takes the library's ways long."""

    class Waiting(Event):
        def synchronize(self) -> None:
            idle.append(True)

    monkeypatch.setattr(torch.cuda, "Event", Waiting)
    idle = [True]

    def library(gemm: Gemm) -> None:
        gemm.plain()
        CLOCK["ms"] += 100.0 if idle else 1.0
        idle.clear()

    def plain(gemm: Gemm) -> None:
        gemm.plain()
        CLOCK["ms"] += 2.0
        idle.clear()

    assert fastest([plain, library], product()) is library


def test_a_graph_has_the_algorithm_that_was_timed_before_its_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing, called = [False], []
    gemm = product()
    kinds: dict[tuple[Hashable, ...], cublaslt.Way] = {}
    monkeypatch.setattr(cublaslt, "_ways", kinds)
    monkeypatch.setattr(
        cublaslt, "_way", lambda _, tuned: lambda _: called.append("fastest" if tuned else "heuristics'")
    )
    monkeypatch.setattr(Gemm, "kind", ("a kind",))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # a CPU tensor's index
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    cublaslt.multiply(gemm, tuned=True)
    capturing[0] = True
    cublaslt.multiply(gemm, tuned=True)
    cublaslt.multiply(gemm, tuned=False)
    kinds.clear()
    cublaslt.multiply(gemm, tuned=True)
    capturing[0] = False
    cublaslt.multiply(gemm, tuned=True)
    assert called == ["fastest", "fastest", "heuristics'", "heuristics'", "fastest"]


def test_a_captured_stream_has_the_default_stream_s_workspace_and_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing, empty = [False], torch.empty
    monkeypatch.setattr(cublaslt, "_workspaces", {})
    monkeypatch.setattr(cublaslt, "WORKSPACE_BYTES", 16)
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: empty(size, dtype=dtype, device=device and "cpu"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    capturing[0] = True
    assert cublaslt._workspace(0, 7) is not cublaslt._workspace(0, 7)
    assert cublaslt._workspaces == {}
    capturing[0] = False
    usual, other = cublaslt._workspace(0, 0), cublaslt._workspace(0, 7)
    assert usual is not other
    capturing[0] = True
    assert cublaslt._workspace(0, 7) is usual
    assert list(cublaslt._workspaces) == [(0, 0), (0, 7)]


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
