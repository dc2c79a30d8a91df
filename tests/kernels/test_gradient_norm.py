from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kernels.gradient_norm import SUMS, gradient_norm, reference, root_kernel
from kernels.tensor_table import CHUNK
from tests.kernels.agreement import DEVICE, DTYPES, assert_refused, normal

LISTS: list[list[tuple[int, ...]]] = [
    [(1,)],
    [(37,)],
    [(255, 4)],
    [(CHUNK,)],
    [(CHUNK + 1,)],
    [(70_000,)],  # three laps of each of 32 programs
    [(1,), (37,), (0,), (256,), (257, 5), (1023,), (768,)],
    [(0, 3), (4096,), (0,), (50_000,), (1500,), (0,)],
    [(2,)] * 50,
]


def tensors(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> list[Tensor]:
    return [normal(*shape, dtype=dtype, seed=place) for place, shape in enumerate(shapes)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shapes", LISTS, ids=lambda shapes: f"{len(shapes)}x{shapes[-1]}")
def test_the_norm_is_that_in_float64(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    gradients = tensors(shapes, dtype)
    exact = float(reference([gradient.double() for gradient in gradients]))
    norm = gradient_norm(gradients)
    assert norm.shape == ()
    assert norm.dtype == torch.float32
    # A square is rounded once; it is added to at most all others of its lane, then 10 + 10 times in two trees of 1024.
    # Of the relative error of the sum the root leaves half, and adds two roundings.
    elements = sum(gradient.numel() for gradient in gradients)
    roundings = (1 + math.ceil(elements / CHUNK) + len(shapes) + 20) / 2 + 2
    assert abs(float(norm) - exact) <= roundings * 2**-24 * exact


def test_the_reference_is_pytorchs() -> None:
    gradients = tensors([(30,), (4, 5)], torch.float64)
    theirs = torch.nn.utils.get_total_norm(gradients)
    assert torch.allclose(reference(gradients), theirs, rtol=1e-14)


def test_one_tensor_and_a_list_of_it_have_equal_norms_each_time() -> None:
    x = normal(50_000, dtype=torch.float32)
    assert len({float(gradient_norm(given)) for given in (x, x, [x], [x], [x.view(-1, 100)])}) == 1
    pieces = list(x.split([1, 20_000, 29_999]))
    assert len({float(gradient_norm(pieces)) for _ in range(3)}) == 1


@pytest.mark.parametrize("count", [1, SUMS - 1, SUMS, SUMS + 1, 2112])
def test_one_program_adds_up_the_sums_of_as_many_programs_as_a_gpu_has(count: int) -> None:
    sums = normal(count + 1, dtype=torch.float32).square()
    root = torch.empty((), device=DEVICE)
    root_kernel[(1,)](sums, root, count, 2.0, BLOCK=SUMS)
    exact = float((sums[:count].double().sum() / 2).sqrt())
    assert abs(float(root) - exact) <= ((3 + 10) / 2 + 2) * 2**-24 * exact  # laps, a tree of 1024; division and root


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(("tensor", "place"), [(0, 0), (0, 1023), (1, 1024), (2, 36)])
def test_one_element_that_is_not_finite_makes_the_norm_so(value: float, tensor: int, place: int) -> None:
    gradients = tensors([(1024,), (1025,), (37,)], torch.bfloat16)
    assert gradient_norm(gradients).isfinite()
    gradients[tensor][place] = value
    assert not gradient_norm(gradients).isfinite()
    assert not gradient_norm(gradients[tensor]).isfinite()


def test_fp16s_largest_values_do_not_overflow() -> None:
    x = torch.full((4096,), 65504.0, dtype=torch.float16, device=DEVICE)
    assert float(gradient_norm(x)) == pytest.approx(65504 * 64, rel=20 * 2**-24)


def test_nothing_has_norm_zero() -> None:
    empty = torch.empty(0, device=DEVICE)
    assert float(gradient_norm(empty)) == float(gradient_norm([empty, empty])) == 0


def test_neighbours_of_a_view_are_not_counted() -> None:
    wide = torch.full((2, 1200), 1e6, device=DEVICE)
    wide[:, 3:1100] = 1
    assert float(gradient_norm([wide[0, 3:1100], wide[1, 3:1100]])) == pytest.approx((2 * 1097) ** 0.5, rel=2**-20)
    assert float(gradient_norm(wide[:, 3:1100])) == pytest.approx((2 * 1097) ** 0.5, rel=2**-20)


@pytest.mark.parametrize("triton", [True, False])
def test_gradients_of_parameters_need_no_graph(triton: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.gradient_norm.runs_triton", lambda _: triton)
    assert float(gradient_norm([torch.full((4,), 2.0, device=DEVICE)])) == 4
    assert not gradient_norm(torch.ones(3, device=DEVICE, requires_grad=True)).requires_grad


def test_the_operator_keeps_pytorchs_rules() -> None:
    torch.library.opcheck(torch.ops.llm_reference_runs.gradient_norm, (tensors([(5,), (2, 3)], torch.bfloat16),))


def test_other_input_is_refused_in_one_line() -> None:
    assert_refused(
        gradient_norm,
        [
            (([],), {}, "number of gradients"),
            ((torch.ones(2, dtype=torch.float64),), {}, "dtype of gradients"),
            (([torch.ones(2), torch.ones(2, dtype=torch.bfloat16)],), {}, "dtype of gradients"),
            (([torch.ones(2), torch.ones(2, device="meta")],), {}, "device of gradients"),
        ],
    )
