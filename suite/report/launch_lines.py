"""Reports of a launch's ranks besides figures, in sentences: experts, documents, staleness, checkpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from statistics import fmean

from suite.job.checkpoints import LaunchGoodput
from suite.job.events import PackedDocuments, RoutedLayer, StoreWork


def layers_of_all_ranks(ranks: Iterable[list[RoutedLayer]]) -> list[RoutedLayer]:
    """Each layer once: rows and dropped ones of all ranks together, and the mean of their auxiliary losses."""
    by_layer: dict[int, list[RoutedLayer]] = {}
    for routed in ranks:
        for layer in routed:
            by_layer.setdefault(layer.layer, []).append(layer)
    return [
        RoutedLayer(
            number,
            [sum(rows) for rows in zip(*(each.rows for each in alike), strict=True)],
            sum(each.dropped for each in alike),
            sum(each.auxiliary_loss for each in alike) / len(alike),
            _mean(each.sequence_loss for each in alike),
        )
        for number, alike in sorted(by_layer.items())
    ]


def routing_lines(ranks: Iterable[list[RoutedLayer]]) -> Iterator[str]:
    """A line a layer: the least and the largest share of the rows, idle experts, dropped rows, auxiliary loss."""
    for layer in layers_of_all_ranks(ranks):
        whole, experts = sum(layer.rows), len(layer.rows)
        if not whole:
            continue
        idle = layer.rows.count(0)
        least, most = (end(layer.rows) / whole for end in (min, max))
        parts = [
            f"experts of layer {layer.layer}: {least:.1%} to {most:.1%} of the rows",
            f"equal {1 / experts:.1%}",
            *([f"{idle} of {experts} without any"] if idle else []),
            f"{layer.dropped / (whole + layer.dropped):.1%} dropped" if layer.dropped else "none dropped",
            f"auxiliary loss {layer.auxiliary_loss:.4g}",
            *_of_sequences(layer.sequence_loss),
        ]
        yield ", ".join(parts)


def routing_summary(ranks: Iterable[list[RoutedLayer]]) -> Iterator[str]:
    """One line of all layers, none without experts."""
    layers = [layer for layer in layers_of_all_ranks(ranks) if sum(layer.rows)]
    if not layers:
        return
    shares = [rows / sum(layer.rows) for layer in layers for rows in layer.rows]
    dropped = sum(layer.dropped for layer in layers)
    loss = sum(layer.auxiliary_loss for layer in layers) / len(layers)
    of_sequences = _of_sequences(_mean(layer.sequence_loss for layer in layers))
    yield (
        f"experts: {min(shares):.1%} to {max(shares):.1%} of a layer's rows (equal {1 / len(layers[0].rows):.1%}), "
        f"{dropped or 'none'} dropped, "
        f"{', '.join((f'auxiliary loss {loss:.4g}', *of_sequences))}"
    )


def _mean(losses: Iterable[float | None]) -> float | None:
    """Mean of the losses that are known; None without any."""
    there = [loss for loss in losses if loss is not None]
    return sum(there) / len(there) if there else None


def _of_sequences(loss: float | None) -> list[str]:
    return [] if loss is None else [f"of sequences {loss:.4g}"]


def packing_lines(ranks: Iterable[PackedDocuments | None]) -> Iterator[str]:
    """One line of all ranks, none where no documents are kept apart.

    The share of the square is counted as areas, as conventions of flop have it: the diagonal counts half.
    """
    packed = [each for each in ranks if each is not None]
    if not packed:
        return
    sequences, documents = sum(each.sequences for each in packed), sum(each.documents for each in packed)
    square = sum(each.sequences * each.tokens**2 for each in packed)
    share = sum(each.attended - each.sequences * each.tokens / 2 for each in packed) / square
    a_sequence = f"{documents / sequences:.1f} a sequence"
    yield f"documents: {a_sequence}, which attend to {share:.1%} of its square (without: 50.0%)"


LISTED = 6  # values of a histogram


def staleness_lines(ranks: Iterable[StoreWork | None]) -> Iterator[str]:
    """Two lines of all workers, and one of how long they waited; none without a parameter store."""
    works = [work for work in ranks if work is not None]
    if not works:
        return
    gradients = sum(len(work.ahead) for work in works)
    yield f"staleness: {_histogram([n for work in works for n in work.ahead], 'steps ahead of the slowest worker')}"
    delays = _histogram([n for work in works for n in work.delays], "gradients of delay")
    yield f"updates: {works[0].updates} of {gradients} gradients; {delays}"
    waited = ", ".join(f"{sum(work.waited_seconds):.3g}" for work in works)
    slept = ", ".join(f"{sum(work.slept_seconds):.3g}" for work in works)
    yield f"seconds of each worker: waited {waited}; slept to be slow {slept}"


def _histogram(values: list[int], unit: str) -> str:
    """The values in words: at most 3 steps ahead, mean 1.2 (0: 31, 1: 12, 2: 9, 3: 8)."""
    if not values:
        return f"no {unit}"
    counts = sorted(Counter(values).items())
    shown = ", ".join(f"{value}: {count}" for value, count in counts[:LISTED])
    more = sum(count for _, count in counts[LISTED:])
    rest = f", more: {more}" if more else ""
    return f"at most {max(values)} {unit}, mean {fmean(values):.2g} ({shown}{rest})"


def goodput_lines(goodput: LaunchGoodput | None) -> Iterator[str]:
    """A line of checkpoints, one of each restart, and the share of time that trained; none without checkpoints."""
    if goodput is None:
        return
    if goodput.checkpoints:
        size, stall = goodput.checkpoint_bytes / 1e6, goodput.stall_seconds * 1e3
        yield f"checkpoints: {goodput.checkpoints} of {size:,.4g} MB; training waited {stall:.3g} ms for each"
    for restart in goodput.restarts:
        lost = f"{restart.lost_steps} step{'' if restart.lost_steps == 1 else 's'} done again"
        went_on = f"step {restart.step} began {restart.seconds:.3g} s after step {restart.after_step} had ended"
        yield f"restart: {went_on if restart.after_step >= 0 else f'step {restart.step} began'}, {lost}: {restart.why}"
    useful = f"{goodput.useful_seconds:.3g} of {goodput.wall_seconds:.3g} s trained"
    yield f"goodput: predicted {goodput.predicted_share:.0%}, measured {goodput.share:.0%}: {useful}"
