"""Tensors that eager modules keep, counted by saved-tensor hooks on modules that are written as people write them."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout
from reference_runs.run import Activation, Architecture, Norm, Position, Precision, Workload
from reference_runs.stack import Keeping, Modules, Weights32, stack
from suite.predict.analytic.activations import layer_activation_bytes
from suite.predict.analytic.eager_modules import head_of_modules, is_script
from suite.predict.analytic.stage_memory import stage_memory
from tests.support.saved_tensors import saved_storage_bytes

SAMPLES, LENGTH, WIDTH, HEADS, WIDE, VOCABULARY = 2, 48, 64, 4, 176, 320
TOKENS = SAMPLES * LENGTH
DTYPES = {Precision.BF16: torch.bfloat16, Precision.FP32: torch.float32}


class HandwrittenNorm(nn.Module):
    """RMSNorm as in Llama's scripts: in fp32, cast back, times the gain."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Block(nn.Module):
    """A layer of a script: attention in separate operators or fused, and a gated or plain feed-forward part."""

    def __init__(self, architecture: Architecture, *, fused: bool) -> None:
        super().__init__()
        self.fused, self.kv_heads = fused, architecture.kv_heads
        rms = architecture.norm.root_mean_square
        self.norms = nn.ModuleList([HandwrittenNorm() if rms else nn.LayerNorm(WIDTH) for _ in range(2)])
        bias = architecture.biases
        narrow = self.kv_heads * WIDTH // HEADS
        self.query, self.project = nn.Linear(WIDTH, WIDTH, bias), nn.Linear(WIDTH, WIDTH, bias)
        self.key, self.value = nn.Linear(WIDTH, narrow, bias), nn.Linear(WIDTH, narrow, bias)
        self.gate = nn.Linear(WIDTH, WIDE, bias) if architecture.activation.gated else None
        self.up, self.down = nn.Linear(WIDTH, WIDE, bias), nn.Linear(WIDE, WIDTH, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        read = self.norms[0](x)
        q, k, v = (
            each(read).view(SAMPLES, LENGTH, heads, -1).transpose(1, 2)
            for each, heads in ((self.query, HEADS), (self.key, self.kv_heads), (self.value, self.kv_heads))
        )
        if self.fused:
            context = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            k, v = (each.repeat_interleave(HEADS // self.kv_heads, 1) for each in (k, v))
            scores = q @ k.transpose(2, 3) * (WIDTH / HEADS) ** -0.5
            mask = torch.full((LENGTH, LENGTH), -math.inf).triu(1)
            context = functional.softmax((scores + mask.to(scores.dtype)), dim=-1, dtype=torch.float32).to(q.dtype) @ v
        x = x + self.project(context.transpose(1, 2).reshape(SAMPLES, LENGTH, WIDTH))
        read = self.norms[1](x)
        wide = functional.gelu(self.up(read)) if self.gate is None else functional.silu(self.gate(read)) * self.up(read)
        return x + self.down(wide)


class Model(nn.Module):
    """Embedding, layers, norm and head, with the loss in fp32."""

    def __init__(self, architecture: Architecture, *, fused: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block(architecture, fused=fused) for _ in range(architecture.layers)))
        self.norm = HandwrittenNorm() if architecture.norm.root_mean_square else nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.blocks(self.embedding(tokens))))
        return functional.cross_entropy(logits.float().view(-1, VOCABULARY), tokens.view(-1))


