"""A Transformers model keeps what is predicted of eager modules, to the byte (CPU, saved-tensor hooks)."""

from __future__ import annotations

import msgspec
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout
from reference_runs.run import Precision, Workload
from reference_runs.stack import Keeping, Modules, Weights32
from suite.predict.analytic.activations import head_activation_bytes, layer_activation_bytes
from suite.predict.analytic.stage_memory import stage_memory
from tests.support.saved_tensors import saved_storage_bytes

SAMPLES, LENGTH, VOCABULARY, HEAD = 2, 48, 320, 16


def kept(workload: Workload, *, attention: str, autocast: bool) -> int:
    torch.manual_seed(0)
    shape, dtype = workload.architecture, torch.float32
    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn_hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
        attn_implementation=attention,
        tie_word_embeddings=False,
    )
    if not autocast and workload.recipe.precision is Precision.BF16:
        dtype = torch.bfloat16
    model = LlamaForCausalLM(config).to(dtype).train()
    tokens = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        return saved_storage_bytes(lambda: model(input_ids=tokens, labels=tokens, use_cache=False), model)


# whether scaled_dot_product_attention copies heads is its backend's choice
@pytest.mark.parametrize(("attention", "kv_heads"), [("eager", 4), ("eager", 2), ("sdpa", 4)])
@pytest.mark.parametrize("style", ["bf16", "fp32", "autocast"])
def test_a_llama_of_transformers_keeps_what_is_predicted(style: str, attention: str, kv_heads: int) -> None:
    run, autocast = reference_run("llama2-7b"), style == "autocast"
    shape = {"layers": 1, "hidden": 64, "heads": 4, "kv_heads": kv_heads, "head_dim": HEAD, "ffn_hidden": 176}
    shape |= {"vocabulary": VOCABULARY, "padded_vocabulary": VOCABULARY, "sequence": LENGTH, "rotary_dim": HEAD}
    architecture = msgspec.structs.replace(run.architecture, **shape)
    precision = Precision.FP32 if style == "fp32" else Precision.BF16
    recipe = msgspec.structs.replace(run.recipe, precision=precision)
    workload = Workload(architecture, recipe, Layout(micro_batch=SAMPLES, fused_attention=attention == "sdpa"))
    keeping = Keeping(Modules.EAGER, weights_32=Weights32.AUTOCAST if autocast else Weights32.SHARDED)
    deeper = workload._replace(architecture=msgspec.structs.replace(architecture, layers=2))
    one, two = (kept(each, attention=attention, autocast=autocast) for each in (workload, deeper))
    copies = stage_memory(workload, stage=0, micro_batches=1, keeping=keeping).weight_copies
    assert two - one == sum(layer_activation_bytes(workload, keeping).values()) + copies
    head = head_activation_bytes(workload, keeping)
    tokens = SAMPLES * LENGTH
    tables = 2 * LENGTH * HEAD * (4 if style == "fp32" or autocast else 2)  # cosines and sines, of all layers
    log_softmax = 4 * tokens * VOCABULARY
    indices = 2 * 8 * tokens + 4  # of the embedding and the labels, and the loss's weight
    assert 2 * one - two == sum(head.values()) - head["logits"] + log_softmax + tables + indices
