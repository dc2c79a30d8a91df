"""Facts that a log says of its run besides its steps: sizes and layout, timers of parts, and telling warnings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from reference_runs.training_logs.lines import NUMBER, number

_DOTS = r"\s*\.{2,}\s*"  # of a dump of arguments: seq_length ...... 2048


def _argument(name: str) -> str:
    return rf"(?:^|\s){name}{_DOTS}(\d+)\b"


FACTS: Mapping[str, re.Pattern[str]] = {
    fact: re.compile("|".join(patterns))
    for fact, patterns in {
        "gpus": (
            _argument("world_size"),
            r"using world size: (\d+)",
            r"^n_gpus=(\d+)",
            r"DistributedDataParallel world size:? (\d+)",
            r"\bworld size:\s+(\d+)",
            r"Building device mesh with world size (\d+)",
        ),
        "batch": (
            _argument("global_batch_size"),
            _argument("train_batch_size"),
            r"Total train batch size \(w\. parallel, distributed & accumulation\) = ([\d,]+)",
            r"global batch size (\d+)",
        ),
        "micro_batch": (
            _argument("micro_batch_size"),
            _argument("train_micro_batch_size_per_gpu"),
            r"Instantaneous batch size per device = ([\d,]+)",
            r"local batch size (\d+)",
        ),
        "sequence": (_argument("seq_length"), r"sequence length (\d+)", r"--(?:seq-length|block_size)[ =](\d+)"),
        "tensor_parallel": (_argument("tensor_model_parallel_size"),),
        "pipeline": (_argument("pipeline_model_parallel_size"),),
        "context_parallel": (_argument("context_parallel_size"),),
        "expert_parallel": (_argument("expert_model_parallel_size"),),
        "accumulation": (_argument("gradient_accumulation_steps"), r"Gradient Accumulation steps = ([\d,]+)"),
        "steps": (r"Total optimization steps = ([\d,]+)",),
        "tokens_of_step": (r"tokens per iteration will be: ([\d,]+)",),
        "gpus_of_node": (r"--nproc[_-]per[_-]node[ =](\d+)", r"num_gpus_per_node: (\d+)", r"--num_gpus[ =](\d+)"),
    }.items()
}


class Sign(StrEnum):
    """Something in a log that explains a slow step, or a number that is counted wrongly."""

    FOREIGN_PEAK = "peak of another accelerator"
    CACHE_FLUSHES = "allocator flushes"
    OFFLOAD = "offload"
    EAGER_ATTENTION = "attention without a fused kernel"
    ANOMALY = "anomaly detection"
    OUT_OF_MEMORY = "out of memory"


SIGNS: Mapping[Sign, re.Pattern[str]] = {
    Sign.FOREIGN_PEAK: re.compile(r"Peak flops undefined for|fallback to A100"),
    Sign.CACHE_FLUSHES: re.compile(r"pytorch allocator cache flushes since last step"),
    Sign.OFFLOAD: re.compile(
        r"offload_params: true|offload_(?:optimizer|param)\b.*\bcpu\b|optimizer_offload\.*\s*True|--cpu-offload",
        re.IGNORECASE,
    ),
    Sign.EAGER_ATTENTION: re.compile(
        r"attn_implementation\W+eager|flash[- ]attention (?:is )?not (?:available|installed)"
        r"|use_flash_attn\s*\.+\s*False",
        re.IGNORECASE,
    ),
    Sign.ANOMALY: re.compile(r"Anomaly Detection has been enabled|detect_anomaly\W+True"),
    Sign.OUT_OF_MEMORY: re.compile(r"CUDA out of memory|OutOfMemoryError"),
}
_TIMER_BLOCK = re.compile(rf"^\s+([a-z][\w-]+) \.+: \(({NUMBER}), ({NUMBER})\)")
_TIMER_ROW = re.compile(  # of Lightning's profiler
    rf"^\|\s+(?:\[\w+\]\.?)?(?:\w+\.)?(\w+(?:\{{.*\}}\.\w+)?)\s+\|\s+({NUMBER})\s+\|"
)
_TIMER_LINE = re.compile(r"time \(ms\) \|(.*)")
_TIMER = re.compile(rf"([a-z][\w -]*?): ({NUMBER})")


MOST = 1e12  # of a size; more is none


def facts_of(line: str) -> dict[str, int]:
    """Sizes that a line says."""
    found = {}
    for fact, pattern in FACTS.items():
        if match := pattern.search(line):
            value = number(next(group for group in match.groups() if group))
            if 1 <= value <= MOST:
                found[fact] = int(value)
    return found


def timers_of(line: str) -> dict[str, tuple[float, float]]:
    """Seconds of the parts of a step that a line says: the least and the most of all ranks, alike where it has one."""
    if match := _TIMER_BLOCK.match(line):
        return {match[1]: (number(match[2]) / 1000, number(match[3]) / 1000)}
    if match := _TIMER_ROW.match(line):
        return {match[1]: (number(match[2]), number(match[2]))}
    if match := _TIMER_LINE.search(line):
        found = _TIMER.findall(match[1])
        return {name.strip(): (number(text) / 1000, number(text) / 1000) for name, text in found}
    return {}
