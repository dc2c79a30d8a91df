"""Predicted steps as files: runs and schedules, the printed terms, and a reader of timelines of its own."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

from suite.paths import RECORDED_H100

RECORD = RECORDED_H100 / "records" / "gpt2-124m" / "20261125T231644Z__f5bc1aff__c2b32ab0.begin.json"
CASES = {
    "no pipeline": "gpt2-124m",
    "no pipeline, ZeRO-3": "opt-175b",
    "1F1B": "bloom-176b",
    "interleaved": "llama3.1-405b",
    "interleaved, eager gathers": "nemotron4-340b",
    "GPipe": "bloom-176b --layout dp8,tp4,pp12,gpipe,micro2",
    "zero bubble": "bloom-176b --layout dp8,tp4,pp12,zero-bubble,micro2",
    "ZB-V": "llama2-70b --layout dp8,tp4,pp8,zbv,interleave2,micro1 --batch 512",
    "DualPipeV": "llama2-70b --layout dp8,tp4,pp8,dualpipev,interleave2,micro1 --batch 512",
    "PipeDream": "llama2-70b --layout dp8,tp4,pp8,pipedream-2bw,micro1 --batch 512",
    "mixture": "deepseek-v3",
    "mixture, interleaved": "mixtral-8x7b",
    "context parallel": "llama3.1-405b --layout dp8,tp8,cp16,pp16,sp,zero1,1f1b --sequence 131072 --batch 256",
    "full recomputation, ZeRO-2": "llama2-70b --layout dp64,tp4,zero2,recompute-full,micro1 --batch 512",
    "FP8": "llama2-70b --on h100-sxm --layout dp8,tp4,pp2,zero1,micro1 --batch 128 --gemm-dtype fp8-current",
}
TOLERANCE = 1e-9  # seconds of a term: half of it are Perfetto's nanoseconds, the rest is for adding up


def printed_terms(entry):
    """Seconds of each term of the step, and of the whole under None, as `predict --json` prints them."""
    rows = [row for row in entry["figures"] if row["quantity"] == "step_seconds" and row["left"] is not None]
    # those of runs that were timed elsewhere have a term of their own
    return {row["term"]: row["left"] for row in rows if not (row["term"] or "").startswith("predicted: ")}


def read_trace(path):
    """Slices by process, and names by process and thread: a reader of the published format, of its own."""
    events = json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]
    slices, names = defaultdict(list), {}
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"]].append(event)
        elif event["name"].endswith("_name"):
            names[event["pid"], event["tid"]] = event["args"]["name"]
    return slices, names


def read_stages(path):
    """Slices of the predicted process by stage, and names by thread."""
    slices, names = read_trace(path)
    (process,) = [process for (process, _), name in names.items() if name.startswith("predicted: ")]
    stages = defaultdict(list)
    for event in slices[process]:
        stages[event["args"]["stage"]].append(event)
    return stages, {thread: name for (of, thread), name in names.items() if of == process and thread}


def nanoseconds(event):
    """Start and end of a slice as Perfetto has them: each is rounded by itself."""
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def term_seconds(slices):
    """Seconds of each term: what is hidden counts in none."""
    found = Counter()
    for event in slices:
        if "term" in event["args"] and not event["args"].get("hidden"):
            found[event["args"]["term"].replace(" ", "_")] += event["dur"] / 1e6
    return found
