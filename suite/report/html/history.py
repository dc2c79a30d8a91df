"""Step times of a setup over time: segments of equal fingerprint, change points, and the best stretch."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from suite.metrics.difference_words import Direction, difference_in_words
from suite.regression.segments import HistoryPoint, Segment
from suite.report.html.plot import INK, Cell, Plot, Trace, colour, milliseconds, significant, symbol, utc

NEWEST = 300  # launches of a segment that are drawn one by one
BUCKETS = 60  # that the older ones are thinned to
MOST_SEGMENTS = 8  # drawn: those with the newest launches


def history(key: str, segments: Sequence[Segment]) -> Plot | None:
    """The picture of a setup's segments; None where fewer than two launches ended well."""
    drawn = sorted(segments, key=lambda segment: (segment.points[-1].started, segment.setup))[-MOST_SEGMENTS:]
    if sum(len(segment.points) for segment in drawn) < 2:
        return None
    traces: list[Trace] = []
    shapes: list[dict[str, object]] = []
    rows: list[list[Cell]] = []
    thinned = changes = 0
    for index, segment in enumerate(drawn):
        older, newer = segment.points[:-NEWEST], segment.points[-NEWEST:]
        thinned += len(older)
        name = _name(segment, drawn)
        if older:
            traces.append(_thinned(older, index, name))
        traces.append(_newest(newer, index, name))
        for number, stretch in enumerate(segment.stretches):
            first, last = segment.points[stretch.first], segment.points[stretch.last]
            best = number == segment.best
            if stretch.launches > 1:
                traces.append(_level(first, last, stretch.median, index, best))
            change = ""
            if number:
                before = segment.stretches[number - 1].median
                change = difference_in_words(stretch.median, before, Direction.TIME)
                changes += 1
                shapes.append(_edge(first))
            rows.append(
                [
                    name,
                    utc(first.started),
                    utc(last.started),
                    str(stretch.launches),
                    milliseconds(stretch.median),
                    change,
                    "best" if best and len(segment.stretches) > 1 else "",
                    ", ".join(stretch.suites[-2:]),
                ]
            )
    counted = sum(len(segment.points) for segment in segments)
    says = f"Step times of {counted} launches over time in {len(segments)} segments, with {changes} change points."
    if len(drawn) < len(segments):
        says += f" The {len(segments) - len(drawn)} segments that ended first are left out."
    if thinned:
        says += f" {thinned:,} older launches are thinned to medians of groups, with their least and largest."
    return Plot(
        id=f"history-{key}",
        title="History of the step time",
        says=says,
        traces=traces,
        layout={
            "xaxis": {"type": "date"},
            "yaxis": {"title": {"text": "milliseconds a step"}, "rangemode": "tozero"},
            "shapes": shapes,
        },
        columns=["segment", "from", "to", "launches", "median ms", "change", "", "suite"],
        rows=rows,
        height=330 + 20 * len(drawn),
    )


def _name(segment: Segment, among: Sequence[Segment]) -> str:
    """The segment's name among others: seed and steps where they differ, and the beginning of its fingerprint."""
    example = segment.example
    words = []
    if len({other.example.seed for other in among}) > 1:
        words.append(f"seed {example.seed}")
    if len({other.example.steps for other in among}) > 1:
        words.append(f"{example.steps} steps")
    return ", ".join([*words, segment.setup[:6]])


def _stamp(started: float) -> str:
    return utc(started, "%Y-%m-%d %H:%M:%S")


def _drawn(seconds: float, digits: int = 5) -> float:
    return significant(1e3 * seconds, digits)


def _newest(points: Sequence[HistoryPoint], index: int, name: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "legendgroup": name,
        "x": [_stamp(point.started) for point in points],
        "y": [_drawn(point.seconds) for point in points],
        "text": [point.suite for point in points],
        "marker": {"color": colour(index), "symbol": symbol(index), "size": 7, "opacity": 0.75},
        "hovertemplate": "%{x|%Y-%m-%d %H:%M}: %{y:.4g} ms<br>%{text}",
    }


def _thinned(points: Sequence[HistoryPoint], index: int, name: str) -> Trace:
    groups = list(_groups(points))
    seconds = [[point.seconds for point in group] for group in groups]
    middles = [statistics.median(times) for times in seconds]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{name}, thinned",
        "legendgroup": name,
        "x": [_stamp(group[len(group) // 2].started) for group in groups],
        "y": [_drawn(middle) for middle in middles],
        "text": [f"median of {len(group)} launches" for group in groups],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [_drawn(max(times) - middle, 3) for times, middle in zip(seconds, middles, strict=True)],
            "arrayminus": [_drawn(middle - min(times), 3) for times, middle in zip(seconds, middles, strict=True)],
            "color": colour(index),
            "thickness": 1,
            "width": 0,
        },
        "marker": {"color": colour(index), "symbol": f"{symbol(index)}-open", "size": 6},
        "hovertemplate": "%{x|%Y-%m-%d}: %{y:.4g} ms<br>%{text}",
    }


def _groups(points: Sequence[HistoryPoint]) -> Iterator[Sequence[HistoryPoint]]:
    """At most `BUCKETS` neighbouring groups whose sizes differ by one at most."""
    count = min(BUCKETS, len(points))
    for number in range(count):
        yield points[number * len(points) // count : (number + 1) * len(points) // count]


def _level(first: HistoryPoint, last: HistoryPoint, middle: float, index: int, best: bool) -> Trace:
    y = _drawn(middle)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [_stamp(first.started), _stamp(last.started)],
        "y": [y, y],
        "line": {"color": colour(index), "width": 3 if best else 2, "dash": "solid" if best else "dot"},
        "showlegend": False,
        "hoverinfo": "skip",
    }


def _edge(first: HistoryPoint) -> dict[str, object]:
    x = _stamp(first.started)
    line = {"color": INK, "width": 1, "dash": "dash"}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line}
