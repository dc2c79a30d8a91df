"""`refit` as a user sees it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from reference_runs.machine_model import (
    EDITIONS,
    FIT_SCORES,
    MACHINE_MODEL,
    MachineModel,
    current_edition,
    editions,
    machine_model,
)
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


def test_later_parameters_are_fitted_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("suite.commands.refit.shipped_tables", lambda: [PUBLISHED / "korthikanti2022_table5.csv"])
    fitted: list[set[str]] = []
    whole = fit.fit

    def noted(model: MachineModel, *rest: object, **options: object) -> fit.Fitted:
        fitted.append({name for name, parameter in model.parameters.items() if parameter.fitted})
        return whole(model, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("suite.predict.machine_model.later.fit", noted)
    assert main(["refit", "--later"]) == 0
    assert fitted == [{"matrix_efficiency.blackwell", "format_efficiency.nvfp4"}]
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("matrix_efficiency.blackwell"))
    assert float(line.split()[1]) == machine_model().parameters["matrix_efficiency.blackwell"].value
    assert main(["refit", "--later", "--keep"]) == 2


NOW = current_edition()


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory with copies of the current files, where `refit` writes; its fit moves one parameter."""

    def moved(model: MachineModel, _rows: object) -> MachineModel:
        name = "step_overhead_seconds"
        longer = msgspec.structs.replace(model.parameters[name], value=2 * model.parameters[name].value)
        return msgspec.structs.replace(model, parameters=model.parameters | {name: longer})

    for name, path in {"MACHINE_MODEL": MACHINE_MODEL, "FIT_SCORES": FIT_SCORES, "EDITIONS": EDITIONS}.items():
        monkeypatch.setattr(f"reference_runs.machine_model.{name}", tmp_path / path.name)
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr("suite.commands.refit.PAGE", tmp_path / "page.md")
    monkeypatch.setattr("suite.commands.refit.shipped_tables", lambda: [PUBLISHED / "korthikanti2022_table5.csv"])
    monkeypatch.setattr(fit, "determined", moved)
    return tmp_path


def files(directory: Path) -> dict[str, str]:
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_text(encoding="utf-8") for path in paths}


WRITE = ("refit", "--keep", "--write", "--edition")


def test_an_edition_keeps_the_one_before_it_whose_numbers_come_out_as_before(stored: Path, answered, said) -> None:
    before, yesterday = files(stored), answered("predict", "bloom-176b")
    assert f"stay those of {NOW}" in said(*WRITE, "2030-01")
    assert editions() == (NOW, "2030-01")
    kept = {str(Path(EDITIONS.name) / NOW / name): text for name, text in before.items()}
    assert kept.items() <= files(stored).items()
    assert "Edition 2030-01." in files(stored)["page.md"]
    today = answered("predict", "bloom-176b")
    assert (yesterday["edition"], today["edition"]) == (NOW, "2030-01")
    assert today["figures"] != yesterday["figures"]
    assert answered("predict", "bloom-176b", "--edition", NOW) == yesterday
    assert answered("predict", "bloom-176b") == today  # nothing of the choice is left


def test_a_name_is_replaced_by_force_alone(stored: Path, refused, said) -> None:
    said(*WRITE, "2030-01")
    before = files(stored)
    for name, why in {
        NOW: f"--edition: is there already; got {NOW}, allowed: another name, or --force",
        "2030-01": "is there already",
        "../2030": "not a name of an edition; got ../2030, allowed: at most 40 letters, digits, - and .",
        "..": "not a name",
        "a b": "not a name",
        "": "not a name",
        41 * "a": "not a name",
    }.items():
        assert why in refused(*WRITE, name), name
    assert "--write: the fit needs a name" in refused("refit", "--write")
    assert "--edition: nothing is stored without --write" in refused("refit", "--edition", "2030-02")
    assert "--force: nothing is stored without --write" in refused("refit", "--force")
    assert files(stored) == before
    said(*WRITE, "2030-01", "--force")  # the current one, in its place
    assert editions() == (NOW, "2030-01")
    assert {name for name, text in files(stored).items() if before[name] != text} == {"machine_model.toml", "page.md"}
    said(*WRITE, NOW, "--force")  # an earlier one is current again, with other numbers
    assert editions() == ("2030-01", NOW)
    assert not (stored / EDITIONS.name / NOW).exists()
