"""What the routers of a launch did with the rows of its experts, in sentences: on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from suite.job.events import RoutedLayer


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
    """Of those that there are."""
    there = [loss for loss in losses if loss is not None]
    return sum(there) / len(there) if there else None


def _of_sequences(loss: float | None) -> list[str]:
    return [] if loss is None else [f"of sequences {loss:.4g}"]
