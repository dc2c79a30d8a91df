"""Options of models that are traced: each means the same to every command that takes a model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer

from reference_runs.errors import InputError
from suite.commands.options import with_parameters
from suite.job.trace_job import Adapters, OptimizerKernel

TRACE_PANEL = "A model that is traced"
OF_TRACED = "is of models that are traced: a config.json, or FILE.py:FUNCTION"
MOST_RANK = 2**16  # as wide as the widest layers

Optimizer = Annotated[
    OptimizerKernel | None,
    typer.Option(help="Optimizer of a traced model (default: adamw).", rich_help_panel=TRACE_PANEL),
]
Trace = Annotated[
    bool,
    typer.Option(
        "--trace",
        help="Execute the model of a config.json without its memory, even where a formula describes it.",
        rich_help_panel=TRACE_PANEL,
    ),
]
Compile = Annotated[
    bool,
    typer.Option(
        "--compile",
        help="Compile each decoder layer of a traced model, as torch.compile does up to its kernels.",
        rich_help_panel=TRACE_PANEL,
    ),
]
Lora = Annotated[
    int | None,
    typer.Option(
        help="Rank of peft's LoRA adapters, which alone are trained.", min=1, max=MOST_RANK, rich_help_panel=TRACE_PANEL
    ),
]
Qlora = Annotated[
    int | None,
    typer.Option(
        help="Likewise, over weights that bitsandbytes stores in NF4, with scales that are quantised again.",
        min=1,
        max=MOST_RANK,
        rich_help_panel=TRACE_PANEL,
    ),
]
LoraTargets = Annotated[
    str | None,
    typer.Option(
        help="Linear layers that get an adapter, such as q_proj,v_proj (default: all but the head, peft's all-linear).",
        rich_help_panel=TRACE_PANEL,
    ),
]
_SHARED: dict[str, tuple[Any, object]] = {
    "optimizer": (Optimizer, None),
    "lora": (Lora, None),
    "qlora": (Qlora, None),
    "lora_targets": (LoraTargets, None),
    "trace": (Trace, False),
    "compile": (Compile, False),
}


class TracedOptions(NamedTuple):
    """The options of a trace; None where one is absent.

    Args:
        trace: whether a configuration is traced that a formula describes.
        compile: whether torch.compile compiles each decoder layer.
    """

    optimizer: OptimizerKernel | None = None
    lora: int | None = None
    qlora: int | None = None
    lora_targets: str | None = None
    trace: bool = False
    compile: bool = False

    @property
    def adapters(self) -> Adapters | None:
        """Adapters that are trained, in place of all weights.

        Raises:
            InputError: two ranks, targets without a rank, or compiled layers.
        """
        rank = self.lora or self.qlora
        if self.lora and self.qlora:
            raise InputError("excludes --lora", got=f"--lora {self.lora}", where="--qlora")
        if rank is None:
            if self.lora_targets is not None:
                raise InputError("needs --lora or --qlora", got=self.lora_targets, where="--lora-targets")
            return None
        if self.compile:
            raise InputError("excludes --lora and --qlora", got=str(rank), where="--compile")
        targets = [target.strip() for target in (self.lora_targets or "").split(",")]
        return Adapters(rank=rank, targets=tuple(filter(None, targets)), quantised=self.qlora is not None)

    @property
    def packages(self) -> tuple[str, ...]:
        """Modules without which they cannot be traced."""
        adapters = self.adapters
        packed = (adapters is not None and adapters.quantised) or self.optimizer is OptimizerKernel.ADAMW_8BIT
        return (*(("peft",) if adapters else ()), *(("bitsandbytes",) if packed else ()))

    @property
    def given(self) -> dict[str, object | None]:
        """Values by option, None where one is absent."""
        return {f"--{name.replace('_', '-')}": value or None for name, value in self._asdict().items()}

    @property
    def words(self) -> dict[str, str | None]:
        """The options as they are typed, without those that are flags."""
        return {name: None if value in (None, True) else str(value) for name, value in self.given.items()}

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags that were given."""
        return tuple(name for name, value in self.given.items() if value is True)


def asks_trace(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator of a command: its parameter `tracing`, `TracedOptions`, stands for all options of traced models."""
    parameters: dict[str, tuple[Any, object]] = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        parameters |= _SHARED if name == "tracing" else {name: (parameter.annotation, parameter.default)}

    @functools.wraps(command)
    def called(**given: Any) -> None:
        command(tracing=TracedOptions(**{name: given.pop(name) for name in _SHARED}), **given)

    return with_parameters(called, parameters)
