from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from reference_runs.layout import Recomputation
from reference_runs.run import Architecture, Recipe
from suite.execute.model.decoder import Decoder
from suite.execute.model.objective import causal_lm_loss
from suite.predict.flop import hardware_flop, model_flop
from tests.strategies import BLOOM, architectures, dropouts, recipes

RECOMPUTATIONS = st.sampled_from([Recomputation.NONE, Recomputation.FULL])


def counted_flop(architecture: Architecture, recipe: Recipe, *, samples: int, recomputation: Recomputation) -> int:
    model = Decoder(architecture, recipe, recompute=recomputation is Recomputation.FULL)
    tokens = torch.randint(architecture.vocabulary, (samples, architecture.sequence + 1))
    with FlopCounterMode(display=False) as counter:
        causal_lm_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    return counter.get_total_flops()


@given(architectures(), recipes(), st.integers(1, 3))
def test_model_flop_equal_the_flop_counter_without_recomputation(
    architecture: Architecture, recipe: Recipe, samples: int
) -> None:
    counted = counted_flop(architecture, recipe, samples=samples, recomputation=Recomputation.NONE)
    assert model_flop(architecture, samples=samples) == counted


@given(architectures(), recipes(), st.integers(1, 3), RECOMPUTATIONS)
def test_hardware_flop_equal_the_flop_counter(
    architecture: Architecture, recipe: Recipe, samples: int, recomputation: Recomputation
) -> None:
    counted = counted_flop(architecture, recipe, samples=samples, recomputation=recomputation)
    predicted = hardware_flop(
        architecture, samples=samples, recomputation=recomputation, hidden_dropout=recipe.hidden_dropout
    )
    assert predicted == counted


@given(architectures(), dropouts(), st.integers(1, 10**6), RECOMPUTATIONS)
def test_flop_are_proportional_to_samples(
    architecture: Architecture, dropout: float, samples: int, recomputation: Recomputation
) -> None:
    one, many = (
        hardware_flop(architecture, samples=n, recomputation=recomputation, hidden_dropout=dropout)
        for n in (1, samples)
    )
    assert many == samples * one
    assert model_flop(architecture, samples=samples) == samples * model_flop(architecture, samples=1)


@given(architectures(), dropouts(), st.integers(1, 100), RECOMPUTATIONS)
def test_every_layer_adds_the_same_flop(
    architecture: Architecture, dropout: float, layers: int, recomputation: Recomputation
) -> None:
    def flop(number: int) -> int:
        shape = msgspec.structs.replace(architecture, layers=number)
        return hardware_flop(shape, samples=2, recomputation=recomputation, hidden_dropout=dropout)

    assert flop(layers + 1) - flop(layers) == flop(2) - flop(1) > 0


@given(architectures(), dropouts())
def test_recomputation_only_adds(architecture: Architecture, dropout: float) -> None:
    none, full = (
        hardware_flop(architecture, samples=1, recomputation=kind, hidden_dropout=dropout)
        for kind in (Recomputation.NONE, Recomputation.FULL)
    )
    assert none == model_flop(architecture, samples=1) < full


def test_selective_recomputation_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed: none, full"):
        hardware_flop(BLOOM.architecture, samples=1, recomputation=Recomputation.SELECTIVE, hidden_dropout=0.1)


def equation_3(architecture: Architecture, *, factor: int, samples: int) -> Fraction:
    """Narayanan et al. 2021, equation 3: `factor` 96 with full recomputation (V / 16 L h), 72 without (V / 12)."""
    h, s = architecture.hidden, architecture.sequence
    layers, rows = architecture.layers, architecture.padded_vocabulary
    return factor * (samples * s * layers * h**2) * (1 + Fraction(s, 6 * h) + Fraction(rows, factor // 6 * layers * h))


def test_bloom_flop_equal_equation_3_exactly() -> None:
    architecture, samples = BLOOM.architecture, BLOOM.recipe.global_batch
    assert model_flop(architecture, samples=samples) == equation_3(architecture, factor=72, samples=samples)
    full = hardware_flop(architecture, samples=samples, recomputation=Recomputation.FULL, hidden_dropout=0.1)
    assert full == equation_3(architecture, factor=96, samples=samples)


def test_bloom_flop_equal_the_rate_and_step_time_that_the_log_prints() -> None:
    assert BLOOM.reported.hardware_flop_per_second is not None
    assert BLOOM.reported.step_seconds is not None
    assert BLOOM.cluster is not None
    logged = BLOOM.reported.hardware_flop_per_second * BLOOM.cluster.accelerators * BLOOM.reported.step_seconds
    predicted = hardware_flop(
        BLOOM.architecture,
        samples=BLOOM.recipe.global_batch,
        recomputation=BLOOM.layout.recomputation,
        hidden_dropout=BLOOM.recipe.hidden_dropout,
    )
    # both are printed to two decimals, so half a unit of the last place each: 0.005 / 149.02 + 0.005 / 105.22 = 8.1e-5
    assert predicted == pytest.approx(logged, rel=0.005 / 149.02 + 0.005 / 105.22)
