"""Products in 8 bits against products in float64: of what was cast, and of what it was cast from."""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from reference_runs.layout import Layout, Recomputation
from reference_runs.run import ProductFormat, Workload
from suite.execute.measure.counters import LocalFlopCounter
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.model.scaled_products import FORWARD, GRADIENT, ScaledLinear, cast, product
from suite.predict.analytic.flop import executed_flop
from suite.predict.analytic.product_formats import format_bytes
from tests.support.launches import FP32_WITHOUT_DROPOUT, small_plan

# half of the last place of a normal number, and of the least subnormal one: 3 and 2 bits of mantissa
HALF_PLACE = {FORWARD: 2.0**-4, GRADIENT: 2.0**-3}
HALF_LEAST = {FORWARD: 2.0**-10, GRADIENT: 2.0**-17}
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
FP32 = ROUNDING[torch.float32]


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def wide(x: tuple[Tensor, Tensor]) -> Tensor:
    return x[0].double() * x[1].double()


def cast_error(x: Tensor, dtype: torch.dtype, scale: Tensor) -> Tensor:
    """At most, of each element: the rounding to 8 bits, after those of the quotient and the scale to fp32."""
    size = x.double().abs() * (1 + 3 * FP32)
    return torch.maximum(HALF_PLACE[dtype] * size, HALF_LEAST[dtype] * scale.double()) + 3 * FP32 * size


@pytest.mark.parametrize("dtype", [FORWARD, GRADIENT])
@given(st.integers(1, 9), st.integers(1, 9), st.integers(-60, 60), st.integers(0, 99))
def test_a_cast_is_within_half_a_place_of_each_element_and_uses_the_whole_range(
    dtype: torch.dtype, rows: int, columns: int, exponent: int, seed: int
) -> None:
    x = drawn(rows, columns, seed=seed) * 2.0**exponent
    narrow, scale = cast(x, dtype)
    assert narrow.abs().double().max() == torch.finfo(dtype).max
    assert torch.all((wide((narrow, scale)) - x.double()).abs() <= cast_error(x, dtype, scale))


@pytest.mark.parametrize("dtype", [FORWARD, GRADIENT])
def test_zeros_stay_zeros_and_what_is_not_finite_stays_so(dtype: torch.dtype) -> None:
    assert not wide(cast(torch.zeros(3, 4, dtype=torch.bfloat16), dtype)).any()
    for number in (torch.inf, torch.nan):
        x = drawn(3, 4)
        x[1, 2] = number
        assert not wide(cast(x, dtype)).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_a_product_is_that_of_its_casts_within_its_roundings(
    dtype: torch.dtype, rows: int, columns: int, depth: int, seed: int
) -> None:
    a, b = cast(drawn(rows, depth, seed=seed), FORWARD), cast(drawn(columns, depth, seed=seed + 1), GRADIENT)
    out = product(a, b, dtype)
    assert out.dtype is dtype
    exact = wide(a) @ wide(b).T
    # fp32 sums of `depth` terms and two scales, then one rounding to the dtype
    terms = wide(a).abs() @ wide(b).abs().T
    bound = (depth + 4) * FP32 * terms
    size = (exact.abs() + bound).clamp(min=torch.finfo(dtype).smallest_normal)
    assert torch.all((out.double() - exact).abs() <= bound + ROUNDING[dtype] * size)


def test_a_cpu_multiplies_by_pytorch_s_own_kernel_and_others_by_whatever_they_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    multiply, seen = torch._scaled_mm, []
    monkeypatch.setattr(
        torch, "_scaled_mm", lambda *factors, **more: (seen.append(mkldnn_is_on()), multiply(*factors, **more))[1]
    )
    x = cast(drawn(16, 16), FORWARD)  # what a device multiplies
    before = mkldnn_is_on()
    product(x, x, torch.bfloat16)
    product(*[tuple(tensor.to("meta") for tensor in x)] * 2, torch.bfloat16)
    assert seen == [False, before]
    assert mkldnn_is_on() == before


def test_forward_products_alone_are_summed_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    multiply, sums = torch._scaled_mm, []
    monkeypatch.setattr(
        torch,
        "_scaled_mm",
        lambda *factors, **more: (sums.append(more["use_fast_accum"]), multiply(*factors, **more))[1],
    )
    layer, _ = linear(32, 16, bias=True, dtype=torch.bfloat16)
    out = layer(drawn(64, 16).requires_grad_())
    assert sums == [True]
    out.sum().backward()
    assert sums == [True, False, False]  # gradients of input and weight


def mkldnn_is_on() -> bool:
    on: bool = torch._C._get_mkldnn_enabled()
    return on


