"""The recorded layout on fewer ranks."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import miniatures, reference_run
from reference_runs.layout import layout_text
from reference_runs.miniature import miniature, prime_factors, scaled_layout
from suite.job.training_job import LEAST_STEPS
from suite.predict.simulation.supported_layouts import describes_ranks
from suite.reproduce.plan import plan
from suite.reproduce.request import Request

AXES = {
    ("bloom-176b", 1): "dp1,tp1,pp1",
    ("bloom-176b", 2): "dp2,tp1,pp1",
    ("bloom-176b", 4): "dp2,tp1,pp2",
    ("bloom-176b", 8): "dp2,tp2,pp2",
    ("opt-175b", 4): "dp2,tp2,pp1",
    ("opt-175b", 6): "dp3,tp2,pp1",
    ("gpt2-124m", 8): "dp8,tp1,pp1",
    # 7 divides neither heads nor feed-forward width, and nothing has 7 layers: dp takes it, and pp the next
    ("gpt-neox-20b", 14): "dp7,tp1,pp2",
}


def test_prime_factors_go_in_turns_to_the_recorded_axes() -> None:
    texts = {}
    for name, ranks in AXES:
        run = reference_run(name)
        architecture = miniature(run, "cpu", ranks=1).architecture
        texts[name, ranks] = layout_text(scaled_layout(run.layout, architecture, ranks=ranks))
    assert {case: ",".join(text.split(",")[:3]) for case, text in texts.items()} == AXES


@pytest.mark.parametrize("name", miniatures())
def test_a_miniature_can_be_executed_on_any_number_of_ranks(name: str) -> None:
    request = Request(
        name=name,
        ranks=1,
        layout=None,
        device="cpu",
        compiled=None,
        steps=LEAST_STEPS,
        seed=1,
        corpus=None,
        results=Path("unused"),
    )
    for ranks in range(1, 41):
        planned = plan(msgspec.structs.replace(request, ranks=ranks))
        assert planned.layout.ranks == ranks
        assert describes_ranks(planned.workload)


@given(st.integers(1, 5000))
def test_prime_factors_multiply_to_the_number_and_are_prime(number: int) -> None:
    factors = prime_factors(number)
    assert math.prod(factors) == number
    assert factors == sorted(factors, reverse=True)
    assert all(factor % divisor for factor in factors for divisor in range(2, factor))
