"""Bytes that the transformer layer of Megatron-Core 0.16.1 keeps on a CPU, and ours.

Without Transformer Engine its norms and its attention are PyTorch's, and scores are kept. All else is as on a GPU.
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
from reference_runs.layout import Layout
from reference_runs.run import Workload
from reference_runs.stack import stack
from suite.predict.analytic.activations import layer_activation_bytes
from tests.predict.analytic.test_activations import SIXTEEN_BIT
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
    yield
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


def configured(a: Architecture) -> Any:
    """Their configuration of the shape."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    mixture = {
        "num_moe_experts": a.experts,
        "moe_router_topk": a.experts_per_token,
        "moe_ffn_hidden_size": a.expert_ffn_hidden,
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "none",
        "moe_router_pre_softmax": True,
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
