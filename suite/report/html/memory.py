"""Memory of each rank: predicted by category at the three peaks of a step, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from suite.job.options import Averaging, KernelChoice
from suite.job.training_job import Job
from suite.metrics.figures import Figure, Quantity
from suite.predict.executed_run.figures import memory_options
from suite.predict.simulation.memory_blocks import Category, StepPhase
from suite.predict.simulation.state import RankPosition, rank_position
from suite.predict.simulation.step_memory import executed_peaks
from suite.predict.simulation.supported_layouts import describes_ranks
from suite.records.record import Record, recorded_kernels
from suite.report.html.plot import Cell, Plot, bars
from suite.report.html.plot import significant as short

MOST_GROUPS = 6  # of ranks with bars of their own; the table has all
REST = "everything else"
_STATE = {
    Category.WEIGHTS: Quantity.WEIGHT_BYTES,
    Category.GRADIENTS: Quantity.GRADIENT_BYTES,
    Category.OPTIMIZER: Quantity.OPTIMIZER_BYTES,
}
_ORDER = (*(category.value for category in Category), REST)
MEASURED = "measured"


class _EqualRanks(NamedTuple):
    """Ranks that are predicted alike: bytes by peak and category, and what was measured of the fullest one."""

    ranks: list[int]
    predicted: Mapping[str, Mapping[str, int]]
    measured: Mapping[str, float]

    @property
    def name(self) -> str:
        first, last = self.ranks[0], self.ranks[-1]
        if first == last:
            return f"rank {first}"
        return f"ranks {first} to {last}" if last - first == len(self.ranks) - 1 else f"{len(self.ranks)} ranks"


def memory(key: str, record: Record) -> Plot | None:
    """Bars by rank; None where nothing is known of any."""
    groups = _groups(record)
    if not groups:
        return None
    groups.sort(key=lambda group: -max(group.measured.values(), default=0))
    drawn = sorted(groups[:MOST_GROUPS], key=lambda group: group.ranks)
    stacks: list[tuple[str, str, Mapping[str, float]]] = []
    for group in drawn:
        stacks += [(group.name, phase, parts) for phase, parts in group.predicted.items()]
        if group.measured:
            stacks.append((group.name, MEASURED, group.measured))
    used = [name for name in _ORDER if any(parts.get(name) for _, _, parts in stacks)]
    outer, inner = [name for name, _, _ in stacks], [part for _, part, _ in stacks]
    traces = [
        bars(name, _ORDER.index(name), y=[outer, inner], x=[short(parts.get(name, 0) / 1e6) for _, _, parts in stacks])
        | {"hovertemplate": "%{x:,.4g} MB"}
        for name in used
    ]
    rows: list[list[Cell]] = []
    for group in sorted(groups, key=lambda group: group.ranks):
        for peak, parts in (*group.predicted.items(), (MEASURED, group.measured)):
            if parts:
                cells = [f"{parts.get(name, 0):,.0f}" if parts.get(name) else None for name in used]
                rows.append([group.name, peak, *cells, f"{sum(parts.values()):,.0f}"])
    fullest = max(groups, key=lambda group: sum(group.measured.values()))
    says = ["The most that a rank holds in each part of a step."]
    if fullest.predicted:
        says.append("The peaks of forward pass, backward pass and update are predicted, block by block.")
    if fullest.measured:
        says.append(f"Only the largest is measured: of it the state is counted, and {REST} is what remains.")
    if len(drawn) < len(groups):
        says.append(f"Drawn are the fullest {len(drawn)} of {len(groups)} groups of ranks that are alike.")
    if fullest.measured:
        says.append(f"Measured are at most {sum(fullest.measured.values()) / 1e6:,.4g} MB on {fullest.name}.")
    if fullest.predicted:
        peak, parts = max(fullest.predicted.items(), key=lambda item: sum(item[1].values()))
        says.append(f"Predicted {sum(parts.values()) / 1e6:,.4g} MB, in the {peak} part of the step.")
    return Plot(
        id=f"memory-{key}",
        title="Memory by category and rank",
        says=" ".join(says),
        traces=traces,
        layout={
            "barmode": "stack",
            "yaxis": {"autorange": "reversed", "automargin": True},
            "xaxis": {"title": {"text": "MB on one rank"}},
            "legend": {"traceorder": "normal"},
        },
        columns=["ranks", "peak", *used, "sum, bytes"],
        rows=rows,
        height=150 + 34 * len(stacks),
    )


def _groups(record: Record) -> list[_EqualRanks]:
    job = record.begin.job
    alike: dict[RankPosition, list[int]] = {}
    places = range(job.layout.ranks) if job.slice is None else job.slice.places
    for rank in places:
        alike.setdefault(rank_position(job.layout, rank), []).append(rank)
    figures = record.end.figures if record.end else []
    if job.slice is not None:
        alone = len(places) == 1
        numbered = [(places[figure.rank or 0], figure) for figure in figures if alone or figure.rank is not None]
        figures = [msgspec.structs.replace(figure, rank=rank) for rank, figure in numbered]
    measured = _by_rank(figures)
    groups = []
    for (stage, replica), ranks in alike.items():
        predicted = _predicted(job, record, stage, replica)
        fullest = max(ranks, key=lambda rank: measured.get(rank, {}).get(Quantity.PEAK_BYTES, 0))
        parts = _measured(measured.get(fullest, {}))
        if predicted or parts:
            groups.append(_EqualRanks(ranks, predicted, parts))
    return groups


def _predicted(job: Job, record: Record, stage: int, replica: int) -> dict[str, Mapping[str, int]]:
    """Predicted bytes by peak and category; empty where the executed memory is not modelled."""
    of_kernels = job.kernels is KernelChoice.TORCH or job.device == "cuda"
    described = of_kernels and job.averaging is Averaging.EXACT and job.model is None
    if not described or not describes_ranks(job.workload):
        return {}
    options = memory_options(job.step_options(recorded_kernels(record)), job.kernels)
    peaks = executed_peaks(job.workload, options, stage=stage, replica=replica, sliced=job.slice is not None)
    return {phase.value: peaks[phase] for phase in StepPhase if phase in peaks}


def _by_rank(figures: list[Figure]) -> dict[int, dict[Quantity, float]]:
    by_rank: dict[int, dict[Quantity, float]] = {}
    for figure in figures:
        if figure.rank is not None and figure.axis is None and figure.term is None:
            by_rank.setdefault(figure.rank, {})[figure.quantity] = figure.value
    return by_rank


def _measured(values: Mapping[Quantity, float]) -> dict[str, float]:
    """The state, and what else of the peak; the peak alone where the state is larger than it."""
    peak = values.get(Quantity.PEAK_BYTES)
    if peak is None:
        return {}
    state = {category.value: values.get(quantity, 0.0) for category, quantity in _STATE.items()}
    rest = peak - sum(state.values())
    return {**state, REST: rest} if rest >= 0 else {REST: peak}
