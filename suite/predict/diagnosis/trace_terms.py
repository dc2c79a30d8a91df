"""Terms of a step as a trace shows them: each moment of a device belongs to what it computes, sends, or waits for."""

from __future__ import annotations

import re
import statistics
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import chain, pairwise
from typing import NamedTuple

from reference_runs.errors import InputError
from reference_runs.training_traces.products import TimedProduct
from reference_runs.training_traces.trace import DeviceTrace, Label, Spans
from suite.job.operators import OperatorKind, kind_of_name, only_dispatches
from suite.predict.diagnosis.step_timeline import WorkLane, step_lanes


class Term(StrEnum):
    """A use of a moment of a step; where several happen at once, the first of these."""

    RECOMPUTATION = "recomputation"
    GEMM = "matrix multiplications"
    ATTENTION = "attention"
    OPTIMIZER = "optimizer"
    MEMORY_BOUND = "memory-bound operators"
    COLLECTIVE = "exposed communication"
    COPY = "copies between host and device"
    INPUT = "waiting for the input pipeline"
    SYNCHRONISATION = "idle after the host waited for the device"
    HOST = "waiting for the host"


_TERMS = tuple(Term)
_END_OF_TIME = 1 << 62
_STEP = re.compile(r"ProfilerStep#\d+|(?:train(?:ing)?[ _]?)?(?:step|iter(?:ation)?)[ _:#]*\d+", re.IGNORECASE)
_OPTIMIZER_STEP = "Optimizer.step#"
_UNMARKED = "no step is marked (profiler.step(), an NVTX range step N): all of the trace is taken as one"
_COLLECTIVES = {
    "all-to-all": r"all_?to_?all|deep_?ep.*(?:dispatch|combine)",
    "reduce-scatter": r"reduce_?scatter",
    "all-gather": r"all_?gather",
    "all-reduce": r"all_?reduce",
    "send and receive": r"send|recv",
    "broadcast": r"broadcast",
    "reduce": r"reduce",
}
_COMMUNICATES = re.compile(r"nccl|rccl|multimem_|_shot_all_reduce|deep_?ep|nvshmem|^gloo:|^mpi:", re.IGNORECASE)
_KERNELS = (
    (Term.MEMORY_BOUND, re.compile(r"^triton_(?:poi|red|per|for)_")),  # their names list what they fuse
    (Term.ATTENTION, re.compile(r"flash|fmha|sdpa|attention|attn|mha_", re.IGNORECASE)),
    (Term.OPTIMIZER, re.compile(r"adam|lamb|multi_tensor_apply|optimizer", re.IGNORECASE)),
    (
        Term.GEMM,
        re.compile(r"gemm|gemv|matmul|cutlass|xmma|nvjet|wgmma|Cijk_|splitK|_mm(?:_|$)|dot_kernel", re.IGNORECASE),
    ),
)


class Collective(NamedTuple):
    """Communication of one kind in one group: seconds of a step in all, and exposed.

    Args:
        group: description or number of its process group; empty: not known.
        ranks: of that group.
    """

    operation: str
    group: str
    ranks: str
    seconds: float
    exposed_seconds: float


class StepTerms(NamedTuple):
    """A device's step by what it is spent on.

    Args:
        steps: seconds of each step.
        terms: seconds of each term in a step; they add up to the median step.
        kernels: of a step; none: the host computes.
        waits: calls of a step in which the host waits for the device.
        arrivals: seconds of each collective, by its group and ranks, in order; of a rank that is waited for the least.
        lanes: when the step of the median time does what.
        products: matrix multiplications whose shapes the trace says.
    """

    where: str
    rank: int | None
    notes: list[str]
    steps: list[float]
    terms: dict[Term, float]
    collectives: list[Collective]
    kernels: float
    waits: float
    arrivals: dict[str, list[float]]
    lanes: list[WorkLane]
    products: list[TimedProduct]

    @property
    def seconds(self) -> float:
        """The median step."""
        return statistics.median(self.steps)


_CollectiveKey = tuple[str, str, str]  # operation, description, ranks


class _Work(NamedTuple):
    """Spans of a device with their terms; `kinds` are indices of `_TERMS`, from its end on of collectives."""

    starts: Sequence[int]
    ends: Sequence[int]
    kinds: Sequence[int]


