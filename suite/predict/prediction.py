"""All figures that arithmetic gives for a run, in one list."""

from __future__ import annotations

from reference_runs.layout import Layout
from reference_runs.run import Architecture, Recipe
from suite.figures import Figure, Quantity, with_maximum_over_ranks
from suite.predict.flop import executed_flop, model_flop
from suite.predict.initial_loss import FIRST_LOSS_REASON, FIRST_LOSS_TOLERANCE, first_loss
from suite.predict.memory import gradient_bytes, optimizer_bytes, weight_bytes
from suite.predict.parameters import parameter_count
from suite.predict.rings import ring_sent_bytes
from suite.predict.run_figures import HARDWARE_CONVENTION, MODEL_CONVENTION
from suite.predict.traffic import data_parallel_traffic

SENT_TOLERANCE = 0.03
SENT_REASON = "needs a network interface of the rank's own; the tolerance is for protocol headers"
PART_OF_SENT_REASON = "a part of the rank's sent_bytes: an interface counts all of them together"


def job_figures(architecture: Architecture, recipe: Recipe, layout: Layout) -> list[Figure]:
    """Figures of the whole job that hold under any layout: parameters, flop of a step, first loss."""
    samples = recipe.global_batch
    return [
        Figure(quantity=Quantity.PARAMETERS, value=parameter_count(architecture)),
        Figure(
            quantity=Quantity.MODEL_FLOP,
            value=model_flop(architecture, samples=samples),
            convention=MODEL_CONVENTION,
        ),
        Figure(
            quantity=Quantity.HARDWARE_FLOP,
            value=executed_flop(architecture, layout, samples=samples, hidden_dropout=recipe.hidden_dropout),
            convention=HARDWARE_CONVENTION,
        ),
        Figure(
            quantity=Quantity.FIRST_LOSS,
            value=first_loss(architecture, recipe),
            tolerance=FIRST_LOSS_TOLERANCE,
            why=FIRST_LOSS_REASON,
        ),
    ]


def rank_figures(architecture: Architecture, recipe: Recipe, layout: Layout) -> list[Figure]:
    """State bytes and data-parallel traffic of every rank, for layouts of data parallelism and ZeRO-0 or 1."""
    figures: list[Figure] = []
    for rank in range(layout.ranks):
        figures += [
            Figure(quantity=Quantity.WEIGHT_BYTES, value=weight_bytes(architecture, recipe, layout), rank=rank),
            Figure(quantity=Quantity.GRADIENT_BYTES, value=gradient_bytes(architecture, recipe, layout), rank=rank),
            Figure(quantity=Quantity.OPTIMIZER_BYTES, value=optimizer_bytes(architecture, recipe, layout), rank=rank),
        ]
        for axis, operation, payload, messages in data_parallel_traffic(architecture, recipe, layout):
            sent = ring_sent_bytes(operation, payload_bytes=payload, ranks=layout.data_parallel)
            figures += [
                Figure(
                    quantity=quantity,
                    value=value,
                    axis=axis,
                    operation=operation,
                    rank=rank,
                    convention=convention,
                    why=why,
                )
                for quantity, value, convention, why in (
                    (Quantity.PAYLOAD_BYTES, payload, None, ""),
                    (Quantity.MESSAGES, messages, None, ""),
                    (Quantity.SENT_BYTES, sent, "ring", PART_OF_SENT_REASON),
                )
            ]
        if layout.data_parallel > 1:
            total = sum(
                ring_sent_bytes(t.operation, payload_bytes=t.payload_bytes, ranks=layout.data_parallel)
                for t in data_parallel_traffic(architecture, recipe, layout)
            )
            figures.append(
                Figure(
                    quantity=Quantity.SENT_BYTES,
                    value=total,
                    rank=rank,
                    convention="ring",
                    tolerance=SENT_TOLERANCE,
                    why=SENT_REASON,
                )
            )
    return with_maximum_over_ranks(figures)


def describes_ranks(layout: Layout) -> bool:
    """Whether `rank_figures` knows this layout: data parallelism alone, optimizer state whole or sharded."""
    return layout.ranks == layout.data_parallel and layout.zero_stage <= 1


def prediction(architecture: Architecture, recipe: Recipe, layout: Layout) -> list[Figure]:
    """Every figure that is predicted for this run; quantities that are not in the list are not predicted."""
    figures = job_figures(architecture, recipe, layout)
    if describes_ranks(layout):
        figures += rank_figures(architecture, recipe, layout)
    return figures
