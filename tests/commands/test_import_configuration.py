"""`import` writes a run file that `show` and `predict` take, never over another, and says what it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.catalog import load, reference_run
from reference_runs.incomplete import missing_keys
from reference_runs.sourced import Kind
from suite.__main__ import main
from suite.predict.analytic.parameters import parameter_count
from suite.reproduce.plan import plan
from suite.reproduce.request import Request
from tests.support.configurations import PUBLISHED, written

LLAMA, PARAMETERS = PUBLISHED["llama3.1-8b"]
CONFIGURATION = LLAMA | {"architectures": ["LlamaForCausalLM"], "_name_or_path": "meta-llama/Llama-3.1-8B"}


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return written(Path("config.json"), CONFIGURATION).name


def test_the_file_is_a_run_of_the_published_size(configuration, capsys, said):
    assert main(["import", configuration, "--sequence", "8192", "--output", "my_run.toml"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    words = " ".join(err.split())
    assert "my_run.toml: meta-llama/Llama-3.1-8B (llama), 8,030,261,248 parameters" in words
    assert "not used: _name_or_path, architectures" in words
    run = load(Path("my_run.toml"))
    assert parameter_count(run.architecture) == PARAMETERS
    assert (run.architecture.sequence, run.recipe.init_std) == (8192, 0.02)
    assert "8,030,261,248 parameters" in said("show", "my_run.toml")
    predicted = said("predict", "my_run.toml", "--layout", "dp8,zero3")
    assert "memory: recipe.precision is needed" in " ".join(predicted.split())


def test_without_an_output_the_file_is_printed_alone(configuration, said):
    Path("printed.toml").write_text(said("import", configuration), encoding="utf-8")
    assert load(Path("printed.toml")).architecture.sequence == 131072


def test_a_recipe_is_borrowed_as_an_assumption_and_makes_a_miniature(configuration):
    assert (
        main(["import", configuration, "--sequence", "8192", "--recipe", "llama2-70b", "--output", "my_run.toml"]) == 0
    )
    run, lender = load(Path("my_run.toml")), reference_run("llama2-70b")
    assert missing_keys(run.recipe) == ()
    for key, fact in run.facts.items():
        if fact.source.startswith("borrowed "):
            # the decay is of the same tokens, in sequences twice as long as the lender's
            wanted = lender.recipe.decay // 2 if key == "recipe.decay" else lender.facts[key].value
            assert (fact.kind, fact.value) == (Kind.ASSUMED, wanted), key
            assert "llama2-70b" in fact.why
    own = ("recipe.init_std", "recipe.embedding_dropout", "recipe.hidden_dropout", "recipe.attention_dropout")
    assert all(not run.facts[key].source.startswith("borrowed ") for key in own)
    assert run.recorded_layout is None
    planned = plan(Request(name="my_run.toml", mini=True, device="cpu", results=Path()))
    assert (planned.name, planned.layout.data_parallel) == ("my-run-mini", 2)


def test_json_says_what_was_written(configuration, answered):
    entry = answered("import", configuration, "--output", "my_run.toml")
    assert (entry["run"], entry["parameters"]) == ("my_run.toml", PARAMETERS)
    assert entry["not_used"] == ["_name_or_path", "architectures"]


REFUSED = [
    ("--output run.txt", "--output: not a run file's name; got run.txt, allowed: one ending in .toml\n"),
    ("--output here.toml", "--output: the file exists, and is not overwritten; got here.toml, allowed: a new name\n"),
    ("--output none/a.toml", "--output: cannot write there: No such file or directory; got none/a.toml\n"),
    ("--json", "--json: the run file itself goes to stdout; allowed: with --output\n"),
]


def test_what_cannot_be_written_is_refused(configuration, not_refused):
    Path("here.toml").write_text("mine", encoding="utf-8")
    assert not_refused(f"import {configuration}", REFUSED) == []
    assert Path("here.toml").read_text(encoding="utf-8") == "mine"


def test_a_configuration_that_is_not_described_writes_nothing(tmp_path, refused):
    path = written(tmp_path / "config.json", CONFIGURATION | {"hidden_act": "snake"})
    line = refused("import", str(path), "--output", str(tmp_path / "my_run.toml"))
    assert line.startswith(f'{path}: hidden_act; got "snake", allowed: silu, ')
    assert not (tmp_path / "my_run.toml").exists()
