"""Options of models that are traced: each means the same to every command that takes a model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer

from suite.commands.options import with_parameters
from suite.job.trace_job import OptimizerKernel

TRACE_PANEL = "A model that is traced"

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
_SHARED: dict[str, tuple[Any, object]] = {
    "optimizer": (Optimizer, None),
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
    trace: bool = False
    compile: bool = False

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
