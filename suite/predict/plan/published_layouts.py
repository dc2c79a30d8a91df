"""Where published layouts stand among all that their builders could have chosen.

Model, batch, accelerators, schedule, recomputation and ZeRO stage are as published; dp, tp, pp and the micro-batch are
searched. It is a test of the search: builders tried layouts on their machines, so theirs should be near the best.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout
from reference_runs.machine_model import machine_model
from reference_runs.published import load_table
from reference_runs.published_tables import shipped_tables
from reference_runs.run import Workload
from reference_runs.stack import RecordedStack, stack
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.memory_uncertainty import peak_kind, peak_uncertainty
from suite.predict.machine_model.model import prepared_row, row_machine, run_machine
from suite.predict.plan.question import Question
from suite.predict.plan.search import Found, search
from suite.predict.recorded_run.prediction import run_prediction
from suite.predict.recorded_run.sweep import layout_figures

RUNS = ("gpt-neox-20b", "glm-130b", "bloom-176b", "mt-nlg-530b")
TABLE = "megatron_sc21_table1"
SEQUENCE_PARALLEL_TABLE = "korthikanti2022_table5"  # of which the rows with sequence parallelism count
_HELD = (
    *("schedule", "recomputation", "zero_stage", "reduce_scatter", "sequence_parallel", "fused_attention"),
    *("context_parallel", "expert_parallel", "rank_order", "stage_assignment"),
)


class RankedLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A published layout among those that were searched.

    Args:
        rank: 1: the fastest that fits.
        loss: how much longer its step is predicted to take than the fastest one's, as a share of that.
        term: of the step, in which the two differ most; None where they are the same.
        fits: whether the published layout is predicted to fit.
        rank_interleaved, fitting_interleaved, loss_interleaved: where the number of chunks a rank is searched too.
    """

    name: str
    layout: str
    fits: bool
    rank: int
    fitting: int
    loss: float
    best: str
    term: str | None
    rank_interleaved: int
    fitting_interleaved: int
    loss_interleaved: float
    edition: str = msgspec.field(default_factory=lambda: machine_model().edition)


class _Published(NamedTuple):
    name: str
    workload: Workload
    machine: Machine
    stack: RecordedStack


def ranked_layouts() -> list[RankedLayout]:
    """The 18 published layouts: of four runs, of Narayanan et al. 2021, table 1, and of Korthikanti et al. 2022."""
    return [_ranked(published) for published in _published()]


def _published() -> Iterator[_Published]:
    for name in RUNS:
        run = reference_run(name)
        found = run_machine(
            run.cluster,
            run.recipe.precision,
            ranks=run.layout.ranks,
            accelerator_name=None,
            software=run.software,
            stages=run.layout.pipeline_stages > 1,
        )
        assert found is not None
        assert found.machine is not None
        yield _Published(name, run.workload, found.machine, found.stack)
    model = machine_model()
    for path in shipped_tables():
        if path.stem not in (TABLE, SEQUENCE_PARALLEL_TABLE):
            continue
        for row in load_table(path).rows:
            if path.stem == TABLE or row.layout.sequence_parallel:
                machine = row_machine(model, model.values(), prepared_row(row))
                yield _Published(f"{path.stem}, {row.model}", row.workload, machine, stack(row.stack))


def _ranked(published: _Published) -> RankedLayout:
    architecture, recipe, layout = published.workload
    own = _own(published)
    held = {field: getattr(layout, field) for field in _HELD}
    question = Question(
        architecture,
        recipe,
        layout,
        published.machine,
        layout.ranks,
        peak_uncertainty(peak_kind(published.machine.stack.keeping)).room(published.machine.memory_bytes),
        published.stack.layouts,
        fixed=held,
    )
    chunks = question._replace(fixed={**held, "virtual_stages": layout.virtual_stages})
    rank, fitting, best = _place(chunks, own)
    free_rank, free_fitting, free = _place(question, own)
    return RankedLayout(
        name=published.name,
        layout=_words(layout),
        fits=own.figures.peak_bytes <= question.memory_bytes,
        rank=rank,
        fitting=fitting,
        loss=_loss(own, best),
        best=_words(best.layout),
        term=_deciding_term(published, best.layout),
        rank_interleaved=free_rank,
        fitting_interleaved=free_fitting,
        loss_interleaved=_loss(own, free),
    )


def _own(published: _Published) -> Found:
    return Found(published.workload.layout, layout_figures(published.workload, published.machine))


def _place(question: Question, own: Found) -> tuple[int, int, Found]:
    """The published layout's rank, of how many, and the best one."""
    result = search(question, top=10**6)
    shorter = own.figures.step_seconds * (1 - 1e-9)
    rank = 1 + sum(each.figures.step_seconds < shorter for each in result.best)
    return rank, result.fitting, result.best[0] if result.best else own


def _loss(own: Found, best: Found) -> float:
    return max(0.0, own.figures.step_seconds / best.figures.step_seconds - 1)


def _words(layout: Layout) -> str:
    axes = f"dp{layout.data_parallel},tp{layout.tensor_parallel},pp{layout.pipeline_stages}"
    chunks = f",interleave{layout.virtual_stages}" if layout.virtual_stages > 1 else ""
    return f"{axes}{chunks},micro{layout.micro_batch}"


def _deciding_term(published: _Published, best: Layout) -> str | None:
    """The term of the step that the published layout has most more of than the best one."""
    architecture, recipe, layout = published.workload
    if _words(layout) == _words(best):
        return None
    own, other = (
        run_prediction(Workload(architecture, recipe, each), published.machine).step for each in (layout, best)
    )
    assert own is not None
    assert other is not None
    more = {name: seconds - getattr(other, name) for name, seconds in own._asdict().items()}
    name = max(more, key=lambda term: more[term])
    return name.removesuffix("_seconds").replace("_", " ")
