"""Execute a layout without its memory, from the command line."""

from __future__ import annotations

import pytest

from suite.__main__ import main
from suite.reproduce.dry_run import whole_steps

REFUSED = [
    ("bloom-176", "unknown run"),
    ("bloom-176b --layout dp8,tp3,pp12", "layout.tensor_parallel does not divide architecture.heads = 112"),
    ("bloom-176b --layout dp2,zero3,pp12", "this version does not execute that layout"),
    ("bloom-176b --ranks 384", "all, or numbers from 0 to 383"),
    ("bloom-176b --ranks first", "ranks; got 'first'"),
    ("bloom-176b --on a1000", "unknown accelerator"),
    ("bloom-176b --plot /nowhere/memory.png", "--plot"),
    ("bloom-176b --plot memory.docx", "not a picture's name; got memory.docx"),
    ("bloom-176b --schedule schedule.svg", "--schedule: not a picture's name; got schedule.svg"),
    ("gpt2-mini --schedule schedule.png --layout dp2", "a schedule is of pipeline stages; got dp2"),
    ("bloom-176b --compare dp8,tp3", "--compare: layout.tensor_parallel"),
    ("bloom-176b --layout dp8,zero2,reduce-scatter", "reduce-scatter is a form of zero1; got zero2"),
    ("opt-175b --layout dp124,tp8,zero3,offload-state", "offload"),
]


def test_bad_input_is_one_line_before_anything_is_executed(not_refused, monkeypatch):
    monkeypatch.setattr(whole_steps, "answers", None)
    assert not_refused("dry-run", REFUSED) == []


@pytest.mark.ranks
@pytest.mark.usefixtures("warm_ranks")
def test_two_layouts_beside_each_other_and_their_memory_as_pictures_and_results(tmp_path, capsys):
    picture = tmp_path / "memory.png"
    layouts = ["--layout", "dp2,zero1", "--compare", "dp2,zero3", "--on", "a100-sxm-80gb"]
    kept = ["--plot", str(picture), "--record", "--results", str(tmp_path)]
    assert main(["dry-run", "gpt2-mini", *layouts, *kept]) == 0
    out, err = capsys.readouterr()
    assert err.count("stored ") == len(list((tmp_path / "dry_runs").glob("gpt2-mini__*.json"))) == 2
    assert out.count("exact figures agree") == 2
    assert "fits (over 99 % likely): " in out
    assert " of 78.51 GiB usable on a100-sxm-80gb, without " in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000


@pytest.mark.ranks
@pytest.mark.usefixtures("warm_ranks")
def test_json_has_every_class_and_every_figure(answered):
    entry = answered("dry-run", "gpt2-mini", "--layout", "dp1,pp2,zero0")
    assert [each["ranks"] for each in entry["classes"]] == [1, 1]
    assert entry["verdict"] == "pass"
    assert {row["quantity"] for row in entry["figures"]} >= {"parameters", "peak_bytes", "payload_bytes"}
    for each in entry["classes"]:
        peak = next(r for r in entry["figures"] if r["quantity"] == "peak_bytes" and r["rank"] == each["rank"])
        assert sum(each["peak"][1].values()) == peak["right"]


def test_a_rank_that_cannot_be_executed_ends_the_command_with_4(capsys, monkeypatch):
    monkeypatch.setattr("suite.reproduce.dry_run.workers._command", lambda _job: ["/bin/false"])
    assert main(["dry-run", "gpt2-mini", "--layout", "dp1"]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert "the worker of rank 0 ended with 1" in err
