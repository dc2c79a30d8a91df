"""Norms: PyTorch's are their references, sums are kept and rounded as said, and large means cost no digits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels import layer_norm, parallel_layer_norms, residual_layer_norm, residual_rms_norm, rms_norm, row_norm
from kernels.row_norm import MOST_COLUMNS_HELD
from tests.kernels.agreement import DEVICE, DTYPES, assert_as_exact_as_torch, normal
from tests.kernels.launches import recorded_launches
from tests.kernels.row_kernels import EPSILON, NORMS

KEEPING = ("residual_layer_norm, sum kept", "residual_rms_norm")


def test_the_references_are_pytorchs() -> None:
    x, f = (normal(6, 33, dtype=torch.float64, seed=seed) for seed in (0, 1))
    weight, bias, weight2, bias2 = (normal(33, dtype=torch.float64, seed=seed) for seed in range(2, 6))
    y, total = residual_layer_norm.reference(x, f, weight, bias, EPSILON, 3.0)
    rms, rms_total = residual_rms_norm.reference(x, f, weight, EPSILON)
    one, two = parallel_layer_norms.reference(x, weight, bias, weight2, bias2, EPSILON)
    for own, pytorchs in (
        (layer_norm.reference(x, weight, bias, EPSILON), functional.layer_norm(x, (33,), weight, bias)),
        (rms_norm.reference(x, weight, EPSILON), functional.rms_norm(x, (33,), weight, EPSILON)),
        (total, torch.add(f, x, alpha=3)),
        (y, functional.layer_norm(3 * x + f, (33,), weight, bias)),
        (rms_total, x + f),
        (rms, functional.rms_norm(x + f, (33,), weight, EPSILON)),
        (one, functional.layer_norm(x, (33,), weight, bias)),
        (two, functional.layer_norm(x, (33,), weight2, bias2)),
    ):
        assert torch.allclose(own, pytorchs, rtol=1e-12)


@pytest.mark.parametrize("columns", [512, MOST_COLUMNS_HELD + 1])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "parallel_layer_norms"])
def test_a_large_mean_costs_no_digits(name: str, columns: int) -> None:
    one = NORMS[name]
    x, *vectors = one.inputs(4, columns, dtype=torch.float32)
    assert_as_exact_as_torch(
        one.kernel, one.plain, [x + 1000, *vectors], one.upstream(4, columns, dtype=torch.float32), roundings=4
    )


@pytest.mark.parametrize("place", [0, 40])
def test_one_large_number_costs_no_digits(place: int) -> None:
    one = NORMS["layer_norm"]
    x, *vectors = one.inputs(4, 5000, dtype=torch.float32)
    x[:, place] = 3000.0  # among those that the sums are taken about, or not
    upstream = one.upstream(4, 5000, dtype=torch.float32)
    assert_as_exact_as_torch(one.kernel, one.plain, [x, *vectors], upstream, roundings=4)


def test_an_rms_norm_takes_no_mean_away() -> None:
    x = normal(4, 512, dtype=torch.float32) + 1000
    y = rms_norm.rms_norm(x, torch.ones(512, device=DEVICE), EPSILON)
    assert float((y - 1).abs().max()) < 0.01  # x is 1000 give or take 4


def test_an_rms_norm_may_have_one_column() -> None:
    # epsilon is as large as x^2: beside a small one the gradient is a difference of nearly equal numbers
    assert_as_exact_as_torch(
        lambda x, weight: rms_norm.rms_norm(x, weight, 1.0),
        lambda x, weight: rms_norm.reference(x, weight, 1.0),
        NORMS["rms_norm"].inputs(6, 1, dtype=torch.float32),
        [normal(6, 1, dtype=torch.float32, seed=3)],
        roundings=4,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", KEEPING)
def test_a_kept_sum_is_rounded_before_its_norm(name: str, dtype: torch.dtype) -> None:
    kernel = NORMS[name].kernel
    x, f = (normal(5, 300, dtype=dtype, seed=seed) for seed in (0, 1))
    vectors = NORMS[name].inputs(5, 300, dtype=dtype)[2:]
    y, total = kernel(x, f, *vectors)
    assert torch.equal(total, x + f)
    again, _ = kernel(total, torch.zeros_like(f), *vectors)
    assert torch.equal(y, again)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sum_that_is_not_kept_is_not_rounded(dtype: torch.dtype) -> None:
    # rounded to bf16, 1024 + f would be a multiple of 4 or 8
    one = NORMS["residual_layer_norm"]
    _, f, *vectors = one.inputs(4, 300, dtype=dtype)
    inputs = [torch.full_like(f, 1024), f, *vectors]
    assert_as_exact_as_torch(one.kernel, one.plain, inputs, one.upstream(4, 300, dtype=dtype), roundings=4)


@pytest.mark.parametrize("name", [*KEEPING, "residual_layer_norm, scaled sum kept"])
def test_norm_or_kept_sum_may_go_nowhere(name: str) -> None:
    one = NORMS[name]
    inputs, (upstream, _) = (draw(6, 40, dtype=torch.float32) for draw in (one.inputs, one.upstream))
    assert_as_exact_as_torch(lambda *x: one.kernel(*x)[0], lambda *x: one.plain(*x)[0], inputs, [upstream], roundings=4)
    leaves = [tensor.requires_grad_() for tensor in inputs]
    dx, df, *weights = torch.autograd.grad(one.kernel(*leaves)[1], leaves, upstream, allow_unused=True)
    assert torch.equal(dx, one.alpha * upstream)
    assert torch.equal(df, upstream)
    assert set(weights) == {None}


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("rms_norm", ("x", "weight")),
        ("residual_layer_norm", ("x", "f", "weight")),
        ("residual_layer_norm, sum kept", ("sum", "weight")),
    ],
)
def test_the_backward_pass_keeps_its_inputs_or_their_sum_and_numbers_of_a_row(name: str, kept: tuple[str, ...]) -> None:
    one, saved = NORMS[name], []

    def packed(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    inputs = [tensor.requires_grad_() for tensor in one.inputs(6, 40, dtype=torch.float32)]
    with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
        outputs = one.kernel(*inputs)
    named = {"x": inputs[0], "f": inputs[1], "weight": inputs[one.tensors], "sum": outputs[-1]}
    assert [each.data_ptr() for each in saved[: len(kept)]] == [named[each].data_ptr() for each in kept]
    # 1 / deviation, and of LayerNorms the mean
    assert [each.numel() for each in saved[len(kept) :]] == [6] * (1 if "rms" in name else 2)


@pytest.mark.parametrize(
    ("columns", "programs", "settings", "backward"),
    [
        (700, 50, {"ROWS": 2, "BLOCK": 1024, "num_warps": 4}, 8),
        (2048, 100, {"ROWS": 1, "BLOCK": 2048, "num_warps": 4}, 8),
        (4096, 100, {"ROWS": 1, "BLOCK": 4096, "num_warps": 4}, 2 * (64 + 16)),
        (8192, 100, {"ROWS": 1, "BLOCK": 8192, "num_warps": 8}, 2 * (64 + 32)),
        (8193, 100, {"PIECE": 4096, "num_warps": 8}, 2 * (64 + 33)),
    ],
)
def test_a_row_is_held_by_few_warps_or_read_in_pieces_and_long_rows_are_summed_by_further_programs(
    columns: int, programs: int, settings: dict[str, int], backward: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = recorded_launches(row_norm, monkeypatch)
    x, weight = (torch.zeros(*shape, device=DEVICE) for shape in ((100, columns), (columns,)))
    layer_norm.layer_norm(x.requires_grad_(), weight, weight, 1e-5).sum().backward()
    forward, last = launches
    assert forward.programs == programs
    assert {name: forward.settings[name] for name in settings} == settings
    assert last.programs == backward
