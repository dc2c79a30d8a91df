"""`show` of an accelerator prints its floors, and says of which rates there are none."""

from __future__ import annotations

import json
import re

import pytest

from reference_runs.accelerator import accelerator, accelerator_names
from suite.__main__ import main


def test_the_floors_of_an_accelerator_have_interval_kind_date_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "b200"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"bf16 GEMM 1,420 to 1,510 Tflop/s published by others 2026-11-28 collected B200", out)
    assert re.search(r"all-reduce of 8 \(nvls\) 690 GB/s assumed 2026-11-28 general", out)
    assert re.search(r"fp8 GEMM 2,500 Tflop/s or more assumed 2026-11-29 general; from the bf16 floor", out)
    assert main(["show", "gb10"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"fp8 GEMM no floor no rate of a working part is known", out)


def test_floors_have_base_units_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "h100", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    measured = [floor for floor in shown["floors"] if floor["kind"] == "measured by us"]
    assert {(floor["quantity"], floor["lower"], floor["upper"], floor["unit"]) for floor in measured} == {
        ("bf16_gemm", 770e12, 777e12, "flop/s"),
        ("sustained_gemm", 674e12, 680e12, "flop/s"),
        ("copy", 3022e9, 3025e9, "byte/s"),
    }
    assert {floor["date"] for floor in measured} == {"2026-11-25"}
    assert all(floor["source"].split()[0] in shown["sources"] for floor in shown["floors"])
    assert main(["show", "rubin", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["floors"], [*shown["no_floor"]]) == ([], ["bf16_gemm", "fp8_gemm", "copy", "all_reduce"])


@pytest.mark.parametrize("name", accelerator_names())
def test_show_prints_every_fact_and_floor_of_an_accelerator_with_its_source(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", name]) == 0
    out = capsys.readouterr().out
    joined = "".join(out.split())
    device = accelerator(name)
    for key, fact in device.facts.items():
        assert key in joined
        # a source is folded over lines of its own column: its first word stands beside the value
        assert f"{fact.kind.value.replace(' ', '')}{fact.source.split()[0]}" in joined, key
        assert fact.source.split()[0].rstrip(":;,") in device.sources, key
    for floor in device.floors:
        assert floor.source.split()[0].rstrip(":;,") in device.sources, floor.of
        assert "".join(floor.interval.split()) in joined
    for document in device.sources.values():
        assert "".join(document.split())[:40] in joined
