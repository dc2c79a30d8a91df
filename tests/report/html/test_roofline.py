"""Kernels on the roofline: their arithmetic by the names under which the benchmark stores them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from suite.records.kernel_runs import STEP_PART
from suite.report.html.roofline import benchmarks

LINEAR = {"rows": 2, "columns": 3, "width": 5, "element_bytes": 2}
ATTENTION = {"heads": 2, "length": 4, "head_size": 8, "element_bytes": 2}


def stored(kernel: str, variant: str, direction: str, sizes: dict[str, int]) -> dict[str, Any]:
    facts = {"kernel": kernel, "variant": variant, "pass": direction, "sizes": sizes, "least_bytes": 64.0}
    return {"name": "test_seconds[x]", "stats": {"median": 1.0}, "extra_info": facts | {"dtype": "bf16"}}


def test_parts_of_a_step_have_the_flop_of_their_part(tmp_path: Path) -> None:
    entries = [
        stored(STEP_PART, "linear_gradients", "forward", LINEAR),
        stored(STEP_PART, "attention", "backward", ATTENTION),
        stored("sign_pack", "unpack", "forward", {"elements": 9, "ranks": 3}),
        stored(STEP_PART, "no such part", "forward", LINEAR),
    ]
    path = tmp_path / "kernels" / "Linux" / "0001_run.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"machine_info": {}, "benchmarks": entries}), encoding="utf-8")
    (run,), bad = benchmarks(tmp_path)
    assert not bad
    # 2 M K N; half of 10 H T^2 K; a product and a sum for each rank's sign
    assert [kernel.flop for kernel in run.kernels] == [60, 10 * 2 * 4**2 * 8 / 2, 54]
