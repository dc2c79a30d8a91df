from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.adamw import adamw, reference
from kernels.operator import UnsupportedInputError
from tests.kernels.agreement import DEVICE, DTYPES, assert_refused, normal

SETTINGS: dict[str, Any] = {
    "step": 7,
    "learning_rate": 1e-2,
    "beta1": 0.9,
    "beta2": 0.95,
    "epsilon": 1e-8,
    "weight_decay": 0.1,
    "decays_gradient": False,
}
U = 2**-24  # one rounding to fp32, relative


def tensors(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
    return [normal(*shape, dtype=dtype, seed=100 * seed + place) for place, shape in enumerate(shapes)]


def state(shapes: Sequence[tuple[int, ...]], weights: torch.dtype, gradients: torch.dtype) -> list[list[Tensor]]:
    """Weights, gradients, first and second moments, the last ones positive."""
    second = [tensor.square() + 0.01 for tensor in tensors(shapes, seed=3)]
    return [tensors(shapes, weights), tensors(shapes, gradients, seed=1), tensors(shapes, seed=2), second]


def assert_one_step(roles: list[list[Tensor]], copies: list[Tensor], factor: Tensor | None, **changes: Any) -> None:
    """One step of the kernel is that of the reference in float64, up to the roundings of its fp32 arithmetic.

    With u = 2^-24, a = 1 - beta1, D the denominator, l the step size l / (1 - beta1^t), errors are at most
        first moment   u |m'| + u a (4 |g - m| + |g|)    of the sum, the product, a, the difference, and g's factor
        second moment  7 u v'                            at most 7 roundings of positive terms
        D              10 u D                            half of 7 from v', 2 of the root, 4 of factors and sum
        weight         2 u |w| + u |w'| + l error(m') / D + 17 u |l m' / D|    10 of D, 4 of the quotient, 3 more
    Adam's gradient has two roundings more, of the decay and the sum; the denominator has half of their share of v'.
    And half a unit in the last place of what a weight in 16 bits is rounded to.
    """
    settings = SETTINGS | changes
    w, g, m, v = ([tensor.double() for tensor in role] for role in roles)
    exact_w, exact_m, exact_v = ([tensor.clone() for tensor in role] for role in (w, m, v))
    wide_factor = None if factor is None else factor.double()
    reference(exact_w, g, exact_m, exact_v, [], wide_factor, **settings)
    kept_gradients = [tensor.clone() for tensor in roles[1]]
    adamw(*roles, gradient_factor=factor, copies=copies or None, **settings)
    step, beta1, beta2 = settings["step"], settings["beta1"], settings["beta2"]
    rate = settings["learning_rate"] / (1 - beta1**step)
    for place, (own_w, own_g, own_m, own_v) in enumerate(zip(*roles, strict=True)):
        assert torch.equal(own_g, kept_gradients[place])
        scaled = g[place] * (1 if wide_factor is None else wide_factor)
        decay = settings["weight_decay"] * w[place] if settings["decays_gradient"] else torch.zeros_like(scaled)
        decayed = scaled + decay
        more = U * (decay.abs() + decayed.abs()) * settings["decays_gradient"]
        m_error = U * (exact_m[place].abs() + (1 - beta1) * (4 * (decayed - m[place]).abs() + scaled.abs()))
        m_error += (1 - beta1) * more
        v_error = 7 * U * exact_v[place] + 2 * (1 - beta2) * decayed.abs() * more
        denominator = exact_v[place].sqrt() / (1 - beta2**step) ** 0.5 + settings["epsilon"]
        update = rate * exact_m[place].abs() / denominator
        w_error = U * (2 * w[place].abs() + exact_w[place].abs() + 17 * update) + rate * m_error / denominator
        w_error += update * (v_error / exact_v[place] - 7 * U) / 2
        if own_w.dtype != torch.float32:
            w_error += torch.finfo(own_w.dtype).eps / 2 * exact_w[place].abs() + torch.finfo(own_w.dtype).tiny
        for own, exact, error in ((own_m, exact_m, m_error), (own_v, exact_v, v_error), (own_w, exact_w, w_error)):
            assert bool(((own.double() - exact[place]).abs() <= error).all())
        if copies:
            assert torch.equal(copies[place], own_w.to(copies[place].dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_flat_buffer_is_updated_as_in_float64(dtype: torch.dtype) -> None:
    for elements in (1, 37, 1023, 1024, 1025, 5000):
        assert_one_step(state([(elements,)], torch.float32, dtype), [], None)


MANY = [(1,), (37, 3), (0,), (256, 4), (1023,), (2, 3, 257), (1025,), (0, 4), (4096,), (768,)]


@pytest.mark.parametrize("copied", [None, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_many_tensors_are_updated_as_in_float64(copied: torch.dtype | None, dtype: torch.dtype) -> None:
    copies = [] if copied is None else [torch.empty(shape, dtype=copied, device=DEVICE) for shape in MANY]
    assert_one_step(state(MANY, torch.float32, dtype), copies, torch.tensor(0.37, device=DEVICE))


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_without_masters_are_widened_for_the_update(dtype: torch.dtype, many: bool) -> None:
    shapes = MANY if many else [(1500,)]
    assert_one_step(state(shapes, dtype, dtype), [], None)


def test_a_flat_buffer_has_a_copy_and_a_factor_too() -> None:
    copies = [torch.empty(3000, dtype=torch.bfloat16, device=DEVICE)]
    assert_one_step(state([(3000,)], torch.float32, torch.bfloat16), copies, torch.tensor([2.5], device=DEVICE))


@pytest.mark.parametrize(
    "changes",
    [{"step": 1}, {"step": 10_000}, {"weight_decay": 0.0}, {"epsilon": 0.1}, {"decays_gradient": True}],
    ids=str,
)
def test_settings_are_those_of_the_reference(changes: dict[str, Any]) -> None:
    assert_one_step(state([(300,), (40,)], torch.float32, torch.float32), [], None, **changes)


def test_more_tensors_than_a_program_has_threads_find_their_columns() -> None:
    shapes = [(1 + place % 3,) for place in range(60)]
    assert_one_step(state(shapes, torch.float32, torch.float32), [], None)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam])
@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.95), (0.3, 0.4), (0.45, 0.999)])
def test_the_reference_is_pytorchs(beta1: float, beta2: float, kind: type[torch.optim.Adam]) -> None:
    weights = tensors([(37,), (3, 5)], torch.float64)
    moments = [[torch.zeros_like(weight) for weight in weights] for _ in range(2)]
    theirs = [torch.nn.Parameter(weight.clone()) for weight in weights]
    changes = {"beta1": beta1, "beta2": beta2, "decays_gradient": kind is torch.optim.Adam}
    optimizer = kind(theirs, lr=1e-2, betas=(beta1, beta2), eps=1e-8, weight_decay=0.1)
    for step in range(1, 6):
        gradients = tensors([(37,), (3, 5)], torch.float64, seed=step)
        reference(weights, gradients, *moments, [], None, **SETTINGS | changes | {"step": step})
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        for own, parameter in zip(weights, theirs, strict=True):
            assert torch.allclose(own, parameter, rtol=1e-12, atol=1e-14)


