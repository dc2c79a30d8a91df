"""Every event of a timeline is as the published Trace Event Format has it, by a JSON schema and rules beside it."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from suite.__main__ import main
from tests.support.predicted_steps import CASES, RECORD

SCHEMA = json.loads(Path(__file__).with_name("trace_event_format.json").read_text(encoding="utf-8"))
WORDS = {
    "no pipeline": CASES["no pipeline"],
    **{name: f"{CASES[name]} --batch 256" for name in ("1F1B", "zero bubble", "mixture, interleaved")},
    "mixture": CASES["mixture"],
    "next to a measurement": f"gpt2-124m --against {RECORD}",
}


def faults(trace: dict[str, Any]) -> list[str]:
    """Why a trace is not as the format has it; empty where it is."""
    found = [error.message[:200] for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(trace)]
    if found:
        return found
    events = trace["traceEvents"]
    for event in events:
        numbers = [value for value in (*event.values(), *event["args"].values()) if isinstance(value, float)]
        if not all(map(math.isfinite, numbers)):
            return [f"not finite: {event}"]
    named: dict[str, set[Any]] = defaultdict(set)
    threads: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
        elif (key := (event["pid"], event["tid"])) in named[event["name"]]:
            found.append(f"named twice: {event}")
        else:
            named[event["name"]].add(key)
    processes = {process for process, _ in named["process_name"]}
    for (process, thread), of_thread in threads.items():
        if process not in processes or (process, thread) not in named["thread_name"]:
            found.append(f"no name: process {process}, thread {thread}")
        found += _overlaps(of_thread)
    return found


def _overlaps(events: list[dict[str, Any]]) -> list[str]:
    """Events of a thread that begin within another and end after it."""
    found, around = [], []
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        start = round(event["ts"] * 1000)  # to nanoseconds, as Perfetto rounds
        end = start + round(event["dur"] * 1000)
        while around and around[-1] <= start:
            around.pop()
        if around and end > around[-1]:
            found.append(f"overlaps: {event}")
        around.append(end)
    return found


def written(words: str, path: Path) -> dict[str, Any]:
    """The timeline of a prediction."""
    assert main(["predict", *words.split(), "--timeline", str(path)]) in (0, 1)  # 1: too large for its memory
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_every_event_of_a_timeline_is_as_the_format_has_it(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = written(words, tmp_path / "step.json")
    capsys.readouterr()
    assert faults(trace) == []
    assert {event["ph"] for event in trace["traceEvents"]} == {"X", "M"}


def _first(trace: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(event for event in trace["traceEvents"] if event["ph"] == kind)


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "no duration": lambda trace: _first(trace, "X").pop("dur"),
    "a duration below 0": lambda trace: _first(trace, "X").update(dur=-1.0),
    "a time that is no number": lambda trace: _first(trace, "X").update(ts="0"),
    "a time that is not finite": lambda trace: _first(trace, "X").update(ts=math.inf),
    "a figure that is not finite": lambda trace: _first(trace, "X")["args"].update(bytes=math.nan),
    "no category": lambda trace: _first(trace, "X").pop("cat"),
    "a process without a number": lambda trace: _first(trace, "X").update(pid="1"),
    "a process without a name": lambda trace: _first(trace, "X").update(pid=999),
    "an unknown phase": lambda trace: _first(trace, "X").update(ph="Q"),
    "arguments that are a list": lambda trace: _first(trace, "X").update(args=[]),
    "an unknown metadata event": lambda trace: _first(trace, "M").update(name="process_title"),
    "metadata without a name": lambda trace: _first(trace, "M").update(args={"label": "x"}),
    "a key that the format lacks": lambda trace: _first(trace, "X").update(rank=0),
    "events of a thread that overlap": lambda trace: trace["traceEvents"].append(
        (last := trace["traceEvents"][-1]) | {"ts": last["ts"] - 2.0, "dur": last["dur"]}
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_the_format_does_not_have_is_found(
    damage: Callable[[dict[str, Any]], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = written("gpt2-124m --batch 32 --gpus 1 --on h100-sxm", tmp_path / "step.json")
    capsys.readouterr()
    assert faults(trace) == []
    damage(trace)
    assert faults(trace)
