"""A run file that says a part has the figures that the part suffices for, equal to those of the whole file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from reference_runs.catalog import load, reference_run
from reference_runs.incomplete import NotPredicted, incomplete_recipe
from reference_runs.run import Recipe, ReferenceRun, Workload
from suite.metrics.figures import Figure, Quantity
from suite.predict.recorded_run.figures import predicted_figures
from suite.predict.recorded_run.prediction import run_prediction
from tests.support.short_run_files import short_run_file

NEOX = reference_run("gpt-neox-20b")
WHOLE = msgspec.structs.replace(NEOX, recorded_layout=msgspec.structs.replace(NEOX.layout, accumulation=None))
OF_A_STEP = {
    Quantity.MODEL_FLOP,
    Quantity.HARDWARE_FLOP,
    Quantity.PAYLOAD_BYTES,
    Quantity.MESSAGES,
    Quantity.SENT_BYTES,
}


def without(run: ReferenceRun, *keys: str) -> ReferenceRun:
    """The run without these keys of its recipe."""
    values = {key: value for key, value in msgspec.structs.asdict(run.recipe).items() if key not in keys}
    return msgspec.structs.replace(run, recipe=incomplete_recipe(values, keys, run.where))


def figures(run: ReferenceRun) -> tuple[list[Figure], tuple[str, ...]]:
    absent = NotPredicted()
    predicted = run_prediction(Workload(run.architecture, run.recipe, run.layout), None, absent)
    return predicted_figures(run, run.layout, None, predicted, absent=absent), absent.reasons


@pytest.mark.parametrize(
    ("key", "lost"),
    {
        "global_batch": {*OF_A_STEP, Quantity.TRAINING_FLOP, Quantity.BUBBLE_FRACTION},
        "tokens": {Quantity.TRAINING_FLOP},
        "init_std": {Quantity.FIRST_LOSS},
        "learning_rate": set(),
        "warmup": set(),
        "precision": {
            *(Quantity.WEIGHT_BYTES, Quantity.GRADIENT_BYTES, Quantity.OPTIMIZER_BYTES, Quantity.ACTIVATION_BYTES),
            *(Quantity.PEAK_BYTES, Quantity.PAYLOAD_BYTES, Quantity.MESSAGES, Quantity.SENT_BYTES),
        },
    }.items(),
)
def test_a_key_that_is_left_out_takes_with_it_what_needs_it_alone(key: str, lost: set[Quantity]) -> None:
    all_of_them, nothing = figures(WHOLE)
    assert nothing == ()
    kept, reasons = figures(without(WHOLE, key))
    assert kept == [figure for figure in all_of_them if figure.quantity not in lost]
    assert bool(reasons) == bool(lost)
    assert all(reason.endswith(f": recipe.{key} is needed, and the file leaves it out") for reason in reasons)


def test_recorded_accumulation_gives_traffic_without_a_batch() -> None:
    assert NEOX.layout.accumulation is not None
    of_traffic = {Quantity.PAYLOAD_BYTES, Quantity.MESSAGES, Quantity.SENT_BYTES, Quantity.BUBBLE_FRACTION}
    all_of_them, kept = figures(NEOX)[0], figures(without(NEOX, "global_batch"))[0]
    expected = [figure for figure in all_of_them if figure.quantity in of_traffic]
    assert [figure for figure in kept if figure.quantity in of_traffic] == expected != []


def test_architecture_layout_and_precision_give_memory(tmp_path: Path) -> None:
    layout = {"micro_batch": 1, "data_parallel": 8, "zero_stage": 3}
    run = load(short_run_file(tmp_path / "my_run.toml", recipe={"precision": "bf16"}, layout=layout))
    given, _ = figures(run)
    recipe = msgspec.structs.asdict(WHOLE.recipe)
    said = {"precision", "decay_of_vectors", "embedding_dropout", "hidden_dropout", "attention_dropout"}
    recipe |= {key: getattr(run.recipe, key) for key in said} | {"global_batch": 8}
    whole = msgspec.structs.replace(run, recipe=Recipe(**recipe))
    of_memory = {Quantity.WEIGHT_BYTES, Quantity.OPTIMIZER_BYTES, Quantity.ACTIVATION_BYTES, Quantity.PEAK_BYTES}
    expected = [figure for figure in figures(whole)[0] if figure.quantity in of_memory]
    assert [figure for figure in given if figure.quantity in of_memory] == expected != []
