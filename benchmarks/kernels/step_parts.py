"""Parts of GPT-2's step on one GPU: PyTorch's way, as in a step without optimizations, and the ways with them.

Legend: M rows (tokens), K columns, N width of a result, B samples, T positions, X head by head query, key and value.
All ways of a part compute the same of the same inputs. PyTorch's operators are compiled where those of a step are. A
way that this machine cannot have is left out, with a line that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

from benchmarks.kernels.case import Case, Draw, Function, LackingError, StepWay
from benchmarks.kernels.layer_tensors import Tensors, eager_adamw, our_adamw, tensors_of_layers
from kernels import linear_epilogues
from kernels.operator import NAMESPACE
from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.run import Workload
from suite.execute.calibrate.operators import DTYPES
from suite.execute.model import packed_attention
from suite.execute.optim.learning_rate import gradient_factor_on_device, squared_norm
from suite.execute.optim.one_pass_update import squared_norm_in_one_launch
from suite.job.options import KernelChoice, Optimization
from suite.machine.half_precision import kernels_for
from suite.machine.packages import PACKAGES, compilation_missing
from suite.predict.simulation.optimizations import RULES, PlannedLaunch
from suite.records.kernel_runs import STEP_PART
from suite.reproduce.device_use import named_optimizations

RUNS = ("gpt2-124m", "gpt2-1558m")
ROWS = {"cuda": 16_384, "cpu": 64}
LENGTH = {"cuda": 1024, "cpu": 64}
DTYPE = {"cuda": "bf16", "cpu": "fp32"}
EPSILON = 1e-5
CLIPPED_NORM = 2.0  # of the gradients before the update: GPT-2 clips at half of it
WEIGHTS = 1e-3  # their size, so small that an update shows in them
FUSED, TUNED = Optimization.EPILOGUES, Optimization.TUNED_GEMMS
OPERATORS = getattr(torch.ops, NAMESPACE)
Make = Callable[[], Function]


@cache
def _launch(device: str) -> PlannedLaunch:
    run = reference_run(RUNS[0])
    layout = msgspec.structs.replace(run.recorded_layout or Layout(), data_parallel=1, accumulation=None)
    gpu = kernels_for(run.recipe.precision, device).gpu
    compiled = not compilation_missing(device)
    return PlannedLaunch(Workload(run.architecture, run.recipe, layout), device, compiled, KernelChoice.TORCH, gpu)


def lacking(way: StepWay, device: torch.device) -> str:
    """Why a step on this device cannot have all optimizations of a way, in words; empty: it can."""
    rules = [RULES[name] for name in way]
    reasons = [rule.why_not(_launch(device.type)) for rule in rules]
    reasons += [f"{PACKAGES[rule.package].name} is not installed" for rule in rules if not rule.is_installed]
    return next((reason for reason in reasons if reason), "")


def _checked(way: StepWay, device: torch.device, make: Make, why_not: Callable[[], str]) -> Make:
    """Makes a way's function.

    Raises, when it is called:
        LackingError: this machine cannot have it.
    """

    def made() -> Function:
        if reason := lacking(way, device) or why_not():
            raise LackingError(f"without {'+'.join(way)}: {reason}")
        return make()

    return made


def in_step(function: Function, device: torch.device, **options: bool) -> Function:
    """The function as `compile_blocks` compiles it within a block; as it is where there is no compiler.

    Args:
        options: of Inductor.
    """
    if compilation_missing(device.type):
        return function
    return torch.compile(function, dynamic=False, options=dict(options) or None)


def _plain(function: Function, device: torch.device) -> Function:
    torch.compiler.reset()  # the first function of a case: none is needed that was compiled before
    return in_step(function, device)


def _part(
    variant: str,
    device: torch.device,
    plain: Function,
    ways: Mapping[StepWay, Make],
    *,
    made: Make | None = None,
    why_not: Callable[[], str] = str,
    **fields: Any,
) -> Case:
    """A part of the step.

    Args:
        made: makes the plain way; None: `plain`, compiled.
        why_not: why the device cannot compute the others, found out when the first of them is made.
    """
    others = {way: _checked(way, device, make, why_not) for way, make in ways.items()}
    return Case(
        kernel=STEP_PART,
        variant=variant,
        dtype=DTYPE[device.type],
        ours=plain,
        plain=plain,
        eager=plain,
        ways={(): made or partial(_plain, plain, device), **others},
        **({"formula": variant} | fields),
    )


def _linear_gelu(x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor) -> tuple[Tensor, Tensor]:
    before_MN = linear(x_MK, weight_NK, bias_N)
    return gelu(before_MN, approximate=linear_epilogues.APPROXIMATE), before_MN


def _linear_gelu_backward(dy_MK: Tensor, weight_KN: Tensor, before_MN: Tensor) -> Tensor:
    of_gelu = torch.mm(dy_MK, weight_KN)
    of_before: Tensor = torch.ops.aten.gelu_backward(of_gelu, before_MN, approximate=linear_epilogues.APPROXIMATE)
    return of_before


def _linear_gradients(dy_MN: Tensor, x_MK: Tensor) -> tuple[Tensor, Tensor]:
    return torch.mm(dy_MN.t(), x_MK), dy_MN.sum(0)


def _tuned_gradients(dy_MN: Tensor, x_MK: Tensor) -> tuple[Tensor, Tensor]:
    return OPERATORS.linear_gradients(dy_MN, x_MK, False, True)[0], dy_MN.sum(0)


def _gelu_inputs(rows: int, columns: int, width: int, dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    weight = draw.normal(width, columns, dtype=dtype) / columns**0.5
    return draw.normal(rows, columns, dtype=dtype), weight, draw.normal(width, dtype=dtype)


def _gelu_backward_inputs(rows: int, columns: int, width: int, dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    weight = draw.normal(columns, width, dtype=dtype) / columns**0.5
    return draw.normal(rows, columns, dtype=dtype), weight, draw.normal(rows, width, dtype=dtype)


def _gradients_inputs(rows: int, columns: int, width: int, dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    return draw.normal(rows, width, dtype=dtype), draw.normal(rows, columns, dtype=dtype)


def _linear_layers(run: str, device: torch.device) -> Iterator[Case]:
    """GELU after the expansion, its gradient before it, and the gradients of each layer's weight and bias."""
    architecture, dtype = reference_run(run).architecture, DTYPES[DTYPE[device.type]]
    hidden, expanded = architecture.hidden, architecture.ffn_hidden

    def part(
        variant: str, columns: int, width: int, plain: Function, ways: Mapping[StepWay, Make], inputs: Any
    ) -> Case:
        rows = ROWS[device.type]
        sizes = {"rows": rows, "columns": columns, "width": width, "element_bytes": dtype.itemsize}
        drawn = partial(inputs, rows, columns, width, dtype)
        why_not = partial(linear_epilogues.why_not, device)
        return _part(variant, device, plain, ways, why_not=why_not, sizes=sizes, over="columns", inputs=drawn)

    def gelu_ways(operator: Function) -> dict[StepWay, Make]:
        return {(FUSED,): lambda: lambda *x: operator(*x, False), (FUSED, TUNED): lambda: lambda *x: operator(*x, True)}

    gradients: dict[StepWay, Make] = {
        (FUSED,): lambda: lambda dy, x: OPERATORS.linear_gradients(dy, x, True, False),
        (TUNED,): partial(in_step, _tuned_gradients, device),
        (FUSED, TUNED): lambda: lambda dy, x: OPERATORS.linear_gradients(dy, x, True, True),
    }
    forward, backward = gelu_ways(OPERATORS.linear_gelu), gelu_ways(OPERATORS.linear_gelu_backward)
    yield part("linear_gelu", hidden, expanded, _linear_gelu, forward, _gelu_inputs)
    yield part("linear_gelu_backward", hidden, expanded, _linear_gelu_backward, backward, _gelu_backward_inputs)
    layers = ((hidden, 3 * hidden), (hidden, hidden), (hidden, expanded), (expanded, hidden))
    for columns, width in layers:
        yield part("linear_gradients", columns, width, _linear_gradients, gradients, _gradients_inputs)


