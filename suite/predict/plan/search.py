"""The search for a layout: every one that divides model, batch and accelerators, with its memory and its time.

Layouts that differ in counts alone are computed together, as arrays (recorded_run/sweep.py). What is no count (ZeRO
stage, recomputation, schedule and other switches) makes a call of its own. The order of ranks decides over links
alone: only layouts that could be fast enough on the best link of each axis are computed in every order. Where there are
more than `MOST_LAYOUTS`, the search is guided: see `_promising`.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from reference_runs.layout import Layout, StageAssignment
from reference_runs.run import Workload
from suite.predict.analytic.collective_time import axis_groups, best_links, joined_links
from suite.predict.analytic.process_groups import key_value_copies
from suite.predict.plan.enumeration import AXES_OF_COUNTS, CONTEXT, COUNTS, enumerated
from suite.predict.plan.question import Question
from suite.predict.plan.walked_search import WORTH_IT, Walks
from suite.predict.recorded_run.sweep import LayoutFigures, formula_peak, layout_figures, layout_seconds

if TYPE_CHECKING:
    import numpy

SAME = 1e-9  # relative difference of times that are equal but for rounding
ALIKE = 1e-3  # relative difference of times up to which the layout with less context parallelism comes first
MOST_LAYOUTS = 400_000  # computed in full: 10 to 30 s of a processor
PROMISING = 60  # sizes of axes that a guided search looks into
FIRST = 16  # layouts of which the fastest tells how fast the others must be


class Found(NamedTuple):
    """A layout with its figures, each a number."""

    layout: Layout
    figures: LayoutFigures


class SearchResult(NamedTuple):
    """The fitting layouts, the fastest first, at most as many as were asked for; and the one that needs least memory.

    Args:
        considered: layouts that divide model, batch and accelerators, each in its fastest order of ranks.
        fitting: of those, within the memory.
        within: of the fitting, at most so much slower than the fastest, by the share that was asked for.
        smallest: of the least peak, whether it fits or not; None where no layout divides.
        left_out: layouts that a guided search did not compute; 0: the search was complete.
    """

    considered: int
    fitting: int
    within: int
    best: list[Found]
    smallest: Found | None
    left_out: int = 0


def search(
    question: Question, *, top: int = 10, share: float = 0.0, most: int = MOST_LAYOUTS, promising: int = PROMISING
) -> SearchResult:
    """All layouts of `question`, of which the `top` fastest that fit are returned.

    Of layouts that take equally long, the one comes first that needs less memory; of those that do so but for `ALIKE`,
    the one with less context parallelism. cp2,micro2 is not named where cp1,micro1 is as fast: the same work of a rank.

    Args:
        share: relative difference of the step time up to which `SearchResult.within` counts.
        most: layouts, beyond which the search is guided.
        promising: sizes of axes that a guided search looks into.

    Raises:
        InputError: a fixed field has a value that no layout of the search can have.
    """
    import numpy

    orders = question.orders
    pairs = list(enumerated(question))
    if not pairs:
        return SearchResult(0, 0, 0, [], None)
    considered = sum(columns.shape[1] for _, columns in pairs)
    if considered > most:
        pairs = _promising(question, pairs, promising)
    groups = [_Columns(layout, columns, _peaks(question, layout, columns)) for layout, columns in pairs]
    peak = numpy.concatenate([group.peak for group in groups])
    starts = numpy.cumsum([0, *(len(group.peak) for group in groups)])
    walks = Walks(question) if question.machine.stack.keeping.walked else None
    fits = numpy.flatnonzero(peak <= question.memory_bytes / (WORTH_IT if walks else 1))
    seconds = numpy.full(len(peak), numpy.inf)  # of what neither fits nor needs least memory
    least = numpy.flatnonzero(peak == peak.min())
    _in_best_order(question, groups, starts, numpy.union1d(fits, least), seconds)

    def layout_at(place: int, order: str) -> Layout:
        of = int(numpy.searchsorted(starts, place, side="right")) - 1
        return groups[of].layout_of(place - int(starts[of]), order)

    chosen = numpy.zeros(len(peak), dtype=int)
    if len(orders) > 1:
        contexts = {size for group in groups for size in group.columns[CONTEXT]}
        twins = len(question.assignments) * len(contexts)  # of which all but one may be left out
        _order_ranks(question, groups, starts, fits, seconds, chosen, top=twins * top, share=share)
    ranked = fits[numpy.lexsort((peak[fits], seconds[fits]))]
    within = int((seconds[fits] <= seconds[ranked[0]] * (1 + share)).sum()) if len(ranked) else 0
    plainest = (layout_at(place, orders[chosen[place]]) for place in _plainest_first(groups, starts, ranked, seconds))
    if walks is None:
        best = _distinct((_found(question, layout) for layout in plainest), top)
        smallest = _found(question, layout_at(int(least[seconds[least].argmin()]), orders[0]))
        return SearchResult(considered, len(fits), within, best, smallest, considered - len(peak))
    best = _distinct((_found(question, layout) for layout in walks.those_that_fit(plainest)), top)
    by_peak = (layout_at(int(place), orders[0]) for place in numpy.argsort(peak, kind="stable"))
    needs_least = walks.least(by_peak)
    within = sum(each.figures.step_seconds <= best[0].figures.step_seconds * (1 + share) for each in best)
    smallest_walked = None if needs_least is None else _found(question, needs_least)
    left_out = considered - walks.fitting - walks.refused
    return SearchResult(considered, walks.fitting, within, best, smallest_walked, left_out)


def _found(question: Question, layout: Layout) -> Found:
    workload = Workload(question.architecture, question.recipe, layout)
    return Found(layout, layout_figures(workload, question.machine, convention=question.convention))


def any_fits(question: Question) -> bool:
    """Whether any layout of `question` is within its memory; no time is computed.

    Raises:
        InputError: a fixed field has a value that no layout of the search can have.
    """
    groups = (_Columns(layout, columns, _peaks(question, layout, columns)) for layout, columns in enumerated(question))
    if not question.machine.stack.keeping.walked:
        return any(bool((group.peak <= question.memory_bytes).any()) for group in groups)
    placed = [(size, number, group) for group in groups for number, size in enumerate(group.peak.tolist())]
    by_peak = sorted(placed, key=lambda each: each[0])
    layouts = (group.layout_of(number, question.orders[0]) for _, number, group in by_peak)
    least = Walks(question).least(layouts)
    return least is not None and _found(question, least).figures.peak_bytes <= question.memory_bytes


def _plainest_first(groups: Sequence[_Columns], starts: Any, ranked: Any, seconds: Any) -> Iterator[int]:
    """Places in the order of `ranked`, but of those that are `ALIKE` the fastest the least context parallelism first.

    Without those that differ from an earlier one in dp, cp and micro-batch alone, and have as many samples of a
    micro-batch on a context-parallel rank, and are `ALIKE`.
    """
    import numpy

    contexts = numpy.concatenate([group.columns[CONTEXT] for group in groups])
    if (contexts == contexts[0]).all():
        yield from map(int, ranked)
        return
    rest, named = ranked.tolist(), set[int]()
    while rest:
        number = bisect(rest, seconds[rest[0]] * (1 + ALIKE), key=seconds.__getitem__)
        place = min(rest[:number], key=contexts.__getitem__)
        rest.remove(place)
        of = int(numpy.searchsorted(starts, place, side="right")) - 1
        twins = named.intersection((starts[of] + groups[of].twins(place - int(starts[of]))).tolist())
        if not any(abs(seconds[place] - seconds[twin]) <= ALIKE * seconds[twin] for twin in twins):
            named.add(place)
            yield place


def _distinct(ranked: Iterable[Found], top: int) -> list[Found]:
    """The first `top`, without those that deal layers in another way and are as fast."""
    best: list[Found] = []
    seen: dict[Layout, float] = {}
    for each in ranked:
        dealt = msgspec.structs.replace(each.layout, stage_assignment=StageAssignment.LAYERS)
        if each.figures.step_seconds > seen.get(dealt, 0.0) * (1 + SAME):
            seen[dealt] = each.figures.step_seconds
            best.append(each)
        if len(best) == top:
            break
    return best


class _Columns(NamedTuple):
    """Layouts that differ in `COUNTS` alone.

    Args:
        layout: one of them.
        columns: of counts, one a layout: [counts, layouts].
        peak: bytes of each layout.
    """

    layout: Layout
    columns: numpy.ndarray[Any, Any]
    peak: numpy.ndarray[Any, Any]

    def twins(self, column: int) -> numpy.ndarray[Any, Any]:
        """Columns that differ in dp, cp and micro-batch alone, with as many samples on a context-parallel rank."""
        _, *others, context, virtual, micro_batch = self.columns
        same = micro_batch * context[column] == micro_batch[column] * context
        for counts in (*others, virtual):
            same &= counts == counts[column]
        found: numpy.ndarray[Any, Any] = same.nonzero()[0]
        return found

    def layout_of(self, column: int, order: str) -> Layout:
        """The layout of a column, with its ranks in this order."""
        counts = dict(zip(COUNTS, (int(count) for count in self.columns[:, column]), strict=True))
        return msgspec.structs.replace(self.layout, rank_order=order, **counts)


def _promising(
    question: Question, pairs: Sequence[tuple[Layout, numpy.ndarray[Any, Any]]], number: int
) -> list[tuple[Layout, numpy.ndarray[Any, Any]]]:
    """Layouts with plain switches whose sizes of axes are among the `number` fastest, or the smallest.

    Plain are the first schedule (1f1b), assignment and order of ranks. Sizes are ep, dp, tp, pp and cp; with the best
    of them all micro-batches, chunks, schedules, assignments, orders and other switches are computed.
    """
    plain = pairs[0][0]
    first = [
        (layout, columns)
        for layout, columns in pairs
        if (layout.schedule, layout.stage_assignment) == (plain.schedule, plain.stage_assignment)
    ]
    orders = question.orders[:1]
    fastest: dict[tuple[float, ...], float] = {}
    least: dict[tuple[float, ...], float] = {}
    for layout, columns in first:
        peaks = _peaks(question, layout, columns)
        for sizes, peak in zip(_sizes(layout, columns), peaks, strict=True):
            least[sizes] = min(peak, least.get(sizes, peak))
        fitting = columns[:, peaks <= question.memory_bytes]
        for sizes, seconds in zip(_sizes(layout, fitting), _seconds(question, layout, fitting, orders), strict=True):
            fastest[sizes] = min(seconds, fastest.get(sizes, seconds))
    kept = {
        *sorted(fastest, key=lambda sizes: fastest[sizes])[:number],
        *sorted(least, key=lambda sizes: least[sizes])[:2],
    }
    chosen = ((layout, columns[:, [sizes in kept for sizes in _sizes(layout, columns)]]) for layout, columns in pairs)
    return [(layout, columns) for layout, columns in chosen if columns.shape[1]]


def _sizes(layout: Layout, columns: numpy.ndarray[Any, Any]) -> list[tuple[float, ...]]:
    """ep, dp, tp, pp and cp of each layout."""
    return [(layout.expert_parallel, *sizes) for sizes in columns[:AXES_OF_COUNTS].T.tolist()]


def _peaks(question: Question, layout: Layout, columns: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """Bytes of each layout, whatever the order of ranks."""
    import numpy

    workload = Workload(question.architecture, question.recipe, _counted(layout, columns, question.orders[0]))
    return numpy.broadcast_to(numpy.asarray(formula_peak(workload, question.machine)), columns.shape[1])


def _seconds(
    question: Question, layout: Layout, columns: numpy.ndarray[Any, Any], orders: Sequence[str]
) -> numpy.ndarray[Any, Any]:
    """Seconds of each layout's step; with several orders of ranks, as if each axis had the best of its links."""
    import numpy

    counted = _counted(layout, columns, orders[0])
    copies = key_value_copies(question.architecture, tensor_parallel=counted.tensor_parallel)
    of_all = best_links(counted, question.machine, head_copies=copies, mixture=question.architecture)
    links = of_all if len(orders) > 1 else None
    workload = Workload(question.architecture, question.recipe, counted)
    seconds = layout_seconds(workload, question.machine, links=links)
    return numpy.broadcast_to(numpy.asarray(seconds), columns.shape[1])