def test_nothing_beside_the_tensors_is_written() -> None:
    # the second tensor of each role starts 4 bytes behind an address that 16 divides
    wide = {name: normal(2, 1100, dtype=torch.float32, seed=seed) for seed, name in enumerate(("w", "g", "m", "v"))}
    wide["v"] = wide["v"].square()
    kept = {name: tensor.clone() for name, tensor in wide.items()}
    roles = [[tensor[0, :1024], tensor[1, 1:1031]] for tensor in wide.values()]
    assert_one_step(roles, [], None)
    for name, tensor in wide.items():
        assert torch.equal(tensor[0, 1024:], kept[name][0, 1024:])
        assert torch.equal(tensor[1, 1031:], kept[name][1, 1031:])
        assert torch.equal(tensor[1, :1], kept[name][1, :1])


def test_gradients_that_are_not_contiguous_give_the_same() -> None:
    one, other = (state([(20, 30)], torch.float32, torch.float32) for _ in range(2))
    adamw(*one, **SETTINGS)
    other[1] = [other[1][0].t().contiguous().t()]
    adamw(*other, **SETTINGS)
    assert torch.equal(one[0][0], other[0][0])


def test_parameters_may_require_gradients_and_one_tensor_needs_no_list() -> None:
    (weight,), (gradient,), (first,), (second,) = state([(33,)], torch.float32, torch.float32)
    parameter = torch.nn.Parameter(weight.clone())
    adamw(parameter, gradient, first.clone(), second.clone(), **SETTINGS)
    adamw([weight], [gradient], [first], [second], **SETTINGS)
    assert torch.equal(parameter.detach(), weight)
    assert parameter.requires_grad
    assert parameter.grad_fn is None


