"""Jobs of traces for tests, and workers that answer them another way."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from suite.job.trace_job import ModelSource, TraceJob
from suite.paths import ROOT


def configurations(directory: Path, types: Mapping[str, dict[str, Any]]) -> dict[str, ModelSource]:
    """A source for each configuration, written to a file; of "gpt2-short" the model type is gpt2."""
    for name, values in types.items():
        written = json.dumps({"model_type": name.partition("-")[0]} | values)
        (directory / f"{name}.json").write_text(written)
    return {name: ModelSource(configuration=str(directory / f"{name}.json")) for name in types}


def answered(module: str, jobs: Sequence[TraceJob]) -> list[bytes]:
    """A line for each job from a worker, `python -m module`."""
    out = subprocess.run(
        [sys.executable, "-m", module],
        cwd=ROOT,
        input=b"".join(msgspec.json.encode(job) + b"\n" for job in jobs),
        stdout=subprocess.PIPE,
        check=True,
    )
    return out.stdout.splitlines()
