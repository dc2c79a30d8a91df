"""`import` of a log of MLPerf Training writes the row that `validate` predicts."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from reference_runs.published import load_table
from reference_runs.published_tables import PUBLISHED
from suite.__main__ import main
from tests.reference_runs.test_mlperf_layout import written as configuration
from tests.reference_runs.test_mlperf_log import line
from tests.reference_runs.test_mlperf_log import written as log_of

STEP = 13.38514  # s, MLPerf Training 3.0, 64 nodes of 8 H100, with the configuration of test_mlperf_layout
TOKENS = 2048 * 2048


def log(directory: Path, *, benchmark: str = "gpt3", batch: int = 2048, status: str = "success") -> Path:
    events = [line(0, "submission_benchmark", benchmark), line(0, "submission_org", "NVIDIA"), line(0, "seed", 7)]
    events += [line(0, "global_batch_size", batch), line(0, "max_sequence_length", 2048), line(0, "run_start")]
    for block in range(3):
        began = 100 + block * 1000
        events.append(line(began, "block_start", first_epoch_num=24 * TOKENS * block))
        events.append(line(began + 24 * STEP, "block_stop", epoch_num=24 * TOKENS * (block + 1)))
        events += [line(began + 24 * STEP, "eval_start"), line(began + 900, "eval_stop")]
    return log_of(directory / "result_0.txt", *events, line(4000, "run_stop", status=status))


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")


def test_the_row_is_the_published_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configuration(tmp_path)
    assert main(["import", str(log(tmp_path)), "--network", "3200"]) == 0
    out = capsys.readouterr().out
    assert "step time: median of 3 blocks, without evaluations, whose work the log counts in tokens" in out
    assert "validate result_0.csv" in out
    (row,) = load_table(Path("result_0.csv")).rows
    rows = load_table(PUBLISHED / "mlperf_gpt3_h100_fp8.csv").rows
    published = next(row for row in rows if row.layout.ranks == 512)  # of a later round, in the same layout
    assert row.step_seconds == pytest.approx(STEP, rel=1e-5)  # six digits are written
    assert (row.architecture.layers, row.architecture.hidden) == (96, 12288)
    for field in ("data_parallel", "tensor_parallel", "pipeline_stages", "virtual_stages", "micro_batch"):
        assert getattr(row.layout, field) == getattr(published.layout, field), field
    assert (row.accelerator, row.recipe.global_batch) == ("h100-sxm", 2048)
    assert row.recipe.product_format is published.recipe.product_format
    assert row.origin.startswith("mlperf_gpt3_h100_fp8: source matches")
    assert "MLPerf Training gpt3, NVIDIA, result_0.txt, seed 7" in Path("result_0.csv").read_text(encoding="utf-8")
    assert main(["validate", "result_0.csv"]) == 0


def test_options_say_what_the_files_do_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--on", "h200", "--gpus", "64", "--micro-batch", "2", "--stack", "megatron-core", "--precision", "bf16")
    assert main(["import", str(log(tmp_path, status="aborted")), *options, "--output", "-"]) == 0
    (cells,) = csv.DictReader(capsys.readouterr().out.splitlines())
    stated = {"gpu": "h200", "gpus": "64", "micro_batch": "2", "framework": "megatron-core", "dtype": "bf16"}
    assert {column: cells[column] for column in stated} == stated
    assert (cells["dp"], cells["tp"], cells["status"], cells["model"]) == ("", "", "aborted", "GPT-3 175B")
    assert not Path("result_0.csv").exists()


def test_a_row_of_lora_names_it_so_that_it_is_not_taken_for_full_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--on", "h100", "--gpus", "8", "--micro-batch", "1")
    assert main(["import", str(log(tmp_path, benchmark="llama2_70b_lora")), *options, "--json"]) == 0
    entry = json.loads(capsys.readouterr().out)
    assert entry["cells"]["model"] == "Llama 2 70B LoRA"
    (row,) = load_table(Path("result_0.csv")).rows
    assert (row.architecture.layers, row.recipe.adapter_rank) == (80, 16)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--recipe", "llama2-70b"), "--recipe: belongs to the configuration of a model, and not to the log of a run"),
        (("--batch", "8"), "--batch: belongs to the configuration of a model, and not to the log of a run; got 8"),
        (("--config", "none.sh"), "none.sh: cannot read the configuration: No such file or directory"),
        (("--output", "row.toml"), "--output: not a table's name; got row.toml, allowed: one ending in .csv"),
        (("--stack", "nothing"), "--stack: unknown stack; got 'nothing'"),
        ((), "--on: neither log nor configuration names an accelerator"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(
    options: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--on", "h100") if "--output" in options else ()
    assert main(["import", str(log(tmp_path)), *options, *where]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert words in error
    assert not list(tmp_path.glob("*.csv"))


def test_the_configuration_of_another_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configuration(tmp_path)
    assert main(["import", str(log(tmp_path, batch=1024))]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "128 (MINIBS) * 16 (dp) = 2048 samples, but the log's batch is 1024" in error


DISCLOSED = {
    **{"lowest_numerical_precision_in_linear": "nvfp4", "lowest_numerical_precision_in_attn": "bfloat16"},
    **{"tensor_parallelism": 1, "pipeline_parallelism": 1, "context_parallelism": 2, "expert_parallelism": 1},
    **{"micro_batch_size": 2, "gradient_accumulation_steps": 2, "number_of_ranks": 16, "train_samples": 1574207408},
    **{"opt_name": "adamw", "opt_base_learning_rate": 0.0008, "max_steps": 1200000, "target_accuracy": 3.3},
}


def whole_log(directory: Path, **disclosed: object) -> Path:
    """The log of a run by the rules of version 6.1, with all that they ask for, output of training between."""
    events = [line(0, "cache_clear", True), line(0, "init_start"), line(0, "submission_benchmark", "llama31_8b")]
    events += [line(0, "submission_org", "NVIDIA"), line(0, "submission_platform", "2xNVIDIA DGX B300")]
    events += [line(0, "global_batch_size", 32), line(0, "max_sequence_length", 8192), line(0, "seed", 1234)]
    events += [line(0, key, value) for key, value in (DISCLOSED | disclosed).items()]
    events += [line(60, "init_stop"), line(60, "run_start")]
    now = 60.0
    for block in range(14):
        done = block * 384 * 32
        events.append(line(now, "block_start", samples_count=done, step=done // 32))
        for step in range(32, 385, 32):
            at = {"samples_count": done + 32 * step, "step": done // 32 + step}
            events += [line(now + 0.412 * step, "tracked_stats", {"throughput": 77.7, "train_loss": 4.2}, **at)]
            events += [f"{rank}: [NeMo I 2026-10-10] Training epoch 0, iteration {step}" for rank in range(16)]
        now += 384 * 0.412 + (9 if block == 0 else 0)
        count = {"samples_count": done + 384 * 32}
        events += [line(now, "block_stop", **count), line(now, "eval_start", **count)]
        events += [line(now + 8, "eval_accuracy", 4.0, **count), line(now + 8, "eval_stop", **count)]
        now += 8
    return log_of(directory / "result_0.txt", *events, line(now, "run_stop", status="success", samples_count=172032))


def test_a_whole_log_says_its_own_layout_and_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(whole_log(tmp_path))]) == 0
    assert "tp, pp, cp, ep, micro_batch, dtype: as events of the log say" in capsys.readouterr().out
    (row,) = load_table(Path("result_0.csv")).rows
    assert row.step_seconds == pytest.approx(0.412, rel=1e-5)  # the first block, which warms up, is not the median
    assert (row.accelerator, row.layout.context_parallel, row.layout.data_parallel) == ("b300-sxm", 2, 8)
    assert (row.layout.micro_batch, row.recipe.product_format.value) == (2, "nvfp4")


def test_a_log_and_a_configuration_of_different_layouts_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configuration(tmp_path)
    assert main(["import", str(whole_log(tmp_path))]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "in the configuration, " in error
