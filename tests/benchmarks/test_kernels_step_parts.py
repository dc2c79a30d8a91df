"""Parts of GPT-2's step: all ways compute the same, a wrong one is found, and --optimizations selects among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.equal_work import UnequalWorkError
from benchmarks.kernels import step_parts
from benchmarks.kernels.case import SELECTION, Case, Draw, LackingError
from benchmarks.kernels.step_parts import cases, lacking, optimizations_to_time
from benchmarks.kernels.turns import contenders, tensors
from reference_runs.errors import InputError
from suite.job.options import Optimization
from suite.predict.analytic.kernel_cost import kernel_bytes

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
PARTS = {case.name: case for case in cases(CPU)}


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_parts, "in_step", lambda function, _device, **_options: function)


@pytest.fixture
def _all_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way computes here, on a CPU by PyTorch's operators."""
    monkeypatch.setattr(step_parts, "lacking", lambda _way, _device: "")
    monkeypatch.setattr(step_parts.linear_epilogues, "why_not", lambda _: "")
    for kernel in ("adamw", "gradient_norm"):
        monkeypatch.setattr(f"kernels.{kernel}.runs_triton", lambda _: False)


def made() -> list[Case]:
    """The parts, whose ways ask the functions that are patched."""
    return list(cases(CPU))


def moved_bytes(part: Case, inputs: Any) -> tuple[float, float | None]:
    """Bytes of inputs and outputs, forward and backward; vectors of rows are left out, as in the formulas."""

    def of(tensors_: Any) -> int:
        return sum(tensor.nbytes for tensor in tensors(tensors_) if part.consumed or tensor.dim() > 1)

    if part.consumed:
        w, g, m, v, copies = inputs
        return of([w, g, g, m, v]) + of([w, m, v, copies]), None  # gradients: once for their norm, once for the update
    outputs = part.plain(*inputs)
    forward = of(inputs) + of(outputs)
    if not part.differentiated:
        return forward, None
    return forward, of(inputs) + of(outputs) + of(inputs)  # inputs and the output's gradient; the inputs' gradients


@pytest.mark.usefixtures("_all_ways")
@pytest.mark.parametrize("name", PARTS)
def test_all_ways_compute_what_pytorchs_way_does_on_what_the_bytes_count(name: str) -> None:
    (part,) = (each for each in made() if each.name == name)
    draw = Draw(CPU)
    inputs = part.inputs(draw)
    assert moved_bytes(part, inputs) == kernel_bytes(part.formula, **part.sizes)
    functions, errors, _ = contenders(part, [inputs], draw)
    assert not errors
    assert list(functions) == list(part.functions(CPU))
    assert len(functions) == len(part.ways) >= 2


def unclipped(
    w: list[Tensor], g: list[Tensor], m: list[Tensor], v: list[Tensor], c: list[Tensor], *, run: str
) -> object:
    del run
    step_parts.our_adamw(w, g, m, v, c, torch.ones(()))
    return w, m, v, c


WRONG: list[tuple[str, str, Callable[..., object]]] = [
    ("clipped_update", "_updated_in_one_pass", unclipped),
    ("between_blocks", "_normalised_sum", lambda x, f, w, b: (step_parts._normalised(x, w, b), x + f)),
    ("attention", "_packed_attention", lambda x, head_dim: 2 * step_parts._attention(x, head_dim)),
    ("linear_gradients", "_tuned_gradients", lambda dy, x: (dy.t() @ x, dy.mean(0))),
]


@pytest.mark.usefixtures("_all_ways")
@pytest.mark.parametrize(("variant", "name", "wrong"), WRONG, ids=[variant for variant, *_ in WRONG])
def test_a_way_that_computes_something_else_is_not_timed(
    variant: str, name: str, wrong: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_parts, name, wrong)
    part = next(each for each in made() if each.variant == variant)
    draw = Draw(CPU)
    _, errors, _ = contenders(part, [part.inputs(draw)], draw)
    assert {type(error) for error in errors.values()} == {UnequalWorkError}


