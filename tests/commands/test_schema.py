"""The schemas of --json: every command that has the option has one, and what it prints is valid by it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import typer

from suite.__main__ import application, main
from suite.calibration.calibrate import CalibrationResult
from suite.commands.json_schemas import TYPES, schema
from suite.fleet.fleet_record import SCHEMA as FLEET_SCHEMA
from suite.fleet.fleet_record import FleetEnd, FleetRow, keep
from suite.job.events import Status
from suite.ladder.result import read as read_ladder
from suite.machine.profile import read as read_profile
from suite.paths import RECORDED, ROOT
from suite.report.terminal.ladder import as_json
from tests.support.configurations import QWEN3_30B

ALWAYS_JSON = {"fleet references"}  # without an option
TABLE = ROOT / "reference_runs" / "published" / "megatron_sc21_table1.csv"
RECORDS = sorted((RECORDED / "records" / "bloom-mini").glob("*.begin.json"))
# Command lines whose output is validated; commands that launch are below and in tests/end_to_end
LINES = [
    "runs",
    "show bloom-176b",
    "show bloom-mini",
    "show h100-sxm",
    "predict bloom-176b",
    "predict gpt2-mini",
    "predict gpt-neox-20b --on h100-sxm --layout dp8,tp8,zero1",
    "fit gpt2-124m --on h100-sxm --gpus 2",
    "fit llama3.1-405b --on rtx-4090 --gpus 1",
    "fit deepseek-v3 --serve --gpus 16",
    "fit --tiers",
    "plan gpt2-124m --on h100-sxm --gpus 2",
    f"validate {TABLE}",
    "formulas",
    f"results list --results {RECORDED}",
    f"results check --results {RECORDED}",
    f"results show {RECORDS[0]} --results {RECORDED}",
    f"results diff {RECORDS[0]} {RECORDS[-1]} --results {RECORDED}",
    f"results prune --status crashed --results {RECORDED}",
]


def invalid(printed: str, command: str) -> list[str]:
    """Why lines are not as the schema of a command says; the first reason of each."""
    validator = jsonschema.Draft202012Validator(schema(command))
    lines = [json.loads(line) for line in printed.splitlines()]
    assert lines
    return [error.message[:200] for line in lines for error in [next(validator.iter_errors(line), None)] if error]


def with_json(command: Any, words: tuple[str, ...] = ()) -> set[str]:
    """The commands that have --json."""
    if hasattr(command, "commands"):
        return {name for word, each in command.commands.items() for name in with_json(each, (*words, word))}
    options = {option for parameter in command.params for option in parameter.opts}
    return {" ".join(words)} if "--json" in options else set()


def test_every_command_with_the_option_has_a_schema_and_no_other() -> None:
    assert with_json(typer.main.get_command(application([]))) | ALWAYS_JSON == TYPES.keys()
    for command in TYPES:
        jsonschema.Draft202012Validator.check_schema(schema(command))


def test_what_commands_print_is_valid(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_30B), encoding="utf-8")
    made = [
        f"import {tmp_path / 'config.json'} --output {tmp_path / 'imported.toml'}",
        f"results export --out {tmp_path / 'launches.csv'} --results {RECORDED}",
        f"results merge {ROOT / 'results' / 'recorded_h100'} --results {tmp_path / 'merged'}",
        f"report --no-page --results {RECORDED} --out {tmp_path}",
    ]
    wrong = {}
    for line in [*LINES, *made]:
        words = line.split()
        name = next(name for name in (" ".join(words[:2]), words[0]) if name in TYPES)
        code = main([*words, "--json"])
        printed = capsys.readouterr()
        if code not in (0, 1, 3) or (reasons := invalid(printed.out, name)):
            wrong[line] = printed.err or reasons
    assert wrong == {}


def test_the_command_prints_the_schema_and_refuses_what_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "results", "list"]) == 0
    assert json.loads(capsys.readouterr().out) == schema("results list")
    assert main(["schema"]) == 0
    assert capsys.readouterr().out.splitlines() == [*TYPES]
    assert main(["schema", "explore"]) == 2
    assert "no schema; got 'explore'" in capsys.readouterr().err


def test_a_line_without_a_field_is_not_valid() -> None:
    line = {"run": "a", "title": "b", "parameters": 1, "reproduce": None}
    assert invalid(json.dumps(line), "runs") == []
    assert invalid(json.dumps(line | {"parameters": "1"}), "runs") == ["'1' is not of type 'integer'"]
    del line["title"]
    assert invalid(json.dumps(line), "runs") == ["'title' is a required property"]


def not_valid(lines: Mapping[str, str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """Commands whose lines are not valid by the schema of their key: exit code, errors, and reasons."""
    wrong: dict[str, object] = {}
    for command, line in lines.items():
        code = main(line.split())
        printed = capsys.readouterr()
        reasons = invalid(printed.out, command) if code in (0, 1, 3) else []
        if code not in (0, 1, 3) or reasons:
            wrong[line] = (code, printed.err[-500:], reasons)
    return wrong


@pytest.mark.ranks
@pytest.mark.usefixtures("warm_ranks")
def test_what_launches_print_is_valid(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    here = f"--device cpu --results {tmp_path} --json"
    lines = {
        "reproduce": f"reproduce gpt2-mini --ranks 1 --steps 6 --no-calibrate --no-compile --launches 2 {here}",
        "dry-run": f"dry-run gpt2-mini --results {tmp_path} --json",
        "regress": f"regress gpt2-mini --ranks 1 --steps 6 --launches 1 --no-compile --accept {here}",
        "accept": f"accept --ranks 1 --only 0 {here}",
    }
    assert not_valid(lines, capsys) == {}


def stored_fleet(results: Path) -> None:
    """A fleet of the machines whose batteries are recorded."""
    (results / "acceptance").mkdir(parents=True)
    rows = []
    for path in sorted((RECORDED / "acceptance").glob("*.json")):
        (results / "acceptance" / path.name).write_bytes(path.read_bytes())
        if path.name.endswith(".end.json"):
            identity = path.name.removesuffix(".end.json")
            rows.append(FleetRow(node=identity, verdict="accepted", battery=identity))
    (results / "fleet" / "f").mkdir(parents=True)
    keep(results / "fleet" / "f" / "end.json", FleetEnd(schema=FLEET_SCHEMA, id="f", finished=0.0, rows=rows))


def test_what_machines_ladders_fleets_and_hours_print_is_valid(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_fleet(tmp_path)
    profile = read_profile(sorted((RECORDED / "machines").glob("*.json"))[-1])
    measured = CalibrationResult(status=Status.OK, message="", profile=profile, path="machines/a.json")
    monkeypatch.setattr("suite.commands.calibrate.calibrate", lambda *_: measured)
    lines = {
        "calibrate": f"calibrate --device cpu --ranks 1 --results {tmp_path} --json",
        "first-hour": f"first-hour --parts environment --no-page --results {tmp_path} --json",
        "fleet show": f"fleet show --results {tmp_path} --json",
        "fleet report": f"fleet report {tmp_path} --json",
    }
    wrong = not_valid(lines, capsys)
    for path in (RECORDED / "ladder").glob("*.json"):
        printed_ladder = msgspec.json.encode(as_json(read_ladder(path)) | {"plot": str(path)}).decode()
        if reasons := invalid(printed_ladder, "ladder"):
            wrong[str(path)] = reasons
    assert wrong == {}
    assert invalid(printed_ladder.replace('"verdict":', '"word":'), "ladder") != []
