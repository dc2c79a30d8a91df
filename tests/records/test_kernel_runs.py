"""Stored kernel benchmarks: which timings are compared between runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from suite.records.kernel_runs import STEP_PART, kernel_run


def timed(name: str, **facts: Any) -> dict[str, Any]:
    return {"name": f"test_seconds[{name}]", "stats": {"median": 0.5}, "extra_info": facts}


def test_kernels_plain_references_and_all_ways_of_parts_of_a_step_are_followed(tmp_path: Path) -> None:
    benchmarks = [
        timed("norm-kernel", kernel="layer_norm", form="kernel"),
        timed("norm-plain", kernel="layer_norm", form="plain"),
        timed("norm-eager", kernel="layer_norm", form="eager"),
        timed("part-plain", kernel=STEP_PART, form="plain"),
        timed("part-epilogues", kernel=STEP_PART, form="epilogues"),
    ]
    path = tmp_path / "0001_run.json"
    path.write_text(json.dumps({"machine_info": {}, "benchmarks": benchmarks}), encoding="utf-8")
    assert [*kernel_run(path).seconds] == ["norm-kernel", "norm-plain", "part-plain", "part-epilogues"]
