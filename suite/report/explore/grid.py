"""A grid of states of one run, computed beforehand, in columns that a browser unpacks quickly."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from reference_runs.layout import Layout, parse_layout
from reference_runs.run import ReferenceRun
from suite.report.explore.content import Content, content
from suite.report.explore.presets import described_run
from suite.report.explore.state import COUNTS, ExploreState, complete_text, controls_of
from suite.report.explore.view import recorded_layout

MOST_POINTS = 6000
LEVEL = 9  # of gzip
_NUMBER, _TEXT, _LIST = "\x00", "\x01", "\x02"  # stand for a number, a text or passes; no text of a page has them
_OWN_TEXTS = ("layout", "command", "source")  # which differ from state to state
OUTSIDE = -1

Axes = dict[str, list[Any]]


class StateGrid(NamedTuple):
    """Values of each control that varies, and the content of every combination that is computed.

    Args:
        held: values of the controls that do not vary.
        points: for each combination, with the last axis fastest, an index in `contents`; `OUTSIDE`: not computed.
    """

    axes: Axes
    held: dict[str, Any]
    points: list[int]
    contents: list[Content]


def axes_of(name: str) -> tuple[Axes, dict[str, Any]]:
    """Values of the controls that vary, and of those that do not; the run's own values are among them.

    Accelerators of three generations; axes within factors of the run's own; micro-batch, recomputation, ZeRO and
    sequence parallelism.
    """
    run, own = described_run(name), controls_of(recorded_layout(name))
    replicas, tensor, stages = own["dp"], own["tp"], own["pp"]
    node = run.cluster.accelerators_per_node if run.cluster and run.cluster.accelerators_per_node else 8
    divisors = [each for each in range(1, run.architecture.layers + 3) if _deals(run.architecture.layers, each)]
    near = sorted(divisors, key=lambda each: abs(_octaves(each, stages)))[:5]
    axes: Axes = {
        "on": [None, *(name for name in ("h100-sxm", "b200") if not _is_own(run, name))],
        "dp": _whole(replicas * factor for factor in (0.25, 0.5, 1, 2, 4)),
        "tp": sorted({tensor, *(each for each in (1, 2, 4, 8) if each <= node and run.architecture.heads % each == 0)}),
        "pp": sorted({stages, *near}),
        "micro": _whole(own["micro"] * factor for factor in (0.5, 1, 2, 4)),
        "zero": list(dict.fromkeys([own["zero"], "zero0", "zero3"])),
        "recompute": ["none", "selective", "full"],
        "sp": [False, True],
    }
    held = {name: value for name, value in own.items() if name not in axes}
    held["switches"] = [each for each in own["switches"] if each != "sp"]
    return axes, held


def _deals(layers: int, stages: int) -> bool:
    return layers % stages == 0 or (layers + 2) % stages == 0


def _octaves(one: int, other: int) -> float:
    return float(np.log2(one / other))


def _whole(values: Iterator[float]) -> list[int]:
    return sorted({int(value) for value in values if value >= 1 and value == int(value)})


def _is_own(run: ReferenceRun, name: str) -> bool:
    return run.cluster is not None and run.cluster.accelerator == name


def combinations(axes: Axes) -> Iterator[dict[str, Any]]:
    """Every combination, the last axis fastest."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def state_at(run: str, combination: dict[str, Any], held: dict[str, Any]) -> ExploreState:
    """The state that the controls of a combination say."""
    chosen = {**held, **combination}
    words = [f"{word}{chosen[word]}" for word in COUNTS]
    words += [chosen["zero"], chosen["schedule"], f"recompute-{chosen['recompute']}"]
    words += [f"every{chosen['every']}"] if chosen["recompute"] == "full" else []
    words += ["sp"] if chosen["sp"] else []
    words += [
        each if each in chosen["switches"] else other
        for each, other in (("fused", "unfused"), ("noreshard", "reshard"))
    ]
    base: Layout = recorded_layout(run)
    layout = parse_layout(",".join(words), base=base)
    return ExploreState(run=run, layout=complete_text(layout), on=combination["on"])


