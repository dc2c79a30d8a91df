from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

from reference_runs.errors import InputError
from reference_runs.plain_machine import PLAIN_MACHINE, PlainMachine, load
from reference_runs.sourced import Kind

TEXT = PLAIN_MACHINE.read_text(encoding="utf-8")


def refusal(tmp_path: Path, text: str) -> str:
    path = tmp_path / "assumed.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load(path)
    return str(caught.value)


def test_every_assumption_is_marked_as_one_with_its_reason_effect_and_source() -> None:
    recorded = load()
    assert set(recorded.facts) == {f"assumptions.{name}" for name in PlainMachine.__struct_fields__}
    for fact in recorded.facts.values():
        assert fact.kind is Kind.ASSUMED
        assert fact.why
        assert fact.effect
        assert fact.source.split()[0] in recorded.sources


def test_values_are_those_of_the_file_in_base_units() -> None:
    raw = tomllib.loads(TEXT)["assumptions"]
    factor = {"1": 1.0, "ms": 1e-3}
    values = {name: entry["value"] * factor[entry["unit"]] for name, entry in raw.items()}
    assert msgspec.structs.asdict(load().assumptions) == values
    assert {name for name, entry in raw.items() if entry["unit"] == "ms"} == {
        "link_latency_seconds",
        "network_latency_seconds",
    }


def test_every_source_is_used() -> None:
    recorded = load()
    assert {fact.source.split()[0] for fact in recorded.facts.values()} == set(recorded.sources)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("value = 0.75,", "value = 1.75,", "assumptions.matrix_efficiency: Expected `float` <= 1.0; got 1.75"),
        ("value = 0.75,", "value = 0,", "assumptions.matrix_efficiency: Expected `float` > 0.0; got 0"),
        (
            "value = 0.003, unit",
            "value = -1, unit",
            "assumptions.link_latency_seconds: Expected `float` >= 0.0; got -1",
        ),
        ("matrix_efficiency =", "speed =", "unknown key 'assumptions.speed'"),
        ("[assumptions]", "[assumption]", "unknown key 'assumption'"),
        ("title =", "name =", "unknown key 'name'"),
        ("choice =", "choices =", "source does not begin with a key of [sources]"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TEXT
    assert message in refusal(tmp_path, TEXT.replace(old, new))


def test_a_measured_value_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, TEXT.replace('kind = "assumed"', 'kind = "stated"', 1))
    assert "assumptions.matrix_efficiency: kind; got 'stated', allowed: 'assumed'" in message


def test_a_missing_assumption_is_refused(tmp_path: Path) -> None:
    lines = [line for line in TEXT.splitlines() if not line.startswith("overlap_share")]
    assert "missing key 'assumptions.overlap_share'" in refusal(tmp_path, "\n".join(lines))


@pytest.mark.parametrize("section", ["title", "sources", "assumptions"])
def test_a_missing_part_is_refused(tmp_path: Path, section: str) -> None:
    parts = {
        "title": 'title = "x"\n',
        "sources": '[sources]\ngeneral = "x"\nchoice = "y"\n',
        "assumptions": "[assumptions]\n",
    }
    text = "".join(part for name, part in parts.items() if name != section)
    assert f"{section}: expected a" in refusal(tmp_path, text)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the plain machine file: No such file"):
        load(tmp_path / "none.toml")
    assert "not valid TOML" in refusal(tmp_path, "title =")
