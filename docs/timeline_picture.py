"""Draws a timeline that `predict --timeline` wrote: python docs/timeline_picture.py FILE.json OUT.png [SECONDS]."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

# Okabe and Ito's colours
COLOURS = {
    "forward": "#56b4e9",
    "backward": "#d55e00",
    "recomputation": "#e69f00",
    "operator": "#cc79a7",
    "launch": "#999999",
    "messages": "#009e73",
    "hidden messages": "#a6dccb",
    "bubble": "#ebebeb",
    "optimizer": "#0072b2",
    "other": "#f0e442",
}
STAGES = 4  # the first ones are drawn


def colour(event: dict[str, Any]) -> str:
    """The colour's key of a slice."""
    arguments = event["args"]
    if "axis" in arguments:
        return "hidden messages" if arguments["hidden"] else "messages"
    name: str = "bubble" if event["name"].startswith("wait") else event["name"]
    return name if name in COLOURS else "other"


def draw(source: Path, target: Path, seconds: float) -> None:
    """Write the picture of the first seconds."""
    events = json.loads(source.read_text(encoding="utf-8"))["traceEvents"]
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    lanes: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["pid"] <= STAGES and threads[event["tid"]] not in ("phases", "passes"):
            lanes[event["pid"], threads[event["tid"]]].append(event)
    figure = Figure(figsize=(13, 1.2 + 0.24 * len(lanes)), layout="constrained")
    FigureCanvasAgg(figure)
    axes, used = figure.subplots(), set()
    for row, key in enumerate(sorted(lanes)):
        for name in COLOURS:
            spans = [(event["ts"] / 1e6, event["dur"] / 1e6) for event in lanes[key] if colour(event) == name]
            shown = [(start, min(length, seconds - start)) for start, length in spans if start < seconds]
            if shown:
                used.add(name)
                axes.broken_barh(shown, (row - 0.45, 0.9), color=COLOURS[name], linewidth=0)
    axes.set_yticks(
        range(len(lanes)), [f"stage {process - 1}  {track}" for process, track in sorted(lanes)], fontsize=7
    )
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_xlim(0, seconds)
    axes.set_xlabel("seconds since the step began")
    axes.spines[["top", "right"]].set_visible(False)
    handles = [Patch(color=shade, label=name) for name, shade in COLOURS.items() if name in used]
    figure.legend(handles=handles, fontsize=8, frameon=False, loc="outside upper center", ncols=len(handles))
    figure.savefig(target, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