def operation_of(label: Label) -> str | None:
    """The collective that a kernel executes; None: it computes."""
    if not _COMMUNICATES.search(label.name):
        return None
    for text in (label.collective, label.name):
        for operation, pattern in _COLLECTIVES.items():
            if re.search(pattern, text, re.IGNORECASE):
                return operation
    return "other"


def term_of_kernel(label: Label) -> Term:
    """The term of a kernel or copy by its name."""
    if label.category == "copy" and "DtoD" not in label.name:
        return Term.COPY
    return next((term for term, pattern in _KERNELS if pattern.search(label.name)), Term.MEMORY_BOUND)


def step_terms(trace: DeviceTrace) -> StepTerms:
    """The terms of a trace's steps.

    A step begins where the host begins it and the device has ended what was launched before. Of the device's kernels, a
    kind that comes earlier in `Term` hides a later one; what no kernel and no copy covers is idle: while a data loader
    is waited for, after the host waited for the device, else for the host. Without a device the operators of the thread
    with the steps are the kernels. A term is its share of a step, mean over the middle half of the steps by length, of
    the median step: one long step says nothing of the usual ones.

    Raises:
        InputError: nothing runs in it.
    """
    bounds, counted = _bounds(trace)
    groups: dict[_CollectiveKey, int] = {}
    work = _device_work(trace, groups) if trace.kernels else _host_work(trace, groups)
    waits = sorted(
        (trace.host.starts[index], trace.host.ends[index])
        for index, label in enumerate(trace.host.labels)
        if trace.labels[label].category == "runtime"
    )
    shares = _shares(work, bounds, waits, len(_TERMS) + len(groups))
    steps = [(after - before) / 1e9 for before, after in pairwise(bounds)]
    median = statistics.median(steps)

    by_length, left = sorted(range(len(steps)), key=steps.__getitem__), (len(steps) + 1) // 4
    middle = by_length[left : len(steps) - left]

    def seconds(kind: int) -> float:
        return median * statistics.fmean(shares[number][kind] / 1e9 / steps[number] for number in middle)

    terms = {term: seconds(kind) for kind, term in enumerate(_TERMS)}
    in_all: Counter[int] = Counter()
    for start, end, kind in zip(work.starts, work.ends, work.kinds, strict=True):
        in_all[kind] += max(0, min(end, bounds[-1]) - max(start, bounds[0]))
    collectives = [Collective(*group, in_all[kind] / 1e9 / len(steps), seconds(kind)) for group, kind in groups.items()]
    terms[Term.COLLECTIVE] = sum(each.exposed_seconds for each in collectives)
    usual = steps.index(min(steps, key=lambda each: abs(each - median)))
    names = [*_TERMS, *(" ".join((operation, group)).strip() for operation, group, _ in groups)]
    lanes = step_lanes(*work, names, (bounds[usual], bounds[usual + 1]))
    kernels = sum(bounds[0] <= start < bounds[-1] for start in trace.kernels.starts)
    waited = sum(bounds[0] <= start < bounds[-1] for start, _ in waits)
    return StepTerms(
        trace.where,
        trace.rank,
        [*trace.notes, *([] if counted else [_UNMARKED])],
        steps,
        terms,
        sorted(collectives, key=lambda each: -each.exposed_seconds),
        kernels / len(steps),
        waited / len(steps),
        _arrivals(trace, bounds),
        lanes,
        trace.products,
    )


_INPUT, _HOST, _SYNCHRONISATION = (_TERMS.index(term) for term in (Term.INPUT, Term.HOST, Term.SYNCHRONISATION))


