"""Bytes that the transformer layer of Megatron-Core 0.16.1 keeps on a CPU, and the most in its backward pass; and ours.

Without Transformer Engine its norms and its attention are PyTorch's, and scores are kept. Its fused activations run as
one kernel each, experts' grouped products and the sum of weights' gradients as stand-ins. All else is as on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed
from torch.nn import functional

from reference_runs.architecture import Activation, Architecture, Balancing, Gate
from reference_runs.layout import Layout, Recomputation, RecomputedModule
from reference_runs.run import Workload
from reference_runs.stack import stack
from suite.predict.analytic.activations import layer_activation_bytes, micro_batch_bytes
from tests.predict.analytic.test_activations import SIXTEEN_BIT
from tests.support.live_storages import LiveStorages
from tests.support.saved_tensors import saved_storage_bytes
from tests.support.strategies import BLOOM

SEQUENCE, SAMPLES, HIDDEN, WIDTH, HEADS, EXPERTS, CHOSEN = 32, 3, 64, 160, 8, 4, 2
ROWS = SEQUENCE * SAMPLES
SHAPE = msgspec.structs.replace(
    BLOOM.architecture,
    layers=1,
    hidden=HIDDEN,
    heads=HEADS,
    kv_heads=HEADS,
    head_dim=HIDDEN // HEADS,
    ffn_hidden=WIDTH,
    sequence=SEQUENCE,
)
GATED = msgspec.structs.replace(SHAPE, activation=Activation.SWIGLU, biases=False)
MIXTURE = msgspec.structs.replace(
    GATED, experts=EXPERTS, experts_per_token=CHOSEN, expert_ffn_hidden=48, gate=Gate.SOFTMAX, balancing=Balancing.NONE
)
# the causal mask; mean and deviation of two norms
BESIDES = SEQUENCE**2 + 2 * 2 * 2 * ROWS
# places of the rows in two orders, the router's choice twice; gates by expert and their mask; what weighs a row is in
# 16 bits unless the router's dtype is fp32, as we have it
OF_EXPERTS = 2 * 8 * CHOSEN * ROWS + 3 * EXPERTS * ROWS - 2 * CHOSEN * ROWS


class Stream:
    """A stream of a device that has none."""

    def record_event(self, *_: object) -> Stream:
        return self

    def wait_stream(self, *_: object) -> None: ...

    def synchronize(self) -> None: ...


class NoRandomState:
    def fork(self, *_: object) -> Any:
        return nullcontext()


class NoEightBits:
    @staticmethod
    def is_fp8_enabled() -> bool:
        return False

    @staticmethod
    def get_fp8_recipe() -> None: ...


class WeightGradients:
    """Adds a product to a weight's gradient in place, as Apex and Transformer Engine do."""

    @staticmethod
    def wgrad_gemm_accum_fp16(x: torch.Tensor, gradient: torch.Tensor, total: torch.Tensor) -> None:
        total.addmm_(gradient.flatten(0, -2).T, x.flatten(0, -2))