def _attention(packed_BTX: Tensor, head_dim: int) -> Tensor:
    batch, length, _ = packed_BTX.shape
    q_BHTK, k_BHTK, v_BHTK = packed_BTX.view(batch, length, -1, 3, head_dim).permute(3, 0, 2, 1, 4).unbind(0)
    return scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True).transpose(1, 2)


def _packed_attention(packed_BTX: Tensor, head_dim: int) -> Tensor:
    return packed_attention.packed_attention(packed_BTX, head_dim, head_dim**-0.5).transpose(1, 2)


def _attention_of(run: str, device: torch.device) -> Case:
    """Causal attention of a fused projection's output; its gradient is one tensor of that form."""
    architecture, dtype = reference_run(run).architecture, DTYPES[DTYPE[device.type]]
    heads, head_dim, length = architecture.heads, architecture.fused_head_dim, LENGTH[device.type]
    batch = ROWS[device.type] // length
    shape = (batch, length, heads * 3 * head_dim)
    return _part(
        "attention",
        device,
        partial(_attention, head_dim=head_dim),
        {(Optimization.PACKED_GRADIENTS,): lambda: partial(_packed_attention, head_dim=head_dim)},
        why_not=partial(packed_attention.why_not, device, dtype, head_dim),
        sizes={"heads": batch * heads, "length": length, "head_size": head_dim, "element_bytes": dtype.itemsize},
        over="heads",
        inputs=lambda draw: (draw.normal(*shape, dtype=dtype),),
        differentiated=1,
    )


def _added(x_MK: Tensor, f_MK: Tensor) -> Tensor:
    return x_MK + f_MK


