"""The operators that a prediction of time counts are those that PyTorch dispatches, call by call, at the same sizes."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reference_runs.catalog import miniatures, reference_run
from reference_runs.layout import Recomputation
from reference_runs.miniature import miniature
from reference_runs.run import Mask, Precision, Workload
from suite.execute.data.token_stream import TokenStream
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.precision import store_weights
from suite.job.options import DEFAULT_OPTIONS, Optimization, StepOptions, TrainingOptions
from suite.machine.half_precision import Kernels
from suite.predict.analytic.parameters import parameter_count
from suite.predict.simulation.autograd_tape import OperatorCalls
from suite.predict.simulation.operator_calls import (
    loading_calls,
    micro_batch_calls,
    one_pass_element_bytes,
    update_calls,
)

Calls = Counter[tuple[str, tuple[int, ...]]]
HALVES = (torch.float16, torch.bfloat16)
SAME_NAME = {
    "native_layer_norm": "layer_norm forward",
    "native_layer_norm_backward": "layer_norm backward",
    "_softmax": "softmax forward",
    "_softmax_backward_data": "softmax backward",
    "_log_softmax": "cross_entropy forward",
    "_log_softmax_backward_data": "cross_entropy backward",
}
ACTIVATIONS = {
    "gelu": "forward",
    "relu": "forward",
    "gelu_backward": "backward",
    "silu": "forward",
    "silu_backward": "backward",
    "threshold_backward": "backward",
}


def is_mixture(name: str) -> bool:
    return reference_run(miniatures()[name]).architecture.experts is not None


class Dispatched(TorchDispatchMode):
    """Counts the operators that run, by the predicted calls that they belong to."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Calls = Counter()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = operator(*args, **(kwargs or {}))
        tensors = [value for value in args if isinstance(value, Tensor)]
        if tensors:
            self._count(operator._opname, tensors, out)
        return out

    def _count(self, name: str, tensors: list[Tensor], out: Any) -> None:
        shape = tuple(tensors[0].shape)
        if name in ("mm", "addmm"):
            a_MK, b_KN = tensors[-2:]
            self.calls["product", (a_MK.shape[0], b_KN.shape[1], a_MK.shape[1])] += 1
            if name == "addmm":
                self.calls["bias", (a_MK.shape[0] * b_KN.shape[1],)] += 1
        elif name == "bmm":
            # heads that share keys are one product
            self.calls["batched_product flop", (shape[0] * prod(shape[1:]) * tensors[1].shape[2],)] += 1
        elif name.startswith("_scaled_dot_product_flash_attention"):
            backward = name.endswith("backward")
            samples, heads, length, width = tensors[1].shape if backward else shape
            variant = "backward" if backward else "forward"
            self.calls[f"attention {variant}", (samples * heads, length, width)] += 1
        elif name in SAME_NAME:
            self.calls[SAME_NAME[name], (prod(shape[:-1]), shape[-1])] += 1
        elif name == "bernoulli_":
            self.calls["dropout forward", (prod(shape),)] += 1
        elif name in ACTIVATIONS:
            self.calls[f"activation {ACTIVATIONS[name]}", (prod(shape),)] += 1
        elif name == "sum" and len(shape) == 2:
            self.calls["column_sum", shape] += 1
        elif name == "clone" and tensors[0].is_floating_point():
            self.calls["permuted", (prod(shape),)] += 1
        elif name == "_to_copy" and tensors[0].dtype in HALVES and out.dtype is torch.float32:
            self.calls["to_fp32", (prod(shape),)] += 1
        elif name == "_to_copy" and tensors[0].dtype is torch.float32 and out.dtype in HALVES:
            self.calls["from_fp32", (prod(shape),)] += 1


