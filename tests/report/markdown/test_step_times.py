"""The table of predicted and measured step times: one row a setup, its error, its largest residual, the same bytes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from suite.__main__ import main
from suite.job.events import Status
from suite.job.options import TrainingOptions
from suite.metrics.comparison import compare
from suite.metrics.figures import Figure, Quantity, StepTerm
from suite.records.index import launches
from suite.records.summary import LaunchSummary, Values
from suite.report.markdown.step_times import median_launches, step_tables, step_times
from suite.report.markdown.utilisation import ASKED, format_table, utilisation_table
from suite.reproduce.plan import plan
from suite.reproduce.request import Request
from suite.reproduce.step_time import Residuals, residuals
from tests.support.timed_records import MEASURED, PREDICTED, figures, record, scaled


def split(predicted: dict[StepTerm, float], measured: dict[StepTerm, float]) -> Residuals | None:
    rows = compare(figures(predicted), figures(measured), left_name="predicted", right_name="measured", judge=True)
    return residuals(rows)


def test_the_largest_residual_is_the_term_furthest_from_its_prediction() -> None:
    """Also one that took nothing. What is unexplained is no residual of a term, and its share has no sign."""
    reported = split(PREDICTED, MEASURED)
    assert reported is not None
    assert (reported.term, reported.residual) == (StepTerm.BACKWARD, pytest.approx(-0.1))
    assert (reported.error, reported.unexplained_share) == (pytest.approx(0.0), pytest.approx(0.05 / 0.8))
    reported = split({**PREDICTED, StepTerm.BUBBLE: 0.3}, {**MEASURED, StepTerm.BUBBLE: 0.0})
    assert reported is not None
    assert (reported.term, reported.residual) == (StepTerm.BUBBLE, pytest.approx(-0.3))
    reported = split(PREDICTED, {**PREDICTED, StepTerm.UNEXPLAINED: -0.4})
    assert reported is not None
    assert (reported.residual, reported.unexplained_share) == (0, pytest.approx(1.0))


def test_a_step_that_is_not_predicted_or_not_split_has_no_residuals() -> None:
    of_step = figures(PREDICTED)[:1]
    for left, right in (([], figures(MEASURED)), (figures(PREDICTED), of_step)):
        assert residuals(compare(left, right, left_name="a", right_name="b", judge=True)) is None


def test_launches_of_one_setup_are_one_row_with_the_median_launch(tmp_path: Path) -> None:
    for place, factor in enumerate((1.0, 3.0, 1.5)):
        record(tmp_path, measured=scaled(factor), started=1000.0 + place)
    record(tmp_path, measured=scaled(9.0), started=2000.0, job={"compiled": True})
    record(tmp_path, measured=scaled(7.0), started=2000.0, status=Status.CRASHED)
    record(tmp_path, measured=scaled(7.0), started=2000.0, predicted=[])
    good, bad = launches(tmp_path)
    rows = median_launches(step_times(good))
    assert not bad
    assert [*zip(rows.execution, rows.launches, strict=True)] == [("compiled", 1), ("eager", 3)]
    assert rows.measured_seconds[1] == pytest.approx(1.2)


def test_of_a_setup_under_two_policies_the_latest_counts(tmp_path: Path) -> None:
    record(tmp_path, measured=scaled(1.0), started=1000.0)
    record(tmp_path, measured=scaled(2.0), started=3000.0, job={"threads": 7})
    record(tmp_path, measured=scaled(4.0), started=2000.0)
    assert [*step_times(launches(tmp_path)[0]).measured_seconds] == [pytest.approx(1.6)]


def test_launches_of_the_ladder_have_tables_of_their_own_and_the_suites_own_script_on_gpus_has_not(
    tmp_path: Path,
) -> None:
    own = TrainingOptions(rung="", pinned=True, loss_chunks=8)  # GPUs have these by default
    record(tmp_path, measured=scaled(1.0), started=1000.0, job={"training_options": own})
    rung = TrainingOptions(rung="speed/compile", pinned=True)
    record(tmp_path, measured=scaled(9.0), started=2000.0, job={"training_options": rung})
    known = launches(tmp_path)[0]
    assert len(known) == 2
    assert [*step_times(known).measured_seconds] == [pytest.approx(0.8)]


@pytest.mark.parametrize(
    "processors",
    [
        [{"cpu": "AMD EPYC (family 25, model 1)"}, {"cpu": "AMD EPYC (family 25, model 17)"}],
        [{"cpu": "AMD EPYC", "cpu_flags": "0a" * 8}, {"cpu": "AMD EPYC", "cpu_flags": "1b" * 8}],  # older records
    ],
    ids=["generation", "flags"],
)
def test_processors_of_one_name_have_a_table_each(processors: list[dict[str, str]], tmp_path: Path) -> None:
    for place, (processor, factor) in enumerate(zip(processors, (1.0, 3.0), strict=True)):
        record(tmp_path, measured=scaled(factor), started=1000.0 + place, hardware=processor)
    record(tmp_path, measured=scaled(2.0), started=2000.0, hardware=processors[0] | {"memory": "1 kB"})  # another boot
    text = step_tables(step_times(launches(tmp_path)[0]))
    headings = [line for line in text.splitlines() if line.startswith("### ")]
    assert len(set(headings)) == 2
    for heading, processor, milliseconds in zip(headings, processors, ("1,600.0", "2,400.0"), strict=True):
        assert all(fact in heading for fact in processor.values())
        assert f"| {milliseconds} ms |" in text.partition(heading)[2].partition("### ")[0]
    assert text.count("1 setups: absolute error") == 2


def test_the_report_names_machine_date_errors_and_worst_term_and_repeats_its_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, measured=scaled(3.0), started=86400.0 * 366)
    assert main(["report", "--results", str(tmp_path), "--no-page", "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    text = (tmp_path / "TABLES.md").read_text(encoding="utf-8")
    assert reported["setups"] == 1
    assert reported["largest_error"] == reported["median_error"] == pytest.approx(2 / 3)
    assert "Measured 1971-01-02." in text
    asked = "15% in the median (missed), 30% at most (missed by 1), 10% unexplained at most (met)."
    assert f"Asked: {asked}" in text
    row = next(line for line in text.splitlines() if line.startswith("| small"))
    cells = [cell.strip() for cell in row.split("|")][5:-1]
    assert cells == [
        "1",
        "800.0 ms",
        "2,400.0 ms",
        "200.0 % slower",
        "-",
        "-",
        "backward",
        "29.2 % slower",
        "6.3%",
        "12%",
    ]
    assert main(["report", "--results", str(tmp_path), "--no-page", "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "TABLES.md").read_text(encoding="utf-8") == text


def test_the_error_at_the_cpu_speed_of_a_launch_stands_beside_its_own(tmp_path: Path) -> None:
    at_pace = Figure(quantity=Quantity.STEP_SECONDS_AT_CPU_SPEED, value=1.2)
    record(tmp_path, measured=scaled(2.0), started=1000.0, predicted=[*figures(PREDICTED), at_pace])
    record(tmp_path, measured=scaled(1.0), started=1000.0, job={"compiled": True})
    rows = step_times(launches(tmp_path)[0])
    assert [*rows.error_at_speed] == [pytest.approx(math.nan, nan_ok=True), pytest.approx(1.2 / 1.6 - 1)]
    text = step_tables(rows)
    assert "| 100.0 % slower | 1.50 | 33.3 % slower |" in text
    assert "Corrected for the CPU's speed (1 setups): 25.0% in the median, 25.0% at most." in text


def test_single_launches_are_judged_beside_the_medians_of_several(tmp_path: Path) -> None:
    for factor in (0.9, 1.0, 3.0):
        record(tmp_path, measured=scaled(factor), started=1000.0 * factor)
    text = step_tables(step_times(launches(tmp_path)[0]))
    assert "1 setups: absolute error of step_seconds 0.0% in the median, 0.0% at most" in text
    assert "Of their 3 launches, one by one: 11.1% in the median, 66.7% at most; 1 beyond 30%." in text
    alone = tmp_path / "alone"
    record(alone, measured=scaled(1.0), started=1000.0)
    assert "one by one" not in step_tables(step_times(launches(alone)[0]))


def on_gpu(results: Path, run: str, rate: float, **changes: Any) -> LaunchSummary:
    """A launch on one H200 with so many model flop a second."""
    (own,) = launches(results)[0]
    measured = Values({(Quantity.MODEL_FLOP_PER_SECOND.value, None, None, None): 0}, (rate,))
    hardware = own.hardware | {"gpus": "NVIDIA H200"}
    usual = {"run": run, "hardware": hardware, "device": "cuda", "ranks": 1, "measured": measured, "compiled": True}
    usual |= {"global_batch": {"gpt2-124m": 512, "gpt2-124m-ladder": 512, "gpt2-1558m": 1024}.get(run, 64)}
    return msgspec.structs.replace(own, **usual | changes)


def test_a_gpu_s_utilisation_is_unmeasured_until_it_is_recorded(tmp_path: Path) -> None:
    record(tmp_path, measured=MEASURED, started=1000.0)
    known = launches(tmp_path)[0]
    assert utilisation_table(known).count("| unmeasured |") == len(ASKED)
    lines = utilisation_table([*known, on_gpu(tmp_path, "gpt2-124m", 0.5 * 989.4e12)]).splitlines()
    (line,) = [line for line in lines if "gpt2-124m" in line]
    assert "| 1 | 50.0% | 50% | 1970-01-01 |" in line
    assert sum("unmeasured" in line for line in lines) == len(ASKED) - 1


def test_launches_of_other_kernels_optimizations_or_versions_share_no_row(tmp_path: Path) -> None:
    record(tmp_path, measured=MEASURED, started=1000.0)

    def launch(share: float, **changes: Any) -> LaunchSummary:
        given = on_gpu(tmp_path, "gpt2-124m", share * 989.4e12)
        policy = given.policy | changes.pop("policy", {})
        software = given.software | {"torch": "2.13.0", "triton": "3.7.1"} | changes.pop("software", {})
        return msgspec.structs.replace(given, policy=policy, software=software, **changes)

    script = '{"pinned":true,"optimizations":["epilogues","one-pass-update"]}'
    known = [
        launch(0.40),
        launch(0.42),
        launch(0.30, compiled=False),
        launch(0.44, policy={"kernels": "triton"}),
        launch(0.46, policy={"script": script}),
        launch(0.38, software={"torch": "2.11.0", "triton": "3.6.0"}),
    ]
    shown = [line.split(" | ")[3:8] for line in utilisation_table(known).splitlines() if "gpt2-124m" in line]
    assert sorted(shown) == [
        ["torch", "epilogues, one-pass-update", "torch 2.13.0, triton 3.7.1", "1", "46.0%"],
        ["torch", "none", "torch 2.11.0, triton 3.6.0", "1", "38.0%"],
        ["torch", "none", "torch 2.13.0, triton 3.7.1", "2", "41.0%"],
        ["torch, eager", "none", "torch 2.13.0, triton 3.7.1", "1", "30.0%"],
        ["triton", "none", "torch 2.13.0, triton 3.7.1", "1", "44.0%"],
    ]
    assert "--kernels triton --optimizations none`" in utilisation_table(known)
    assert "--optimizations epilogues,one-pass-update`" in utilisation_table(known)


def test_another_batch_is_a_row_of_its_own_of_which_nothing_is_asked(tmp_path: Path) -> None:
    record(tmp_path, measured=MEASURED, started=1000.0)
    rates = {("gpt2-1558m", 64): 0.48, ("gpt2-1558m-b64", 64): 0.46, ("gpt2-1558m", 1024): 0.52}
    known = [
        on_gpu(tmp_path, run, share * 989.4e12, global_batch=batch) for (run, batch), share in sorted(rates.items())
    ]
    shown = [line for line in utilisation_table(known).splitlines() if "gpt2-1558m" in line]
    assert [line.split(" | ")[1] for line in shown] == ["64", "1024"]
    assert "| 2 | 47.0% | - |" in shown[0]
    assert "--global-batch 64 " in shown[0]
    assert "| 1 | 52.0% | 58% |" in shown[1]
    assert "--global-batch" not in shown[1]
    (_, missing) = [line for line in utilisation_table(known[:1]).splitlines() if "gpt2-1558m" in line]
    assert missing.startswith("| gpt2-1558m | 1024 | - |")
    assert "| unmeasured | 58% |" in missing


def test_launches_with_8_bit_gemms_have_a_table_of_their_own_and_no_mfu(tmp_path: Path) -> None:
    record(tmp_path, measured=MEASURED, started=1000.0)
    in_8_bits = on_gpu(tmp_path, "gpt2-1558m", 0.6 * 989.4e12, product_format="fp8-current", global_batch=64)
    assert utilisation_table([in_8_bits]) == utilisation_table([])
    assert format_table([on_gpu(tmp_path, "gpt2-1558m", 0.5 * 989.4e12)]) == ""
    (title, _, line) = format_table([in_8_bits]).splitlines()
    assert "| bf16-equivalent | of the format's peak |" in title
    assert "| fp8-current | 1 | 60.0% | 30.0% | 1970-01-01 |" in line
    assert line.endswith("--global-batch 64 --gemm-dtype fp8-current --optimizations none` |")


def test_what_is_asked_of_a_gpu_can_be_asked_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.reproduce.plan.resolved_device", lambda _: ("cuda", 1))
    for asked in ASKED:
        assert asked.command == f"reproduce {asked.run} --device cuda --ranks 1"
        planned = plan(Request(name=asked.run, device="cuda", ranks=1, results=tmp_path))
        assert planned.name == asked.run
        assert planned.recipe.global_batch == (asked.batch or planned.recipe.global_batch)


def test_a_gpu_s_utilisation_has_the_fastest_rung_of_a_ladder_by_its_name(tmp_path: Path) -> None:
    """Not that of the largest share: fp32's peak is smaller. Leave-one-out runs and ablated rungs do not count."""
    record(tmp_path, measured=MEASURED, started=1000.0)
    peak = 989.4e12
    ladder = [
        on_gpu(tmp_path, "gpt2-124m-ladder", rate, rung=rung, precision=precision, ranks=2 if "ddp" in rung else 1)
        for rung, rate, precision in (
            ("speed/offline", 60e12, "fp32"),
            *(("speed/mixed-precision", share * peak, "bf16") for share in (0.4, 0.5, 0.6)),
            *(
                (rung, 0.7 * peak, "bf16")
                for rung in ("speed/top without compile", "speed/compile, ablated", "speed/ddp")
            ),
        )
    ]
    (line,) = [line for line in utilisation_table(ladder).splitlines() if "gpt2-124m" in line]
    assert "| 3 | 50.0% | 50% | 1970-01-01 |" in line
    assert line.endswith("| `ladder gpt2-124m --device cuda`: its fastest rung on one GPU, `mixed-precision` |")


def test_a_record_s_rung_is_read_with_the_rest(tmp_path: Path) -> None:
    record(tmp_path, measured=MEASURED, started=1000.0, job={"training_options": TrainingOptions(rung="speed/compile")})
    (launch,) = launches(tmp_path)[0]
    assert launch.rung == "speed/compile"


def test_nothing_recorded_is_code_3_and_a_damaged_record_is_named_left_out_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert step_tables(step_times([])) == ""
    assert main(["report", "--results", str(tmp_path), "--no-page"]) == 3
    assert not (tmp_path / "TABLES.md").exists()
    record(tmp_path, measured=MEASURED, started=1000.0)
    (tmp_path / "records" / "small" / "x.begin.json").write_text("{", encoding="utf-8")
    capsys.readouterr()
    assert main(["report", "--results", str(tmp_path), "--no-page"]) == 2
    assert "x.begin.json" in capsys.readouterr().err
    assert "| small |" in (tmp_path / "TABLES.md").read_text(encoding="utf-8")


def test_a_directory_that_is_a_file_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, measured=MEASURED, started=1000.0)
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["report", "--results", str(tmp_path), "--out", str(tmp_path / "file"), "--no-page"]) == 2
    assert "cannot write TABLES.md" in capsys.readouterr().err
