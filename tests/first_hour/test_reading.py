"""The output of commands is read, and differences from what was expected are found."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from suite.first_hour.part import HourPart, PartKind, StepOnPaper
from suite.first_hour.reading import PartReading, next_steps, reading
from suite.metrics.figures import OF_DATASHEET
from suite.records.kernel_runs import STEP_PART


def part(kind: PartKind, **options: Any) -> HourPart:
    return HourPart(name="p", kind=kind, shows="", arguments=(), seconds=1.0, **options)


def read(kind: PartKind, entry: dict[str, Any], **options: Any) -> PartReading:
    return reading(part(kind, **options), 0, f"noise\n{json.dumps(entry)}\n", "", [])


def row(quantity: str, left: float | None, right: float | None, verdict: str = "shown", **keys: Any) -> dict[str, Any]:
    none = dict.fromkeys(("axis", "operation", "rank", "stage", "term"))
    return none | {"quantity": quantity, "left": left, "right": right, "verdict": verdict} | keys


def launch(*rows: dict[str, Any], **options: Any) -> dict[str, Any]:
    usual = {"status": "ok", "verdict": "pass", "message": "", "record": "r", "step_uncertainty": None}
    return usual | {"figures": [*rows]} | options


def test_rates_of_a_known_gpu_are_held_to_its_floors_and_data_sheet_and_those_of_an_unknown_one_to_nothing() -> None:
    def rates(device: str, copy: float | None, product: float | None) -> PartReading:
        entry = {"device": device, "copy_bytes_per_second": copy, "product_flop_per_second": product}
        return read(PartKind.RATES, entry | {"product_dtype": "bf16"})

    h100 = "NVIDIA H100 80GB HBM3"
    expected = {
        (3.0e12, 7.7e14): [],
        (2.8e12, 7.7e14): ["copy: 2,800 GB/s, 2,810 to 3,417 GB/s expected of NVIDIA H100 SXM5 80 GB"],
        (3.5e12, 7.7e14): ["copy: 3,500 GB/s"],
        (3.0e12, 6.0e14): ["product: 600 Tflop/s, 716.1 to "],
        (3.0e12, 4.9e16): ["product: 4.9e+04 Tflop/s, "],
    }
    for (copy, product), differing in expected.items():
        found = rates(h100, copy, product).differences
        assert [line.startswith(begin) for line, begin in zip(found, differing, strict=True)] == [True] * len(differing)
    assert len(rates(f"{h100} (simulated)", 1e14, 1e17).differences) == 2  # of its model
    assert rates("NVIDIA of tomorrow", 1e14, 1e17).differences == []
    rubin = rates("NVIDIA Rubin", 1e11, 1e13)
    assert (rubin.differences, rubin.says.partition("; ")[2]) == ([], "no floor is known of: copy, product")
    assert [line.split()[:3] for line in rates("NVIDIA B200", 7e12, 1.2e15).differences] == [
        ["product:", "1,200", "Tflop/s,"]
    ]
    assert rates("NVIDIA B200", 7e12, 1.42e15).differences == []
    h20 = rates("NVIDIA H20", 3.0e12, 1.3e14)  # its floors are assumed: nothing that it did contradicts evidence
    assert (h20.differences, h20.says.partition("; ")[2]) == ([], "copy: below the 3,400 GB/s assumed of it")
    assert len(rates("NVIDIA H20", 5.0e12, 1.3e14).differences) == 1
    assert rates("x", None, None) == ("the device's clock stood still", [], True, ())


def test_figures_that_differ_are_named() -> None:
    late = row("step_seconds", 0.10, 0.13)
    for figure, uncertainty, differing in (
        (row("step_seconds", 0.10, 0.11), None, []),
        (late, None, ["step time: 0.13 s, 30.0 % slower than predicted (0.1 s), within 15% asked"]),
        (late, 0.30, []),
        (row("step_seconds", None, 0.13), None, []),
        (
            row("peak_bytes", 100, 110, "fail", rank=1),
            None,
            ["peak_bytes of rank 1: measured 110, 10.0 % more than predicted (100)"],
        ),
        (row("messages", 3, 4, "fail", axis="dp"), None, ["messages dp: measured 4, 33.3 % more than predicted (3)"]),
    ):
        found = read(PartKind.REPRODUCE, launch(figure, step_uncertainty=uncertainty))
        assert found.differences == differing
    for reached in (0.52, 0.49):
        found = read(PartKind.REPRODUCE, launch(row("mfu", None, reached, term=OF_DATASHEET)), asked_mfu=0.5)
        assert bool(found.differences) is (reached < 0.5)
        assert f"mfu {reached:.1%}" in found.says


def test_a_step_is_held_against_what_was_written_down_before_and_that_is_no_difference() -> None:
    expected = StepOnPaper(milliseconds=1000.0, bound_by="GEMMs")
    found = read(PartKind.REPRODUCE, launch(row("step_seconds", None, 1.1)), expected=expected)
    assert "step 1.1 s, 10.0 % slower than expected of an H100 (1,000 ms; GEMMs)" in found.says
    assert found.differences == []
    assert "expected" not in read(PartKind.REPRODUCE, launch(row("step_seconds", None, 1.1))).says


def test_shares_of_an_fp8_peak_are_named_and_are_no_mfu() -> None:
    terms = {"16-bit equivalent, of the data sheet's bf16 peak": 0.6, "of the data sheet's FP8 peak": 0.3}
    rows = [row("mfu", None, share, term=term) for term, share in terms.items()]
    found = read(PartKind.REPRODUCE, launch(*rows), asked_mfu=0.9)
    assert found.says.endswith(
        "60.0% 16-bit equivalent, of the data sheet's bf16 peak, 30.0% of the data sheet's FP8 peak"
    )
    assert "mfu" not in found.says
    assert found.differences == []


def test_a_launch_that_failed_says_how_and_where() -> None:
    found = read(PartKind.REPRODUCE, launch(status="oom", message="rank 0: out of memory"))
    assert found.says == "oom: rank 0: out of memory; record r"


def test_findings_that_are_not_passed_differ_and_what_did_not_run_does_not() -> None:
    names = {"subject": "rank 1", "evidence": "0.5 of the median", "part": "GPU 1", "to_do": "reset it", "command": "c"}
    findings = [{"name": "matrix rate", "verdict": verdict} | names for verdict in ("PASS", "WARN", "FAIL", "NOT RUN")]
    found = read(PartKind.ACCEPT, {"summary": "rejected", "findings": findings})
    assert found.says == "rejected"
    assert [line.split()[0] for line in found.differences] == ["WARN", "FAIL"]
    assert found.next_steps == ["matrix rate: GPU 1: reset it: c"]
    floorless = {
        "name": "matrix rate",
        "verdict": "WARN",
        "subject": "slowest rank",
        "evidence": "no floor: no rate of",
    }
    assumed = floorless | {"evidence": "", "source": "assumed of NVIDIA H20 96 GB (2024): 3,400 GB/s or more"}
    assert read(PartKind.ACCEPT, {"summary": "accepted", "findings": [floorless, assumed]}).differences == []
    failed = [assumed | {"verdict": "FAIL"}, assumed | {"source": "published by others of NVIDIA H100"}]
    names = {"part": "", "to_do": "", "command": ""}
    assert len(read(PartKind.ACCEPT, {"summary": "", "findings": [each | names for each in failed]}).differences) == 2


def test_each_part_that_differs_or_failed_says_what_to_do_next() -> None:
    wrong = {}
    for kind in PartKind:
        for failed, differences in ((False, []), (False, ["x"]), (True, [])):
            found = PartReading("says", differences)
            steps = next_steps(part(kind), found, failed=failed, errors=Path("a.err"), again="do it --again x")
            wanted = failed or bool(differences)
            if len(steps) != wanted or (wanted and not re.search("refruns|suite|--again", steps[0])):
                wrong[kind, failed, bool(differences)] = steps
    assert wrong == {}
    own = PartReading("says", ["x"], next_steps=["reset it"])
    assert next_steps(part(PartKind.ACCEPT), own, failed=False, errors=Path("a.err"), again="") == ["reset it"]


def test_what_a_node_lacks_is_a_difference() -> None:
    entry = {
        "fingerprint": {"software": {"torch": "2.11.0", "triton": "3.6.0"}, "hardware": {"cpu": "EPYC"}},
        "devices": [{"name": "NVIDIA H100"}],
        "compilation_missing": "no Python.h",
        "lacking": [["ruptures", "ruptures", "regress"]],
        "installing": "pip install ruptures",
    }
    found = read(PartKind.ENVIRONMENT, entry)
    assert found.says == "1 x NVIDIA H100; torch 2.11.0, triton 3.6.0"
    assert found.differences == ["missing: no Python.h", "missing: ruptures (regress): pip install ruptures"]


def test_failed_tests_are_named_and_long_lists_shortened() -> None:
    lines = [f"FAILED tests/kernels/test_x.py::test[{n}] - wrong" for n in range(20)]
    found = reading(part(PartKind.TESTS), 1, "\n".join([*lines, "== 20 failed in 3 s =="]), "", [])
    assert found.says == "20 failed in 3 s"
    assert len(found.differences) == 13
    assert found.differences[-1] == "8 more"


def test_kernels_below_their_share_of_a_copy_are_named(tmp_path: Path) -> None:
    def timed(name: str, direction: str, seconds: float, form: str = "kernel") -> dict[str, Any]:
        facts = {"least_bytes": 1e9, "copy_bytes_per_second": 1e12, "form": form, "pass": direction}
        return {"name": f"test_seconds[{name}]", "stats": {"median": seconds}, "extra_info": facts}

    benchmarks = [
        timed("a", "forward", 1.05e-3),
        timed("b", "forward", 1.2e-3),
        timed("c", "backward", 1.2e-3),
        timed("d", "backward", 2e-3, "eager"),
    ]
    path = tmp_path / "0001_run.json"
    path.write_text(json.dumps({"machine_info": {}, "benchmarks": benchmarks}), encoding="utf-8")
    found = reading(part(PartKind.KERNELS), 0, "", "", [path])
    assert found.says == "3 passes, 83% to 95% of a copy's bandwidth"
    assert found.differences == ["b: 83% of a copy's bandwidth, 90% expected"]


def test_ways_of_parts_of_a_step_are_read_as_their_time_over_pytorchs(tmp_path: Path) -> None:
    def timed(form: str, rows: int, seconds: float) -> dict[str, Any]:
        facts = {
            "kernel": STEP_PART,
            "variant": "linear_gelu",
            "pass": "forward",
            "form": form,
            "sizes": {"rows": rows},
        }
        return {"name": "test_seconds[x]", "stats": {"median": seconds}, "extra_info": facts}

    timings = [("plain", 1, 2.0), ("epilogues", 1, 1.0), ("plain", 2, 4.0), ("epilogues", 2, 5.0), ("other", 3, 1.0)]
    path = tmp_path / "0001_run.json"
    benchmarks = [timed(*timing) for timing in timings]
    path.write_text(json.dumps({"machine_info": {}, "benchmarks": benchmarks}), encoding="utf-8")
    assert reading(part(PartKind.KERNELS), 0, "", "", [path]) == (
        "epilogues 0.50 to 1.25 of PyTorch's time",
        [],
        True,
        (),
    )


def test_output_that_nobody_can_read_is_said_to_be_that() -> None:
    for output in ("", "Traceback", "{}", "[1]"):
        found = reading(part(PartKind.LADDER), 1, output, "x\nRuntimeError: gone\n", [])
        assert found == ("RuntimeError: gone", [], False, ())