def _bounds(trace: DeviceTrace) -> tuple[list[int], bool]:
    """Where steps begin, and where the last ends; whether they are marked.

    Raises:
        InputError: nothing takes time.
    """
    host, kernels = trace.host, trace.kernels
    names = [label.name if label.category == "annotation" else "" for label in trace.labels]
    marking = {number for number, name in enumerate(names) if _STEP.fullmatch(name)}
    updating = {number for number, name in enumerate(names) if name.startswith(_OPTIMIZER_STEP)}
    marked = [index for index, label in enumerate(host.labels) if label in marking]
    updates = sorted(host.ends[index] for index, label in enumerate(host.labels) if label in updating)
    if marked:
        begins = sorted(host.starts[index] for index in marked)
        bounds = [*begins, max(host.ends[index] for index in marked)]
    elif len(updates) > 2:
        bounds = updates
    else:
        bounds = [min(chain(host.starts, kernels.starts)), max(chain(host.ends, kernels.ends))]
    order = sorted(range(len(kernels)), key=kernels.links.__getitem__)
    place, ended, device_bounds = 0, 0, []
    for bound in bounds:
        while place < len(order) and kernels.links[order[place]] < bound:
            ended = max(ended, kernels.ends[order[place]])
            place += 1
        device_bounds.append(max(bound, ended))
    device_bounds = sorted(set(device_bounds))
    if len(device_bounds) < 2:
        raise InputError("nothing in it takes time", where=trace.where)
    return device_bounds, bool(marked) or len(updates) > 2


def _host_segments(trace: DeviceTrace) -> Iterator[tuple[int, int, Term, int]]:
    """Start, end, term and thread of what each thread of the host does itself, without what it calls."""
    host, of_threads = trace.host, dict[int, list[int]]()
    for index, number in enumerate(host.labels):
        if trace.labels[number].category != "runtime":
            of_threads.setdefault(host.links[index], []).append(index)
    terms = [_term_on_host(label) for label in trace.labels]
    for thread, indices in of_threads.items():
        indices.sort(key=lambda index: (host.starts[index], -host.ends[index]))
        stack: list[tuple[int, Term, bool]] = []  # end, term, whether within a node of the backward pass
        now = 0
        for index in [*indices, -1]:
            start = host.starts[index] if index >= 0 else _END_OF_TIME
            while stack and stack[-1][0] <= start:
                until, term, _ = stack.pop()
                if until > now:
                    yield now, until, term, thread
                now = max(now, until)
            if index < 0:
                break
            until, outer, in_node = stack[-1] if stack else (_END_OF_TIME, Term.HOST, False)
            if stack and start > now:
                yield now, start, outer, thread
            now = start
            label, term = trace.labels[host.labels[index]], terms[host.labels[index]]
            if label.name.startswith("autograd::engine::evaluate_function"):
                in_node = True
            elif outer in (Term.RECOMPUTATION, Term.INPUT) or (outer is Term.OPTIMIZER and not label.records_graph):
                term = outer  # what records a graph within the optimizer is a forward pass, in its closure
            elif in_node and label.records_graph and label.name.startswith("aten::"):
                term = Term.RECOMPUTATION
            stack.append((min(host.ends[index], until), term, in_node))


def _term_on_host(label: Label) -> Term:
    """The term of an operator's own time, where the host computes; HOST: Python, dispatch, views."""
    if label.name.startswith("enumerate(DataLoader)"):
        return Term.INPUT
    if label.name.startswith(_OPTIMIZER_STEP):
        return Term.OPTIMIZER
    namespace, _, name = label.name.partition("::")
    if namespace != "aten" or only_dispatches(name):
        return Term.MEMORY_BOUND if "CompiledFxGraph" in label.name else Term.HOST
    kinds = {OperatorKind.GEMM: Term.GEMM, OperatorKind.ATTENTION: Term.ATTENTION}
    return kinds.get(kind_of_name(name), Term.MEMORY_BOUND)