def counted(predicted: OperatorCalls) -> Calls:
    """The same keys from predicted calls."""
    calls: Calls = Counter()
    for (_, call), times in predicted.items():
        name, sizes = call.operation, call.sizes
        if name == "batched_product":
            name, sizes = "batched_product flop", (sizes[0] * sizes[1] ** 2 * sizes[2],)
        elif name == "rms_norm":
            # which widens and rounds hidden states and their gradients; an fp32 gradient is what its gain's is at first
            for cast in ("to_fp32", "from_fp32"):
                calls[cast, (prod(sizes),)] += times
            if call.variant == "backward":
                calls["to_fp32", (sizes[1],)] -= times
            continue
        elif name in ("layer_norm", "softmax", "cross_entropy", "attention"):
            name = f"{name} {call.variant}"
        elif name in ("gelu", "gelu_tanh", "relu", "geglu", "swiglu"):
            name = f"activation {call.variant}"
        elif name == "dropout" and call.variant == "forward":
            name = "dropout forward"
        elif name not in ("product", "bias", "column_sum", "permuted", "to_fp32", "from_fp32"):
            continue
        calls[name, sizes] += times
    return calls


@pytest.mark.parametrize("recomputation", [Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL])
@pytest.mark.parametrize("name", [name for name in miniatures() if not is_mixture(name)])
def test_products_and_passes_are_the_dispatched_ones(name: str, recomputation: Recomputation) -> None:
    for fused in (False, True) if name in ("gpt2-mini", "gpt-neox-mini", "codegeex-mini") else (False,):
        predicted, dispatched = _predicted_and_dispatched(name, recomputation, fused=fused)
        assert predicted == dispatched, fused


@pytest.mark.parametrize("name", [name for name in miniatures() if is_mixture(name)])
def test_of_a_mixture_of_experts_they_multiply_as_often(name: str) -> None:
    """Which rows an expert gets is not known before: products have other sizes, and in all as many multiplications."""
    predicted, dispatched = _predicted_and_dispatched(name, Recomputation.NONE, fused=False)

    def multiplications(calls: Calls) -> int:
        return sum(prod(sizes) * times for (operation, sizes), times in calls.items() if "product" in operation)

    assert multiplications(predicted) == multiplications(dispatched) > 0


