"""Does a model fit, in which layout, and what is the largest that would: every switch is searched."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.layout import Layout, Offload, Recomputation, Schedule
from reference_runs.quantities import MOST_LAYERS, divisors
from reference_runs.run import Architecture, Workload
from reference_runs.stack import SEARCHED
from suite.predict.analytic.parameters import parameter_count
from suite.predict.analytic.stage_memory import stage_memory
from suite.predict.plan.asked import with_batch
from suite.predict.plan.question import Question
from suite.predict.plan.search import SearchResult, any_fits, search

LARGEST_MICRO_BATCH = 2**12
LARGEST_FACTOR = 2**10  # of layers, and of accelerators
MOST_NODES = 8  # that are tried one after the other


class Larger(NamedTuple):
    """A model of the same shape with other layers."""

    layers: int
    parameters: int


class Fit(NamedTuple):
    """Whether a model fits.

    Args:
        result: of all layouts; the first one is the fastest.
        micro_batch: the largest that fits in any layout; None: none does.
        largest: the deepest model of the same width that fits; None where none does.
        ranks: the fewest accelerators that would do, see `enough_ranks`; None: it fits as it is, or no number does.
        batch: samples of a step that would do on the question's own accelerators, see `fitting_batch`.
    """

    question: Question
    result: SearchResult
    micro_batch: int | None
    largest: Larger | None
    ranks: int | None
    batch: int | None = None


def fit(question: Question) -> Fit:
    """All that the question of whether a model fits is asked for."""
    result = search(question, top=1)
    if not result.best:
        batch = fitting_batch(question) if result.smallest is None else None
        return Fit(question, result, None, _largest(question), enough_ranks(question), batch)
    return Fit(question, result, _largest_micro_batch(question), _largest(question), None)


def every_switch(question: Question) -> Question:
    """The question with every switch searched, whatever software has it."""
    return question._replace(layouts=SEARCHED, fused=(False, True))


def fits_otherwise(question: Question) -> bool:
    """Whether a layout fits that the question's software does not execute."""
    return _fits(every_switch(question))


def enough_ranks(question: Question) -> int | None:
    """The fewest accelerators, more than the question's, that fit: whole nodes up to twice as many, then powers of two.

    None: no such number does.
    """
    own, node = question.ranks, question.machine.accelerators_per_node
    nodes = range(own // node * node + node, 2 * own + 1, node)
    powers = (2**power for power in range(own.bit_length(), own.bit_length() + LARGEST_FACTOR.bit_length()))
    doubled = (own * 2**power for power in range(1, LARGEST_FACTOR.bit_length()))
    numbers = sorted({*nodes[:MOST_NODES], *powers, *doubled})
    return next((ranks for ranks in numbers if _fits(question._replace(ranks=ranks))), None)


def fitting_batch(question: Question) -> int | None:
    """The batch nearest to the question's, a multiple of its accelerators, that fits on them; None: it does not."""
    ranks = question.ranks
    batch = ranks * max(1, round(question.recipe.global_batch / ranks))
    recipe = with_batch(question.recipe, batch)
    return batch if _fits(question._replace(recipe=recipe)) else None


def host_bytes(question: Question, layout: Layout) -> float:
    """Bytes of offloaded state in the memory of one host: of all its ranks, as the first stage's."""
    kept = [
        stage_memory(
            Workload(question.architecture, question.recipe, msgspec.structs.replace(layout, offload=offload)),
            stage=0,
            micro_batches=accumulation(question.recipe, layout),
        ).state
        for offload in (Offload.NONE, layout.offload)
    ]
    return (kept[0] - kept[1]) * min(layout.ranks, question.machine.accelerators_per_node)


def _fits(question: Question) -> bool:
    """Whether any layout fits; of the switches that have no fixed value, those alone that take least memory."""
    least: dict[str, object] = {
        "recomputation": Recomputation.FULL,
        "schedule": Schedule.ONE_F_ONE_B,
        "micro_batch": 1,
        "virtual_stages": 1,
        "fused_attention": max(question.fused),
        "rank_order": question.base.rank_order,
        "offload": question.offloads[-1],
    }
    return any_fits(question._replace(fixed={**least, **question.fixed}))


def _largest_micro_batch(question: Question) -> int | None:
    """The largest divisor of the batch that fits, or the fixed one."""
    sizes = question.values("micro_batch", divisors(question.recipe.global_batch))
    usable = (size for size in reversed(sizes) if size <= LARGEST_MICRO_BATCH)
    return next((size for size in usable if _fits(_with_micro_batch(question, size))), None)


def _with_micro_batch(question: Question, size: int) -> Question:
    """The question with that micro-batch, and a global batch of which it is a divisor."""
    return question._replace(fixed={**question.fixed, "micro_batch": size})


def _largest(question: Question) -> Larger | None:
    """The most layers that fit, to 2 %: doubled or halved from the model's own, then halved intervals."""
    least = question.architecture.layers
    while not _fits(_with_layers(question, least)):
        if least == 1:
            return None
        least //= 2
    most = 2 * least
    while most <= min(LARGEST_FACTOR * question.architecture.layers, MOST_LAYERS) and _fits(
        _with_layers(question, most)
    ):
        least, most = most, 2 * most
    while most - least > max(1, least // 50):
        middle = (least + most) // 2
        if _fits(_with_layers(question, middle)):
            least = middle
        else:
            most = middle
    return Larger(least, parameter_count(_deep(question.architecture, least)))


def _with_layers(question: Question, layers: int) -> Question:
    return question._replace(architecture=_deep(question.architecture, layers))


def _deep(architecture: Architecture, layers: int) -> Architecture:
    dense = min(architecture.dense_layers, layers - 1) if architecture.dense_layers else architecture.dense_layers
    pattern = architecture.layer_pattern
    if pattern is not None:
        mixers = itertools.islice(itertools.cycle(pattern.replace("-", "")), layers)
        pattern = "".join(mixers).replace("M", "M-")
    return msgspec.structs.replace(architecture, layers=layers, dense_layers=dense, layer_pattern=pattern)
