from __future__ import annotations

import math

import numpy
import pytest
import torch
from torch import Tensor

from kernels.operator import UnsupportedInputError
from kernels.sign_pack import BLOCK, reference, reference_unpack, sign_pack, sign_unpack
from tests.kernels.agreement import DEVICE, DTYPES, assert_refused, normal

SIZES = [1, 7, 8, 9, 37, 255, 256, 257, 768, 1023, BLOCK, BLOCK + 1, 1500, 4096, 50_003]
U = 2**-24  # one rounding to fp32, relative


def bits(positive: Tensor) -> Tensor:
    return torch.from_numpy(numpy.packbits(positive.cpu().numpy(), bitorder="little"))


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("elements", SIZES)
def test_signs_scale_and_error_are_those_of_the_formula(elements: int, dtype: torch.dtype) -> None:
    value, error = normal(elements, dtype=dtype), normal(elements, dtype=torch.float32, seed=1)
    compensated = value.float() + error
    kept = value.clone()
    packed, scale = sign_pack(value, error)
    assert torch.equal(value, kept)
    assert packed.dtype == torch.uint8
    assert torch.equal(packed.cpu(), bits(compensated >= 0))
    exact = float(compensated.double().square().mean().sqrt())
    # as a norm's sum: its lane's additions, two trees, half of that left by the root, and the division's and its own
    assert abs(float(scale) - exact) <= ((1 + elements / BLOCK + 20) / 2 + 4) * U * exact
    assert torch.equal(error, torch.where(compensated >= 0, compensated - scale, compensated + scale))


@pytest.mark.parametrize("elements", [5, 16, 203])
def test_the_reference_is_the_formula(elements: int) -> None:
    value, error = (normal(elements, dtype=torch.float64, seed=seed) for seed in (0, 1))
    compensated = value + error
    packed, scale = reference(value, error)
    assert torch.equal(packed.cpu(), bits(compensated >= 0))
    assert float(scale) == pytest.approx(float(compensated.norm()) / math.sqrt(elements), rel=1e-14)
    signs = torch.where(compensated >= 0, 1.0, -1.0).double()
    assert torch.allclose(error, compensated - scale * signs, rtol=0, atol=1e-15 * 8)
    assert torch.allclose(reference_unpack(packed[None], scale[None], elements), scale * signs, rtol=1e-15)


def test_bytes_do_not_depend_on_what_follows_and_the_last_byte_ends_in_zeros() -> None:
    value = normal(3000, dtype=torch.float32)
    whole, _ = sign_pack(value, torch.zeros_like(value))
    for elements in (8, 1016, 1024, 1032, 2048):
        packed, _ = sign_pack(value[:elements], torch.zeros(elements, device=DEVICE))
        assert torch.equal(packed, whole[: elements // 8])
    for elements in (1, 3, 7, 9, 1025, 2047):
        ones = torch.ones(elements, device=DEVICE)
        packed, scale = sign_pack(ones, torch.zeros_like(ones))
        assert packed.shape == (math.ceil(elements / 8),)
        assert int(packed[-1]) == 2 ** ((elements - 1) % 8 + 1) - 1
        assert float(scale) == pytest.approx(1, rel=8 * U)


def test_zero_counts_as_positive_and_negative_zero_too() -> None:
    value = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, 0.0], device=DEVICE)
    error = torch.tensor([0.0, -0.0, -1.0, 1.0, -3.0, -1e-30], device=DEVICE)
    for repeats in (1, 400):  # the last chunk, and a whole one
        many = error.repeat(repeats)
        packed, scale = sign_pack(value.repeat(repeats), many)
        bits_set = numpy.unpackbits(packed.cpu().numpy(), bitorder="little", count=6 * repeats).reshape(repeats, 6)
        assert (bits_set == [1, 1, 1, 1, 0, 0]).all()
        assert bool((many.view(repeats, 6)[:, :4] == -scale).all())


def test_what_was_sent_and_the_error_add_up_to_what_was_given() -> None:
    elements, steps = 700, 12
    error = torch.zeros(elements, device=DEVICE)
    given = sent = torch.zeros(elements, dtype=torch.float64, device=DEVICE)
    largest = 0.0
    for step in range(steps):
        value = normal(elements, dtype=torch.float32, seed=step)
        packed, scale = sign_pack(value, error)
        given = given + value
        sent = sent + sign_unpack(packed[None], scale[None], elements)
        largest = max(largest, float(value.abs().max() + error.abs().max()))
    # two roundings a step, of numbers no larger than what was compensated
    assert float((given - sent - error).abs().max()) <= 2 * steps * U * 2 * largest
    assert float(error.abs().max()) < float(given.abs().max())


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy, which interprets
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 1023, 1024, 1029])
def test_one_element_that_is_not_finite_makes_the_scale_so(value: float, place: int) -> None:
    x = normal(1030, dtype=torch.float32)
    x[place] = value
    _, scale = sign_pack(x, torch.zeros_like(x))
    assert not scale.isfinite()


