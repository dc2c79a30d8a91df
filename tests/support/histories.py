"""Launches on paper, for tests of histories and verdicts: no process, no file."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from suite.records.summary import LaunchSummary, Values

HARDWARE = {"cpu": "AMD EPYC", "cpu_flags": "1" * 16, "cores": "2", "memory": "8000000 kB", "gpus": "none"}
POLICY = {"device": "cpu", "precision": "bf16", "compiled": "False", "deterministic": "True"}


def launch_of(number: int, seconds: float | None, **changes: Any) -> LaunchSummary:
    """The launch that started at second `number`, whose median step took `seconds`; None: it crashed."""
    suite = changes.pop("suite", "0.1.0 (aaaaaaaaaaaa)")
    software = changes.pop("software", {"suite": suite, "torch": "2.13.0"})
    measured = Values({("step_seconds", None, None, None): 0}, (seconds,)) if seconds is not None else Values({}, ())
    made = LaunchSummary(
        id=f"20261122T{number:06d}Z__node__{number:08x}",
        run="bloom-mini",
        started=float(number),
        finished=number + 1.0,
        node="00000001",
        path=f"/records/{number}.begin.json",
        launcher=None,
        status="ok" if seconds is not None else "crashed",
        machine="AMD EPYC, 2 cores, GPUs: none, cpu",
        hashes={"software": str(sorted(software.items()))},
        hardware=HARDWARE,
        software=software,
        policy=POLICY,
        suite=suite,
        device="cpu",
        ranks=2,
        layout="dp2",
        compiled=False,
        precision="bf16",
        global_batch=24,
        steps=30,
        seed=1,
        predicted=Values({}, ()),
        measured=measured,
        first_loss=8.9,
        last_loss=6.0,
    )
    return msgspec.structs.replace(made, **changes)


def normal_launches(seed: int, count: int, *, median: float = 1.0, variation: float = 0.01) -> list[float]:
    """So many seconds of identical launches, normal ones."""
    chance = random.Random(seed)
    return [median * (1 + variation * chance.gauss(0, 1)) for _ in range(count)]
