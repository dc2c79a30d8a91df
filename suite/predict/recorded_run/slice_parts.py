"""Measured parts of a run from slices of it: checked to be of this run, in its own size, medians with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import layout_text
from reference_runs.run import Architecture, Workload
from suite.job.slice import SlicePart, SliceTimes, relative_spread
from suite.job.training_job import Job
from suite.predict.analytic.flop import layer_forward_flop
from suite.predict.analytic.measured_parts import PartSeconds, PassSeconds
from suite.predict.analytic.micro_batch import micro_batch_tokens
from suite.predict.analytic.stage_layers import layer_kinds

# Of the layout, what decides how much a layer computes on one accelerator, and how
_OF_LAYERS = ("tensor_parallel", "expert_parallel", "sequence_parallel", "recomputation", "fused_attention")
_PASSES = {
    "layer": (SlicePart.LAYER_FORWARD, SlicePart.LAYER_BACKWARD),
    "shared": (SlicePart.SHARED_FORWARD, None),
    "embedding": (SlicePart.EMBEDDING_FORWARD, SlicePart.EMBEDDING_BACKWARD),
    "head": (SlicePart.HEAD_FORWARD, SlicePart.HEAD_BACKWARD),
    "update": (SlicePart.UPDATE, None),
}


class MeasuredSlice(NamedTuple):
    """A measurement: the job of a slice, its times, the record's file, and the device in words."""

    job: Job
    times: SliceTimes
    where: str
    device: str


class SlicedPart(NamedTuple):
    """Median seconds of one micro-batch in a part; of `update`, forward, those of one updated parameter.

    Args:
        name: layer, shared, embedding, head or update.
        kind: of a layer, its place in `layer_kinds` of the run; else 0.
        spread: half of the range between the quartiles of the samples, over the median; None: of fewer than 4.
        scaled: whether the slice has another size, so that the samples were scaled (see `sliced_parts`).
    """

    name: str
    kind: int
    seconds: PassSeconds
    spread: float | None
    samples: int
    scaled: bool


def sliced_parts(run: str, workload: Workload, slices: Sequence[MeasuredSlice]) -> list[SlicedPart]:
    """Every part that was measured; samples of several slices are put together.

    Where a slice has another sequence, micro-batch or number of context-parallel ranks than the run, its samples are
    scaled: of layers by an accelerator's flop, of the rest by its tokens.

    Args:
        run: the name of the recorded run, or of the run file's.

    Raises:
        InputError: a slice of another run, architecture, precision or layout, or of another device than the first.
    """
    samples: dict[tuple[str, int], tuple[list[float], list[float]]] = {}
    scaled: set[tuple[str, int]] = set()
    for each in slices:
        if mistakes := list(_mistakes(run, workload, each)):
            raise InputError("not a slice of this run", got="; ".join(mistakes), where=each.where)
        if each.device != slices[0].device:
            raise InputError("slices of two devices", got=each.device, allowed=slices[0].device, where=each.where)
        kind, seconds = _kind(workload.architecture, each.job) or 0, each.times.seconds
        for name, (forward, backward) in _PASSES.items():
            if not seconds.get(forward):
                continue
            key, factor = (name, kind if name == "layer" else 0), _factor(name, kind, workload, each)
            both = samples.setdefault(key, ([], []))
            both[0].extend(factor * sample for sample in seconds[forward])
            both[1].extend(factor * sample for sample in (seconds[backward] if backward else ()))
            if name != "update" and factor != 1:
                scaled.add(key)
    return [_part(key, both, is_scaled=key in scaled) for key, both in samples.items()]


def _part(key: tuple[str, int], passes: tuple[list[float], list[float]], *, is_scaled: bool) -> SlicedPart:
    medians = PassSeconds(*(statistics.median(each) if each else 0.0 for each in passes))
    spreads = [_spread(each) for each in passes if each]
    spread = None
    if None not in spreads and medians.total:
        apart = (middle * (share or 0.0) for middle, share in zip(medians, [*spreads, 0.0], strict=False))
        spread = sum(apart) / medians.total
    return SlicedPart(*key, medians, spread, len(passes[0]), is_scaled)


def _spread(samples: list[float]) -> float | None:
    if not statistics.median(samples):  # a clock that is coarser than the part
        return None
    return relative_spread(samples)


