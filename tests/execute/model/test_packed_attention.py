"""Attention over a fused projection's output against PyTorch's attention of its parts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from suite.execute.measure.counters import LocalFlopCounter
from suite.execute.model import packed_attention as packed_module
from suite.execute.model.packed_attention import packed_attention
from suite.job.options import Optimization

BATCH, LENGTH, HEADS, HEAD_DIM, SCALE = 2, 37, 3, 8, 0.3


def _plain(packed: torch.Tensor) -> torch.Tensor:
    q, k, v = packed.view(BATCH, LENGTH, HEADS, 3, HEAD_DIM).permute(3, 0, 2, 1, 4).unbind(0)
    return scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE)


def _packed(packed: torch.Tensor) -> torch.Tensor:
    return packed_attention(packed, HEAD_DIM, SCALE)


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function:DeprecationWarning")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_context_and_gradient_are_those_of_attention_over_the_parts(dtype: torch.dtype, *, compiled: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = BATCH, LENGTH, HEADS * 3 * HEAD_DIM
    values = torch.randn(shape, generator=generator).to(dtype)
    upstream = torch.randn((BATCH, HEADS, LENGTH, HEAD_DIM), generator=generator).to(dtype)
    results = []
    for attention in (_plain, torch.compile(_packed, fullgraph=True, backend="aot_eager") if compiled else _packed):
        leaf = values.clone().requires_grad_()
        out = attention(leaf)
        out.backward(upstream)
        assert leaf.grad is not None
        results.append((out.detach(), leaf.grad))
    for plain, packed in zip(*results, strict=True):
        torch.testing.assert_close(packed, plain, rtol=0, atol=0)  # the same kernel of the same numbers


def test_flop_are_those_of_attention_over_the_parts_and_model_flop_leave_the_repeated_scores_out() -> None:
    found = []
    for attention in (_plain, _packed):
        for recomputes in (True, False):
            leaf = torch.zeros(BATCH, LENGTH, HEADS * 3 * HEAD_DIM, requires_grad=True)
            with LocalFlopCounter(recomputes=recomputes) as flop:
                attention(leaf).sum().backward()
            found.append(flop.get_total_flops())
    product = 2 * BATCH * HEADS * LENGTH**2 * HEAD_DIM
    assert found == 2 * [7 * product, 6 * product]


def test_the_gradient_is_written_where_the_projection_has_its_output() -> None:
    """The operator itself: PyTorch checks its fake's shape, strides and that it changes no argument."""
    packed = torch.randn(BATCH, LENGTH, HEADS * 3 * HEAD_DIM)
    q, k, v = packed.view(BATCH, LENGTH, HEADS, 3, HEAD_DIM).permute(3, 0, 2, 1, 4).unbind(0)
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, logarithms = forward(q, k, v, 0.0, True, scale=SCALE)[:2]
    given = (torch.ones_like(out), q, k, v, out, logarithms, SCALE)
    torch.library.opcheck(torch.ops.llm_reference_runs.packed_attention_backward.default, given)


def test_the_libraries_get_an_upstream_gradient_whose_rows_lie_together(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[torch.Tensor] = []
    monkeypatch.setattr(packed_module, "_by_cudnn", lambda tensors, *_: given.append(tensors[0]))
    shape = BATCH, HEADS, LENGTH, HEAD_DIM
    usual = torch.randn(BATCH, LENGTH, HEADS, HEAD_DIM).transpose(1, 2)
    apart, same = torch.randn(*shape[:2], HEAD_DIM, LENGTH).mT, torch.ones(()).expand(shape)
    q = torch.randn(shape)
    for gradient in (usual, apart, same):
        packed_module._on_cuda(gradient, q, q, q, q, q[..., 0], SCALE)
    assert given[0] is usual
    for found, right in zip(given[1:], (apart, same), strict=True):
        assert found.is_contiguous()
        assert torch.equal(found, right)


ASKED = (Optimization.PACKED_GRADIENTS,)
CPU = torch.device("cpu")


@pytest.fixture
def _checked_anew() -> Iterator[None]:
    packed_module.why_not.cache_clear()
    yield
    packed_module.why_not.cache_clear()


@pytest.mark.usefixtures("_checked_anew")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_the_self_check_passes_the_cpu_s_own_kernel(dtype: torch.dtype) -> None:
    assert packed_module.why_not(CPU, dtype, 64) == ""
    assert "one gradient" in packed_module.how_computed(ASKED, CPU, dtype, 64)
    assert packed_module.how_computed((), CPU, dtype, 64) == ""


@pytest.mark.usefixtures("_checked_anew")
def test_the_self_check_finds_parts_that_are_written_elsewhere_and_names_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = packed_module.packed_attention

    def misplaced(packed: torch.Tensor, head_dim: int, scale: float) -> torch.Tensor:
        """Keys' and values' gradients are exchanged."""
        packed.register_hook(lambda gradient: gradient.unflatten(-1, (-1, 3, head_dim))[..., [0, 2, 1], :].flatten(2))
        return right(packed, head_dim, scale)

    def fails(*_: object) -> list[str]:
        raise RuntimeError("CUDNN_STATUS_NOT_SUPPORTED\nmore")

    monkeypatch.setattr(packed_module, "packed_attention", misplaced)
    assert packed_module.why_not(CPU, torch.bfloat16, 64) == "wrong gradients of keys, values"
    packed_module.why_not.cache_clear()
    monkeypatch.setattr(packed_module, "_disagreements", fails)
    assert packed_module.why_not(CPU, torch.bfloat16, 64) == "RuntimeError: CUDNN_STATUS_NOT_SUPPORTED"
    assert packed_module.how_computed(ASKED, CPU, torch.bfloat16, 64) == (
        "without packed-gradients: RuntimeError: CUDNN_STATUS_NOT_SUPPORTED"
    )
