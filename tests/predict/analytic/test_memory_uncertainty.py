"""The uncertainty of a peak: its interval, the probability that it fits, and the words for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.stack import stacks
from suite.predict.analytic.memory_uncertainty import Fitting, MemoryVerdict, PeakKind, PeakUncertainty, peak_kind
from tests.support.examples import examples

SPREADS = st.floats(0.01, 0.5)
FACTORS = st.floats(0.3, 3.0)


@examples(50)
@given(SPREADS, FACTORS, FACTORS)
def test_the_interval_holds_the_middle_80_percent_and_more_room_is_never_less_probable(spread, peak, more) -> None:
    uncertainty = PeakUncertainty(spread)
    least, most = uncertainty.interval(peak)
    assert least < peak < most
    at_ends = [uncertainty.fitting(peak, usable).probability for usable in (least, peak, most)]
    assert at_ends == pytest.approx([0.1, 0.5, 0.9], abs=1e-4)
    assert uncertainty.fitting(peak, 1 + more).probability >= uncertainty.fitting(peak, 1).probability
    assert uncertainty.fitting(uncertainty.room(peak), peak).probability == pytest.approx(0.75, abs=1e-4)
    assert uncertainty.fitting(peak, -1.0).verdict is MemoryVerdict.NOT


def test_words_say_the_verdict_and_the_probability() -> None:
    expected = {
        1.0: ("fits (over 99 % likely)", MemoryVerdict.FITS),
        0.951: ("fits (95 % likely)", MemoryVerdict.FITS),
        0.75: ("fits (75 % likely)", MemoryVerdict.FITS),
        0.74: ("74 % likely to fit", MemoryVerdict.LIKELY),
        0.5: ("50 % likely to fit", MemoryVerdict.LIKELY),
        0.49: ("does not fit (49 % likely to)", MemoryVerdict.NOT),
        0.001: ("does not fit (under 1 % likely to)", MemoryVerdict.NOT),
    }
    found = {each: (Fitting(each).words, Fitting(each).verdict) for each in expected}
    assert found == expected


def test_every_stack_has_a_kind() -> None:
    kinds = {name: peak_kind(each.switches.keeping) for name, each in stacks().items()}
    named = {
        PeakKind.WALKED: {"this-suite", "this-suite-eager", "pytorch", "transformers", "deepspeed"},
        PeakKind.NANOTRON: {"nanotron"},
        PeakKind.TORCHTITAN: {name for name in kinds if name.startswith("torchtitan")},
    }
    for kind, names in named.items():
        assert {name for name, of_stack in kinds.items() if of_stack is kind} == names
    assert kinds["megatron-core"] is PeakKind.FORMULA
