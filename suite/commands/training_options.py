"""Options that `import`, `predict`, `fit` and `plan` share, and --edition of all that predict: each means the same."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer

from reference_runs.machine_model import chosen_edition, edition_chosen
from reference_runs.run import ProductFormat, precision_of
from suite.commands.options import with_parameters
from suite.predict.plan.asked import AskedTraining, check_positive
from suite.reproduce.request import GEMM_DTYPE

MACHINE_PANEL = "Machine and software"
TRAINING_PANEL = "Training"
LAYOUT_PANEL = "Layout"
COST_PANEL = "Cost"
OUTPUT_PANEL = "Output"

On = Annotated[str | None, typer.Option(help="Accelerator (default: the run's own).", rich_help_panel=MACHINE_PANEL)]
Gpus = Annotated[
    int | None, typer.Option(help="Number of accelerators (default: the run's own).", rich_help_panel=MACHINE_PANEL)
]
Network = Annotated[
    float | None,
    typer.Option(
        help="Gbit/s out of a node, over all its interfaces; a GB200's node has 72 accelerators (default: the run's "
        "own, or the accelerator's usual node).",
        rich_help_panel=MACHINE_PANEL,
    ),
]
StackName = Annotated[
    str | None,
    typer.Option(
        "--stack",
        help="Software, by its name in reference_runs/stacks.toml (default: the run's own).",
        rich_help_panel=MACHINE_PANEL,
    ),
]
PrecisionName = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help="Formats of weights, gradients and optimizer: bf16 has fp32 master weights, bf16-pure has none (default: "
        "the run's own).",
        rich_help_panel=TRAINING_PANEL,
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(
        help="Samples of a step, over all accelerators (default: the run's own).", rich_help_panel=TRAINING_PANEL
    ),
]
MicroBatch = Annotated[
    int | None,
    typer.Option(help="Samples of one forward and backward pass (default: searched).", rich_help_panel=TRAINING_PANEL),
]
Sequence = Annotated[
    int | None, typer.Option(help="Tokens of a sample (default: the run's own).", rich_help_panel=TRAINING_PANEL)
]
Tokens = Annotated[
    float | None,
    typer.Option(
        help="Tokens of the whole training, such as 3e11 (default: the run's own).", rich_help_panel=TRAINING_PANEL
    ),
]
Products = Annotated[
    ProductFormat | None,
    typer.Option(
        *GEMM_DTYPE, help="GEMM format of the layers (default: the run's own).", rich_help_panel=TRAINING_PANEL
    ),
]
Price = Annotated[
    float | None,
    typer.Option(help="Price of an accelerator hour, in your currency.", min=0, rich_help_panel=COST_PANEL),
]
EnergyPrice = Annotated[float | None, typer.Option(help="Price of a kilowatt hour.", min=0, rich_help_panel=COST_PANEL)]
Pue = Annotated[
    float, typer.Option(help="Power usage effectiveness of the building.", min=1, rich_help_panel=COST_PANEL)
]
Edition = Annotated[
    str | None,
    typer.Option(
        help="Earlier fit of the machine model, by its name in reference_runs/editions (default: the current one).",
        rich_help_panel=MACHINE_PANEL,
    ),
]
JsonOutput = Annotated[
    bool, typer.Option("--json", help="Print JSON, one object a line.", rich_help_panel=OUTPUT_PANEL)
]


_SHARED: dict[str, Any] = {
    "on": On,
    "gpus": Gpus,
    "network": Network,
    "stack": StackName,
    "precision": PrecisionName,
    "batch": Batch,
    "micro_batch": MicroBatch,
    "sequence": Sequence,
    "tokens": Tokens,
}


class Asked(NamedTuple):
    """The shared options; None where one is absent.

    Args:
        network: Gbit/s out of a node.
        fix: words of a layout that stay, of the commands that search.
        products: format of the layers' matrix products, of the same commands.
    """

    on: str | None
    gpus: int | None
    network: float | None
    stack: str | None
    training: AskedTraining
    fix: str = ""
    products: ProductFormat | None = None

    @property
    def options(self) -> dict[str, str | None]:
        """The options as they are typed."""
        training = self.training
        return {
            "--on": self.on,
            "--gpus": _typed(self.gpus),
            "--network": _typed(self.network),
            "--stack": self.stack,
            "--precision": training.precision,
            "--batch": _typed(training.batch),
            "--micro-batch": _typed(training.micro_batch),
            "--sequence": _typed(training.sequence),
            "--tokens": _typed(training.tokens),
            "--gemm-dtype": self.products,
            "--fix": self.fix,
            "--edition": chosen_edition(),
        }


def _typed(value: float | None) -> str | None:
    return None if value is None else f"{value:.12g}"


def asks_training(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator of a command: its parameter `asked`, an `Asked`, stands for all options that these commands share."""
    parameters: dict[str, tuple[Any, object]] = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        shared = {option: (annotated, None) for option, annotated in _SHARED.items()}
        parameters |= shared if name == "asked" else {name: (parameter.annotation, parameter.default)}

    @functools.wraps(command)
    def called(**given: Any) -> None:
        asked = _asked({option: given.pop(option) for option in _SHARED})
        command(asked=asked, **given)

    return with_parameters(called, parameters)


def asks_edition(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator of a command: it predicts with the fit of the machine model that --edition names.

    The option stands last, and what the command itself reads is `reference_runs.machine_model.chosen_edition`.
    """
    parameters = inspect.signature(command, eval_str=True).parameters
    own = {name: (parameter.annotation, parameter.default) for name, parameter in parameters.items()}

    @functools.wraps(command)
    def called(edition: str | None, **given: Any) -> None:
        with edition_chosen(edition):
            command(**given)

    return with_parameters(called, {**own, "edition": (Edition, None)})


def _asked(given: dict[str, Any]) -> Asked:
    """The shared options, checked.

    Raises:
        InputError: a number that is not above 0, or no precision of that name.
    """
    numbers = ("gpus", "network", "batch", "micro_batch", "sequence", "tokens")
    check_positive({f"--{name.replace('_', '-')}": given[name] for name in numbers})
    precision, tokens = given["precision"], given["tokens"]
    training = AskedTraining(
        None if precision is None else precision_of(precision, where="--precision"),
        given["batch"],
        given["micro_batch"],
        given["sequence"],
        None if tokens is None else int(tokens),
    )
    return Asked(given["on"], given["gpus"], given["network"], given["stack"], training)
