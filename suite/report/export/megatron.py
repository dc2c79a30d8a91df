"""A training as a launch of Megatron-LM's pretrain_gpt.py."""

from __future__ import annotations

from typing import Any

from suite.report.export.job import ExportedJob, refuse, torchrun_options
from suite.report.export.left_out import comment
from suite.report.export.megatron_core import core_fields, core_limits
from suite.report.export.names import target_software

HEAD = "${HEAD:?the name of the first node}"  # a script that does not know it ends, and says so
# fields of Megatron-Core whose flags have another name
RENAMED = {
    "layernorm_epsilon": "norm_epsilon",
    "num_moe_experts": "num_experts",
    "rope_scaling": "use_rope_scaling",
    "fp8": "fp8_format",
    "fp4": "fp4_format",
}
# fields whose flags say that they are off
NEGATED = {
    "add_bias_linear": "--disable-bias-linear",
    "share_embeddings_and_output_weights": "--untie-embeddings-and-output-weights",
}


def megatron(job: ExportedJob) -> str:
    """A script that starts pretrain_gpt.py on one node, or on each of several (`HEAD`: the name of the first).

    Raises:
        InputError: something of the training has no flag; the line names it.
    """
    return f"#!/bin/bash\n{megatron_script(job, torchrun_options(job, head=HEAD))}"


def megatron_script(job: ExportedJob, launcher: str, prefix: str = "") -> str:
    """The lines after the first one.

    Args:
        launcher: options of torchrun.
        prefix: before torchrun.
    """
    flags = "\n".join(f"    {' '.join(words)}" for words in megatron_flags(job))
    return f"""\
# {job.title}
# {target_software("megatron").title}
{comment(job, "megatron")}# To fill in: where Megatron-LM is, the data, its tokenizer, and where checkpoints go.
MEGATRON=/path/to/Megatron-LM
DATA=(--data-path /path/to/data_text_document --tokenizer-type HuggingFaceTokenizer --tokenizer-model /path/to/model)
CHECKPOINTS=(--save /path/to/checkpoints --load /path/to/checkpoints --save-interval 1000)

export CUDA_DEVICE_MAX_CONNECTIONS=1
LAYOUT=(
{flags}
)
{prefix}torchrun {launcher} \\
    "$MEGATRON/pretrain_gpt.py" "${{LAYOUT[@]}}" "${{DATA[@]}}" "${{CHECKPOINTS[@]}}"
"""


def megatron_flags(job: ExportedJob) -> list[list[str]]:
    """The flags, each with its values.

    Raises:
        InputError: something of the training has no flag.
    """
    refuse(target_software("megatron").title, core_limits(job))
    fields = core_fields(job)
    activation, fused = fields.pop("activation_func"), fields.pop("bias_activation_fusion")
    gated = fields.pop("gated_linear_unit")
    fields |= {"swiglu": gated, "squared_relu": activation == "squared_relu", "no_bias_gelu_fusion": not fused}
    fields["group_query_attention"] = fields["num_query_groups"] != fields["num_attention_heads"]
    if not fields["group_query_attention"]:
        del fields["num_query_groups"]
    fields["max_position_embeddings"] = fields["seq_length"]
    for field in (field for field in NEGATED if field in fields):
        fields[field] = not fields[field]
    flags = []
    for field, value in fields.items():
        flag = NEGATED.get(field, f"--{RENAMED.get(field, field).replace('_', '-')}")
        if value is not None and value is not False:
            flags.append([flag, *_words(value)])
    return flags


def _words(value: Any) -> list[str]:
    if value is True:
        return []
    if isinstance(value, list):  # moe_layer_freq
        return [f'"[{",".join(map(str, value))}]"']
    if isinstance(value, tuple):
        return [str(each) for each in value]
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    return [f'"{text}"' if "|" in text else text]