def linear(rows: int, columns: int, *, bias: bool, dtype: torch.dtype) -> tuple[ScaledLinear, nn.Linear]:
    torch.manual_seed(3)
    layer = ScaledLinear(columns, rows, bias=bias, dtype=dtype)
    plain = nn.Linear(columns, rows, bias=bias, dtype=torch.float64)
    plain.load_state_dict({name: tensor.double() for name, tensor in layer.state_dict().items()})
    return layer, plain


def product_error(a: Tensor, a_error: Tensor, b: Tensor, b_error: Tensor) -> Tensor:
    """At most, of each element of a times b, whose elements are off by their errors."""
    return a.abs() @ b_error + a_error @ b.abs() + a_error @ b_error


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "columns", "rows"), [(64, 48, 32), (7, 13, 5), (1, 1, 1), (33, 17, 64)])
def test_a_layer_and_its_gradients_are_the_wide_ones_within_the_errors_of_their_factors(
    tokens: int, columns: int, rows: int, dtype: torch.dtype, bias: bool
) -> None:
    layer, plain = linear(rows, columns, bias=bias, dtype=dtype)
    x = drawn(tokens, columns, dtype=dtype).requires_grad_()
    x_wide = x.detach().double().requires_grad_()
    gradient = drawn(tokens, rows, dtype=dtype, seed=5)
    out, wanted = layer(x), plain(x_wide)
    out.backward(gradient)
    wanted.backward(gradient.double())
    x_error = cast_error(x.detach(), FORWARD, cast(x.detach(), FORWARD)[1])
    w = layer.weight.detach()
    w_error = cast_error(w, FORWARD, cast(w, FORWARD)[1])
    g_error = cast_error(gradient, GRADIENT, cast(gradient, GRADIENT)[1])
    xs, ws, gs = x_wide.detach(), w.double(), gradient.double()
    assert x.grad is not None
    assert layer.weight.grad is not None
    assert plain.weight.grad is not None
    for got, exact, error, depth in (
        (out.detach(), wanted.detach(), product_error(xs, x_error, ws.T, w_error.T), columns),
        (x.grad, x_wide.grad, product_error(gs, g_error, ws, w_error), rows),
        (layer.weight.grad, plain.weight.grad, product_error(gs.T, g_error.T, xs, x_error), tokens),
    ):
        assert exact is not None
        size = exact.abs() + error
        # the fp32 sum, the rounding to the dtype, and of the forward pass that of the sum with the bias
        bound = error + (2 * depth + 4) * FP32 * (size + error) * depth + 2 * ROUNDING[dtype] * (size + 1)
        assert torch.all((got.double() - exact).abs() <= bound)
    if bias:
        assert layer.bias.grad is not None
        assert torch.all(
            (layer.bias.grad.double() - gs.sum(0)).abs() <= (tokens * FP32 + ROUNDING[dtype]) * gs.abs().sum(0)
        )


@pytest.mark.parametrize("shape", [(5, 12), (2, 5, 12)])
def test_a_layer_keeps_its_input_in_8_bits_and_a_scale(shape: tuple[int, ...]) -> None:
    layer, _ = linear(8, 12, bias=True, dtype=torch.bfloat16)
    kept: list[Tensor] = []
    x = drawn(*shape).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        out = layer(x)
    assert out.shape == (*shape[:-1], 8)
    own = [
        tensor for tensor in kept if tensor.untyped_storage().data_ptr() != layer.weight.untyped_storage().data_ptr()
    ]
    expected = format_bytes(ProductFormat.FP8_CURRENT, rows=x.numel() // 12, columns=12)
    assert sum(tensor.untyped_storage().nbytes() for tensor in own) == expected


PLAN = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT)


@pytest.mark.parametrize("recomputation", [Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL])
def test_blocks_are_scaled_and_their_flop_are_those_that_pytorch_counts(recomputation: Recomputation) -> None:
    recipe = msgspec.structs.replace(PLAN.recipe, product_format=ProductFormat.FP8_CURRENT)
    decoder = Decoder(PLAN.architecture, recipe)
    initialise(decoder, recipe, seed=3)
    decoder.recompute(recomputation)
    scaled = {name.rpartition(".")[2] for name, part in decoder.named_modules() if type(part) is ScaledLinear}
    assert scaled == {"query_key_value", "projection", "expansion", "contraction"}
    assert type(decoder.head) is nn.Linear
    tokens = torch.randint(PLAN.architecture.vocabulary, (3, PLAN.architecture.sequence + 1))
    with LocalFlopCounter() as flop:
        decoder(tokens[:, :-1], tokens[:, 1:]).backward()
    workload = Workload(PLAN.architecture, recipe, Layout(recomputation=recomputation, micro_batch=3))
    assert flop.get_total_flops() == executed_flop(workload, samples=3)
