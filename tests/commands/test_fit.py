"""`fit` as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from suite.__main__ import main
from tests.support.short_run_files import short_run_file


def test_the_first_line_is_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "gpt2-1558m", "--on", "a100-sxm-80gb", "--gpus", "1", "--fix", "1f1b,micro1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("fits: gpt2-1558m on 1 a100-sxm-80gb, in ")
    assert lines[1].startswith("fastest: dp1,tp1,pp1,zero0")
    fixed = ["--fix", "no-offload"]
    assert main(["fit", "gpt2-1558m", "--on", "rtx-4090", "--gpus", "1", *fixed]) == 1
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "does not fit: gpt2-1558m on 1 rtx-4090; 2 accelerators would do"
    assert any("no offloading, as was asked for" in line for line in rest)
    assert main(["fit", "gpt2-1558m", "--on", "rtx-4090", "--gpus", "1", "--fix", "1f1b,micro1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "offload-optimizer" in lines[1]
    assert any(line.startswith("the fastest keeps ") for line in lines)


@pytest.mark.parametrize(("batch", "words"), [("1", "1 sample"), ("3", "3 samples")])
def test_samples_are_counted_in_words(batch: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["gpt2-124m", "--on", "a100-sxm-80gb", "--gpus", "1", "--batch", batch]
    assert main(["fit", *asked, "--fix", "1f1b"]) == 0
    out = capsys.readouterr().out
    assert f"largest micro-batch that fits: {words} of 1,024 tokens\n" in out
    assert f"held: {words} of 1,024 tokens a step" in out
    assert main(["plan", *asked, "--top", "1"]) == 0
    assert f"; {words} of 1,024 tokens a step" in " ".join(capsys.readouterr().out.split())


def test_a_longer_sequence_needs_more_memory(capsys: pytest.CaptureFixture[str]) -> None:
    smallest = []
    for sequence in ("1024", "4096"):
        main(["fit", "gpt2-124m", "--on", "a100-sxm-80gb", "--gpus", "1", "--sequence", sequence, "--json"])
        smallest.append(json.loads(capsys.readouterr().out)["smallest"]["peak_bytes"])
    assert smallest[0] < smallest[1]


def test_a_short_run_file_is_enough_with_a_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "short.toml"
    short_run_file(path, recipe={"precision": "bf16"})
    assert main(["fit", str(path), "--on", "h100-sxm", "--gpus", "8", "--batch", "64", "--fix", "1f1b,fused"]) == 0
    assert capsys.readouterr().out.startswith("fits: ")
    assert main(["fit", str(path), "--on", "h100-sxm", "--gpus", "8"]) == 2
    assert "recipe.global_batch is needed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gpt2-124m", "--gpus", "0"], "--gpus: not a usable number"),
        (["gpt2-124m", "--on", "v100-sxm-16gb", "--gpus", "1"], "bf16"),
        (["gpt2-124m", "--on", "abacus", "--gpus", "1"], "unknown accelerator; got 'abacus'"),
        (["gpt2-mini"], "did you mean gpt2-124m?"),
    ],
)
def test_wrong_input_gets_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(["fit", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def _predicted(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, float]:
    main(["predict", *arguments, "--json"])
    figures = json.loads(capsys.readouterr().out)["figures"]
    rows = [row for row in figures if row["term"] is None and row["stage"] is None]
    return {row["quantity"]: row["left"] for row in rows}


@pytest.mark.parametrize(
    ("run", "gpus", "options"),
    [
        ("llama3.1-8b", "8", ("--on", "rtx-4090", "--fix", "zbv,micro1,dp1,tp4")),
        ("llama3.1-8b", "8", ("--on", "rtx-4090", "--fix", "zbv,layers-and-tables,order-pp-tp-cp-dp,micro1")),
        ("llama2-7b", "16", ("--on", "h100", "--network", "3200", "--fix", "unfused,zero1,all-reduce,1f1b")),
        ("bloom-176b", "384", ("--fix", "layers,1f1b,tp4,micro1,order-dp-tp-cp-pp,unfused")),
        ("nemotron4-15b", "64", ("--fix", "zero1,all-reduce,micro1,1f1b,cp1", "--network", "3200")),
    ],
)
def test_predict_reads_what_is_printed_as_the_same_layout(
    capsys: pytest.CaptureFixture[str], run: str, gpus: str, options: tuple[str, ...]
) -> None:
    assert main(["fit", run, "--gpus", gpus, *options, "--json"]) == 0
    fastest = json.loads(capsys.readouterr().out)["fastest"]
    assert main(["fit", run, "--gpus", gpus, *options]) == 0
    out = capsys.readouterr().out.replace("\n    ", " ")
    (words,) = (line.split()[1].rstrip(",") for line in out.splitlines() if line.startswith("fastest: "))
    (command,) = (line for line in out.splitlines() if line.startswith("more of the first: "))
    machine = [part for n, part in enumerate(options) if {"--on", "--network"} & set(options[max(0, n - 1) : n + 1])]
    for arguments in ([run, "--layout", words, *machine], command.partition(" predict ")[2].split()):
        predicted = _predicted(capsys, *arguments)
        assert predicted["step_seconds"] == pytest.approx(fastest["step_seconds"], rel=1e-9)
        assert predicted["peak_bytes"] == pytest.approx(fastest["peak_bytes"], rel=1e-9)


def test_a_command_that_predict_cannot_answer_alike_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (("--batch", "8"), ("--sequence", "512")):
        assert main(["fit", "gpt2-124m", "--on", "h100", "--gpus", "1", *options]) == 0
        assert "more of the first" not in capsys.readouterr().out
    assert main(["plan", "gpt2-124m", "--on", "h100", "--gpus", "1", "--batch", "8"]) == 0
    assert "more of the first" not in capsys.readouterr().out
