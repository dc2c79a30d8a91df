"""The columns of a published table: those that must be there, those that may, and other names that people give them."""

from __future__ import annotations

import re
from collections.abc import Sequence

STEP, MEMORY = "measured_step_time_s", "measured_mem_gib_per_gpu"
# in place of `STEP`: tokens of all accelerators or of one, and samples of all, per second
THROUGHPUTS = ("measured_tokens_per_s", "measured_tokens_per_s_per_gpu", "measured_samples_per_s")
SHAPE = ("layers", "hidden", "heads", "vocab", "seq_len")
EXPERTS = ("experts", "experts_per_token", "expert_ffn_hidden", "shared_experts", "dense_layers")
NEEDED = (*SHAPE, *("gpu", "gpus", "dp", "tp", "pp", "global_batch", "micro_batch", STEP))
OPTIONAL = (
    *("source", "model", "kv_heads", "head_dim", "ffn_hidden", *EXPERTS, "gpus_per_node", "inter_link", "dtype"),
    *THROUGHPUTS,
    *("vpp", "cp", "ep", "sp", "zero_stage", "recompute", "framework", MEMORY, "status"),
    *("padded_vocab", "position", "rotary_base", "norm", "activation", "residual", "biases", "tied_embeddings"),
    *("dropout", "precision", "product_format", "stage_assignment", "fused_attention", "scatter_gather"),
    *("network_bytes_per_second", "mean_document"),
)
# what configurations of Megatron-LM, Hugging Face and torchtitan and NVIDIA's tables call them
_OTHERWISE = {
    "layers": "num_layers n_layers num_hidden_layers",
    "hidden": "hidden_size d_model",
    "heads": "num_heads n_heads num_attention_heads attention_heads",
    "kv_heads": "num_kv_heads n_kv_heads num_key_value_heads num_query_groups",
    "head_dim": "kv_channels",
    "ffn_hidden": "ffn_hidden_size intermediate_size d_ff",
    "vocab": "vocab_size vocabulary vocabulary_size",
    "seq_len": "sequence_length seq_length sequence seqlen context_length",
    "experts": "num_experts n_experts num_local_experts n_routed_experts num_moe_experts",
    "experts_per_token": "num_experts_per_tok moe_router_topk router_topk moe_top_k top_k topk",
    "expert_ffn_hidden": "moe_intermediate_size moe_ffn_hidden_size",
    "shared_experts": "n_shared_experts num_shared_experts",
    "dense_layers": "first_k_dense_replace",
    "gpu": "gpu_type accelerator",
    "gpus": "num_gpus n_gpus #gpus #_gpus gpu_count number_of_gpus world_size num_accelerators",
    "dp": "data_parallel data_parallel_size",
    "tp": "tensor_parallel tensor_parallel_size tensor_model_parallel_size",
    "pp": "pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size",
    "cp": "context_parallel context_parallel_size",
    "ep": "expert_parallel expert_parallel_size expert_model_parallel_size",
    "vpp": "vp virtual_pipeline virtual_pipeline_size virtual_pipeline_model_parallel_size",
    "global_batch": "gbs global_batch_size",
    "micro_batch": "mbs micro_batch_size microbatch microbatch_size",
    STEP: "step_time_s step_time_sec iteration_time_s time_per_step_s seconds_per_step",
    "measured_tokens_per_s": "tokens_per_s",
    "measured_tokens_per_s_per_gpu": "tokens_per_s_per_gpu tokens_per_gpu_per_s",
    "measured_samples_per_s": "samples_per_s",
}
_COLUMNS = {other: column for column, others in _OTHERWISE.items() for other in others.split()}


def columns_of(header: Sequence[str]) -> list[str]:
    """The column that each cell of a header names; what names none stays as it is.

    Case does not count, nor what stands between words: "Seq Len" is seq_len, "Tokens / sec / GPU" is
    tokens_per_s_per_gpu. Another name counts where the column's own is not there: GBS beside global_batch is none.
    """
    folded = [_folded(name) for name in header]
    own = {name for name in folded if name in (*NEEDED, *OPTIONAL)}
    meant = [name if name in own else _COLUMNS.get(name, "") for name in folded]
    return [
        column if column and (column == name or column not in own) else given.strip()
        for given, name, column in zip(header, folded, meant, strict=True)
    ]


def _folded(name: str) -> str:
    words = re.sub(r"\s*/\s*", " per ", name.strip().casefold())
    return re.sub(r"_sec(ond)?(?=_|$)", "_s", re.sub(r"[\s-]+", "_", words))


def absent(columns: Sequence[str]) -> list[str]:
    """Needed columns that are not there.

    A model's name may say its shape (`named_run`), `gpus` and `dp` each other, and a throughput the time of a step.
    """
    needless = [*(SHAPE if "model" in columns else ()), *(["dp"] if "gpus" in columns else ["gpus"])]
    needless += [STEP] if set(THROUGHPUTS).intersection(columns) else []
    return [column for column in NEEDED if column not in (*columns, *needless)]