def test_shapes_are_those_of_both_models_with_16384_rows() -> None:
    found = [(case.variant, *case.sizes.values()) for case in cases(CUDA)]
    assert {case.dtype for case in cases(CUDA)} == {"bf16"}
    for hidden, heads in ((768, 12), (1600, 25)):
        assert ("linear_gelu", 16384, hidden, 4 * hidden, 2) in found
        assert ("linear_gelu_backward", 16384, hidden, 4 * hidden, 2) in found
        layers = ((hidden, 3 * hidden), (hidden, hidden), (hidden, 4 * hidden), (4 * hidden, hidden))
        assert {("linear_gradients", 16384, *layer, 2) for layer in layers} <= set(found)
        assert ("attention", 16 * heads, 1024, 64, 2) in found
        assert ("between_blocks", 16384, hidden, 2) in found


def test_what_a_machine_cannot_have_is_said_and_pytorchs_way_is_left() -> None:
    for part in made():
        draw = Draw(CPU)
        functions, errors, _ = contenders(part, [part.inputs(draw)], draw)
        assert list(functions) == ["plain"]
        assert {type(error) for error in errors.values()} == {LackingError}
        assert {str(error) for error in errors.values()} == {f"without {way}: no CUDA device" for way in errors}


def test_a_missing_package_and_a_check_on_the_device_that_fails_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_parts, "_launch", lambda _: step_parts.PlannedLaunch)
    rule = step_parts.RULES[Optimization.PACKED_GRADIENTS]._replace(why_not=lambda _: "", package="absent_kernels")
    package = step_parts.PACKAGES["cudnn"]._replace(module="absent_kernels")
    monkeypatch.setitem(step_parts.PACKAGES, "absent_kernels", package)
    monkeypatch.setattr(step_parts, "RULES", {Optimization.PACKED_GRADIENTS: rule})
    assert lacking((Optimization.PACKED_GRADIENTS,), CPU) == "nvidia-cudnn-frontend is not installed"
    monkeypatch.setattr(step_parts, "lacking", lambda _way, _device: "")
    monkeypatch.setattr(step_parts.linear_epilogues, "why_not", lambda _: "cuBLASLt: wrong results of DGELU")
    part = made()[1]
    with pytest.raises(LackingError, match="^without epilogues: cuBLASLt: wrong results of DGELU$"):
        part.functions(CPU)["epilogues"]()


@pytest.mark.parametrize(
    ("asked", "variants", "ways"),
    [
        ("none", 6, {"plain"}),
        ("default", 5, {"plain", "epilogues", "across-blocks", "one-pass-update"}),
        ("packed-gradients", 1, {"plain", "packed-gradients"}),
        ("tuned-gemms", 1, {"plain", "tuned-gemms"}),
        ("tuned-gemms, epilogues", 3, {"plain", "epilogues", "tuned-gemms", "epilogues+tuned-gemms"}),
    ],
)
def test_optimizations_pick_parts_and_their_ways(
    asked: str, variants: int, ways: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SELECTION, "optimizations", optimizations_to_time(asked))
    selected = [case for case in cases(CUDA) if case.is_selected]
    assert len({case.variant for case in selected}) == variants
    assert {way for case in selected for way in case.functions(CUDA)} == ways


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (
            "none,epilogues",
            "--optimizations: none stands alone; got 'none,epilogues', allowed: none, or names without it",
        ),
        ("epilog", "--optimizations: unknown optimization; got 'epilog', allowed: none, default, epilogues, .*"),
        (
            "micro-batch-graph",
            "--optimizations: changes no part by itself; got micro-batch-graph, allowed: epilogues, tuned-gemms, "
            "packed-gradients, across-blocks, dependent-launch, one-pass-update; reproduce and ladder have all",
        ),
    ],
)
def test_names_that_select_nothing_are_refused(asked: str, line: str) -> None:
    with pytest.raises(InputError, match=f"^{line}$"):
        optimizations_to_time(asked)
