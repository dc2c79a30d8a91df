"""A recipe that lacks keys refuses to say them, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.catalog import load, reference_run
from reference_runs.errors import InputMistakesError, MissingFactError
from reference_runs.incomplete import NotPredicted, check_complete, check_whole, missing_keys
from reference_runs.run import Precision, Recipe
from tests.support.short_run_files import short_run_file

BLOOM = reference_run("bloom-176b")


def recipe(tmp_path: Path, **values: object) -> Recipe:
    return load(short_run_file(tmp_path / "my_run.toml", recipe=values)).recipe


def test_each_key_is_either_said_or_refused_by_name(tmp_path: Path) -> None:
    given = recipe(tmp_path, precision="bf16", tokens=4096)
    assert given.precision is Precision.BF16
    assert given.tokens == 4096
    for key in Recipe.__struct_fields__:
        if key in missing_keys(given):
            with pytest.raises(MissingFactError, match=rf"my_run\.toml: recipe\.{key} is needed, and the file leaves"):
                getattr(given, key)
        else:
            getattr(given, key)
    assert {"global_batch", "learning_rate", "init_std"} <= {*missing_keys(given)}
    assert not {"precision", "tokens", "hidden_dropout", "objective", "initial_loss_scale"} & {*missing_keys(given)}


def test_a_whole_recipe_is_an_ordinary_one(tmp_path: Path) -> None:
    assert missing_keys(BLOOM.recipe) == ()
    assert type(BLOOM.recipe) is Recipe
    check_complete(BLOOM.recipe, "to execute", "here")
    with pytest.raises(MissingFactError, match=r"here: recipe\.global_batch, .* are needed to execute, and the file"):
        check_complete(recipe(tmp_path), "to execute", "here")


def test_all_that_an_execution_lacks_is_said_at_once(tmp_path: Path) -> None:
    run = load(short_run_file(tmp_path / "my_run.toml"))
    with pytest.raises(InputMistakesError) as refusal:
        check_whole(run, needs_layout=True)
    recipe, layout = refusal.value.lines
    assert "recipe.global_batch, recipe.tokens, recipe.precision" in recipe
    assert layout.endswith("[layout]: needed, and the file leaves it out; allowed: a layout of your own with --layout")
    with pytest.raises(MissingFactError):
        check_whole(run, needs_layout=False)
    check_whole(BLOOM, needs_layout=True)


def test_what_is_not_published_of_a_recipe_is_left_out_too(tmp_path: Path) -> None:
    path = short_run_file(tmp_path / "my_run.toml", recipe={"precision": "bf16"})
    unknown = 'global_batch = { kind = "not published", source = "card" }\n'
    path.write_text(path.read_text(encoding="utf-8") + unknown, encoding="utf-8")
    assert "global_batch" in missing_keys(load(path).recipe)


def test_figures_without_the_same_fact_are_one_reason(tmp_path: Path) -> None:
    given, absent = recipe(tmp_path), NotPredicted()
    for figures, key in (("flop", "global_batch"), ("loss", "init_std"), ("traffic", "global_batch")):
        with absent.unless(figures):
            getattr(given, key)
    with absent.unless("nothing"):
        assert given.hidden_dropout == 0
    assert absent.reasons == (
        "flop, traffic: recipe.global_batch is needed, and the file leaves it out",
        "loss: recipe.init_std is needed, and the file leaves it out",
    )
