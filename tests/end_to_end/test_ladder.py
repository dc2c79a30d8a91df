"""The command runs two rungs in earnest: launches, records, the object, the picture and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from suite.__main__ import main
from suite.commands import exit_codes
from suite.ladder.rung import STEPS


@pytest.mark.rare
def test_a_ladder_of_two_rungs_keeps_its_promises_and_leaves_records_an_object_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Operators in place, of which peaks and losses are promised, and no time: neither depends on who else computes."""
    pytest.importorskip("matplotlib")
    line = ["ladder", "gpt2-mini", "--rungs", "in-place", "--no-calibrate", "--device", "cpu", "--json"]
    code = main([*line, "--results", str(tmp_path)])
    reported = json.loads(capsys.readouterr().out)
    assert (code, reported["verdict"], reported["failures"]) == (exit_codes.PASS, "pass", [])
    base, here = reported["rungs"]
    assert [result["rung"]["name"] for result in (base, here)] == ["memory-baseline", "in-place"]
    assert here["below"] == "memory-baseline"
    assert {check["name"]: check["mark"] for check in here["checks"]} == {
        "peak": "pass",
        "loss": "pass",
        "gain": "pass",
    }
    losses = here["measured"]["losses"]
    assert len(losses) == STEPS
    assert losses == base["measured"]["losses"]  # to the last bit
    assert losses[-1] < losses[0]
    assert here["gain"]["measured"] == base["measured"]["peak_bytes"] - here["measured"]["peak_bytes"] > 0
    assert here["expected"]["step_seconds"] is None  # no profile of the machine
    records = sorted((tmp_path / "records" / "gpt2-mini-ladder").glob("*.begin.json"))
    rungs = [json.loads(path.read_text(encoding="utf-8"))["job"]["training_options"]["rung"] for path in records]
    assert sorted(rungs) == ["memory/in-place", "memory/memory-baseline"]
    assert Path(reported["plot"]).read_bytes().startswith(b"\x89PNG")
    (stored,) = (tmp_path / "ladder").glob("*.json")
    assert json.loads(stored.read_text(encoding="utf-8"))["rungs"] == [
        result | {"measured": {k: v for k, v in result["measured"].items() if k != "token_seconds"}}
        for result in (base, here)
    ]