def _in_best_order(question: Question, groups: Sequence[_Columns], starts: Any, places: Any, seconds: Any) -> None:
    """Put the time of the layouts at `places` into `seconds`."""
    for group, start, end in zip(groups, starts[:-1], starts[1:], strict=True):
        own = places[(places >= start) & (places < end)]
        if len(own):
            seconds[own] = _seconds(question, group.layout, group.columns[:, own - start], question.orders)


def _counted(layout: Layout, columns: numpy.ndarray[Any, Any], order: str) -> Layout:
    return msgspec.structs.replace(layout, rank_order=order, **dict(zip(COUNTS, columns, strict=True)))


def _links(question: Question, layout: Layout, columns: numpy.ndarray[Any, Any], order: str) -> Any:
    counted = _counted(layout, columns, order)
    copies = key_value_copies(question.architecture, tensor_parallel=counted.tensor_parallel)
    return axis_groups(counted, question.machine, head_copies=copies, mixture=question.architecture)


def _order_ranks(
    question: Question,
    groups: Sequence[_Columns],
    starts: Any,
    fits: Any,
    seconds: Any,
    chosen: Any,
    *,
    top: int,
    share: float,
) -> None:
    """Replace the bounds in `seconds` by the time in the fastest order, and put that order into `chosen`.

    Of all layouts that can be among the `top` fastest or within `share` of the fastest: links only get worse than the
    best of each axis, so a layout whose bound is slower than that is slower in every order. It keeps its bound.
    """
    import numpy

    ranked = fits[numpy.argsort(seconds[fits], kind="stable")]
    first = ranked[: max(FIRST, top)]
    _in_all_orders(question, groups, starts, first, seconds, chosen)
    if len(first) == len(ranked):
        return
    known = numpy.sort(seconds[first])
    limit = max(known[min(top, len(known)) - 1], known[0] * (1 + share)) * (1 + ALIKE)
    rest = ranked[len(first) :]
    _in_all_orders(question, groups, starts, rest[seconds[rest] <= limit], seconds, chosen)


def _in_all_orders(
    question: Question, groups: Sequence[_Columns], starts: Any, places: Any, seconds: Any, chosen: Any
) -> None:
    import numpy

    orders = question.orders
    of = numpy.searchsorted(starts, places, side="right") - 1
    for number in numpy.unique(of):
        group, own = groups[number], places[of == number]
        columns = group.columns[:, own - starts[number]]
        of_orders = [_links(question, group.layout, columns, order) for order in orders]
        links = joined_links(of_orders, layouts=columns.shape[1])
        counted = _counted(group.layout, numpy.tile(columns, len(orders)), orders[0])
        workload = Workload(question.architecture, question.recipe, counted)
        of_all = layout_seconds(workload, question.machine, links=links)
        times = numpy.reshape(numpy.broadcast_to(of_all, columns.shape[1] * len(orders)), (len(orders), -1))
        least = times.min(axis=0)
        chosen[own] = (times <= least * (1 + SAME)).argmax(axis=0)  # the first of those that are as fast
        seconds[own] = times[chosen[own], numpy.arange(len(own))]
