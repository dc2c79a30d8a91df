"""Bytes of torchao's quantised weights, counted on the tensors of small models of transformers: exact."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

os.environ.setdefault("TORCHAO_FORCE_SKIP_LOADING_SO_FILES", "1")  # kernels of other versions and machines

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torchao's own, of its syntax and of what PyTorch deprecates
    from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

from reference_runs.configured_run import configured_run
from suite.predict.analytic.weight_formats import WeightFormat, weight_parts

SIZES = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000}
LLAMA = SIZES | {"intermediate_size": 640, "num_key_value_heads": 2, "max_position_embeddings": 128}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA | {"tie_word_embeddings": True},
    "qwen3": LLAMA | {"head_dim": 128, "tie_word_embeddings": False},
    "gpt_neox": SIZES | {"intermediate_size": 1024, "max_position_embeddings": 128},
    "opt": SIZES | {"ffn_dim": 1024, "max_position_embeddings": 128, "word_embed_proj_dim": 256},
}
# The plain layout of int4 is made by GPU packages alone; the CPU's has the same bytes in another order
CONFIGURATIONS = {
    WeightFormat.INT8: Int8WeightOnlyConfig(),
    WeightFormat.INT4: PrototypeInt4WeightOnlyConfig(group_size=128),
    WeightFormat.FP8: Float8WeightOnlyConfig(),
}


def stored(tensor: Tensor) -> int:
    """Bytes of a tensor, or of those that it consists of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.numel() * tensor.element_size()
    names, _ = tensor.__tensor_flatten__()
    return sum(stored(getattr(tensor, name)) for name in names)


@pytest.mark.parametrize("weight_format", CONFIGURATIONS, ids=str)
def test_weights_take_the_predicted_bytes(weight_format: WeightFormat, tmp_path: Path) -> None:
    found, expected = {}, {}
    for kind, values in MODELS.items():
        path = tmp_path / f"{kind}.json"
        path.write_text(json.dumps({"model_type": kind} | values))
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **values), dtype=torch.bfloat16)
        head = model.get_output_embeddings()

        def is_quantised(module: nn.Module, _name: str, head: nn.Module = head) -> bool:
            return isinstance(module, nn.Linear) and module is not head

        quantize_(model, CONFIGURATIONS[weight_format], is_quantised)
        found[kind] = sum(stored(parameter.data) for parameter in model.parameters())
        expected[kind] = weight_parts(configured_run(path).architecture).bytes(weight_format)
    assert found == expected
