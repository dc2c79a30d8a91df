"""The numbers of the page: what `predict` says of a state, as data that pictures and tables are made of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import Layout, layout_text, parse_layout
from suite.metrics.comparison import Row
from suite.metrics.figures import Quantity
from suite.predict.machine_model.unsaid_layout import usual_layout
from suite.predict.plan.asked import AskedTraining, asked_run
from suite.predict.plan.predicted_run import Predicted, PredictionRequest, prediction_of_run
from suite.predict.recorded_run.described_memory import RankMemory
from suite.predict.recorded_run.figures import Prices
from suite.report.explore.presets import Version, described_run, tokens_are_known, version_of
from suite.report.explore.state import ExploreState, complete_text
from suite.report.explore.words import in_controls

SHOWN = (
    Quantity.STEP_SECONDS,
    Quantity.PEAK_BYTES,
    Quantity.MFU,
    Quantity.HFU,
    Quantity.TOKENS_PER_SECOND,
    Quantity.BUBBLE_FRACTION,
    Quantity.TRAINING_SECONDS,
    Quantity.ACCELERATOR_SECONDS,
    Quantity.ENERGY_JOULES,
    Quantity.COST,
    Quantity.PARAMETERS,
)
OF_TRAINING = (Quantity.TRAINING_SECONDS, Quantity.ACCELERATOR_SECONDS, Quantity.ENERGY_JOULES, Quantity.COST)
KEPT = 512  # predictions that a page has shown


class View(NamedTuple):
    """One layout's prediction.

    Args:
        layout: in short words; empty where none is known.
        wrong: why nothing is predicted, one line a reason.
        tokens_are_known: of the whole training; without them nothing is said of it.
    """

    layout: str
    predicted: Predicted | None
    wrong: tuple[str, ...] = ()
    tokens_are_known: bool = True

    @property
    def stages(self) -> Sequence[RankMemory]:
        """Memory of each pipeline stage; empty where it is not predicted."""
        return self.predicted.prediction.memory if self.predicted and self.predicted.prediction else ()

    @property
    def terms(self) -> dict[str, float]:
        """Seconds of the step by term, those of nothing left out; empty where no time is predicted."""
        step = self.predicted.prediction.step if self.predicted and self.predicted.prediction else None
        if step is None:
            return {}
        named = ((name.removesuffix("_seconds").replace("_", " "), seconds) for name, seconds in step._asdict().items())
        return {name: seconds for name, seconds in named if seconds}

    @property
    def rows(self) -> list[Row]:
        """One row for each quantity that is shown: what is predicted of the whole, with what was published of it."""
        found = []
        predicted = self.predicted.rows if self.predicted else ()
        whole = [row for row in predicted if row.rank is None and row.stage is None and row.axis is None]
        for quantity in SHOWN:
            rows = [row for row in whole if row.quantity == quantity and row.left is not None]
            alone = [row for row in rows if row.term is None or quantity is Quantity.COST]
            if quantity not in OF_TRAINING or self.tokens_are_known:
                found += alone[:1]
        return found


def recorded_layout(run: str, stack: str | None = None) -> Layout:
    """The layout that the run recorded, or that of one accelerator, with attention as the stack has it.

    Raises:
        InputError: no such run.
    """
    return _without_counts(usual_layout(described_run(run), stack))


def state_of_run(run: str) -> ExploreState:
    """The run as it was recorded; without a recorded layout, in the fastest one that fits.

    Raises:
        InputError: no such run.
    """
    if described_run(run).recorded_layout is not None:
        return ExploreState(run=run, layout=complete_text(recorded_layout(run)))
    return settled(ExploreState(run=run, layout=""))


def settled(state: ExploreState) -> ExploreState:
    """The state with the layout that `predict` finds where a number of accelerators is given, or no layout is known.

    Where the run's own was not published, it is one of the fewest accelerators that hold the model's state.

    Raises:
        InputError: no such run, or no layout of so many accelerators.
    """
    run = described_run(state.run)
    if state.gpus is None and (state.layout or run.recorded_layout is not None):
        return state
    if state.gpus is None and run.unpublished:
        state = msgspec.structs.replace(state, gpus=asked_run(run, training_of(state), on=state.on, ranks=None).ranks)
    found = prediction_of_run(run, _request(state, None), by_stage=False).layout
    if found is None and state.gpus is not None:
        what = "no layout of so many divides model and batch"
        raise InputError(what, got=f"{state.gpus:,}", allowed="another number", where="number of accelerators")
    layout = complete_text(_without_counts(found)) if found else ""
    return msgspec.structs.replace(state, layout=layout, gpus=None)


def _without_counts(layout: Layout) -> Layout:
    """The layout without what follows from batch and model."""
    return msgspec.structs.replace(layout, accumulation=None, stage_layer_counts=None)


def view(state: ExploreState, layout: str) -> View:
    """The prediction of a state with this layout; what is wrong with it where there is none."""
    return _view(msgspec.structs.replace(state, layout=layout, other=None), version_of(state.run))


@lru_cache(KEPT)
def _view(state: ExploreState, _version: Version) -> View:
    layout = state.layout
    try:
        short = layout_text(parse_layout(layout, base=recorded_layout(state.run, state.stack))) if layout else ""
        predicted = prediction_of_run(described_run(state.run), _request(state, layout or None), by_stage=False)
    except InputError as error:
        return View(layout, None, tuple(map(in_controls, error.lines)))
    return View(short, predicted, tokens_are_known=state.tokens is not None or tokens_are_known(state.run))


def training_of(state: ExploreState) -> AskedTraining:
    """The values that take the place of the run's own; the micro-batch is the layout's."""
    tokens = None if state.tokens is None else int(state.tokens)
    return AskedTraining(state.precision, state.batch, None, state.sequence, tokens)


def _request(state: ExploreState, layout: str | None) -> PredictionRequest:
    """The request that `predict` makes of the same options."""
    network = None if state.network is None else state.network * 1e9 / 8
    return PredictionRequest(
        state.on,
        None,
        layout,
        network,
        Prices(state.price),
        state.stack,
        products=state.products,
        gpus=state.gpus,
        training=training_of(state),
    )


def is_of_record(predicted: Predicted) -> bool:
    """Whether the recorded machine, training and layout are asked about, so that published figures compare.

    Counts that follow from batch and model are none of the page's layout, and may be of the recorded one.
    """
    if predicted.request is None or predicted.run is None or predicted.layout is None:
        return predicted.is_of_record
    recorded = predicted.run.recorded_layout
    is_recorded = recorded is not None and _without_counts(recorded) == _without_counts(predicted.layout)
    return is_recorded and predicted.request.is_of_record


def memory_parts(stages: Sequence[RankMemory]) -> dict[str, list[float]]:
    """Bytes by part, a value for each stage, at that stage's fullest instant."""
    instants = [stage.fullest_instant()[1] for stage in stages]
    names = dict.fromkeys(name for parts in instants for name, value in parts.items() if value)
    return {name: [parts.get(name, 0.0) for parts in instants] for name in names}
