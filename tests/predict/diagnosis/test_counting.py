"""Printed rates are traced back to the formula that gives them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import reference_run
from reference_runs.run import Architecture, FlopConvention, Precision
from suite.predict.analytic.flop_conventions import conventional_flop
from suite.predict.diagnosis.counting import CountedRate, Printed, counted, dense_share

PEAK = 989.4e12


def architecture(name: str) -> Architecture:
    return reference_run(name).architecture


def judged(printed: Printed, name: str, gpus: int, seconds: float) -> CountedRate:
    (found,) = counted(
        printed, architecture(name), batch=64, gpus=gpus, seconds=seconds, peak=PEAK, precision=Precision.BF16
    )
    return found


@given(
    st.sampled_from(["llama2-7b", "gpt3-175b", "mixtral-8x7b"]),
    st.sampled_from(list(FlopConvention)),
    st.sampled_from([1, 8, 64]),
    st.floats(0.1, 100),
)
def test_a_convention_is_recognised_and_is_no_mistake(
    name: str, convention: FlopConvention, gpus: int, seconds: float
) -> None:
    rate = conventional_flop(architecture(name), samples=64, convention=convention) / seconds / gpus
    found = judged(Printed(flop_per_second=rate), name, gpus, seconds)
    assert not found.wrong
    assert found.explanation is not None
    assert found.explanation.startswith("counted as ")


@pytest.mark.parametrize(
    ("factor", "words"), [(PEAK / 312e12, "by the peak of an A100"), (0.5, "by the peak of this part with sparsity")]
)
def test_an_mfu_by_a_foreign_peak_is_a_mistake_and_the_peak_is_named(factor: float, words: str) -> None:
    share = conventional_flop(architecture("llama2-7b"), samples=64, convention=FlopConvention.PALM) / 10 / 8 / PEAK
    found = judged(Printed(mfu=share * factor), "llama2-7b", 8, 10)
    assert found.wrong
    assert found.explanation is not None
    assert words in found.explanation


def test_parameters_of_a_shard_are_recognised() -> None:
    parameters = 6 * 6_738_415_616 * 64 * 4096
    whole = conventional_flop(architecture("llama2-7b"), samples=64, convention=FlopConvention.PALM)
    found = judged(Printed(mfu=(whole - parameters * 7 / 8) / 10 / 8 / PEAK), "llama2-7b", 8, 10)
    assert found.wrong
    assert "the parameters of one shard of 8" in (found.explanation or "")


@pytest.mark.parametrize(("factor", "words"), [(8, "of all devices"), (1 / 8, "of one of 8 processes"), (1, "batch x")])
def test_tokens_of_one_or_of_all_are_recognised(factor: float, words: str) -> None:
    found = judged(Printed(device_tokens_per_second=factor * 64 * 4096 / 10 / 8), "llama2-7b", 8, 10)
    assert words in (found.explanation or "")
    assert found.wrong == (factor != 1)


def test_what_no_formula_gives_is_not_explained() -> None:
    found = judged(Printed(flop_per_second=1e9), "llama2-7b", 8, 10)
    assert (found.explanation, found.wrong) == (None, False)


def test_an_mfu_above_1_has_a_dense_share_by_each_peak_that_is_taken_often() -> None:
    assert dense_share(2.0, 2250e12, Precision.BF16)["an A100"] == pytest.approx(0.277, abs=1e-3)
    assert dense_share(0.5, 2250e12, Precision.BF16) == {}
