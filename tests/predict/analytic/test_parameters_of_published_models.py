"""The parameters of public models, to the unit, from their shapes alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from reference_runs.architecture import Activation, Architecture, Mask, Norm, Position, QueryKeyNorm, Residual
from reference_runs.layout import Layout
from reference_runs.run import Workload
from suite.predict.analytic.key_value_heads import key_value_copies
from suite.predict.analytic.parameters import chunk_tensors, parameter_count, rank_parameters
from suite.predict.analytic.process_groups import Traffic, sent_bytes
from suite.predict.analytic.stage_memory import stage_memory
from suite.predict.analytic.traffic import step_traffic
from tests.support.strategies import BLOOM


class Shape(NamedTuple):
    """Layers, hidden, heads, key-value heads, feed-forward width, stored vocabulary rows, and parameters."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn_hidden: int
    rows: int
    parameters: int


# pre-norm, RMSNorm, SwiGLU, rotary, no biases, untied
LLAMAS = {
    "llama-65b": Shape(80, 8192, 64, 64, 22016, 32000, 65_285_660_672),
    "llama2-7b": Shape(32, 4096, 32, 32, 11008, 32000, 6_738_415_616),
    "llama2-13b": Shape(40, 5120, 40, 40, 13824, 32000, 13_015_864_320),
    "llama2-70b": Shape(80, 8192, 64, 8, 28672, 32000, 68_976_648_192),
    "llama3-8b": Shape(32, 4096, 32, 8, 14336, 128256, 8_030_261_248),
    "llama3-70b": Shape(80, 8192, 64, 8, 28672, 128256, 70_553_706_496),
    "llama3-405b": Shape(126, 16384, 128, 8, 53248, 128256, 405_853_388_800),
    "mistral-7b": Shape(32, 4096, 32, 8, 14336, 32000, 7_241_732_096),
    "tinyllama-1.1b": Shape(22, 2048, 32, 4, 5632, 32000, 1_100_048_384),
}
GPT = {"norm": Norm.PRE_LAYER_NORM, "activation": Activation.GELU, "biases": True}
FALCON = GPT | {"biases": False, "norm_bias": True, "residual": Residual.PARALLEL, "tied_embeddings": True}
GPT_J = GPT | {"attention_bias": False, "projection_bias": False, "head_bias": True, "shared_norm": True}
OTHERS: dict[str, tuple[Shape, dict[str, Any]]] = {
    "bloom-7b1": (
        Shape(30, 4096, 32, 32, 16384, 250880, 7_069_016_064),
        GPT | {"position": Position.ALIBI, "embedding_norm": True, "tied_embeddings": True},
    ),
    "falcon-7b": (Shape(32, 4544, 71, 1, 18176, 65024, 6_921_720_704), FALCON | {"shared_norm": True}),
    "falcon-40b": (Shape(60, 8192, 128, 8, 32768, 65024, 41_303_293_952), FALCON),
    "gemma-7b": (
        Shape(28, 3072, 16, 16, 24576, 256000, 8_537_680_896),
        {"head_dim": 256, "activation": Activation.GEGLU_TANH, "tied_embeddings": True},
    ),
    "gpt-j-6b": (Shape(28, 4096, 16, 16, 16384, 50400, 6_050_882_784), GPT_J | {"residual": Residual.PARALLEL}),
    "gpt2-xl": (
        Shape(48, 1600, 25, 25, 6400, 50257, 1_557_611_200),
        GPT | {"position": Position.LEARNED, "sequence": 1024, "tied_embeddings": True},
    ),
    "mpt-7b": (
        Shape(32, 4096, 32, 32, 16384, 50432, 6_649_286_656),
        GPT | {"biases": False, "position": Position.ALIBI, "tied_embeddings": True},
    ),
    "olmo-7b": (
        Shape(32, 4096, 32, 32, 11008, 50304, 6_888_095_744),
        {"norm": Norm.PRE_LAYER_NORM, "norm_gain": False},
    ),
    "pythia-1b": (Shape(16, 2048, 8, 8, 8192, 50304, 1_011_781_632), GPT | {"residual": Residual.PARALLEL}),
    "pythia-12b": (Shape(36, 5120, 40, 40, 20480, 50688, 11_846_072_320), GPT | {"residual": Residual.PARALLEL}),
    "qwen1.5-72b": (Shape(80, 8192, 64, 64, 24576, 152064, 72_287_920_128), {"attention_bias": True}),
    "qwen2-7b": (Shape(28, 3584, 28, 4, 18944, 152064, 7_615_616_512), {"attention_bias": True}),
    "qwen3-8b": (Shape(36, 4096, 32, 8, 12288, 151936, 8_190_735_360), {"query_key_norm": QueryKeyNorm.HEAD}),
    "starcoder": (
        Shape(40, 6144, 48, 1, 24576, 49152, 15_517_456_384),
        GPT | {"position": Position.LEARNED, "sequence": 8192, "tied_embeddings": True},
    ),
}
MODELS = {name: (shape, {}) for name, shape in LLAMAS.items()} | OTHERS


