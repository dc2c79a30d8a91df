"""The columns of a published table: those that must be there, those that may, and other names that people give them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

STEP, MEMORY = "measured_step_time_s", "measured_mem_gib_per_gpu"
STEP_MS, MEMORY_GB = "measured_step_time_ms", "measured_mem_gb_per_gpu"  # the same in other units: GB of 10^9 bytes
BATCH_TOKENS = "global_batch_tokens"  # in place of global_batch
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
    *("network_bytes_per_second", "mean_document", "framework_version", BATCH_TOKENS, STEP_MS, MEMORY_GB),
)
# what configurations of Megatron-LM, Hugging Face, llm-foundry and torchtitan and NVIDIA's tables call them
_OTHERWISE = {
    "model": "model_name",
    "layers": "layer num_layers n_layers n_layer num_hidden_layers hidden_layers transformer_layers",
    "hidden": "hidden_size hidden_dim d_model dmodel n_embd embedding_dim emb_dim model_dim",
    "heads": "head num_heads n_heads n_head num_attention_heads attention_heads",
    "kv_heads": "num_kv_heads n_kv_heads num_key_value_heads key_value_heads num_query_groups query_groups gqa_groups",
    "head_dim": "kv_channels",
    "ffn_hidden": "ffn_hidden_size intermediate_size d_ff ffn_dim ffn_size",
    "vocab": "vocab_size vocabulary vocabulary_size",
    "padded_vocab": "padded_vocab_size padded_vocabulary_size",
    "seq_len": "sequence_length seq_length sequence seqlen seqlen_t seq_len_tokens sequence_length_tokens "
    "context_length",
    "experts": "num_experts n_experts num_local_experts n_routed_experts num_routed_experts num_moe_experts "
    "moe_num_experts",
    "experts_per_token": "num_experts_per_tok num_experts_per_token moe_router_topk router_topk moe_top_k moe_topk "
    "top_k topk",
    "expert_ffn_hidden": "moe_intermediate_size moe_ffn_hidden_size",
    "shared_experts": "n_shared_experts num_shared_experts",
    "dense_layers": "first_k_dense_replace",
    "gpu": "gpu_type gpu_name gpu_model accelerator accelerator_type accelerator_name",
    "gpus": "num_gpus n_gpus n_gpu num_gpu ngpus ngpu #gpus #_gpus #_gpu gpu_count total_gpus world_size "
    "num_accelerators",
    "gpus_per_node": "accelerators_per_node",
    "dtype": "data_type datatype compute_dtype torch_dtype",
    "global_batch": "gbs global_batch_size global_train_batch_size global_batch_samples global_batch_sequences "
    "global_batch_size_samples global_batch_size_sequences",
    BATCH_TOKENS: "global_batch_size_tokens global_batch_size_t global_batch_t globalbatchsize_t",
    "micro_batch": "mbs micro_batch_size microbatch microbatch_size micro_bs train_micro_batch_size_per_gpu "
    "per_device_train_batch_size device_train_microbatch_size",
    STEP: "step_time_s iteration_time_s iter_time_s time_per_step_s time_per_iteration_s seconds_per_step sec_per_step "
    "s_per_step s_per_iter s_per_iteration",
    STEP_MS: "step_time_ms iteration_time_ms iter_time_ms time_per_step_ms time_per_iteration_ms ms_per_step "
    "ms_per_iter ms_per_iteration elapsed_time_per_iteration_ms",
    "measured_tokens_per_s": "tokens_per_s tok_per_s throughput_tokens_per_s throughput_t_per_s",
    "measured_tokens_per_s_per_gpu": "tokens_per_s_per_gpu tokens_per_gpu_per_s tok_per_s_per_gpu "
    "throughput_tokens_per_s_per_gpu throughput_t_per_s_per_gpu",
    "measured_samples_per_s": "samples_per_s sequences_per_s throughput_samples_per_s throughput_s_per_s",
    MEMORY: "peak_memory_gib peak_mem_gib max_memory_gib max_mem_gib peak_memory_gib_per_gpu",
    MEMORY_GB: "peak_memory_gb peak_mem_gb max_memory_gb max_mem_gb peak_memory_gb_per_gpu",
    "recompute": "recomputation recompute_granularity activation_recomputation activation_recompute "
    "activation_checkpointing activation_checkpoint act_ckpt gradient_checkpointing",
    "zero_stage": "zero zero_optimization_stage",
    "sp": "sequence_parallel sequence_parallelism",
    "inter_link": "interconnect inter_node_link internode_link",
}
# names that may mean something else too: they count where no other names the column, and that is said
_LOOSELY = {
    "gpu": "system hardware device",
    "gpus": "accelerators chips",
    "seq_len": "max_seq_len max_seq_length max_sequence_length max_position_embeddings n_ctx context",
    "framework": "software",
    "inter_link": "network fabric",
    "zero_stage": "sharding sharding_strategy",
    STEP: "step_time iteration_time iter_time time_per_step time_per_iteration measured_step_time",
    MEMORY: "memory_gib mem_gib memory_gib_per_gpu",
    MEMORY_GB: "memory_gb mem_gb memory_gb_per_gpu",
}
_AXES = {
    "dp": "data_parallel",
    "tp": "tensor_parallel tensor_model_parallel",
    "pp": "pipeline_parallel pipeline_model_parallel",
    "cp": "context_parallel",
    "ep": "expert_parallel expert_model_parallel",
    "vpp": "vp virtual_pipeline virtual_pipeline_parallel virtual_pipeline_model_parallel virtual_stages",
}
_COLUMNS = {other: column for column, others in _OTHERWISE.items() for other in others.split()}
_COLUMNS |= {
    f"{name}{end}": axis
    for axis, names in _AXES.items()
    for word in (axis, *names.split())
    for name in dict.fromkeys((word, re.sub("parallel$", "parallelism", word)))
    for end in ("", "_size", "_degree")
    if f"{name}{end}" != axis
}
_LOOSE_COLUMNS = {other: column for column, others in _LOOSELY.items() for other in others.split()}


class NamedColumns(NamedTuple):
    """What the cells of a header name.

    Args:
        columns: of each cell; what names none stays as it is.
        unread: cells that name none.
        loose: "column Hardware = gpu" of each that is named by a word which may mean something else too.
    """

    columns: list[str]
    unread: list[str]
    loose: list[str]


def columns_of(header: Sequence[str]) -> list[str]:
    """`named_columns`' columns."""
    return named_columns(header).columns


