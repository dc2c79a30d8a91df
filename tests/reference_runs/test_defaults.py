"""Keys that a run file leaves out are derived or assumed, and said; nothing else is made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.architecture import Position
from reference_runs.catalog import load, reference_run, run_names
from reference_runs.defaults import DEFAULTS, default_facts
from reference_runs.errors import InputError
from reference_runs.sourced import Kind
from tests.support.short_run_files import SHAPE, short_run_file


def test_a_dozen_lines_describe_a_model_of_known_size_and_every_default_is_said(tmp_path: Path) -> None:
    run = load(short_run_file(tmp_path / "my_run.toml"))
    a = run.architecture
    assert (a.head_dim, a.kv_heads, a.padded_vocabulary, a.rotary_dim, a.rotary_base) == (128, 32, 32000, 128, 10000.0)
    filled = {key: fact for key, fact in run.facts.items() if fact.source.startswith("default: ")}
    assert filled.keys() == {f"{section}.{key}" for section, keys in DEFAULTS.items() for key in keys}
    for key, fact in filled.items():
        section, _, name = key.partition(".")
        assert fact.value == getattr(getattr(run, section), name)
        assert fact.kind is (Kind.ASSUMED if DEFAULTS[section][name].effect else Kind.DERIVED), key


def test_what_a_file_says_is_no_default(tmp_path: Path) -> None:
    said = {"kv_heads": 8, "head_dim": 64, "rotary_dim": 32, "residual": "parallel"}
    run = load(short_run_file(tmp_path / "my_run.toml", architecture=SHAPE | said))
    for key, value in said.items():
        assert (getattr(run.architecture, key), run.facts[f"architecture.{key}"].source) == (value, "card")
    for name in run_names():
        assert not [key for key, fact in reference_run(name).facts.items() if fact.source.startswith("default: ")]


@pytest.mark.parametrize(
    ("changes", "missing"),
    [({"heads": 33}, "'architecture.head_dim'"), ({"ffn_hidden": None}, "'architecture.ffn_hidden'")],
    ids=["heads-that-do-not-divide", "no-width"],
)
def test_what_does_not_follow_is_missing(changes: dict[str, object], missing: str, tmp_path: Path) -> None:
    values = {key: value for key, value in (SHAPE | changes).items() if value is not None}
    with pytest.raises(InputError, match=f"missing key {missing}$"):
        load(short_run_file(tmp_path / "my_run.toml", architecture=values))


def test_positions_that_do_not_rotate_have_no_rotary_defaults(tmp_path: Path) -> None:
    run = load(short_run_file(tmp_path / "my_run.toml", architecture=SHAPE | {"position": "learned"}))
    assert (run.architecture.rotary_dim, run.architecture.rotary_base) == (None, None)


def test_a_head_of_latent_attention_has_no_default() -> None:
    facts = default_facts("architecture", {"hidden": 64, "heads": 4, "position": Position.ROTARY, "key_value_rank": 8})
    assert not {"head_dim", "rotary_dim"} & facts.keys()
    assert {"kv_heads", "rotary_base"} <= facts.keys()
