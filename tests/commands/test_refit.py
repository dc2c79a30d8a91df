"""`refit` as a user sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.machine_model import FIT_SCORES, MACHINE_MODEL
from reference_runs.published_tables import PUBLISHED
from suite.__main__ import main
from suite.predict.machine_model import fit

pytest.importorskip("tomli_w")


def no_fit(*_: object, **__: object) -> None:
    raise AssertionError("a fit")


def test_keep_scores_the_stored_parameters_and_fits_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few: list[Path] = [PUBLISHED / "korthikanti2022_table5.csv"]
    monkeypatch.setattr("suite.commands.refit.shipped_tables", lambda: few)
    monkeypatch.setattr(fit, "fit", no_fit)
    before = MACHINE_MODEL.read_bytes(), FIT_SCORES.read_bytes()
    assert main(["refit", "--keep"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("korthikanti2022_table5"))
    assert line.split()[1:3] == ["8", "2.8%"]  # as the page of the numbers has it
    assert (MACHINE_MODEL.read_bytes(), FIT_SCORES.read_bytes()) == before
    with pytest.raises(AssertionError, match="a fit"):  # without it there is one
        main(["refit"])
