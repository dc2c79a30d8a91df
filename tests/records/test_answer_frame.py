"""Answers of predict, plan and fit as a frame: a row says what the answer says, in the unit of its column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reference_runs.errors import InputError
from suite.__main__ import main
from suite.predict.analytic.memory_uncertainty import NOT_BELOW
from suite.records import frame
from suite.records.answer_frame import LIKELY_FROM

COMMANDS = {
    "predict": ["predict", "gpt2-124m", "--on", "h100-sxm", "--gpus", "8"],
    "plan": ["plan", "gpt2-124m", "--on", "h100-sxm", "--gpus", "8"],
    "fit": ["fit", "gpt2-124m", "--on", "h100-sxm", "--gpus", "8"],
}


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    answers = {}
    for name, command in COMMANDS.items():
        assert main([*command, "--json"]) == 0
        answers[name] = json.loads(capsys.readouterr().out)
    return answers


def test_a_file_of_answers_is_a_row_each_with_what_they_say(printed: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, printed.values())) + "\n\n", encoding="utf-8")
    rows = frame.answers(path)
    assert [*rows.answer] == ["predict", "plan", "fit"]
    assert rows.attrs["left_out"] == []
    predicted = {
        figure["quantity"]: figure["left"]
        for figure in printed["predict"]["figures"]
        if all(figure[part] is None for part in ("axis", "operation", "rank", "stage", "term"))
    }
    for name in ("step_seconds", "tokens_per_second", "mfu", "peak_bytes", "parameters", "energy_joules"):
        assert rows.loc[0, name] == predicted[name]
    assert [rows.loc[0, "step_seconds_low"], rows.loc[0, "step_seconds_high"]] == printed["predict"]["intervals"][
        "step_seconds"
    ]
    best, fastest = printed["plan"]["best"][0], printed["fit"]["fastest"]
    assert [*rows.step_seconds[1:]] == [best["step_seconds"], fastest["step_seconds"]]
    assert [*rows.layout[1:]] == [best["layout"], fastest["layout"]]
    assert (rows.loc[1, "energy_joules"], rows.loc[1, "training_seconds"]) == (best["joules"], best["seconds"])
    assert [*rows.layouts_fitting[1:]] == [printed[name]["layouts"]["fitting"] for name in ("plan", "fit")]
    assert [*rows.fits] == [True, True, True]
    assert [*rows.accelerators] == [8, 8, 8]


def test_answers_at_hand_are_taken_as_they_are(printed: dict[str, Any]) -> None:
    assert frame.answers(printed["fit"]).equals(frame.answers([printed["fit"]]))


def test_an_answer_that_nothing_fits_has_no_layout(printed: dict[str, Any]) -> None:
    nothing = printed["fit"] | {"fits": False, "fastest": None}
    row = frame.answers(nothing).iloc[0]
    assert (row.fits, row.layout, row.run) == (False, None, "gpt2-124m")
    assert row.step_seconds != row.step_seconds  # NaN


def test_rows_of_an_audit_are_answers_too() -> None:
    row = {"file": "a.toml", "read_as": "torchtitan", "verdict": "cannot run", "why": "memory", "peak_bytes": 5.0}
    assert NOT_BELOW == LIKELY_FROM
    likely = [row | {"probability_fits": probability} for probability in (0.1, 0.6)]
    found = frame.answers([*likely, row | {"why": "broken TOML", "probability_fits": None}, row])
    assert [*found.answer] == ["audit"] * 4
    assert [*found.fits[:2], *found.fits.isna()[2:]] == [False, True, True, True]
    assert found.peak_bytes[0] == 5.0


@pytest.mark.parametrize(
    "line",
    ["", "nonsense", "[]", "{}", '{"run": "x", "figures": 5, "edition": ""}', '{"run": 1, "best": {}, "layouts": 1}'],
)
def test_what_is_no_answer_is_named_or_has_no_figures(tmp_path: Path, line: str) -> None:
    (tmp_path / "a").write_text(f"{line}\n", encoding="utf-8")
    rows = frame.answers(tmp_path / "a")
    assert len(rows) + len(rows.attrs["left_out"]) == bool(line)
    assert rows.step_seconds.isna().all()


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the answers"):
        frame.answers(tmp_path / "nothing")
