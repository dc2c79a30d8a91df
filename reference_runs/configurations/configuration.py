"""A training as a configuration describes it, whatever the software that it is written for."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from reference_runs.errors import InputError
from reference_runs.layout import Offload, Recomputation, Schedule
from reference_runs.quantities import MOST
from reference_runs.run import Moments, Optimizer, Precision

Value = TypeVar("Value")
OF_NODE = ("auto", "cpu", "gpu", "xpu")  # torchrun's --nproc-per-node: as many as the node has
COMPUTED = re.compile(r"\$[\w{(@*#?]|`")  # of a shell: variables, arguments, commands


class Framework(enum.StrEnum):
    """Software that a configuration is written for."""

    TORCHTITAN = "torchtitan"
    MEGATRON = "Megatron"
    MEGATRON_BRIDGE = "Megatron-Bridge"
    DEEPSPEED = "DeepSpeed"
    TRAINER = "Hugging Face Trainer"
    AXOLOTL = "axolotl"
    LLAMA_FACTORY = "LLaMA-Factory"
    TORCHTUNE = "torchtune"
    ACCELERATE = "accelerate"
    NANOTRON = "nanotron"


class ConfiguredAdapters(NamedTuple):
    """Low-rank adapters beside frozen weights.

    Args:
        four_bits: whether the frozen weights are stored in 4 bits (QLoRA).
    """

    rank: int
    four_bits: bool = False


class TrainingConfiguration(NamedTuple):
    """A configuration of other software. None or empty: it does not say.

    Args:
        model: as it is written: a name, or a path.
        shape: keys of a config.json, where the file itself says the model's sizes.
        ranks: accelerators.
        data_parallel: replicas, each of which may be sharded.
        replicas: groups of ranks that hold copies of each other's shards; data_parallel is a multiple of it.
        expert_parallel: ranks that share out experts, of those that replicate the rest of the model.
        whole_experts: whether tensor parallelism leaves experts whole.
        even_stages: whether the software refuses layers that stages and chunks do not divide.
        with_tables: layers that embedding and head count as, where they count.
        batch: samples of a step, over all ranks.
        accumulation: micro-batches of a rank and step.
        shorter: whether samples may be shorter than the sequence, as they are where they are not packed.
        launcher_shards: whether the program that launches it may shard state too, as `accelerate launch` does.
        chunked_loss: whether logits and their gradients are computed in parts, so that they are never whole.
        undescribed: switches that make its memory smaller in a way that nothing here describes.
        refused: reasons why the software itself refuses the file.
        notes: assumptions that the verdict rests on.
    """

    software: Framework
    stack: str
    model: str = ""
    shape: Mapping[str, Any] | None = None
    ranks: int | None = None
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    context_parallel: int = 1
    pipeline_stages: int = 1
    virtual_stages: int = 1
    even_stages: bool = False
    with_tables: int = 0
    expert_parallel: int = 1
    whole_experts: bool = False
    data_parallel: int | None = None
    replicas: int | None = None
    zero_stage: int = 0
    reduce_scatter: bool = False
    reshard: bool = True
    schedule: Schedule = Schedule.ONE_F_ONE_B
    recomputation: Recomputation = Recomputation.NONE
    checkpoint_layers: int = 1
    offload: Offload = Offload.NONE
    micro_batch: int = 1
    batch: int | None = None
    accumulation: int | None = None
    sequence: int | None = None
    precision: Precision | None = None
    moments: Moments = Moments.FP32
    optimizer: Optimizer | None = None
    adapters: ConfiguredAdapters | None = None
    shorter: bool = False
    launcher_shards: bool = False
    chunked_loss: bool = False
    undescribed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class ComputedError(InputError):
    """A value that a shell computes when the file runs, so that nothing can be said of it before."""


class Keys:
    """The values of one configuration, by dotted key; each is asked for by name, and has its type checked.

    Args:
        has_auto: whether "auto" is as absent, as in DeepSpeed's files.
    """

    def __init__(self, values: Mapping[str, Any], *, has_auto: bool = False) -> None:
        self.values = values
        self._absent = (None, "", "None", "null", *(("auto",) if has_auto else ()))

    def given(self, *names: str) -> str | None:
        """The first of `names` that is there and not null."""
        return next((name for name in names if self.values.get(name) not in self._absent), None)

    def count(self, *names: str, least: int = 1, automatic: tuple[int | str, ...] = ()) -> int | None:
        """The whole number of the first of `names` that is there; None where none is.

        Args:
            automatic: values that mean the same as no number, by the software's documentation.

        Raises:
            InputError: another value, or less than `least`.
            ComputedError: a shell computes it.
        """
        if (name := self.given(*names)) is None:
            return None
        value = self._known(name)
        if isinstance(value, str) and value in automatic:
            return None
        try:
            number = float(value.replace("_", "") if isinstance(value, str) else value)
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise self._wrong(name, "a whole number") from error
        if isinstance(value, bool) or number != number or abs(number) > MOST or int(number) != number:
            raise self._wrong(name, f"a whole number up to {MOST:,}")
        if number in automatic:
            return None
        if number < least:
            raise self._wrong(name, f"{least} or more")
        return int(number)

    def size(self, *names: str, automatic: tuple[int | str, ...] = ()) -> int:
        """As `count`; 1 where it is not said.

        Raises:
            InputError: as `count`.
        """
        return self.count(*names, automatic=automatic) or 1

    def flag(self, *names: str) -> bool:
        """Whether the first of `names` that is there is true; texts such as "true" and "yes" too."""
        value = None if (name := self.given(*names)) is None else self._known(name)
        return value.casefold() in ("true", "yes", "1", "on") if isinstance(value, str) else bool(value)

    def text(self, *names: str) -> str:
        """The text of the first of `names` that is there; empty where none is, or it is none."""
        name = self.given(*names)
        value = None if name is None else self._known(name)
        return value.strip() if isinstance(value, str) else ""

    def within(self, prefix: str) -> bool:
        """Whether any key begins with `prefix.`."""
        return any(name.startswith(f"{prefix}.") for name in self.values)

    def _known(self, name: str) -> Any:
        """The value of a name.

        Raises:
            ComputedError: a shell computes it.
        """
        value = self.values[name]
        if isinstance(value, str) and COMPUTED.search(value):
            raise ComputedError(f"value of {name} is computed when it runs")
        return value

    def _wrong(self, name: str, allowed: str) -> InputError:
        return InputError(name, got=str(self.values[name])[:60], allowed=allowed)


def is_file(path: Path) -> bool:
    """Whether there is a file; a name that none can have is that of none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def chosen(text: str, choices: Mapping[str, Value], name: str) -> Value:
    """The choice that a text stands for, in any case of its letters.

    Raises:
        InputError: no such choice.
    """
    found = choices.get(text.casefold())
    if found is None:
        raise InputError(name, got=repr(text[:60]), allowed=", ".join(choices))
    return found
