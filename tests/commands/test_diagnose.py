"""`diagnose`: the verdict first, then what it rests on; one line for what cannot be diagnosed."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from suite.__main__ import main
from suite.paths import ROOT
from tests.support.answers import whole

GPT2 = ("--run", "gpt2-124m", "--on", "a100-sxm-80gb", "--gpus", "8", "--batch", "480", "--layout", "dp8,micro12")


def nanogpt(path: Path, *milliseconds: float, mfu: float | None = None) -> str:
    end = "" if mfu is None else f", mfu {mfu:.2f}%"
    lines = [f"iter {number}: loss 4.0, time {each:.2f}ms{end}" for number, each in enumerate(milliseconds)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    code = main(["diagnose", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)["diagnosis"]


def predicted(capsys: pytest.CaptureFixture[str]) -> float:
    assert main(["predict", *GPT2[1:], "--stack", "pytorch", "--json"]) == 0
    return whole(json.loads(capsys.readouterr().out))["step_seconds"]


def test_20_undisturbed_runs_are_as_expected_and_have_no_cause(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    usual, draw = predicted(capsys), random.Random(7)
    for number in range(20):
        speed = draw.uniform(0.9, 1.1)
        times = [1000 * usual * speed * draw.gauss(1, 0.01) for _ in range(40)]
        code, found = answer(capsys, nanogpt(tmp_path / f"{number}.log", *times), *GPT2)
        assert (code, found["outcome"], found["causes"]) == (0, "as expected", [])


def test_a_slow_run_has_causes_and_its_mfu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = nanogpt(tmp_path / "train.log", *[5000 * predicted(capsys)] * 10)
    code, found = answer(capsys, log, *GPT2)
    assert (code, found["outcome"]) == (1, "slow")
    assert "links inside the node" in found["causes"][0]["words"]
    main(["diagnose", log, *GPT2])
    text = capsys.readouterr().out
    assert text.startswith(f"slow: {log}, a step is 5 times as long as predicted")
    assert len(text.splitlines()) <= 25


def test_a_printed_mfu_by_another_parts_peak_is_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    on_h100 = ("--run", "gpt2-124m", "--on", "h100-sxm", "--gpus", "8", "--batch", "480", "--layout", "dp8,micro12")
    code, found = answer(capsys, "--step-time", "0.3", *on_h100, "--stack", "pytorch")
    assert isinstance(found["mfu"], float)
    by_a100 = 100 * found["mfu"] * 989.4 / 312
    code, found = answer(capsys, "--step-time", "0.3", "--mfu", str(by_a100), *on_h100, "--stack", "pytorch")
    assert code == 1
    (counted,) = found["counted"]
    assert counted["wrong"]
    assert "an A100" in counted["explanation"]


def test_an_mfu_above_1_needs_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--mfu", "200", "--on", "b200"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("counted wrongly: no run has an MFU of 200.0 %")
    assert "peak of an A100: 27.7 %" in out


def test_a_step_that_needs_more_than_the_peak_is_implausible(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer(capsys, "--step-time", "0.01", *GPT2)
    assert (code, found["outcome"]) == (1, "implausible")


def test_two_logs_are_compared_by_sample_and_accelerator(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = "iteration {}/ 9 | elapsed time per iteration (ms): {} | global batch size: {} | lm loss: 2.0E+00 |"
    paths = []
    for name, gpus, milliseconds, batch in (("two", 16, 900, 64), ("one", 8, 300, 32)):
        lines = [f" world_size ...... {gpus}", *(line.format(number, milliseconds, batch) for number in range(5))]
        paths.append(tmp_path / f"{name}.log")
        paths[-1].write_text("\n".join(lines), encoding="utf-8")
    assert main(["diagnose", str(paths[0]), "--against", str(paths[1])]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert f"3 times as long as {paths[1]}, each sample and accelerator" in out
    assert "messages between 16 accelerators in place of 8" in out
    assert main(["diagnose", str(paths[1]), "--against", str(paths[0]), "--json"]) == 0


def test_a_trainers_last_rate_of_one_process_is_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "  Total train batch size (w. parallel, distributed & accumulation) = 8\n"
        "100%|###| 100/100 [04:10<00:00,  2.50s/it]\n"
        "{'train_runtime': 250.0, 'train_tokens_per_second': 4096.0, 'num_input_tokens_seen': 8192000}\n",
        encoding="utf-8",
    )
    code, found = answer(capsys, str(log))
    assert (code, found["outcome"]) == (1, "counted wrongly")
    assert "one of 8 processes" in found["counted"][0]["explanation"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "nothing to time; allowed: a log, or --step-time, or --mfu with --on alone"),
        (("--tokens-per-second", "100"), "a rate alone makes no step time"),
        (("--step-time", "-1"), "--step-time"),
        (("--step-time", "1", "--against-gpus", "8"), "is of the other run"),
        (("--step-time", "1", "--against-gpus", "-8"), "--against-gpus"),
        (("/dev/zero",), "not a regular file"),
        (("none.log",), "cannot read the log: No such file"),
        (("--step-time", "1", "--against", "none.log"), "cannot read the log: No such file"),
        (("--step-time", "1", "--against-batch", "8"), "is of the other run"),
        (("--step-time", "1", "--against", "none.log", "--against-step-time", "1"), "excludes --against"),
        (("none.log", "--html", "train.log"), "not a page's name"),
        (("none.log", "--html", "/none/page.html"), "cannot write: No such file"),
        (("--mfu", "200", "--on", "b200", "--html", "page.html"), "a page is of one run with its times"),
        (("--step-time", "2", "--against-step-time", "1", "--html", "page.html"), "a page is of one run"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", *words]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert len(error.splitlines()) == 1


def test_a_log_without_a_run_is_timed_and_nothing_is_predicted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = main(["diagnose", nanogpt(tmp_path / "train.log", *[100.0] * 8)])
    assert code == 3
    out = capsys.readouterr().out
    assert out.startswith("not predicted: ")
    assert "step 0.1 s (median of 5 after the first 3" in out


def test_a_log_of_another_model_is_said_to_be_one_and_has_no_candidates(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = "iteration {}/ 99 | elapsed time per iteration (ms): 60000 | throughput per GPU (TFLOP/s/GPU): 400.0 | x |"
    log = tmp_path / "train.log"
    log.write_text("\n".join(line.format(number) for number in range(8)), encoding="utf-8")
    options = ("--run", "llama2-7b", "--on", "h100-sxm", "--gpus", "8", "--batch", "64", "--layout", "dp8,zero1")
    code, found = answer(capsys, str(log), *options)
    assert (code, found["outcome"], found["causes"]) == (1, "counted wrongly", [])
    assert "times the work of this model in this batch: another model" in found["notes"][0]


def test_a_log_in_parts_is_read_in_their_order_packed_or_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = [f"iter {number}: loss 4.0, time {100 + number}.00ms\n" for number in range(30)]
    names = ["train.log.2", "train.log.1", "train.log"]
    for place, name in enumerate(names):
        (tmp_path / name).write_text("".join(lines[10 * place : 10 * place + 10]))
    (tmp_path / "train.log.2.gz").write_bytes(gzip.compress((tmp_path / "train.log.2").read_bytes()))
    whole = answer(capsys, nanogpt(tmp_path / "whole.log", *range(100, 130)))
    for order in (names, sorted(names), ["train.log", "train.log.1", "train.log.2.gz"]):
        assert answer(capsys, *(str(tmp_path / name) for name in order)) == whole


def test_of_a_cut_off_gzip_file_what_comes_before_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    draw = random.Random(1)
    log = Path(nanogpt(tmp_path / "train.log", *(draw.uniform(100, 110) for _ in range(5000))))
    packed = gzip.compress(log.read_bytes())
    (tmp_path / "cut.log.gz").write_bytes(packed[: len(packed) // 2])
    code, found = answer(capsys, str(tmp_path / "cut.log.gz"))
    assert code == 3
    assert found["notes"] == ["the file is damaged or cut off: what comes before was read"]
    assert 2000 < found["pace"]["steps"] < 4000


def test_the_time_may_stand_beside_a_log_without_steps(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("n_gpus=16\nnum_gpus_per_node: 8\nall GPUs are at 100 %\n")
    assert main(["diagnose", str(log), "--step-time", "8", "--against-step-time", "1", "--against-gpus", "8"]) == 1
    assert "cause 1: messages between 16 accelerators in place of 8" in capsys.readouterr().out


def test_a_step_that_does_not_shrink_with_its_batch_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--step-time", "0.129", "--batch", "1", "--gpus", "1")
    large = ("--against-step-time", "0.142", "--against-batch", "32", "--against-gpus", "1")
    assert main(["diagnose", *small, *large, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["slowdown"] == pytest.approx(0.129 * 32 / 0.142)
    assert found["causes"][0]["words"].startswith("costs that do not shrink with the batch")
    twice = ("--against-step-time", "0.258", "--against-batch", "2", "--against-gpus", "1")
    assert main(["diagnose", *small, *twice, "--json"]) == 0


def test_a_change_that_takes_as_much_longer_as_one_run_than_the_other_is_a_candidate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = ("--run", "gpt2-124m", "--on", "a100-sxm-80gb", "--gpus", "1", "--batch", "60", "--layout", "dp1,micro12")
    seconds = {}
    for attention in ("fused", "unfused"):
        words = [*run[:-1], f"{run[-1]},{attention}"]
        _, found = answer(capsys, "--step-time", "1", *words, "--stack", "pytorch")
        seconds[attention] = 3 * found["predicted_seconds"]
    times = ("--step-time", str(seconds["unfused"]), "--against-step-time", str(seconds["fused"]))
    assert main(["diagnose", *run, "--stack", "pytorch", *times, "--json"]) == 1
    first = json.loads(capsys.readouterr().out)["causes"][0]
    assert first["words"] == "attention without a fused kernel"
    assert first["seconds"] == pytest.approx(seconds["unfused"] - seconds["fused"], rel=1e-3)


def test_times_of_line_stamps_are_said_to_be_such(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    line = "[titan] 2026-02-24 19:46:{:02},000 - root - INFO - step: {}  loss: 7.6  memory: 1.0GiB(1%)  tps: 10  x"
    log.write_text("\n".join(line.format(2 * number, number) for number in range(1, 20)))
    code, found = answer(capsys, str(log))
    assert (code, found["pace"]["seconds"]) == (3, 2.0)
    assert any("between the stamps of the lines" in note for note in found["notes"])


def test_megatrons_data_parallel_ranks_contain_those_of_experts(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--run", "mixtral-8x7b", "--on", "h100", "--gpus", "16", "--layout", "dp8,tp2,ep8")
    assert main(["diagnose", *options, "--step-time", "5"]) == 2
    assert "allowed: 16: dp1,tp2,ep8, where dp counts no ranks of ep" in capsys.readouterr().err


def test_each_row_of_a_table_is_diagnosed_and_one_in_full(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = (ROOT / "reference_runs/published/megatron_sc21_table1.csv").read_text(encoding="utf-8").splitlines()
    slow = lines[1].replace(",3.528,", ",7.056,")
    table = tmp_path / "mine.csv"
    table.write_text("\n".join([lines[0], lines[1], slow, lines[2]]), encoding="utf-8")
    assert main(["diagnose", str(table)]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "3 rows: 2 as expected, 1 slow"
    assert printed[1].startswith("line 3, slow: GPT-1.7B, 7.056 s, a step is 2.04 times as long as predicted;")
    assert main(["diagnose", str(table), "--row", "2", "--tflops", "137", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["diagnosis"]
    assert found["pace"]["seconds"] == 3.528
    assert found["counted"][0]["explanation"] == "counted as megatron-eq3-recomputed"
    assert main(["diagnose", str(table), "--row", "5"]) == 2
    assert "no row with a step time in line 5; allowed: lines 2, 3, 4" in capsys.readouterr().err
    assert main(["diagnose", str(table), "--mfu", "50"]) == 2
    assert "several rows; allowed: --row LINE" in capsys.readouterr().err
    assert main(["diagnose", str(table), "--run", "gpt2-124m"]) == 2
    assert "a row is of one table" in capsys.readouterr().err


def test_a_step_of_narrow_products_may_exceed_the_peak_of_bf16(capsys: pytest.CaptureFixture[str]) -> None:
    table = ROOT / "reference_runs/published/megatron_bridge_25_09_26_02.csv"
    assert main(["diagnose", str(table), "--row", "57"]) == 0  # NVFP4 on a GB200
    printed = capsys.readouterr().out
    assert printed.startswith("as expected: ")
    assert "MFU 113.0 %" in printed
    assert "of the dense bf16 peak" in printed
