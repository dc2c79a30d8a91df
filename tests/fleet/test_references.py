"""References of a fleet: medians and limits of its accepted nodes, and what has none."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from reference_runs.accelerator import known_gpu
from reference_runs.errors import InputError
from suite.__main__ import main
from suite.acceptance.check_table import CHECKS
from suite.acceptance.judge.rates import micro_findings
from suite.commands.json_schemas import schema
from suite.fleet.fleet_record import SCHEMA, FleetEnd, FleetRow, keep
from suite.fleet.references import references
from suite.fleet.siblings import least_failing
from suite.records.battery import CheckFinding, CheckVerdict, battery_directory, encode
from tests.support.batteries import NOTHING, ended, micro

RATES = {"a": 100.0, "b": 80.0, "c": 120.0, "bad": 10.0}


def fleet(results: Path, hardware: dict[str, str]) -> FleetEnd:
    """Four nodes with a rate each, of which the last was rejected."""
    place = results / "acceptance"
    place.mkdir()
    rows = []
    for node, rate in RATES.items():
        finding = CheckFinding(check=3, subject="copy", verdict=CheckVerdict.PASS, measured=rate, compared_as="copy")
        steps = CheckFinding(check=8, subject="x", verdict=CheckVerdict.PASS, measured=1.0, compared_as="x")
        end = ended([finding, steps], id=f"t__{node}__0", node=node, hashes={"hardware": hardware.get(node, "h")})
        (place / f"{end.id}.end.json").write_bytes(encode(end))
        verdict = "rejected" if node == "bad" else "accepted"
        rows.append(FleetRow(node=node, verdict=verdict, battery=end.id))
    last = FleetEnd(schema=SCHEMA, id="f", finished=0.0, rows=rows)
    (results / "fleet" / "f").mkdir(parents=True)
    keep(results / "fleet" / "f" / "end.json", last)
    return last


def test_references_rest_on_accepted_nodes_and_their_spread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet(tmp_path, {"bad": "other"})
    assert main(["fleet", "references", "--results", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, schema("fleet references"))
    assert (found["fleet"], found["nodes"]) == ("f", ["a", "b", "c"])
    assert list(found["figures"]) == ["3 copy"]  # no value of check 8 fails by itself
    limit = least_failing(CHECKS[3], 3, spread=0.2, comparisons=3)
    assert limit > 0.3
    assert found["figures"]["3 copy"] == {"value": 100.0, "lower": -limit, "upper": None, "unit": "byte/s"}


def test_rates_without_a_floor_make_one_once_three_nodes_are_accepted(tmp_path: Path) -> None:
    rates = (180e12, 181e12, 182e12)
    nodes = {
        node: micro_findings(
            micro(matrix=[rate] * 2, host_device={"host to device": 2e10}), NOTHING, known_gpu("Rubin")
        )
        for node, rate in zip("abc", rates, strict=True)
    }
    assert {one.verdict.value for of_node in nodes.values() for one in of_node if one.check == 1} == {"WARN"}
    place = battery_directory(tmp_path)
    place.mkdir()
    for node, findings in nodes.items():
        (place / f"{node}.end.json").write_bytes(encode(ended(findings, id=node, node=node)))
    rows = [FleetRow(node=node, verdict="accepted", battery=node) for node in nodes]
    found = references(tmp_path, FleetEnd(schema=SCHEMA, id="f", finished=0.0, rows=rows)).figures
    (gemm,) = (reference for name, reference in found.items() if name.startswith("1 slowest rank"))
    assert (gemm.value, gemm.unit, gemm.upper) == (181e12, "flop/s", None)
    assert -0.3 <= gemm.lower < 0


def test_nodes_of_several_kinds_and_too_few_are_refused(tmp_path: Path) -> None:
    end = fleet(tmp_path, {"c": "other"})
    with pytest.raises(InputError, match="several kinds"):
        references(tmp_path, end)
    with pytest.raises(InputError, match="too few nodes"):
        references(tmp_path, end, ["a", "b"])
    with pytest.raises(InputError, match="no such node.*z"):
        references(tmp_path, end, ["z"])