class _DisjointSpans:
    """Disjoint spans of time in order."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self.starts, self.ends = array("q"), array("q")
        for start, end in sorted(spans):
            if self.ends and start <= self.ends[-1]:
                self.ends[-1] = max(self.ends[-1], end)
            else:
                self.starts.append(start)
                self.ends.append(end)

    def __contains__(self, moment: int) -> bool:
        place = bisect_right(self.starts, moment) - 1
        return place >= 0 and moment < self.ends[place]


def _device_work(trace: DeviceTrace, groups: dict[_CollectiveKey, int]) -> _Work:
    """Kernels and copies by their names, or by where the host launched them; and the host's waits for input."""
    found: dict[Term, list[tuple[int, int]]] = {Term.RECOMPUTATION: [], Term.OPTIMIZER: [], Term.INPUT: []}
    for start, end, term, _ in _host_segments(trace):
        if (spans := found.get(term)) is not None:
            if spans and spans[-1][1] == start:
                start = spans.pop()[0]
            spans.append((start, end))
    of_terms = {term: _DisjointSpans(spans) for term, spans in found.items()}
    kernels, kinds = trace.kernels, array("h")
    by_label = [_kind_of_kernel(label, groups) if label.category in ("kernel", "copy") else 0 for label in trace.labels]
    for label, launched in zip(kernels.labels, kernels.links, strict=True):
        kind = by_label[label]
        if kind < _TERMS.index(Term.COLLECTIVE):
            for term in (Term.RECOMPUTATION, Term.OPTIMIZER):
                if launched in of_terms[term]:
                    kind = _TERMS.index(term)
        kinds.append(kind)
    waits = of_terms[Term.INPUT]
    kinds.extend([_INPUT] * len(waits.starts))
    return _Work(kernels.starts + waits.starts, kernels.ends + waits.ends, kinds)


def _kind_of_kernel(label: Label, groups: dict[_CollectiveKey, int]) -> int:
    operation = operation_of(label)
    if operation is None:
        return _TERMS.index(term_of_kernel(label))
    return groups.setdefault((operation, label.group, label.ranks), len(_TERMS) + len(groups))


def _host_work(trace: DeviceTrace, groups: dict[_CollectiveKey, int]) -> _Work:
    """Operators of the thread that does most, each in its own time; collectives of all threads."""
    host, seconds, computed = trace.host, Counter[int](), dict[int, Spans]()
    for start, end, term, thread in _host_segments(trace):
        seconds[thread] += end - start
        if term is not Term.HOST:
            computed.setdefault(thread, Spans()).add(_TERMS.index(term), start, end, thread)
    found = computed.get(max(seconds, key=seconds.__getitem__, default=0), Spans())
    kinds = {number: _kind_of_kernel(label, groups) for number, label in enumerate(trace.labels) if operation_of(label)}
    for index, label in enumerate(host.labels):
        if label in kinds:
            found.add(kinds[label], host.starts[index], host.ends[index], 0)
    return _Work(found.starts, found.ends, found.labels)


def _shares(work: _Work, bounds: Sequence[int], waits: Sequence[tuple[int, int]], kinds: int) -> list[list[int]]:
    """Nanoseconds of each step by kind; a step's add up to it."""
    collective = _TERMS.index(Term.COLLECTIVE)
    priority = [*range(collective), *range(len(_TERMS), kinds), *range(collective, len(_TERMS))]
    shares = [[0] * kinds for _ in bounds[1:]]
    busy_until = [0] * kinds
    wait_starts = [start for start, _ in waits]
    now, step, idle_until, idle = bounds[0], 0, -1, _HOST
    order = sorted(range(len(work.starts)), key=work.starts.__getitem__)
    for index in chain(order, (None,)):
        until = bounds[-1] if index is None else min(work.starts[index], bounds[-1])
        while now < until:
            kind = next((each for each in priority if busy_until[each] > now), None)
            end = min(until, bounds[step + 1], until if kind is None else busy_until[kind])
            if kind is None:
                if idle_until != now:
                    place = bisect_right(wait_starts, now) - 1
                    idle = _SYNCHRONISATION if place >= 0 and now <= waits[place][1] else _HOST
                idle_until = end
            shares[step][idle if kind is None else kind] += end - now
            now = end
            if now == bounds[step + 1]:
                step += 1
        if index is not None:
            busy_until[work.kinds[index]] = max(busy_until[work.kinds[index]], work.ends[index])
    return shares


def _arrivals(trace: DeviceTrace, bounds: Sequence[int]) -> dict[str, list[float]]:
    spans, found = trace.kernels or trace.host, dict[str, list[float]]()
    operations = [operation_of(label) for label in trace.labels]
    for index in sorted(range(len(spans)), key=spans.starts.__getitem__):
        label, operation = trace.labels[spans.labels[index]], operations[spans.labels[index]]
        if operation not in (None, "send and receive") and bounds[0] <= spans.starts[index] < bounds[-1]:
            seconds = (spans.ends[index] - spans.starts[index]) / 1e9
            found.setdefault(f"{operation} {label.group} {label.ranks}", []).append(seconds)
    return found