def named_columns(header: Sequence[str]) -> NamedColumns:
    """The columns that a header names.

    Case does not count, nor what stands between words: "Seq. Len" is seq_len, "Tokens / sec / GPU" is
    tokens_per_s_per_gpu, "Step time (ms)" step_time_ms. Another name counts where the column's own is not there: GBS
    beside global_batch is none.
    """
    names = [_known_name(given) for given in header]
    own = {name for name in names if is_column(name)}
    firm = own.union(_COLUMNS.get(name, "") for name in names)
    columns, unread, loose = [], [], []
    for given, name in zip(header, names, strict=True):
        if name in own:
            columns.append(name)
        elif name in _COLUMNS and _COLUMNS[name] not in own:
            columns.append(_COLUMNS[name])
        elif name in _LOOSE_COLUMNS and _LOOSE_COLUMNS[name] not in firm:
            columns.append(_LOOSE_COLUMNS[name])
            loose.append(f"column {given.strip()} = {columns[-1]}")
        else:
            columns.append(given.strip())
            unread += [given.strip()] if given.strip() else []
    return NamedColumns(columns, unread, loose)


def is_column(name: str) -> bool:
    """Whether a table is read for it."""
    return name in NEEDED or name in OPTIONAL


def _known_name(given: str) -> str:
    """The name among all that are known that `given` is; itself folded where it is none.

    "MicroBatchSize" is micro_batch_size, "# of layers" and "number of layers" are layers, but "# of GPU" is no type.
    """
    split = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", given.strip())
    for name in (_folded(given), _folded(split)):
        counted = re.sub(r"^(?:#|number_of|no_of)_*(?:of_)?", "", name)
        for each in (name, "gpus" if counted == "gpu" != name else counted):
            if is_column(each) or each in _COLUMNS or each in _LOOSE_COLUMNS:
                return each
    return _folded(given)


def _folded(name: str) -> str:
    words = re.sub(r"\s*/\s*", " per ", name.strip().casefold())
    words = re.sub(r"[\s_.()\[\]-]+", "_", words).strip("_")
    return words if is_column(words) else re.sub(r"_sec(s|ond|onds)?(?=_|$)", "_s", words)


def absent(columns: Sequence[str]) -> list[str]:
    """Needed columns that are not there.

    A model's name may say its shape (`named_run`), `gpus` and `dp` each other, a throughput the time of a step, and
    `tp` and `pp` are 1 where nothing says more.
    """
    needless = [*(SHAPE if "model" in columns else ()), *(["dp"] if "gpus" in columns else ["gpus"])]
    needless += ["tp", "pp"]  # not split unless they say so
    needless += [STEP] if {STEP_MS, *THROUGHPUTS}.intersection(columns) else []
    needless += ["global_batch"] if BATCH_TOKENS in columns else []
    return [column for column in NEEDED if column not in (*columns, *needless)]