def test_where_triton_does_not_run_the_plain_reference_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.adamw.runs_triton", lambda _: False)
    roles = state(MANY, torch.float32, torch.bfloat16)
    roles[0] = [torch.nn.Parameter(weight) for weight in roles[0]]
    copies = [torch.empty(shape, dtype=torch.float16, device=DEVICE) for shape in MANY]
    with torch.no_grad():  # for the comparison; the update needs none
        assert_one_step(roles, copies, torch.tensor(0.37, device=DEVICE))
    adamw(*roles, **SETTINGS)


def test_no_tensors_and_empty_ones_are_no_work() -> None:
    adamw([], [], [], [], **SETTINGS)
    adamw(*state([(0,), (0, 3)], torch.float32, torch.float32), **SETTINGS)


def test_a_gradient_that_is_not_finite_shows_in_its_weight_alone() -> None:
    roles = state([(8,), (8,)], torch.float32, torch.float32)
    roles[1][1][3] = float("nan")
    adamw(*roles, **SETTINGS)
    assert [weight.isnan().sum() for weight in roles[0]] == [0, 1]


@pytest.mark.parametrize("copied", [False, True])
def test_the_operator_keeps_pytorchs_rules(copied: bool) -> None:
    shapes = [(5,), (2, 3)]
    copies = [torch.empty(shape, dtype=torch.bfloat16, device=DEVICE) for shape in shapes] if copied else []
    roles = state(shapes, torch.float32, torch.float32)
    factor = torch.ones((), device=DEVICE) if copied else None
    torch.library.opcheck(torch.ops.llm_reference_runs.adamw, (*roles, copies, factor, *SETTINGS.values()))


def test_a_compiled_function_may_call_it() -> None:
    one, other = (state([(40,), (3,)], torch.float32, torch.float32) for _ in range(2))
    adamw(*one, **SETTINGS)
    torch.compile(lambda roles: adamw(*roles, **SETTINGS), backend="aot_eager", fullgraph=True)(other)
    for ours, compiled in zip(one, other, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, compiled, strict=True))


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype)


def test_other_input_is_refused_in_one_line() -> None:
    usual = SETTINGS | {name: ones(8) for name in ("weights", "gradients", "first_moments", "second_moments")}
    changed: list[tuple[dict[str, Any], str]] = [
        ({"weights": ones(8, dtype=torch.float64)}, "dtype of weights"),
        ({"gradients": ones(8, dtype=torch.float64)}, "dtype of gradients"),
        ({"first_moments": ones(8, dtype=torch.bfloat16)}, "dtype of first_moments"),
        ({"second_moments": ones(8, dtype=torch.float16)}, "dtype of second_moments"),
        ({"gradients": ones(7)}, "shape of gradients"),
        ({"second_moments": ones(2, 4)}, "shape of second_moments"),
        ({"copies": ones(9, dtype=torch.bfloat16)}, "shape of copies"),
        ({"copies": ones(8, dtype=torch.int32)}, "dtype of copies"),
        ({"gradients": ones(8).to("meta")}, "device of gradients"),
        ({"first_moments": ones(16)[::2]}, "strides of first_moments"),
        ({"gradients": [ones(8), ones(8)]}, "number of gradients"),
        ({"copies": [ones(8), ones(8)]}, "number of copies"),
        ({"weights": []}, "number of gradients"),
        ({"gradient_factor": ones(2)}, "elements of gradient_factor"),
        ({"gradient_factor": ones(1, dtype=torch.bfloat16)}, "dtype of gradient_factor"),
        ({"gradient_factor": ones(1).to("meta")}, "device of gradient_factor"),
        ({"step": 0}, "step"),
        ({"beta1": 1.0}, "beta1"),
        ({"beta2": -0.1}, "beta2"),
    ]
    assert_refused(adamw, [((), usual | changes, named) for changes, named in changed])


def test_mixed_dtypes_and_memory_given_twice_are_refused() -> None:
    w, g, m, v = ([ones(8), ones(8)] for _ in range(4))
    with pytest.raises(UnsupportedInputError, match="^adamw: dtype of gradients: allowed torch.float32 for all, got"):
        adamw(w, [ones(8), ones(8, dtype=torch.bfloat16)], m, v, **SETTINGS)
    with pytest.raises(UnsupportedInputError, match="^adamw: written tensors: allowed .*, got one twice$"):
        adamw([w[0], w[0]], g, m, v, **SETTINGS)
    with pytest.raises(UnsupportedInputError, match="^adamw: written tensors: allowed .*, got one twice$"):
        adamw(w, g, m, v, copies=[w[0].view(8), ones(8)], **SETTINGS)
