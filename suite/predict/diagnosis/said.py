"""Sizes and layout of a run as its log says them."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from reference_runs.training_logs.training_log import TrainingLog


class Said(NamedTuple):
    """Sizes that a log says of its run; None where it does not.

    Args:
        batch: samples of a step, over all accelerators.
        layout: the words of a layout, such as dp2,tp4.
        assumed: what of it the log does not quite say, in words.
    """

    gpus: int | None = None
    batch: int | None = None
    micro_batch: int | None = None
    sequence: int | None = None
    layout: str | None = None
    assumed: tuple[str, ...] = ()


def said(log: TrainingLog, *, sequence: int | None = None) -> Said:
    """Sizes that the log's dump of arguments, its start or its steps say.

    Args:
        sequence: tokens of a sample, for logs that say the batch in tokens.
    """
    facts, assumed = log.facts, []
    gpus = facts.get("gpus")
    if gpus is None and (rates := [step for step in log.steps if step.device_tokens_per_second]):
        first = rates[0]
        if first.tokens_per_second and first.device_tokens_per_second:
            gpus = round(first.tokens_per_second / first.device_tokens_per_second)
        elif first.samples_per_second and first.sequence and first.device_tokens_per_second:
            gpus = round(first.samples_per_second * first.sequence / first.device_tokens_per_second)
    if gpus is None and "gpus_of_node" in facts:
        gpus = facts["gpus_of_node"]
        assumed.append(f"one node of {gpus} accelerators, as torchrun was called (--gpus)")
    sequence = sequence or facts.get("sequence") or _median(log, "sequence")
    batch = facts.get("batch") or _median(log, "samples")
    if batch is None and sequence and (tokens := facts.get("tokens_of_step")):
        batch = tokens // sequence
    micro_batch = facts.get("micro_batch")
    if batch is None and micro_batch and gpus and "accumulation" in facts:
        batch = micro_batch * facts["accumulation"] * gpus
    return Said(gpus, batch, micro_batch, sequence, _layout(facts, gpus, micro_batch), tuple(assumed))


def _median(log: TrainingLog, field: str) -> int | None:
    values = [value for step in log.steps if (value := getattr(step, field))]
    return int(statistics.median(values)) if values else None


def _layout(facts: dict[str, int], gpus: int | None, micro_batch: int | None) -> str | None:
    """Words of the layout that Megatron's arguments say; None: they are not in the log."""
    axes = {"tp": "tensor_parallel", "pp": "pipeline", "cp": "context_parallel"}
    sizes = {word: facts[name] for word, name in axes.items() if name in facts}
    if gpus is None or "tp" not in sizes:
        return None
    if (experts := facts.get("expert_parallel", 1)) > 1:
        sizes["ep"] = experts
    of_one_replica = math.prod(sizes.values())
    if gpus % of_one_replica:
        return None
    words = [f"dp{gpus // of_one_replica}", *(f"{word}{size}" for word, size in sizes.items())]
    return ",".join([*words, *([f"micro{micro_batch}"] if micro_batch else [])])