def workload_of(precision: Precision, *, layers: int = 1, fused: bool, **shape: Any) -> Workload:
    run = reference_run("llama2-7b")
    sizes = {"layers": layers, "hidden": WIDTH, "heads": HEADS, "kv_heads": HEADS, "head_dim": WIDTH // HEADS}
    sizes |= {"ffn_hidden": WIDE, "vocabulary": VOCABULARY, "padded_vocabulary": VOCABULARY, "sequence": LENGTH}
    architecture = msgspec.structs.replace(run.architecture, **(sizes | {"rotary_dim": WIDTH // HEADS} | shape))
    recipe = msgspec.structs.replace(run.recipe, precision=precision, hidden_dropout=0.0, attention_dropout=0.0)
    return Workload(architecture, recipe, Layout(micro_batch=SAMPLES, fused_attention=fused))


def kept(workload: Workload, *, autocast: bool) -> int:
    """Bytes of all storages that a forward pass saves, weights left out but not their casts."""
    torch.manual_seed(0)
    model = Model(workload.architecture, fused=workload.layout.fused_attention)
    model = model.to(torch.float32 if autocast else DTYPES[workload.recipe.precision])
    tokens = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        return saved_storage_bytes(lambda: model(tokens), model)


PLAIN = {"norm": Norm.PRE_LAYER_NORM, "activation": Activation.GELU, "position": Position.LEARNED, "rotary_dim": None}


# whether scaled_dot_product_attention copies grouped heads is its caller's choice: unfused alone
CASES = {
    "llama": ({}, False),
    "llama fused": ({}, True),
    "gpt": (PLAIN, False),
    "gpt fused": (PLAIN, True),
    "grouped": ({"kv_heads": 2}, False),
}


@pytest.mark.parametrize("style", ["bf16", "fp32", "autocast"])
@pytest.mark.parametrize(("shape", "fused"), CASES.values(), ids=CASES)
def test_a_layer_keeps_what_is_predicted_to_the_byte(style: str, shape: dict[str, Any], *, fused: bool) -> None:
    autocast = style == "autocast"
    workload = workload_of(Precision.FP32 if style == "fp32" else Precision.BF16, fused=fused, **shape)
    keeping = Keeping(Modules.EAGER, weights_32=Weights32.AUTOCAST if autocast else Weights32.SHARDED)
    one, two = (
        kept(
            workload._replace(architecture=msgspec.structs.replace(workload.architecture, layers=n)), autocast=autocast
        )
        for n in (1, 2)
    )
    layer = sum(layer_activation_bytes(workload, keeping).values())
    copies = stage_memory(workload, stage=0, micro_batches=1, keeping=keeping).weight_copies
    # a LayerNorm's mean and root are in fp32 on CUDA; on CPUs in the dtype of its input
    narrower = 4 * TOKENS * (style == "bf16" and not workload.architecture.norm.root_mean_square)
    assert two - one == layer + copies - 2 * narrower
    # fused kernels keep less, the standing formula
    assert sum(layer_activation_bytes(workload).values()) < layer
    head = head_of_modules(
        workload,
        {"final norm input": 0, "head input": 0, "logits": 0},
        keeping,
        tokens=TOKENS,
        everywhere=TOKENS * WIDTH,
    )
    # of the logits autograd keeps the log-softmax alone; token indices and the loss's weight besides
    logits = 4 * TOKENS * VOCABULARY
    assert 2 * one - two == sum(head.values()) - head["logits"] + logits + 8 * TOKENS + 4 - narrower


def test_fully_sharded_data_parallelism_keeps_one_fp32_copy_of_weights() -> None:
    """12 bytes a parameter of weights and optimizer and 4 of gradients, and nothing in passing at the update."""
    run = reference_run("llama2-70b")
    layout = Layout(data_parallel=16, zero_stage=3, fused_attention=True)
    workload = Workload(run.architecture, msgspec.structs.replace(run.recipe, precision=Precision.BF16), layout)
    keeping = stack("pytorch").switches.keeping
    memory = stage_memory(workload, stage=0, micro_batches=1, keeping=keeping)
    share = 68_976_648_192 / 16
    assert memory.state == pytest.approx(16 * share, rel=1e-6)
    assert (memory.master_weights, memory.temporary) == (0, 0)
    assert memory.weights == pytest.approx(4 * share, rel=1e-6)
    other = stage_memory(workload, stage=0, micro_batches=1)
    assert other.state == pytest.approx(18 * share, rel=1e-6)
    assert other.temporary > 0


def test_autocast_keeps_fp32_weights_and_casts_of_them() -> None:
    workload = workload_of(Precision.BF16, fused=True)
    memory = stage_memory(workload, stage=0, micro_batches=1, keeping=stack("pytorch-autocast").switches.keeping)
    matrices = 4 * WIDTH * WIDTH + 3 * WIDTH * WIDE
    parameters = matrices + 2 * WIDTH * VOCABULARY + 3 * WIDTH
    assert memory.state == 16 * parameters
    assert (memory.weights, memory.master_weights) == (4 * parameters, 0)
    assert memory.weight_copies == 2 * matrices


def test_a_script_splits_over_data_parallel_ranks_alone() -> None:
    assert is_script(Layout())
    assert is_script(Layout(data_parallel=4))
    assert not is_script(Layout(tensor_parallel=2))
    assert not is_script(Layout(pipeline_stages=2))


@pytest.mark.parametrize(("weights_32", "stream", "cast"), [(Weights32.NEVER, 2, 0), (Weights32.AUTOCAST, 4, 2)])
def test_the_head_of_a_script_keeps_norm_input_cast_and_logits(weights_32: Weights32, stream: int, cast: int) -> None:
    keeping = Keeping(Modules.EAGER, weights_32=weights_32)
    hidden = TOKENS * WIDTH
    kept = head_of_modules(workload_of(Precision.BF16, fused=True), {}, keeping, tokens=TOKENS, everywhere=hidden)
    assert kept == {
        "final norm input": (4 + stream) * hidden + 4 * TOKENS,
        "head input": 2 * hidden,
        "logits": (4 + 4 + 2 + 2) * TOKENS * VOCABULARY,
        "head's cast": cast * VOCABULARY * WIDTH,
    }
