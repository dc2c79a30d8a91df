"""How frameworks print a step: the line that begins one, and the keys of what is said of it.

Fields are found by key, never by position: versions differ in the order. Each format names the versions whose lines
were read. Units are those of `PrintedStep`; `factors` turns what is printed into them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from reference_runs.training_logs.lines import NUMBER


class LogFormat(NamedTuple):
    """A framework's way to print a step.

    Args:
        name: of the framework.
        begins: what the first line of a step has, and no other line.
        fields: field of `PrintedStep` -> pattern of which group 1 is its number.
        factors: what a field's number is multiplied by.
        goes_on: later lines may add fields, until the next step begins.
        of_micro_batch: the time is that of one micro-batch.
        stack: name of the software in reference_runs/stacks.toml.
        versions: whose lines were read.
    """

    name: str
    begins: re.Pattern[str]
    fields: Mapping[str, re.Pattern[str]]
    factors: Mapping[str, float] = {}
    goes_on: bool = False
    of_micro_batch: bool = False
    stack: str | None = None
    versions: str = ""


def _after(key: str, unit: str = "") -> re.Pattern[str]:
    """A number after a key and a colon or an equals sign."""
    return re.compile(rf"{key}['\"]?\s*[:=]\s*['\"]?({NUMBER}){unit}", re.IGNORECASE)


def _glued(key: str, unit: str) -> re.Pattern[str]:
    """A number after a key, with its unit glued to it."""
    plain = r"[+-]?\d[\d,]*\.?\d*(?:e[+-]?\d+)?"
    return re.compile(rf"{key}\s*[:=]?\s*({plain})\s?{unit}")


_ITERATION = re.compile(r"\biteration[:=]?\s+(\d+)\s*/")
_ALL_ITERATIONS = re.compile(r"\biteration[:=]?\s+\d+\s*/\s*(\d+)")
_MEGATRON = {
    "number": _ITERATION,
    "last": _ALL_ITERATIONS,
    "seconds": _after(r"elapsed[ _]time[ _]per[ _]iteration[ _]\(?ms\)?"),
    "samples": _after("global[ _]batch[ _]size"),
    "flop_per_second": _after(r"throughput per GPU \(TFLOP/s/GPU\)"),
    "loss": _after(r"lm[ _]loss"),
}
_TERA = {"seconds": 1e-3, "flop_per_second": 1e12}

DEEPSPEED = LogFormat(
    "DeepSpeed",
    re.compile(r"CurrSamplesPerSec="),
    {"number": re.compile(r"global_step=(\d+)"), "samples_per_second": _after("CurrSamplesPerSec")},
    stack="generic",
    versions="0.7 to 0.19",
)
# Its steps are in its progress bars alone, and the report of its profiler says what they take
LIGHTNING = LogFormat("Lightning", re.compile(r"(?!)"), {}, stack="pytorch", versions="2.6")

FORMATS = (
    LogFormat(
        "Megatron-DeepSpeed",
        re.compile(r"iteration=?\s+\d+/.*elapsed[ _]time[ _]per[ _]iteration.*tokens[ _]per[ _]gpu[ _]per[ _]second"),
        {
            **_MEGATRON,
            "samples_per_second": _after(r"samples[ _]per[ _]second"),
            "device_tokens_per_second": _after(r"tokens[ _]per[ _]gpu[ _]per[ _]second[ _]\(?tgs\)?"),
            "flop_per_second": _after(r"(?<!\[DS\])\bTFLOPs"),  # of its fork with two, the one as Megatron-LM counts
            "sequence": _after("actual[ _]seqlen"),
        },
        _TERA,
        stack="megatron-deepspeed",
        versions="BigScience's, DeepSpeed's and ALCF's forks, 2021 to 2025",
    ),
    LogFormat(
        "GPT-NeoX",
        re.compile(r"samples/sec:.*\biteration\s+\d+/.*elapsed time per iteration \(ms\)"),
        {
            **_MEGATRON,
            "samples_per_second": _after("samples/sec"),
            "flop_per_second": _glued("approx flops per GPU", "TFLOPS"),
            "loss": _after("lm_loss"),
        },
        _TERA,
        stack="gpt-neox",
        versions="2.0",
    ),
    LogFormat(
        "Megatron-LM",
        re.compile(r"\biteration\s+\d+/.*elapsed time per iteration \(ms\)"),
        _MEGATRON,
        _TERA,
        stack="megatron-core",
        versions="2.x of 2021; core 0.5 to 0.16",
    ),
    LogFormat(
        "nanotron",
        re.compile(r"\biteration: \d+ / \d+ \|.*tokens_per_sec_per_gpu"),
        {
            "number": _ITERATION,
            "seconds": _after(r"(?:elapsed_)?time_per_iteration_ms"),
            "device_tokens_per_second": _after("tokens_per_sec_per_gpu"),
            "tokens_per_second": _after("tokens_per_sec"),
            "flop_per_second": _after("model_tflops_per_gpu"),
            "loss": _after("lm_loss"),
        },
        _TERA,
        stack="nanotron",
        versions="0.4, and the line of 2025",
    ),
    LogFormat(
        "NeMo",
        re.compile(r"train_step_timing in s"),
        {
            "number": re.compile(r"(?:iteration|\|)\s+(\d+)/\d+"),
            "seconds": _after(r"train_step_timing in s"),
            "samples": _after("global_batch_size"),
            "flop_per_second": _after("TFLOPS_per_GPU"),
            "device_tokens_per_second": _after("tokens_per_sec_per_gpu"),
            "loss": _after("reduced_train_loss"),
        },
        {"flop_per_second": 1e12},
        stack="megatron-core-nemo-2",
        versions="1.23, 2.x",
    ),
    LogFormat(
        "Megatron-Bridge",
        re.compile(r"Step Time\s*:\s*[\d.]+s GPU utilization"),
        {
            "seconds": _glued(r"Step Time", "s"),
            "flop_per_second": _glued("GPU utilization", r"(?:MODEL_)?TFLOP/s/GPU"),
            "number": _ITERATION,
            "samples": _after("global batch size"),
            "loss": _after("lm loss"),
        },
        {"flop_per_second": 1e12},
        goes_on=True,
        stack="megatron-core-bridge",
        versions="0.1 to 0.3",
    ),
    LogFormat(
        "torchtitan",
        re.compile(r"(?<!validate )\bstep:\s*\d+\s+loss:.*\b(?:wps|tps):"),
        {
            "number": re.compile(r"\bstep:\s*(\d+)"),
            "device_tokens_per_second": _after(r"\b(?:wps|tps)"),
            "flop_per_second": _after(r"\btflops"),
            "mfu": _after(r"\bmfu", "%"),
            "loss": _after(r"\bloss"),
        },
        {"flop_per_second": 1e12, "mfu": 0.01},
        stack="torchtitan",
        versions="2024-08 to 2026-07",
    ),
    DEEPSPEED,
    LogFormat(
        "Composer",
        re.compile(r"^\s*\[(?:epoch|batch|token)=[^\]]*\]"),
        {
            "number": re.compile(r"\[batch=(\d+)"),
            "samples_per_second": _after(r"throughput/samples_per_sec"),
            "tokens_per_second": _after(r"Train throughput/tokens_per_sec"),
            "device_tokens_per_second": _after(r"throughput/device/tokens_per_sec"),
            "batches_per_second": _after(r"throughput/batches_per_sec"),
            "mfu": _after("throughput/device/mfu"),
            "loss": _after(r"loss/train/total"),
        },
        goes_on=True,
        stack="composer",
        versions="0.16 to 0.32",
    ),
    LogFormat(
        "OLMo-core",
        re.compile(r"\[step=\d+/\d+"),
        {
            "number": re.compile(r"\[step=(\d+)"),
            "device_tokens_per_second": _after("throughput/device/TPS"),
            "batches_per_second": _after("throughput/device/BPS"),
            "mfu": _after("throughput/device/MFU"),
            "data_share": _after(r"throughput/device/data loading \(%\)"),
            "loss": _after("train/CE loss"),
        },
        {"mfu": 0.01, "data_share": 0.01},
        goes_on=True,
        stack="pytorch",
        versions="2.x",
    ),
    LogFormat(
        "MaxText",
        re.compile(r"completed step: \d+, seconds:"),
        {
            "number": _after("completed step"),
            "seconds": _after("seconds"),
            "flop_per_second": _after(r"TFLOP/s(?:/device)?"),
            "device_tokens_per_second": _after("Tokens/s/device"),
            "loss": _after(r"\bloss"),
        },
        {"flop_per_second": 1e12},
        versions="2023-04 to 2025-08",
    ),
    LogFormat(
        "litgpt",
        re.compile(r"\biter \d+ step \d+ \|.*iter time:"),
        {"number": re.compile(r"\bstep (\d+)"), "seconds": _glued(r"iter time:", "ms"), "loss": _after("loss train")},
        {"seconds": 1e-3},
        of_micro_batch=True,
        stack="pytorch",
        versions="0.4",
    ),
    LogFormat(
        "llm.c",
        re.compile(r"\bstep\s+\d+/\d+ \| loss.*\bms\b.*\btok/s"),
        {
            "number": re.compile(r"\bstep\s+(\d+)/"),
            "seconds": re.compile(rf"\|\s*({NUMBER}) ms"),
            "mfu": re.compile(rf"({NUMBER})% \w+ MFU"),
            "tokens_per_second": re.compile(rf"({NUMBER}) tok/s"),
            "loss": re.compile(rf"\bloss ({NUMBER})"),
        },
        {"seconds": 1e-3, "mfu": 0.01},
        stack="llm-c",
        versions="2024-07",
    ),
    LogFormat(
        "nanochat",
        re.compile(r"\bstep \d+/\d+ .*\bdt:.*\btok/sec:"),
        {
            "number": re.compile(r"\bstep (\d+)/"),
            "seconds": _glued(r"\bdt:", "ms"),
            "tokens_per_second": _after("tok/sec"),
            "mfu": _after(r"\bmfu"),
            "loss": _after(r"\bloss"),
        },
        {"seconds": 1e-3, "mfu": 0.01},
        stack="pytorch",
        versions="2025-10",
    ),
    LogFormat(
        "nanoGPT",
        re.compile(r"\biter \d+: loss .*, time "),
        {
            "number": re.compile(r"\biter (\d+):"),
            "seconds": _glued(r"\btime", "ms"),
            "mfu": re.compile(r"\bmfu (-?[\d.]+)%"),
            "loss": re.compile(rf"\bloss ({NUMBER})"),
        },
        {"seconds": 1e-3, "mfu": 0.01},
        stack="pytorch",
        versions="2023",
    ),
    LogFormat(
        "Hugging Face Trainer",
        re.compile(r"^\s*\{'(?:loss|train_runtime)':"),
        {
            "loss": _after(r"'loss"),
            "tokens_seen": _after("num_input_tokens_seen"),
            "runtime": _after("'train_runtime"),
            "printed_tokens_per_second": _after("train_tokens_per_second"),
            "samples_per_second": _after("train_samples_per_second"),
            "steps_per_second": _after("train_steps_per_second"),
        },
        stack="transformers",
        versions="transformers 4.38 to 5, ms-swift",
    ),
)
