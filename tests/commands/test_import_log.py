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
    configuration(tmp_path)
    assert main(["import", str(log(tmp_path, benchmark="llama2_70b_lora")), "--json"]) == 0
    entry = json.loads(capsys.readouterr().out)
    assert entry["cells"]["model"] == "Llama 2 70B LoRA"
    assert len(load_table(Path("result_0.csv")).rows) == 0


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