def computed_grid(run: str, progress: Callable[[int, int], None], *, most: int = MOST_POINTS) -> StateGrid:
    """The grid of a run: combinations that divide the model and the batch, the nearest to the run's own first."""
    axes, held = axes_of(run)
    own = controls_of(recorded_layout(run)) | {"on": None, "sp": "sp" in controls_of(recorded_layout(run))["switches"]}
    every = list(combinations(axes))
    order = sorted(range(len(every)), key=lambda index: _distance(every[index], own, axes))
    points = [OUTSIDE] * len(every)
    contents: list[Content] = []
    for index in order:
        if len(contents) >= most:
            break
        combination = every[index]
        if not _sensible(combination):
            continue
        found = content(state_at(run, combination, held))
        if found["views"][0]["wrong"]:
            continue
        points[index] = len(contents)
        contents.append(found)
        progress(len(contents), most)
    return StateGrid(axes, held, points, contents)


def _sensible(combination: dict[str, Any]) -> bool:
    return not (combination["sp"] and combination["tp"] == 1) and not (
        combination["zero"] == "zero3" and combination["pp"] > 1
    )


def _distance(combination: dict[str, Any], own: dict[str, Any], axes: Axes) -> float:
    """Number of steps by which the values of a combination differ from the run's own."""
    steps = 0.0
    for name, values in axes.items():
        steps += abs(values.index(combination[name]) - values.index(own[name])) * (0.5 if name in ("sp", "on") else 1)
    return steps


def packed(grid: StateGrid, **more: Any) -> dict[str, str]:
    """The grid for the page: shapes of contents, and their numbers as columns; each a text of base64.

    A shape is a content with a mark in place of each number; contents of one shape have a column for each of its
    numbers, equal columns once. The columns are float32, the bytes of equal weight together, which gzip shrinks best.
    """
    shapes: dict[str, int] = {}
    rows: list[list[list[float]]] = []
    places: list[tuple[int, int]] = []
    parts: dict[str, dict[str, int]] = {_TEXT: {}, _LIST: {}}
    for each in grid.contents:
        numbers: list[float] = []
        shape = json.dumps(_shape(each, numbers, parts), separators=(",", ":"))
        index = shapes.setdefault(shape, len(shapes))
        if index == len(rows):
            rows.append([])
        places.append((index, len(rows[index])))
        rows[index].append(numbers)
    columns: dict[bytes, int] = {}
    used = [
        [columns.setdefault(column.tobytes(), len(columns)) for column in np.array(of_shape, dtype="<f4").T]
        for of_shape in rows
    ]
    blob = b"".join(columns)
    planes = np.frombuffer(blob, dtype=np.uint8).reshape(-1, 4).T.tobytes()
    head = {
        **more,
        "axes": grid.axes,
        "held": grid.held,
        "points": [[-1, -1] if point == OUTSIDE else list(places[point]) for point in grid.points],
        "shapes": [json.loads(shape) for shape in shapes],
        "texts": list(parts[_TEXT]),
        "lists": [json.loads(text) for text in parts[_LIST]],
        "columns": used,
        "sizes": [len(column) // 4 for column in columns],
    }
    return {"head": _text(json.dumps(head, separators=(",", ":")).encode()), "numbers": _text(planes)}


def _shape(value: Any, numbers: list[float], parts: dict[str, dict[str, int]]) -> Any:
    """The value with marks for what is in columns: numbers, and which text or passes, those that are kept once."""
    if isinstance(value, dict):
        made = {}
        for key, inner in value.items():
            mark = _LIST if key == "passes" else _TEXT if key in _OWN_TEXTS else None
            if mark is None or not inner:
                made[key] = _shape(inner, numbers, parts)
                continue
            known = parts[mark]
            numbers.append(known.setdefault(json.dumps(inner) if mark == _LIST else inner, len(known)))
            made[key] = mark
        return made
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_shape(inner, numbers, parts) for inner in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        numbers.append(float(value))
        return _NUMBER
    return value


def _text(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, LEVEL, mtime=0)).decode()
