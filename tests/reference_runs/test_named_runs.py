"""A name that is no recorded run's is refused with the run that it means, where it is a model's."""

from __future__ import annotations

import pytest

from reference_runs.catalog import miniatures, reference_run, run_names
from reference_runs.errors import InputError
from reference_runs.named_runs import _ALSO, meant_run
from suite.__main__ import main


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