def _predicted_and_dispatched(name: str, recomputation: Recomputation, *, fused: bool) -> tuple[Calls, Calls]:
    small = miniature(reference_run(miniatures()[name]), "cpu", ranks=1)
    layout = msgspec.structs.replace(small.layout, zero_stage=0, recomputation=recomputation, fused_attention=fused)
    few = {"layers": 2, "sequence": 32, "vocabulary": 200, "padded_vocabulary": 208}
    architecture, recipe = msgspec.structs.replace(small.architecture, **few), small.recipe
    if fused:
        recipe = msgspec.structs.replace(recipe, attention_dropout=0.0)
    decoder = Decoder(architecture, recipe, fused_attention=fused)
    decoder.recompute(recomputation, checkpoint_layers=layout.checkpoint_layers)
    initialise(decoder, recipe, seed=1)
    store_weights([decoder], recipe, shards=1, device=torch.device("cpu"))
    samples, length = layout.micro_batch, architecture.sequence
    both = torch.randint(0, architecture.vocabulary, (samples, length + 1))
    more: dict[str, Tensor] = {}
    if architecture.mask is Mask.PREFIX:
        more["positions_BT"] = torch.arange(length).expand(samples, length)
        ends = [torch.zeros(samples, length, dtype=torch.long), torch.full((samples, length), length)]
        more["seen_B2S"] = torch.stack(ends, 1)
    with Dispatched() as dispatched:
        decoder(both[:, :-1], both[:, 1:], **more).backward()
    (chunk,) = micro_batch_calls(Workload(architecture, recipe, layout), StepOptions(), stage=0)
    return counted(chunk.calls), dispatched.calls


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_making_a_micro_batch_dispatches_as_many_operators_as_its_price_is_assumed_from(
    samples: int, tmp_path: Path
) -> None:
    class Counted(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return operator(*args, **(kwargs or {}))

    path = tmp_path / "tokens"
    path.write_bytes(bytes(4 * 1000))
    stream = TokenStream(str(path), tokens=1000, sequence=8, seed=1)
    stream.micro_batch(0, samples)  # shuffles
    with Counted() as counted:
        stream.micro_batch(samples, samples)
    assert counted.calls == 4 + 3 * samples
    mini = miniature(reference_run("bloom-176b"), "cpu", ranks=1)
    layout = msgspec.structs.replace(mini.layout, micro_batch=samples)
    assert sum(loading_calls(Workload(mini.architecture, mini.recipe, layout)).values()) >= counted.calls


def test_a_compiled_loss_in_chunks_reads_its_logits_twice_and_writes_them_once_on_a_gpu() -> None:
    """Beside the products of the eager one; on a CPU, where it is not compiled, nothing changes."""
    workload = reference_run("gpt2-124m").workload
    rows, logits = 50304, 8192 * 50304

    def passes(*, compiled: bool, cuda: bool) -> Counter[str]:
        chunked = TrainingOptions(rung="", loss_chunks=8)
        options = StepOptions(compiled=compiled, kernels=Kernels(cuda=cuda), training_options=chunked)
        (chunk,) = micro_batch_calls(workload, options, stage=0)
        of_logits = ((call, count) for (_, call), count in chunk.calls.items() if {rows, logits} & {*call.sizes})
        return Counter({f"{call.operation} {call.dtype}": count for call, count in of_logits})

    eager = passes(compiled=False, cuda=True)
    assert eager == passes(compiled=True, cuda=False)
    assert passes(compiled=True, cuda=True) == {"product bf16": 8, "add bf16": 8}
    assert eager["cross_entropy fp32"] == eager["to_fp32 bf16"] == 8


@pytest.mark.parametrize("name", ["gpt2-124m", "gpt2-1558m"])
def test_an_update_in_one_pass_moves_34_bytes_a_parameter_in_place_of_46(name: str) -> None:
    workload = reference_run(name).workload  # bf16 with fp32 masters and gradients
    layout = msgspec.structs.replace(workload.layout, data_parallel=1, zero_stage=0, accumulation=None)
    workload = workload._replace(layout=layout)
    one_pass = msgspec.structs.replace(DEFAULT_OPTIONS, optimizations=(Optimization.ONE_PASS_UPDATE,))
    element_bytes = {"vector_norm": 4, "scale": 8, "adam": 28, "from_fp32": 6}
    elements = parameter_count(workload.architecture)
    for training, moved in ((DEFAULT_OPTIONS, 46), (one_pass, 34)):
        calls = update_calls(workload, training, stage=0, replica=0)
        found = sum(
            count * call.sizes[0] * element_bytes[call.operation]
            for (_, call), count in calls.items()
            if call.operation in element_bytes
        )
        assert found == pytest.approx(moved * elements, rel=1e-6)
        assert {call.operation for _, call in calls} - element_bytes.keys() == {"view", "adam_tensor", "call"}


@pytest.mark.parametrize(
    ("precision", "gradients", "expected"),
    [
        (Precision.FP32, "fp32", 28),
        (Precision.BF16, "fp32", 30),
        (Precision.FP16, "fp16", 28),  # 16-bit gradients, and a copy
        (Precision.FP16, "fp32", 30),  # of a flat shard
        (Precision.FP16_GRADIENT_COPY, "fp16", 30),  # the copy is kept in fp32
        (Precision.FP16_NO_MASTER, "fp16", 22),
    ],
)
def test_bytes_of_an_element_in_one_pass(precision: Precision, gradients: str, expected: int) -> None:
    workload = reference_run("gpt2-124m").workload
    recipe = msgspec.structs.replace(workload.recipe, precision=precision)
    assert one_pass_element_bytes(workload._replace(recipe=recipe), gradients) == expected
