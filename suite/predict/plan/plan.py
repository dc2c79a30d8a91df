"""The plan of a training: the fastest layouts of so many accelerators, what they cost, and what would help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import Layout, Offload
from reference_runs.run import ProductFormat, ReferenceRun, Workload
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.memory_uncertainty import peak_kind, peak_uncertainty
from suite.predict.analytic.step_time import StepTime
from suite.predict.machine_model.model import RunMachine, run_machine
from suite.predict.machine_model.unsaid_layout import fuses_attention, usual_layout
from suite.predict.plan.asked import with_batch
from suite.predict.plan.changes import HelpfulChange, helpful_changes
from suite.predict.plan.frontier import OfNumber, by_number
from suite.predict.plan.question import Question
from suite.predict.plan.search import Found, SearchResult, search
from suite.predict.plan.training import TrainingBill, training
from suite.predict.recorded_run.figures import Prices
from suite.predict.recorded_run.prediction import run_prediction


class PlannedLayout(NamedTuple):
    """A layout with its training."""

    found: Found
    training: TrainingBill


class OtherNumber(NamedTuple):
    """The fastest layout of another number of accelerators."""

    ranks: int
    planned: PlannedLayout


class TrainingPlan(NamedTuple):
    """Best layouts of a training on so many accelerators.

    Args:
        question: what was searched; its memory is the largest peak that fits, see `PeakUncertainty.room`.
        tokens: trained on.
        result: counts of layouts, and the smallest.
        best: the fastest layouts, the first one first.
        step: terms of the best one's step; None where none fits.
        changes: single changes that would shorten the best one's step.
        uncertainty: relative error within which layouts of one model are equal: that of a dense model's step time.
    """

    question: Question
    tokens: int
    result: SearchResult
    best: list[PlannedLayout]
    step: StepTime | None
    changes: list[HelpfulChange]
    uncertainty: float

    @property
    def equal_share(self) -> float:
        """How much longer a step may take than the fastest one before their intervals part."""
        return _overlap(self.uncertainty)


def machine_of(run: ReferenceRun, on: str | None, ranks: int, network: float | None, stack: str | None) -> RunMachine:
    """The machine of `ranks` accelerators: the run's own, or of the accelerator that `on` names.

    Args:
        network: Gbit/s out of a node.

    Raises:
        InputError: no accelerator is known, or none of that name.
    """
    found = run_machine(
        run.cluster,
        run.recipe.precision,
        ProductFormat(run.recipe.product_format),
        ranks=ranks,
        accelerator_name=on,
        network_bytes_per_second=None if network is None else network * 1e9 / 8,
        software=run.software,
        stack_name=stack,
        stages=run.recorded_layout is not None and run.recorded_layout.pipeline_stages > 1,
        architecture=run.architecture,
    )
    if found is None:
        raise InputError("the run names no accelerator", allowed="--on ACCELERATOR", where=run.where)
    return found


def question_of(
    run: ReferenceRun, on: RunMachine, *, ranks: int, fixed: Mapping[str, object], global_batch: int | None
) -> Question:
    """The search's question about a run on such a machine.

    Raises:
        InputError: the machine lacks its network, or weights are to be offloaded.
    """
    recipe = run.recipe
    if global_batch is not None:
        recipe = with_batch(recipe, global_batch)
    sharded = Layout(data_parallel=ranks, zero_stage=3 if "zero3" in on.stack.layouts else 1, fused_attention=True)
    wanted = msgspec.structs.replace(sharded, **fixed)
    on, _ = on.with_memory_for(Workload(run.architecture, recipe, wanted))
    if on.machine is None:
        raise InputError(on.missing, allowed="--network GBITS of a node", where="--network")
    if (offload := fixed.get("offload", Offload.NONE)) not in (Offload.NONE, Offload.OPTIMIZER):
        what, allowed = f"no time is predicted of offloaded {offload}", "offload-optimizer, no-offload"
        raise InputError(what, got="offload", allowed=allowed, where="--fix")
    base = usual_layout(run, on.stack.name)
    return Question(
        architecture=run.architecture,
        recipe=recipe,
        base=msgspec.structs.replace(base, accumulation=None, shard_ranks=None, stage_layer_counts=None),
        machine=on.machine,
        ranks=ranks,
        memory_bytes=peak_uncertainty(peak_kind(on.machine.stack.keeping)).room(on.machine.memory_bytes),
        layouts=on.stack.layouts,
        fused=(fuses_attention(run.architecture, on.stack),),
        fixed=fixed,
        convention=run.reported.flop_convention,
    )


def plan(question: Question, *, tokens: int, prices: Prices, uncertainty: float, top: int) -> TrainingPlan:
    """The `top` fastest layouts with their trainings, and what would help the first."""
    result = search(question, top=top, share=_overlap(uncertainty))
    best = [_planned(question, found, question.ranks, tokens, prices) for found in result.best]
    step, changes = None, []
    if best:
        workload = Workload(question.architecture, question.recipe, best[0].found.layout)
        step = run_prediction(workload, question.machine).step
        changes = helpful_changes(question, best[0].found)
    return TrainingPlan(question, tokens, result, best, step, changes, uncertainty)


def _overlap(uncertainty: float) -> float:
    return (1 + uncertainty) / (1 - uncertainty) - 1


def other_numbers(question: Question, *, tokens: int, prices: Prices) -> list[OtherNumber]:
    """The fastest training of each number of accelerators around the question's, in rising order."""
    found: list[OfNumber] = by_number(question)
    return [OtherNumber(each.ranks, _planned(question, each.found, each.ranks, tokens, prices)) for each in found]


def _planned(question: Question, found: Found, ranks: int, tokens: int, prices: Prices) -> PlannedLayout:
    machine: Machine = question.machine
    return PlannedLayout(
        found,
        training(
            tokens=tokens,
            global_batch=question.recipe.global_batch,
            sequence=question.architecture.sequence,
            step_seconds=found.figures.step_seconds,
            ranks=ranks,
            machine=machine,
            prices=prices,
        ),
    )
