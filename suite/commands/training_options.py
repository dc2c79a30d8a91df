"""Options that `import`, `predict`, `fit` and `plan` share: each means the same in all of them."""

from __future__ import annotations

from typing import Annotated

import typer

from reference_runs.run import precision_of
from suite.predict.plan.asked import AskedTraining, check_positive

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
Price = Annotated[
    float | None,
    typer.Option(help="Price of an accelerator hour, in your currency.", min=0, rich_help_panel=COST_PANEL),
]
EnergyPrice = Annotated[float | None, typer.Option(help="Price of a kilowatt hour.", min=0, rich_help_panel=COST_PANEL)]
Pue = Annotated[
    float, typer.Option(help="Power usage effectiveness of the building.", min=1, rich_help_panel=COST_PANEL)
]
JsonOutput = Annotated[
    bool, typer.Option("--json", help="Print JSON, one object a line.", rich_help_panel=OUTPUT_PANEL)
]


def asked_training(
    *, precision: str | None, batch: int | None, micro_batch: int | None, sequence: int | None, tokens: float | None
) -> AskedTraining:
    """The training that these options ask for.

    Raises:
        InputError: a number that is not above 0, or no precision.
    """
    numbers = {"--batch": batch, "--micro-batch": micro_batch, "--sequence": sequence, "--tokens": tokens}
    check_positive(numbers)
    return AskedTraining(
        None if precision is None else precision_of(precision, where="--precision"),
        batch,
        micro_batch,
        sequence,
        None if tokens is None else int(tokens),
    )