def architecture(name: str) -> Architecture:
    shape, choices = MODELS[name]
    head_dim = choices.get("head_dim", shape.hidden // shape.heads)
    rotary = choices.get("position", Position.ROTARY) is Position.ROTARY
    llama = {"norm": Norm.PRE_RMS_NORM, "activation": Activation.SWIGLU, "biases": False, "tied_embeddings": False}
    common = {"position": Position.ROTARY, "residual": Residual.SEQUENTIAL, "mask": Mask.CAUSAL, "sequence": 2048}
    fields = {
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": head_dim,
        "ffn_hidden": shape.ffn_hidden,
        "vocabulary": shape.rows,
        "padded_vocabulary": shape.rows,
        "norm_epsilon": 1e-5,
        "embedding_norm": False,
        "rotary_dim": head_dim if rotary else None,
        "rotary_base": 10000.0 if rotary else None,
    }
    described = Architecture(**(fields | llama | common | choices))
    described.check(name)
    return described


def test_public_models_have_their_published_parameters() -> None:
    published = {name: shape.parameters for name, (shape, _) in MODELS.items()}
    assert {name: parameter_count(architecture(name)) for name in MODELS} == published
    tensors = {name: chunk_tensors(architecture(name), Layout(), chunk=0) for name in MODELS}
    assert {name: sum(tensor.elements for tensor in tensors[name]) for name in MODELS} == published


def test_starcoders_four_tensor_parallel_ranks_have_its_one_key_value_head_each() -> None:
    """Multi-query attention at tp 4: nothing of the head is split."""
    shape, layers, h, d = architecture("starcoder"), 40, 6144, 128
    keys_and_values = layers * 2 * d * (h + 1)
    replicated = layers * (4 * h + 2 * h) + 2 * h + 8192 * h  # norms, biases after a sum, positions
    whole = 15_517_456_384
    rank = rank_parameters(shape, Layout(tensor_parallel=4), stage=0)
    assert rank.copied == keys_and_values
    assert rank.replicated == replicated
    assert rank.all == (whole - keys_and_values - replicated) // 4 + keys_and_values + replicated


def test_starcoders_published_layout_is_predicted_with_copies_in_memory_and_traffic() -> None:
    """512 A100 as tp 4, pp 4, dp 32: a middle stage's ten layers."""
    layout = Layout(tensor_parallel=4, pipeline_stages=4, data_parallel=32)
    recipe = msgspec.structs.replace(BLOOM.recipe, global_batch=512)
    shared = msgspec.structs.replace(architecture("starcoder"), kv_heads=4)
    workloads = [Workload(shape, recipe, layout) for shape in (architecture("starcoder"), shared)]
    one, four = (rank_parameters(workload.architecture, layout, stage=1) for workload in workloads)
    assert one.copied == 10 * 2 * 128 * 6145
    assert four.copied == 0
    assert one.all == four.all  # a rank has a head of each either way
    states = [stage_memory(workload, stage=1, micro_batches=16) for workload in workloads]
    assert states[0].weights == states[1].weights == 2 * one.all
    traffic = [step_traffic(workload, stage=1, micro_batches=16) for workload in workloads]
    # gradients of the copies are summed once a step, in fp32; the four ranks of a group have the same one
    summed = Traffic("kv", "all_reduce", 4 * one.copied, 1)
    assert [entry for entry in traffic[0] if entry not in traffic[1]] == [summed]
    assert [entry for entry in traffic[0] if entry in traffic[1]] == traffic[1]
    copies = key_value_copies(architecture("starcoder"), tensor_parallel=4)
    assert sent_bytes(summed, layout, head_copies=copies) == 2 * 3 * summed.payload_bytes // 4