@pytest.mark.covering(1)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 17])
@pytest.mark.parametrize("elements", [1, 8, 37, 257, 1023, 1025, 4096])
def test_the_mean_over_ranks_is_that_in_float64(elements: int, ranks: int) -> None:
    chance = torch.Generator().manual_seed(ranks)
    packed = torch.randint(0, 256, (ranks, math.ceil(elements / 8)), generator=chance).to(DEVICE, torch.uint8)
    scales = torch.rand(ranks, generator=chance).to(DEVICE)
    mean = sign_unpack(packed, scales, elements)
    assert mean.shape == (elements,)
    exact = reference_unpack(packed, scales.double(), elements)
    bound = (ranks - 1 + 4) * U * float(scales.mean())  # each sum is at most that of scales; division 4 at most
    assert float((mean - exact).abs().max()) <= bound
    signs = numpy.unpackbits(packed.cpu().numpy(), axis=1, count=elements, bitorder="little") * 2.0 - 1
    assert numpy.allclose(exact.cpu(), (signs * scales.cpu().double().numpy()[:, None]).mean(0), rtol=0, atol=1e-15)


def test_input_that_is_not_contiguous_gives_the_same() -> None:
    value = normal(20, 30, dtype=torch.float32)
    one, other = torch.zeros(30, 20, device=DEVICE), torch.zeros(30, 20, device=DEVICE)
    assert torch.equal(sign_pack(value.t(), one)[0], sign_pack(value.t().contiguous(), other)[0])
    assert torch.equal(one, other)
    packed = torch.arange(64, dtype=torch.uint8, device=DEVICE).view(4, 16)
    scales = torch.arange(8, dtype=torch.float32, device=DEVICE)[::2]
    for part in (packed[:, 4:8], packed[:, ::4], packed.t()[:4].t()):
        assert torch.equal(sign_unpack(part, scales, 30), sign_unpack(part.contiguous(), scales.contiguous(), 30))


def test_where_triton_does_not_run_the_plain_reference_does(monkeypatch: pytest.MonkeyPatch) -> None:
    value = normal(1500, dtype=torch.bfloat16).requires_grad_()
    errors = [normal(1500, dtype=torch.float32, seed=1) for _ in range(2)]
    packed, scale = sign_pack(value, errors[0])
    monkeypatch.setattr("kernels.sign_pack.runs_triton", lambda _: False)
    other, other_scale = sign_pack(value, errors[1])
    assert torch.equal(packed, other)
    assert torch.allclose(errors[0], errors[1], rtol=0, atol=32 * U * float(scale))  # by as much as the scales
    assert not other_scale.requires_grad
    assert float((sign_unpack(packed[None], scale[None], 1500).abs() - scale).abs().max()) == 0


def test_the_operators_keep_pytorchs_rules() -> None:
    operators = torch.ops.llm_reference_runs
    x = normal(13, dtype=torch.bfloat16)
    torch.library.opcheck(operators.sign_pack, (x, torch.zeros(13, device=DEVICE)))
    packed = torch.zeros((2, 2), dtype=torch.uint8, device=DEVICE)
    torch.library.opcheck(operators.sign_unpack, (packed, torch.ones(2, device=DEVICE), 13))


def test_no_elements_unpack_to_none() -> None:
    packed = torch.empty((2, 0), dtype=torch.uint8, device=DEVICE)
    assert sign_unpack(packed, torch.ones(2, device=DEVICE), 0).shape == (0,)


def test_other_input_is_refused_in_one_line() -> None:
    assert_refused(
        sign_pack,
        [
            ((torch.ones(8, dtype=torch.float64), torch.ones(8)), {}, "dtype of value"),
            ((torch.ones(8), torch.ones(8, dtype=torch.bfloat16)), {}, "dtype of error"),
            ((torch.ones(8), torch.ones(8, device="meta")), {}, "device of error"),
            ((torch.ones(8), torch.ones(7)), {}, "shape of error"),
            ((torch.ones(8), torch.ones(2, 4)), {}, "shape of error"),
            ((torch.ones(8), torch.ones(16)[::2]), {}, "strides of error"),
            ((torch.ones(0), torch.ones(0)), {}, "elements"),
        ],
    )


def test_other_packed_signs_are_refused_in_one_line() -> None:
    assert_refused(
        sign_unpack,
        [
            ((torch.ones(2, 1), torch.ones(2), 8), {}, "dtype of packed"),
            ((torch.ones(2, 1, dtype=torch.uint8), torch.ones(2, dtype=torch.float64), 8), {}, "dtype of scales"),
            ((torch.ones(2, 1, dtype=torch.uint8), torch.ones(2, device="meta"), 8), {}, "device of scales"),
            ((torch.ones(1, dtype=torch.uint8), torch.ones(1), 8), {}, "dims of packed"),
            ((torch.ones(0, 1, dtype=torch.uint8), torch.ones(0), 8), {}, "ranks"),
            ((torch.ones(2, 1, dtype=torch.uint8), torch.ones(3), 8), {}, "shape of scales"),
            ((torch.ones(2, 1, dtype=torch.uint8), torch.ones(2), 9), {}, "elements"),
            ((torch.ones(2, 2, dtype=torch.uint8), torch.ones(2), 8), {}, "elements"),
        ],
    )


def test_elements_that_do_not_fit_packed_signs_are_refused_with_those_that_do() -> None:
    for size, allowed in ((2, "9 to 16"), (0, "0 to 0")):
        packed = torch.ones(2, size, dtype=torch.uint8)
        with pytest.raises(UnsupportedInputError, match=f"^sign_unpack: elements: allowed {allowed}, got 17$"):
            sign_unpack(packed, torch.ones(2), 17)