class GroupedProduct(torch.autograd.Function):
    """Products of each expert's rows with its weight, whose gradients are added up in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Any, rows: list[int]) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rows, ctx.total = rows, weight.main_grad
        out = x.new_empty(len(x), weight.shape[1])
        for own, expert, result in zip(x.split(rows), weight, out.split(rows), strict=True):
            torch.mm(own, expert.T, out=result)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]  # of one result
        x, weight = ctx.saved_tensors
        of_x = torch.empty_like(x)
        parts = (tensor.split(ctx.rows) for tensor in (x, gradient, of_x))
        for expert, total, own, of_own, result in zip(weight, ctx.total, *parts, strict=True):
            torch.mm(of_own, expert, out=result)
            total.addmm_(of_own.T, own)
        return of_x, None, None


class GroupedLinear(torch.nn.Module):
    """Transformer Engine's of that name, with one tensor of weights."""

    def __init__(self, experts: int, columns_in: int, columns_out: int, **_: object) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(experts, columns_out, columns_in))

    def forward(self, x: torch.Tensor, rows: list[int]) -> tuple[torch.Tensor, None]:
        return GroupedProduct.apply(x, self.weight, rows), None  # type: ignore[no-untyped-call]  # torch leaves it untyped


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run Megatron-Core on one rank, with a CPU in place of each device that it asks CUDA for."""
    from megatron.core import parallel_state, tensor_parallel  # which warns of PyTorch's own warnings
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    monkeypatch.setattr(tensor_parallel, "get_cuda_rng_tracker", NoRandomState)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(MoEAlltoAllTokenDispatcher, "cuda_dtoh_stream", Stream())
    monkeypatch.setattr(moe_utils, "te_general_gemm", None, raising=False)
    monkeypatch.setattr(tensor_parallel.random, "FP8GlobalStateManager", NoEightBits, raising=False)
    for name in ("_get_all_rng_states", "_set_all_rng_states"):
        monkeypatch.setattr(tensor_parallel.random, name, lambda *_: ())
    monkeypatch.setattr(tensor_parallel.random, "_fork_rng", nullcontext)
    for name in ("activation_recompute_forward", "fp8_autocast"):
        monkeypatch.setattr(tensor_parallel.random, name, lambda **_: nullcontext(), raising=False)
    monkeypatch.setattr(tensor_parallel.layers, "_grad_accum_fusion_available", True)
    monkeypatch.setattr(tensor_parallel.layers, "fused_weight_gradient_mlp_cuda", WeightGradients, raising=False)
    yield
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


def configured(a: Architecture, modules: tuple[RecomputedModule, ...] = (), *, grouped: bool = False) -> Any:
    """Their configuration of the shape."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    mixture = {
        "num_moe_experts": a.experts,
        "moe_router_topk": a.experts_per_token,
        "moe_ffn_hidden_size": a.expert_ffn_hidden,
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "none",
        "moe_router_pre_softmax": True,
        "moe_grouped_gemm": grouped,
        "moe_shared_expert_intermediate_size": a.shared_experts * a.expert_width or None,
    }
    return TransformerConfig(
        num_layers=1,
        hidden_size=a.hidden,
        ffn_hidden_size=a.ffn_hidden,
        num_attention_heads=a.heads,
        add_bias_linear=bool(a.bias.feed_forward),
        gated_linear_unit=a.activation.gated,
        activation_func=functional.silu if a.activation.gated else functional.gelu,
        bias_activation_fusion=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_cpu_initialization=True,
        masked_softmax_fusion=False,
        attention_softmax_in_fp32=False,
        gradient_accumulation_fusion=grouped,
        recompute_granularity="selective" if modules else None,
        recompute_modules=[*modules] or None,
        **(mixture if a.experts else {}),
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize(
    ("shape", "more"), [(SHAPE, 0), (GATED, 0), (MIXTURE, OF_EXPERTS)], ids=["gelu", "swiglu", "mixture"]
)
def test_its_layer_keeps_our_bytes_and_named_deviations(shape: Architecture, more: int) -> None:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.spec_utils import build_module

    spec = get_gpt_layer_local_spec(num_experts=shape.experts, moe_grouped_gemm=False)
    layer = build_module(spec, config=configured(shape), layer_number=1).to(torch.bfloat16)
    x = torch.randn(SEQUENCE, SAMPLES, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    mask = torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1)
    recipe = msgspec.structs.replace(SIXTEEN_BIT, hidden_dropout=0.0, attention_dropout=0.0)
    workload = Workload(shape, recipe, Layout(micro_batch=SAMPLES))
    ours = layer_activation_bytes(workload, stack("megatron-core").switches.keeping)
    theirs = saved_storage_bytes(lambda: layer(hidden_states=x, attention_mask=mask), layer)
    assert theirs - sum(ours.values()) == BESIDES + more


def live_bytes(shape: Architecture, modules: tuple[RecomputedModule, ...], patch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that their layer keeps, and the most in its backward pass, the gradient of its output among them."""
    from megatron.core.fusions import fused_bias_gelu, fused_bias_swiglu
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.mlp import MLPSubmodules
    from megatron.core.transformer.moe.experts import TEGroupedMLP
    from megatron.core.transformer.spec_utils import ModuleSpec, build_module

    spec = get_gpt_layer_local_spec(num_experts=shape.experts, moe_grouped_gemm=False)
    if shape.experts:
        linear = MLPSubmodules(linear_fc1=GroupedLinear, linear_fc2=GroupedLinear)
        spec.submodules.mlp.submodules.experts = ModuleSpec(module=TEGroupedMLP, submodules=linear)
    layer = build_module(spec, config=configured(shape, modules, grouped=True), layer_number=1).to(torch.bfloat16)
    for weight in layer.parameters():
        weight.main_grad = torch.zeros_like(weight.data)
        weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
    x, gradient = (torch.randn(shape.sequence, SAMPLES, shape.hidden, dtype=torch.bfloat16) for _ in range(2))
    mask = torch.ones(1, 1, shape.sequence, shape.sequence, dtype=torch.bool).triu(1)
    with LiveStorages((*layer.parameters(), *(weight.main_grad for weight in layer.parameters()))) as live:
        for module, names in ((fused_bias_gelu, ("bias_gelu",)), (fused_bias_swiglu, ("swiglu", "weighted_swiglu"))):
            for name in (each for of in names for each in (of, f"{of}_back")):
                patch.setattr(module, name, live.one_kernel(getattr(module, name)))
        live.see((x.requires_grad_(), mask))
        out, _ = layer(hidden_states=x, attention_mask=mask)
        out.untyped_storage().resize_(0)  # the next layer's
        kept, live.most = live.bytes, 0
        live.see(gradient)
        out.backward(gradient)
    return [kept, live.most]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize(
    ("shape", "modules"),
    [
        (SHAPE, ()),
        (GATED, ()),
        (GATED, ("core_attn",)),
        *(
            (MIXTURE, modules)
            for modules in ((), ("shared_experts",), ("moe_act",), ("moe",), ("moe_act", "core_attn"))
        ),
    ],
)
def test_its_backward_pass_holds_within_three_percent_of_ours(
    shape: Architecture, modules: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = msgspec.structs.replace(shape, sequence=128, hidden=256, heads=2, kv_heads=2, ffn_hidden=896, head_dim=128)
    if wide.experts:
        wide = msgspec.structs.replace(wide, expert_ffn_hidden=448, shared_experts=1)
    again = tuple(map(RecomputedModule, modules))
    kept, most = live_bytes(wide, again, monkeypatch)
    recipe = msgspec.structs.replace(SIXTEEN_BIT, hidden_dropout=0.0, attention_dropout=0.0)
    layout = Layout(micro_batch=SAMPLES, recomputed_modules=again)
    if again:
        layout = msgspec.structs.replace(layout, recomputation=Recomputation.SELECTIVE)
    ours = micro_batch_bytes(Workload(wide, recipe, layout), stack("megatron-core").switches.keeping)
    buffer = 2 * wide.heads * SAMPLES * wide.sequence**2  # of all layers, for scores
    assert kept - buffer == pytest.approx(ours.unit, rel=0.03)
    assert most - buffer == pytest.approx(ours.backward, rel=0.03)
