from __future__ import annotations

import msgspec
import pytest

from suite.predict.plan.fit import fit
from suite.predict.plan.question import Question
from suite.predict.plan.search import search
from tests.predict.plan.test_search import question

WORDS = ("tp", "pp", "zero1", "reduce-scatter", "zero3", "recompute-full")


def of_layers(asked: Question, layers: int) -> Question:
    return asked._replace(architecture=msgspec.structs.replace(asked.architecture, layers=layers))


@pytest.mark.parametrize("ranks", [1, 4])
def test_the_largest_model_fits_and_one_of_a_tenth_more_layers_does_not(ranks: int) -> None:
    asked = question(ranks, layouts=WORDS)
    answer = fit(asked)
    assert answer.result.best
    assert answer.largest is not None
    layers = answer.largest.layers
    assert search(of_layers(asked, layers)).fitting > 0
    assert search(of_layers(asked, round(1.1 * layers) + 1)).fitting == 0


def test_the_largest_micro_batch_of_a_batch_of_64_is_the_largest_power_of_two_that_fits_in_some_layout() -> None:
    asked = question(4, memory_bytes=2.5e9, layouts=WORDS)
    answer = fit(asked)
    fitting = [size for size in (1, 2, 4, 8, 16, 32, 64) if search(asked._replace(fixed={"micro_batch": size})).fitting]
    assert answer.micro_batch == max(fitting)
    assert fit(asked._replace(fixed={"micro_batch": 2})).micro_batch == 2


def of_batch(asked: Question, batch: int) -> Question:
    return asked._replace(recipe=msgspec.structs.replace(asked.recipe, global_batch=batch))


def test_the_largest_micro_batch_is_the_largest_divisor_of_the_batch_that_fits() -> None:
    for batch in (3, 6, 15, 96, 1536):
        asked = of_batch(question(1, layouts=("recompute-full",), memory_bytes=20e9), batch)
        divisors = [size for size in range(1, batch + 1) if batch % size == 0]
        fitting = [size for size in divisors if search(asked._replace(fixed={"micro_batch": size})).fitting]
        assert fit(asked).micro_batch == max(fitting), batch


@pytest.mark.parametrize(("ranks", "batch"), [(1, 3), (2, 6), (4, 20), (2, 60)])
def test_every_divisor_of_a_small_batch_is_a_micro_batch(ranks: int, batch: int) -> None:
    """3 samples on one rank are one micro-batch of 3, and not three of 1."""
    asked = of_batch(question(ranks, layouts=WORDS), batch)
    best = search(asked, top=1).best[0]
    for size in (size for size in range(1, batch + 1) if batch % size == 0):
        fixed = search(asked._replace(fixed={"micro_batch": size}), top=1).best
        assert not fixed or best.figures.step_seconds <= fixed[0].figures.step_seconds
    if batch // ranks == 3:
        assert best.layout.micro_batch % 3 == 0


def test_what_does_not_fit_says_how_many_accelerators_would_do_unless_one_layer_is_too_large() -> None:
    asked = question(2, memory_bytes=1.2e9, layouts=WORDS)
    answer = fit(asked)
    assert not answer.result.best
    assert answer.micro_batch is None
    assert answer.ranks is not None
    assert search(asked._replace(ranks=answer.ranks)).fitting > 0
    assert search(asked._replace(ranks=answer.ranks // 2)).fitting == 0
    assert answer.largest is not None
    assert answer.largest.layers < asked.architecture.layers
    hopeless = fit(asked._replace(memory_bytes=1e6))
    assert (hopeless.ranks, hopeless.largest) == (None, None)
