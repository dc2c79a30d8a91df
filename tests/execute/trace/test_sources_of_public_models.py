"""Models that transformers builds of public configurations, and of defaults, have their published sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from suite.execute.trace.sources import build
from suite.job.trace_job import ModelSource
from suite.paths import ROOT

pytestmark = [pytest.mark.rare, pytest.mark.ranks]

# Elements of parameters, tied ones once, counted by transformers 5.24 on the meta device; biases of routers are buffers
COUNTS = json.loads((ROOT / "tests" / "support" / "parameter_counts.json").read_text(encoding="utf-8"))


def parameters(path: Path, values: dict[str, Any]) -> int:
    path.write_text(json.dumps(values), encoding="utf-8")
    source = ModelSource(configuration=str(path))
    with torch.device("meta"):
        module = build(source, dtype=torch.bfloat16, micro_batch=1, sequence=1).module
    return sum(each.numel() for each in module.parameters())


def test_parameters_are_those_counted_elsewhere_to_the_unit(tmp_path: Path) -> None:
    asked = {name: (each["values"], each["parameters"]) for name, each in COUNTS["configurations"].items()}
    asked |= {kind: ({"model_type": kind}, number) for kind, number in COUNTS["default_configurations"].items()}
    found = {name: parameters(tmp_path / "config.json", values) for name, (values, _) in asked.items()}
    assert found == {name: number for name, (_, number) in asked.items()}