def exchanged_axes(slices: Sequence[MeasuredSlice]) -> frozenset[str]:
    """Axes whose messages are within the measured layers, embedding and head.

    Raises:
        InputError: slices whose processes exchanged messages, and others.
    """
    found = [_exchanged(each.job) for each in slices]
    for each, axes in zip(slices, found, strict=True):
        if axes != found[0]:
            got, allowed = (", ".join(sorted(which)) or "no messages" for which in (axes, found[0]))
            raise InputError("slices with messages over different axes", got=got, allowed=allowed, where=each.where)
    return found[0]


def _exchanged(job: Job) -> frozenset[str]:
    if job.slice is None or not job.slice.group:
        return frozenset()
    layout = job.layout
    sizes = {"tp": layout.tensor_parallel, "cp": layout.context_parallel, "ep": layout.expert_parallel}
    axes = frozenset(axis for axis, size in sizes.items() if size > 1)
    return axes | {"kv"} if "tp" in axes else axes


def with_sliced(modelled: PartSeconds, parts: Sequence[SlicedPart], *, slower: float, spreads: float) -> PartSeconds:
    """The modelled parts, with measured ones in place of those that there are.

    Args:
        slower: share by which these are lengthened.
        spreads: how many of its spreads each is lengthened.
    """
    given = modelled
    for part in parts:
        seconds = part.seconds.times(1 + slower + spreads * (part.spread or 0.0))
        if part.name == "layer":
            layers = (seconds if kind == part.kind else layer for kind, layer in enumerate(given.layers))
            given = given._replace(layers=tuple(layers))
        elif part.name == "update":
            given = given._replace(update=seconds.forward)
        else:
            given = PartSeconds(**{**given._asdict(), part.name: seconds})
    return given


def _mistakes(run: str, workload: Workload, measured: MeasuredSlice) -> Iterator[str]:
    """In words, what of a slice is not the run's."""
    job, architecture = measured.job, workload.architecture
    if job.slice is None:
        yield f"a record of {job.name}, which is no slice"
        return
    if job.slice.run != run:
        yield f"a slice of {job.slice.run}, not {run}"
        return
    if _kind(architecture, job) is None:
        yield "layers of another architecture"
    for key in ("precision", "product_format"):
        if (got := getattr(job.recipe, key)) != (own := getattr(workload.recipe, key)):
            yield f"{key} {got}, not {own}{f' (--gemm-dtype {got} asks for it)' if key == 'product_format' else ''}"
    for key in _OF_LAYERS:
        field = "executed_recomputation" if key == "recomputation" else key
        if (got := getattr(job.layout, key)) != (own := getattr(workload.layout, field)):
            yield f"{key} {got}, not {own} as in {layout_text(workload.layout)}"


def _kind(architecture: Architecture, job: Job) -> int | None:
    """Which of the run's `layer_kinds` the slice's layers are; None: none of them."""
    assert job.slice is not None
    measured = layer_kinds(job.architecture)[-1].architecture
    kinds = [_one_layer(kind.architecture, measured.sequence) for kind in layer_kinds(architecture)]
    one = _one_layer(measured, measured.sequence)
    return kinds.index(one) if one in kinds else None


def _one_layer(kind: Architecture, sequence: int) -> Architecture:
    """The kind without what a slice may have of its own: the number of layers, the sequence, a top-query layer."""
    window = kind.sliding_window and min(kind.sliding_window, sequence)
    own = {"layers": 1, "dense_layers": 0, "sequence": sequence, "sliding_window": window, "top_query_layer": False}
    return msgspec.structs.replace(kind, **own)


def _factor(name: str, kind: int, workload: Workload, measured: MeasuredSlice) -> float:
    """The run's size over the slice's: of its flop or tokens; of the update, one parameter over those updated."""
    if name == "update":
        return 1 / measured.times.updated_parameters
    small, whole = measured.job.workload, workload
    if name == "layer":
        layers = layer_kinds(whole.architecture)[kind].architecture
        sliced = _one_layer(layers, small.architecture.sequence)
        return _layer_flop(whole._replace(architecture=layers)) / _layer_flop(small._replace(architecture=sliced))
    # head, embedding and what layers share go by the tokens of one accelerator
    return micro_batch_tokens(whole) / micro_batch_tokens(small)


def _layer_flop(workload: Workload) -> float:
    """Flop of one micro-batch in a layer, of all tensor-parallel ranks together."""
    layout = workload.layout
    return sum(layer_forward_flop(workload.architecture, samples=layout.micro_batch).values()) / layout.context_parallel
