"""Figures of expert-parallel ranks given the routing that happened, in place of those for equally busy experts.

A rank's experts compute rows of every rank's tokens, as many as the routers send: what depends on it is linear in them.
Each figure was measured in a pass of its own, whose rows the rank reported (`Finished.computed_rows`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.layout import Recomputation
from reference_runs.run import Workload
from suite.job.events import ComputedRows
from suite.job.options import StepOptions
from suite.metrics.figures import Figure, Quantity
from suite.predict.analytic.memory import WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.stage_layers import stage_layer_kinds
from suite.predict.simulation.state import rank_position
from suite.predict.simulation.step_memory import executed_activation_bytes, executed_peak_bytes

RowsOfRank = Mapping[str, ComputedRows]


def given_routing(
    workload: Workload,
    options: StepOptions,
    figures: list[Figure],
    rows: Sequence[RowsOfRank],
    *,
    places: Sequence[int] = (),
) -> list[Figure]:
    """`figures` with those of each rank as its rows say, and the largest over ranks of these.

    With h hidden, f the experts' width on a rank, p = 3 products if gated and 2 otherwise, e bytes of an element, and
    rows that a rank computed, d of them forward and b backward, more than with equally busy experts of its stage:
        model flop          6 p h f times the rows of one sample, or a rank's part of it, times the samples of a step
        hardware flop       2 p h f d + 4 p h f b
        payload of "ep"     h e (d + b)     what comes back from the experts, and the gradient of what went there
        activation bytes    as the simulation keeps a row more
        peak bytes          the simulation's with the rows of each layer in each micro-batch

    Bytes sent stay those of equally busy experts: a payload has what stays on the rank too.

    Args:
        rows: of each rank; empty where ranks do not share out experts. With a capacity they are as predicted.
        places: of a slice's processes, in the layout. The figures of a process alone have no rank.
    """
    has_places = workload.architecture.capacity_factor is not None
    if workload.layout.expert_parallel == 1 or has_places or not any(rows):
        return figures
    if len(places) == 1:
        return [_of_rank(workload, options, figure, rows[0], rank=places[0], sliced=True) for figure in figures]
    changed = [
        figure
        if figure.rank is None
        else _of_rank(
            workload,
            options,
            figure,
            rows[figure.rank],
            rank=places[figure.rank] if places else figure.rank,
            sliced=bool(places),
        )
        for figure in figures
    ]
    return [
        _largest(figure, changed) if (places and figure.rank is None) or _is_maximum(figure) else figure
        for figure in changed
    ]


def _of_rank(
    workload: Workload, options: StepOptions, figure: Figure, rows: RowsOfRank, *, rank: int, sliced: bool = False
) -> Figure:
    """A figure of a rank whose experts computed so many rows."""
    architecture, recipe, layout = workload
    if figure.quantity not in rows or (figure.quantity == Quantity.PAYLOAD_BYTES and not _of_experts(figure)):
        return figure
    computed = rows[figure.quantity]
    position = rank_position(layout, rank)
    kinds = stage_layer_kinds(architecture, layout, stage=position.stage)
    layers = sum(number for kind, number in kinds if kind.experts is not None)
    if not layers:
        return figure
    sample = architecture.sequence // layout.context_parallel * (architecture.experts_per_token or 0)
    micro_batches = accumulation(recipe, layout)
    step = layers * layout.micro_batch * micro_batches * sample
    products = 3 if architecture.activation.gated else 2
    flop = 2 * products * architecture.hidden * architecture.expert_width // layout.tensor_parallel
    passes = 2 if layout.recomputation is Recomputation.FULL else 1
    forward, backward = computed.forward - passes * step, computed.backward - step
    more: float
    if figure.quantity == Quantity.MODEL_FLOP:
        more = 3 * flop * (computed.forward - layers * sample) * layout.micro_batch * micro_batches
    elif figure.quantity == Quantity.HARDWARE_FLOP:
        more = flop * forward + 2 * flop * backward
    elif figure.quantity == Quantity.PAYLOAD_BYTES:
        more = architecture.hidden * WEIGHT_ELEMENT_BYTES[recipe.precision] * (forward + backward)
    elif figure.quantity == Quantity.PEAK_BYTES:
        layers_of_micro_batches = tuple(map(tuple, computed.layers))
        peak = executed_peak_bytes(
            workload,
            options,
            stage=position.stage,
            replica=position.replica,
            expert_rows=layers_of_micro_batches,
            sliced=sliced,
        )
        more = peak - figure.value
    else:
        equal = layout.micro_batch * sample
        of_one = executed_activation_bytes(workload, options, stage=position.stage, expert_rows=equal + 1)
        of_one -= int(figure.value)
        more = of_one * (computed.forward - layers * equal) / layers
    return msgspec.structs.replace(figure, value=figure.value + more)


def _of_experts(figure: Figure) -> bool:
    return (figure.axis, figure.operation) == ("ep", "all_to_all")


def _is_maximum(figure: Figure) -> bool:
    of_all = figure.rank is None and figure.term is None
    is_payload = figure.quantity == Quantity.PAYLOAD_BYTES and _of_experts(figure)
    return of_all and (is_payload or figure.quantity in (Quantity.ACTIVATION_BYTES, Quantity.PEAK_BYTES))


def _largest(figure: Figure, figures: list[Figure]) -> Figure:
    kind = (figure.quantity, figure.axis, figure.operation)
    values = [f.value for f in figures if f.rank is not None and (f.quantity, f.axis, f.operation) == kind]
    return msgspec.structs.replace(figure, value=max(values))