def _normalised(x_MK: Tensor, weight_K: Tensor, bias_K: Tensor) -> Tensor:
    return layer_norm(x_MK, weight_K.shape, weight_K, bias_K, EPSILON)


def _normalised_sum(x_MK: Tensor, f_MK: Tensor, weight_K: Tensor, bias_K: Tensor) -> tuple[Tensor, Tensor]:
    total = x_MK + f_MK
    return _normalised(total, weight_K, bias_K), total


def _of_two_blocks(device: torch.device, **options: bool) -> Function:
    """The sum at the end of a block, and the norm at the start of the next one, each compiled with its own block."""
    added, normalised = in_step(_added, device, **options), in_step(_normalised, device, **options)

    def function(x_MK: Tensor, f_MK: Tensor, weight_K: Tensor, bias_K: Tensor) -> tuple[Tensor, Tensor]:
        total = added(x_MK, f_MK)
        return normalised(total, weight_K, bias_K), total

    return function


def _between_blocks(run: str, device: torch.device) -> Case:
    """Forward alone: in the backward pass of either way one kernel computes the gradient of the sum."""
    dtype, rows, columns = DTYPES[DTYPE[device.type]], ROWS[device.type], reference_run(run).architecture.hidden
    shapes = [(rows, columns)] * 2 + [(columns,)] * 2
    return _part(
        "between_blocks",
        device,
        _normalised_sum,
        {
            (Optimization.ACROSS_BLOCKS,): partial(in_step, _normalised_sum, device),
            (Optimization.DEPENDENT_LAUNCH,): partial(_of_two_blocks, device, **{"triton.enable_pdl": True}),
        },
        made=partial(_of_two_blocks, device),
        sizes={"rows": rows, "columns": columns, "element_bytes": dtype.itemsize},
        over="columns",
        inputs=lambda draw: tuple(draw.normal(*shape, dtype=dtype) for shape in shapes),
    )


def _updated(w: Tensors, g: Tensors, m: Tensors, v: Tensors, copies: Tensors, *, run: str) -> tuple[Tensors, ...]:
    factor = gradient_factor_on_device(reference_run(run).recipe, squared_norm(g, device=w[0].device))
    torch._foreach_mul_(g, factor)
    eager_adamw(w, g, m, v, copies, None)
    return w, m, v, copies


def _updated_in_one_pass(
    w: Tensors, g: Tensors, m: Tensors, v: Tensors, copies: Tensors, *, run: str
) -> tuple[Tensors, ...]:
    squared = squared_norm_in_one_launch(g, device=w[0].device)
    our_adamw(w, g, m, v, copies, gradient_factor_on_device(reference_run(run).recipe, squared))
    return w, m, v, copies


def _update_inputs(elements: list[int], dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    """Moments as large as clipped gradients, so that each counts in the results."""
    size = CLIPPED_NORM / sum(elements) ** 0.5
    w, g, m, roots = ([draw.normal(count, dtype=torch.float32) for count in elements] for _ in range(4))
    torch._foreach_mul_(w, WEIGHTS)
    for tensors in (g, m, roots):
        torch._foreach_mul_(tensors, size)
    copies = [torch.empty(count, dtype=dtype, device=draw.device) for count in elements]
    return w, g, m, [root.square() for root in roots], copies


def _update(run: str, device: torch.device) -> Case:
    """The gradients' norm, clipping, AdamW and the 16-bit copy, of as many of a run's layers as fit."""
    elements = tensors_of_layers(run, device)
    plain = partial(_updated, run=run)
    return _part(
        "clipped_update",
        device,
        plain,
        {(Optimization.ONE_PASS_UPDATE,): lambda: partial(_updated_in_one_pass, run=run)},
        made=lambda: plain,
        sizes={"parameters": sum(elements), "copy_bytes": torch.bfloat16.itemsize},
        over="parameters",
        inputs=partial(_update_inputs, elements, torch.bfloat16),
        consumed=True,
    )


def cases(device: torch.device) -> Iterator[Case]:
    """The parts of both runs, in the order of a step; on a CPU of the smaller run alone."""
    for run in RUNS if device.type == "cuda" else RUNS[:1]:
        yield from _linear_layers(run, device)
        yield _attention_of(run, device)
        yield _between_blocks(run, device)
        yield _update(run, device)


def optimizations_to_time(asked: str) -> frozenset[Optimization]:
    """The optimizations of --optimizations: none, default, or names.

    Raises:
        InputError: an unknown name, or an optimization that no part by itself has.
    """
    of_parts = {name for case in cases(torch.device("cuda")) for way in case.ways for name in way}
    names = named_optimizations(asked)
    if names is None:
        return frozenset(name for name in of_parts if RULES[name].is_default)
    for name in names:
        if name not in of_parts:
            known = ", ".join(known for known in Optimization if known in of_parts)
            what, allowed = "changes no part by itself", f"{known}; reproduce and ladder have all"
            raise InputError(what, got=name.value, allowed=allowed, where="--optimizations")
    return frozenset(names)
