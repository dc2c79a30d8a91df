"""Predictions are scored against tables; bad ones are refused in a line, incomplete rows named."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.published import STEP, load_table
from reference_runs.published_tables import PUBLISHED, held_out_tables, shipped_tables
from reference_runs.stack import stacks
from suite.__main__ import main
from suite.predict.validation.published_tables import best_constant, row_prediction

KEYS = ["table", "rows", "used", "skipped", "step_seconds_mape", "constant_mfu_mape", "peak_bytes_mape", "worst"]
SCORED = [*shipped_tables(), *held_out_tables()]


def recorded(name: str) -> list[dict[str, str]]:
    with open(PUBLISHED / f"{name}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def written(path: Path, rows: list[dict[str, str]]) -> str:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def scores(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[dict]:
    assert main(["validate", *arguments, "--json"]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_without_arguments_every_published_table_is_scored(capsys) -> None:
    found = scores(capsys)
    assert [score["table"] for score in found] == [path.stem for path in SCORED]
    for score in found:
        assert list(score)[: len(KEYS)] == KEYS
        assert score["used"] + score["skipped"] == score["rows"]
        assert len(score["skipped_rows"]) == score["skipped"]
        assert score["used"] > 0
        assert score["implausible_rows"] == []
        assert len(score["worst"]) == 5
        apart = [abs(math.log(row["predicted_seconds"] / row["measured_seconds"])) for row in score["worst"]]
        assert apart == sorted(apart, reverse=True)
        assert 0 <= abs(score["step_seconds_bias"]) <= score["step_seconds_mape"] <= abs(score["step_seconds_max"])
        assert 0 < score["constant_mfu"] < 1
    assert {score["table"] for score in found if score["peak_bytes_mape"] is not None} == {
        "real_runs",
        "playbook_h100_1b",
        "torchtitan_202412",
        "torchtitan_202412_405b",
    }


def test_errors_are_those_of_the_rows(capsys, tmp_path) -> None:
    """A table whose times are scaled by known factors from the prediction has those errors."""
    rows = recorded("megatron_sc21_table1")
    path = written(tmp_path / "own.csv", rows)
    (score,) = scores(capsys, path, "--worst", "10")
    predicted = {each["line"]: each["predicted_seconds"] for each in score["worst"]}
    factors = [0.55, 0.8, 1, 1, 1, 1, 1, 1, 1, 2]
    for line, (row, factor) in enumerate(zip(rows, factors, strict=True), start=2):
        row[STEP] = repr(predicted[line] * factor)
    (score,) = scores(capsys, written(tmp_path / "own.csv", rows), "--worst", "2")
    assert score["step_seconds_mape"] == pytest.approx((900 / 11 + 25 + 50) / 10)
    assert score["step_seconds_bias"] == pytest.approx((900 / 11 + 25 - 50) / 10)
    assert score["step_seconds_max"] == pytest.approx(900 / 11)
    assert [each["line"] for each in score["worst"]] == [11, 2]  # twice the seconds is further off than 0.55 of them
    assert main(["validate", str(tmp_path / "own.csv"), "--worst", "2"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[-3:] for line in shown.splitlines() if line.split()[:1] in (["11"], ["2"])]
    assert "100.0 % slower" in shown
    assert "45.0 % faster" in shown


OWN = {
    **{"layers": "24", "hidden": "2048", "heads": "16", "seq_len": "2048", "vocab": "50257", "dtype": "bf16"},
    **{"gpu": "a100-sxm-80gb", "gpus": "8", "dp": "8", "tp": "1", "pp": "1", "global_batch": "64", "micro_batch": "4"},
}


def test_rows_of_memory_alone_are_the_worst_of_memory(capsys, tmp_path) -> None:
    rows = [OWN | {STEP: "", "measured_mem_gib_per_gpu": size} for size in ("20", "30")]
    path = written(tmp_path / "own.csv", rows)
    (score,) = scores(capsys, path)
    assert (score["used"], score["worst"]) == (2, [])
    far, near = score["worst_memory"]
    assert (far["line"], near["line"], far["measured_bytes"]) == (2, 3, 20 * 2**30)
    for each in (far, near):
        error = each["predicted_bytes"] / each["measured_bytes"] - 1
        assert each["error_percent"] == pytest.approx(100 * error)
    (score,) = scores(capsys, path, "--worst", "1")
    assert [each["line"] for each in score["worst_memory"]] == [2]
    assert main(["validate", path]) == 0
    assert "memory: line" in capsys.readouterr().out


def test_a_time_that_no_machine_reaches_is_remarked(capsys, tmp_path) -> None:
    path = written(tmp_path / "own.csv", [OWN | {STEP: seconds} for seconds in ("0.95", "0.2")])
    (score,) = scores(capsys, path)
    (row,) = score["implausible_rows"]
    assert row["line"] == 3
    assert re.match(r"\d{3}% of the peak, with that half of attention alone that a causal mask leaves", row["reason"])
    assert main(["validate", path]) == 0
    assert "implausible: own, line 3: " in capsys.readouterr().out


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12))
def test_no_other_constant_is_nearer(ratios: list[float]) -> None:
    def error(constant: float) -> float:
        return sum(abs(constant * ratio - 1) for ratio in ratios)

    best = best_constant(ratios)
    least = min(error(1 / ratio) for ratio in ratios)  # convex and piecewise linear: one of the corners is the least
    assert error(best) <= least * (1 + 1e-9)


def test_the_confusion_of_fitting_and_running_counts_every_complete_row(capsys) -> None:
    (score,) = scores(capsys, str(PUBLISHED / "playbook_h100_1b.csv"))
    fits, rows = score["fits"], recorded("playbook_h100_1b")
    assert fits["fits_and_ran"] + fits["exceeds_and_ran"] == sum(row["status"] == "ok" for row in rows)
    incomplete = sum(row["status"] != "ok" and int(row["pp"]) > int(row["layers"]) for row in rows)
    failed = sum(row["status"] != "ok" for row in rows)
    assert fits["fits_and_failed"] + fits["exceeds_and_failed"] == failed - incomplete


def test_a_row_fits_where_its_predicted_peak_is_within_the_accelerators_memory(capsys, tmp_path) -> None:
    # 1.7 and 1,008 billion parameters on 32 and 8 accelerators of 80 GB: 27 GB and 2 TB of state on each
    small, *_, large = recorded("megatron_sc21_table1")
    large |= {"pp": "1", "vpp": "1", "dp": "1", "gpus": "8", "global_batch": "1"}
    failed = {"status": "oom", STEP: ""}
    rows = [small, small | failed, small | failed, large | failed, large | failed, large | failed]
    (score,) = scores(capsys, written(tmp_path / "own.csv", rows))
    assert score["fits"] == {"fits_and_ran": 1, "fits_and_failed": 2, "exceeds_and_ran": 0, "exceeds_and_failed": 3}


def test_all_tables_are_a_line_each_and_the_worst_rows_of_all(capsys) -> None:
    assert main(["validate", "--worst", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [path.stem for path in SCORED]
    assert [line.split()[0] for line in lines[1 : len(names) + 1]] == names
    worst = lines[len(names) + 2 :]
    assert worst[0].startswith("worst rows: table")
    apart = [re.search(r"([\d.]+) % (slower|faster)", line) for line in worst[1:4]]
    factors = [float(found[1]) for found in apart]
    assert sorted(factors, reverse=True) == factors
    below = worst[4:] if worst[4].startswith("step") else worst[5:]  # where a column does not fit, a line says so
    assert below[0].startswith("step time, constant MFU, peak memory: mean absolute error")
    words = "of 546 measured peaks are inside the 80 % interval that predict prints"
    (held,) = (line for line in lines if line.endswith(words))
    assert 75 <= int(held.split()[0]) <= 88
    assert len(lines) == len(names) + 11


def test_all_that_is_known_of_every_table_is_printed_on_request(capsys) -> None:
    assert main(["validate", "--all", "--worst", "1"]) == 0
    out = capsys.readouterr().out
    assert out.count("  source: ") == len(SCORED)
    assert out.count("worst: line") == len(SCORED)


def test_a_table_for_people_names_what_was_skipped_assumed_and_missed(capsys) -> None:
    assert main(["validate", str(PUBLISHED / "playbook_h100_1b.csv"), "--worst", "1", "--all"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in (
        "and 223 more: status is failed_or_oom",
        "assumed where blank, each in 195 rows: ",
        "predicted not to fit",
        "worst: line",
        "constant MFU",
    ):
        assert words in out


def test_each_incomplete_row_of_an_own_table_is_named(capsys, tmp_path) -> None:
    rows = recorded("megatron_sc21_table1")
    rows[3] |= {"layers": "", "hidden": "", "heads": ""}
    rows[5] |= {"seq_len": "long"}
    path = written(tmp_path / "own.csv", rows)
    (score,) = scores(capsys, path)
    assert (score["used"], score["skipped"]) == (8, 2)
    assert score["skipped_rows"] == [
        {"line": 5, "reason": "layers, hidden, heads are blank, and no recorded run is called 'GPT-18B'"},
        {"line": 7, "reason": "seq_len: expected a number from 0 to 1e+18; got 'long'"},
    ]
    assert main(["validate", path]) == 0
    assert "skipped line 5: layers, hidden, heads are blank" in capsys.readouterr().out


def test_columns_of_an_own_table_that_are_not_read_are_named(capsys, tmp_path) -> None:
    path = written(tmp_path / "own.csv", [OWN | {STEP: "1", "params": "2", "Nodes": "8"}])
    (score,) = scores(capsys, path)
    assert score["columns_not_read"] == ["params", "Nodes"]
    assert main(["validate", path]) == 0
    assert "columns not read: params, Nodes\n" in capsys.readouterr().out
    (score,) = scores(capsys, written(tmp_path / "other.csv", [OWN | {STEP: "1"}]))
    assert score["columns_not_read"] == []
    (score,) = scores(capsys, str(shipped_tables()[0]))
    assert "columns_not_read" not in score


def test_a_table_with_predictions_has_its_separator_and_reasons_in_their_column(capsys, tmp_path) -> None:
    path, target = tmp_path / "own.csv", tmp_path / "out.csv"
    cells = OWN | {STEP: "1,5"}
    row, long = ";".join(cells.values()), ";".join([*cells.values(), "x", "y"])
    path.write_text(f"# ours\n{';'.join(cells)}\n{row};\n{long}\n", encoding="utf-8")
    assert main(["validate", str(path), "--write", str(target)]) == 0
    with open(target, newline="", encoding="utf-8") as file:
        good, bad = csv.DictReader(file, delimiter=";")
    assert {column: good[column] for column in cells} == cells
    assert float(good["predicted_step_time_s"]) > 0
    assert (good["not_predicted"], bad["predicted_step_time_s"]) == ("", "")
    assert bad["not_predicted"] == f"{len(cells) + 2} cells under a header of {len(cells)} columns"
    assert main(["validate", str(target)]) == 0


def test_reasons_are_counted_without_their_rows_numbers_and_with_the_columns_range(capsys, tmp_path) -> None:
    rows = [
        OWN | {STEP: "1"} | cells for cells in ({"dp": "4"}, {"dp": "2"}, {"seq_len": "long"}, {"seq_len": "short"})
    ]
    path = written(tmp_path / "own.csv", [*rows, OWN | {"dtype": "fp8", STEP: "1"}, OWN | {"gpu": "A1", STEP: "1"}])
    (score,) = scores(capsys, path, code=3)
    assert score["skipped_reasons"] == {
        "dp * tp * pp * cp = N, but gpus = N": 2,
        "seq_len: expected a number from 0 to 1e+18": 2,
        "a100-sxm-80gb computes no products in fp8-delayed": 1,
        "gpu: ... is not known": 1,
    }
    assert main(["validate", path]) == 3
    assert "skipped 6 of 6 rows: dp * tp * pp * cp = N, but gpus = N (2); " in " ".join(capsys.readouterr().out.split())


def test_assumptions_are_grouped_by_rows_and_by_the_run_that_they_are_of(capsys, tmp_path) -> None:
    shape = ("layers", "hidden", "heads", "seq_len", "vocab")
    named = OWN | dict.fromkeys(shape, "") | {"model": "meta-llama/Llama-2-7b-hf", "dtype": "amp_bf16", STEP: "9"}
    path = written(tmp_path / "own.csv", [named, named, OWN | {STEP: "1"}])
    assert main(["validate", path]) == 0
    out = " ".join(capsys.readouterr().out.split())
    read, of_run = (
        "read as, each in 2 rows: dtype amp_bf16 = bf16 ",
        "each in 2 rows, as llama2-7b has it: layers = 32, ",
    )
    assert out.index(read) < out.index(of_run)
    assert out.count("layers = 32") == 1
    assert "each in 1 row: position = learned, " in out


def test_products_in_fp8_are_predicted_to_take_less_time(tmp_path) -> None:
    rows = [OWN | {"gpu": "h100-sxm", "dtype": dtype, STEP: "0.5"} for dtype in ("bf16", "fp8")]
    wide, fp8 = load_table(Path(written(tmp_path / "own.csv", rows))).rows
    assert row_prediction(fp8).step_seconds < row_prediction(wide).step_seconds


def test_a_long_list_of_reasons_ends_with_a_count(capsys, tmp_path) -> None:
    rows = [recorded("megatron_sc21_table1")[0] | {"tp": f"x{place}"} for place in range(40)]
    assert main(["validate", written(tmp_path / "own.csv", rows), "--all"]) == 3
    assert "30 more rows for 30 other reasons" in capsys.readouterr().out


def test_a_table_without_a_usable_row_is_inconclusive(capsys, tmp_path) -> None:
    rows = [row | {STEP: ""} for row in recorded("megatron_sc21_table1")]
    (score,) = scores(capsys, written(tmp_path / "own.csv", rows), code=3)
    assert (score["used"], score["skipped"], score["step_seconds_mape"], score["worst"]) == (0, 10, None, [])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere.csv"], "error: nowhere.csv: cannot read the table: No such file or directory\n"),
        (["--worst", "-1"], "error: Invalid value for '--worst': -1 is not in the range 0<=x<=1000000.\n"),
    ],
)
def test_a_bad_argument_is_one_line(capsys, tmp_path, monkeypatch, arguments: list[str], line: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["validate", *arguments]) == 2
    assert capsys.readouterr().err == line


def test_a_table_of_something_else_is_refused_with_the_columns(capsys) -> None:
    assert main(["validate", str(PUBLISHED / "collectives_measured.csv")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: published/collectives_measured.csv: missing column layers, hidden, ")
    assert "allowed: layers, hidden, heads, vocab, seq_len, gpu, gpus, dp, tp, pp, global_batch" in err
    assert err.count("\n") == 1


def test_proxies_print_each_pair_and_the_plain_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--proxies"]) == 0
    printed = capsys.readouterr().out
    assert "16 on 128" in printed
    assert "without proxy" in printed
    assert main(["validate", "--proxies", "--json"]) == 0
    pairs = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(pairs) == 24
    assert pairs[0]["error_percent"] == pytest.approx(100 * (pairs[0]["predicted_seconds"] / 20.73 - 1))


def test_a_table_without_a_framework_is_told_the_stack_that_comes_closest(capsys, tmp_path) -> None:
    """Measured as PyTorch is predicted: that stack is proposed, and the generic one it was read as is far off."""
    layout = OWN | {"framework": "", "dp": "4", "pp": "2"}
    (row,) = load_table(Path(written(tmp_path / "blank.csv", [layout | {STEP: "1"}]))).rows
    seconds = row_prediction(msgspec.structs.replace(row, stack="pytorch")).step_seconds
    path = written(tmp_path / "own.csv", [layout | {STEP: repr(seconds)}])
    ((reading,),) = (score["frameworks"] for score in scores(capsys, path))
    own = row_prediction(row).step_seconds
    assert reading["stack"] == "generic"
    assert row_prediction(msgspec.structs.replace(row, stack=reading["closest"])).step_seconds == seconds
    assert reading["closest_percent"] == pytest.approx(0, abs=1e-9)
    assert reading["own_percent"] == pytest.approx(100 * abs(own / seconds - 1))
    assert main(["validate", path, "--all"]) == 0
    assert f"{reading['closest']} comes closest: 0 % from what was measured" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_table_without_proxies_says_so_and_a_plot_of_proxies_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--proxies", "--plot", "errors.svg"]) == 2
    assert "--plot: excludes --proxies" in capsys.readouterr().err
    assert main(["validate", str(PUBLISHED / "korthikanti2022_table5.csv"), "--proxies"]) == 3
    assert capsys.readouterr().out.startswith("no row is a proxy of another")


def test_frameworks_are_read_and_the_stack_that_would_change_most_is_named(capsys, tmp_path) -> None:
    """Megatron-DeepSpeed with pipeline stages is DeepSpeed's engine, without stages it is not."""
    split = OWN | {"framework": "megatron_deepspeed", "dp": "4", "pp": "2", STEP: "1"}
    rows = [split, split, split | {"dp": "8", "pp": "1"}, split | {"framework": "my own"}]
    path = written(tmp_path / "own.csv", rows)
    (score,) = scores(capsys, path)
    first, *rest = score["frameworks"]
    assert (first["framework"], first["stack"]) == ("megatron_deepspeed", "megatron-deepspeed-pipeline")
    assert (first["read_as"], first["rows"]) == ("'Megatron-DeepSpeed' with pipeline stages", 2)
    assert {each["stack"] for each in rest} == {"megatron-deepspeed", "generic"}
    # what is said of the other stack is what it predicts
    other = [split | {"framework": first["rival"]}]
    own, rival = (
        load_table(Path(written(tmp_path / f"{n}.csv", rows))).rows[0] for n, rows in enumerate((rows, other))
    )
    switched = msgspec.structs.replace(own, stack=rival.stack)
    change = row_prediction(switched).step_seconds / row_prediction(own).step_seconds - 1
    assert first["rival_percent"] == pytest.approx(100 * change)
    for name in stacks():
        if name in ("megatron-lm-early-2021", "gpt-neox", "deepspeed-pipeline"):  # they execute tp and pp too
            least = row_prediction(msgspec.structs.replace(own, stack=name)).step_seconds
            assert abs(math.log(least / row_prediction(own).step_seconds)) <= abs(math.log1p(change)) + 1e-9
    assert main(["validate", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("table")
    read = next(line for line in lines if "stack megatron-deepspeed-pipeline" in line)
    assert read.startswith("framework 'megatron_deepspeed' in 2 rows: stack megatron-deepspeed-pipeline (")


@pytest.mark.parametrize("width", ["80", "150"])
def test_the_score_comes_first_then_at_most_ten_lines_on_what_was_read(capsys, monkeypatch, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    for tables in (["playbook_h100_1b"], ["playbook_h100_1b", "real_runs", "dgx_cloud"]):
        paths = [str(path) for path in shipped_tables() if path.stem in tables]
        assert main(["validate", *paths, "--worst", "2"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("table")
        start = next(number for number, line in enumerate(lines) if "stack" in line and "framework" in line)
        *read, last = lines[start:]
        assert 0 < len(read) <= 11  # a long last line is folded
        assert re.search(r"--all: \d+ more on how it was read|as it was read", f"{read[-1]} {last}")
        assert max(map(len, lines)) <= int(width)
        assert main(["validate", *paths, "--worst", "2", "--all"]) == 0
        complete = capsys.readouterr().out.splitlines()
        assert complete[0] == lines[0]
        assert len(complete) > len(lines)


def test_a_table_is_written_as_it_was_read_with_notes_and_refused_rows_for_correction(capsys, tmp_path) -> None:
    path, target = tmp_path / "own.csv", tmp_path / "canonical.csv"
    names = {"gpu": "Hardware", "micro_batch": "MBS", STEP: "Step time (s)"}
    cells = OWN | {STEP: "1,5", "recompute": "core_attn", "note": "ours"}
    rows = [";".join({**cells, "vocab": vocab}.values()) for vocab in ("50257", "50.257")]
    path.write_text("\n".join([";".join(names.get(name, name) for name in cells), *rows]), encoding="utf-8")
    assert main(["validate", str(path), "--as-read", str(target)]) == 0
    header, good, bad = csv.reader(target.read_text(encoding="utf-8").splitlines())
    assert header == [*cells, "read_as"]
    notes = "column Hardware = gpu; recompute core_attn = selective"
    assert good == [*(cells | {STEP: "1.5", "recompute": "selective"}).values(), notes]
    assert bad[-2:] == ["", "vocab: expected a number with one reading; got '50.257', which is 50.257 or 50257"]
    table, again = load_table(path), load_table(target)
    assert [row.layout for row in again.rows] == [row.layout for row in table.rows]
    assert len(again.skipped) == 1
    assert again.unread == table.unread == ("note",)  # the column of notes is known


def test_predictions_are_written_beside_what_the_table_says(capsys, tmp_path) -> None:
    rows = [OWN | {"note": "as, it stands", STEP: "0.95"}, OWN | {"note": "", "dtype": "amp_fp9", STEP: "1"}]
    path = Path(written(tmp_path / "own.csv", rows))
    target = tmp_path / "more.csv"
    assert main(["validate", str(path), "--write", str(target)]) == 0
    with open(target, newline="", encoding="utf-8") as file:
        found, unknown = csv.DictReader(file)
    assert {column: found[column] for column in rows[0]} == rows[0]
    prediction = row_prediction(load_table(path).rows[0])
    assert float(found["predicted_step_time_s"]) == pytest.approx(prediction.step_seconds, rel=1e-5)
    assert float(found["predicted_mem_gib_per_gpu"]) == pytest.approx(prediction.peak_bytes / 2**30, rel=1e-5)
    assert (found["predicted_stack"], found["not_predicted"]) == ("generic", "")
    assert (unknown["predicted_step_time_s"], unknown["not_predicted"][:16]) == ("", "dtype: 'amp_fp9'")
    assert main(["validate", str(path), "--as-read", str(tmp_path / "canonical.csv")]) == 0
    before, fresh = path.read_bytes(), tmp_path / "fresh.csv"
    capsys.readouterr()
    for arguments, words in (
        ([str(path), "--as-read", str(path)], "--as-read: the file exists, and is not overwritten"),
        ([str(path), "--as-read", str(path), "--force"], "--as-read: is the table itself"),
        (
            [str(tmp_path / "canonical.csv"), "--as-read", str(target), "--force"],
            "canonical.csv: the table has such a column",
        ),
        ([str(path), "--write", str(path), "--force"], "--write: is the table itself"),
        (["--write", str(target)], "--write: is of one table"),
        ([str(target), "--write", str(path), "--force"], "the table has such a column"),
        ([str(path), "--write", str(tmp_path / "none" / "x.csv")], "--write: cannot write: No such file"),
        ([str(path), "--write", str(fresh), "--as-read", ""], "--as-read: cannot write: Is a directory"),
        ([str(path), "--write", str(fresh), "--as-read", str(tmp_path)], "--as-read: cannot write: Is a directory"),
        ([str(path), "--write", str(fresh), "--plot", str(tmp_path)], "--plot: cannot write: Is a directory"),
        ([str(path), "--proxies", "--write", str(target)], "--write: excludes --proxies"),
    ):
        assert main(["validate", *arguments]) == 2
        captured = capsys.readouterr()
        assert words in captured.err
        assert captured.err.count("\n") == 1
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [tmp_path / "canonical.csv", target, path]
