"""Names of models as people write them find the catalog's run and no other model's, or are refused with a hint."""

from __future__ import annotations

import pytest

from reference_runs.catalog import miniatures, reference_run, run_names
from reference_runs.errors import InputError
from reference_runs.named_runs import _ALSO, meant_run
from reference_runs.published_cells import SHAPE
from reference_runs.published_shape import is_plain, named_run, stated_shape
from suite.__main__ import main


def test_a_run_is_found_by_its_own_name() -> None:
    assert [named_run(name) for name in run_names()] == run_names()


def test_a_plain_model_is_said_in_full_by_its_cells() -> None:
    plain = [run for name in run_names() if is_plain(run := reference_run(name))]
    assert len(plain) > len(run_names()) / 2
    for run in plain:
        assert set(SHAPE) <= set(stated_shape(run))


def test_a_name_without_its_size_means_no_run_of_another_shape() -> None:
    assert named_run("GPT-3") == named_run("GPT-3", {"layers": "96", "hidden": "12288"}) == "gpt3-175b"
    assert named_run("GPT-3", {"layers": "24", "hidden": "2048", "heads": "16"}) is None
    assert named_run("PaLM", {"layers": "32"}) is None
    assert named_run("llama3.1-405b", {"layers": "21"}) == "llama3.1-405b"  # a proxy with some of its layers


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("meta-llama/Llama-3.1-8B", "llama3.1-8b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("mistralai/Mixtral-8x22B-v0.1", "mixtral-8x22b"),
        ("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"),
        ("BLOOM", "bloom-176b"),
        ("mistralai/Mixtral", "mixtral-8x22b or mixtral-8x7b"),
        ("qwen3", "qwen3-235b-a22b or qwen3-30b-a3b"),
        ("Llama-2-hf", "llama2-13b, llama2-70b or llama2-7b"),
        ("blom-176b", "bloom-176b"),
        ("nonsense", None),
        ("", None),
    ],
)
def test_the_run_of_a_model_is_meant_before_a_name_that_is_near(name: str, meant: str | None) -> None:
    assert meant_run(name, run_names()) == meant
    with pytest.raises(InputError) as refusal:
        reference_run(name)
    assert (f"did you mean {meant}?" in str(refusal.value)) == (meant is not None)


def test_every_other_name_is_of_a_recorded_run_and_none_itself() -> None:
    assert set(_ALSO.values()) <= set(run_names())
    assert not set(_ALSO) & set(run_names())


def test_a_run_that_is_not_among_the_names_is_not_meant() -> None:
    assert meant_run("BLOOM", miniatures()) is None
    assert meant_run("Qwen3", miniatures()) is None
    assert meant_run("Llama-2", ["bloom-176b", "llama2-7b"]) == "llama2-7b"


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "meta-llama/Llama-3.1-8B"),
        ("predict", "bloom-176b", "meta-llama/Llama-3.1-8B"),
        ("show", "meta-llama/Llama-3.1-8B"),
        ("plan", "meta-llama/Llama-3.1-8B", "--on", "h100", "--gpus", "8"),
        ("reproduce", "meta-llama/Llama-3.1-8B"),
        ("reproduce", "meta-llama/Llama-3.1-8B-slice"),
        ("dry-run", "meta-llama/Llama-3.1-8B"),
    ],
)
def test_commands_name_the_run_that_a_model_is(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert main([*arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: unknown ")
    assert "did you mean llama3.1-8b? allowed: " in error
    assert error.count("\n") == 1
