from __future__ import annotations

import itertools
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import reference_run, run_names
from reference_runs.layout import Layout, Recomputation
from reference_runs.run import Architecture, Mask
from suite.predict.analytic.flop import hardware_flop, model_flop
from suite.predict.analytic.flop_conventions import (
    attended_share,
    attended_shares,
    causal_half_flop,
    flop_conventions,
    megatron_flop,
)
from suite.predict.analytic.parameters import parameter_count
from tests.support.strategies import BLOOM


def equation_3(architecture: Architecture, *, factor: int, samples: int) -> Fraction:
    """Narayanan et al. 2021, equation 3: `factor` 96 with full recomputation (V / 16 L h), 72 without (V / 12)."""
    h, s = architecture.hidden, architecture.sequence
    layers, rows = architecture.layers, architecture.padded_vocabulary
    return factor * (samples * s * layers * h**2) * (1 + Fraction(s, 6 * h) + Fraction(rows, factor // 6 * layers * h))


def test_bloom_flop_equal_equation_3_exactly() -> None:
    architecture, samples = BLOOM.architecture, BLOOM.recipe.global_batch
    assert model_flop(architecture, samples=samples) == equation_3(architecture, factor=72, samples=samples)
    full = hardware_flop(architecture, Layout(recomputation=Recomputation.FULL), samples=samples)
    assert full == equation_3(architecture, factor=96, samples=samples)


def test_megatrons_convention_is_equation_3() -> None:
    wrong = [
        (name, recomputed)
        for name in run_names()
        for recomputed, factor in ((True, 96), (False, 72))
        if megatron_flop(reference_run(name).architecture, samples=3, recomputed=recomputed)
        != equation_3(reference_run(name).architecture, factor=factor, samples=3)
    ]
    assert wrong == []


def test_the_conventions_differ_by_what_they_leave_out() -> None:
    architecture = BLOOM.architecture
    flop = flop_conventions(architecture, samples=1)
    tokens, h = architecture.sequence, architecture.hidden
    vectors = 70 * 13 * h + 4 * h  # biases and norms, which 6 N and PaLM count as multiplied
    assert flop["palm"] - flop["6N"] == 12 * 70 * h * tokens * tokens
    assert flop["palm"] - flop["megatron-eq3-model"] == 6 * vectors * tokens
    assert flop["megatron-eq3-model"] - flop["causal-half"] == 3 * 70 * 2 * tokens * tokens * h
    assert flop["megatron-eq3-model"] - flop["without head"] == 6 * tokens * h * 250880
    assert flop["all-products"] == model_flop(architecture, samples=1)
    assert flop["nanogpt"] == flop["palm"]  # its tables are tied, and there is no table of positions


def test_nanogpts_convention_is_what_its_script_and_torchtitans_compute() -> None:
    """model.py, get_num_params and estimate_mfu, for GPT-2 124M as nanoGPT stores it; torchtitan has no embedding."""
    gpt2, llama = (reference_run(name).architecture for name in ("gpt2-124m", "llama2-70b"))
    of_script = 6 * (parameter_count(gpt2) - 1024 * 768) + 12 * 12 * 12 * 64 * 1024
    assert flop_conventions(gpt2, samples=480)["nanogpt"] == of_script * 1024 * 480
    of_titan = 6 * (parameter_count(llama) - 32000 * 8192) + 12 * 80 * 64 * 128 * 4096
    assert flop_conventions(llama, samples=2)["nanogpt"] == of_titan * 2 * 4096


def test_tinyllamas_published_mfu_counts_every_product() -> None:
    """24,000 tokens a second on an A100 are 56 % in its README, by a count that it does not name."""
    tiny = msgspec.structs.replace(
        reference_run("llama2-70b").architecture,
        **{"layers": 22, "hidden": 2048, "heads": 32, "head_dim": 64, "kv_heads": 4, "ffn_hidden": 5632},
        **{"sequence": 2048, "rotary_dim": 64},
    )
    flop = flop_conventions(tiny, samples=1)
    mfu = {name: value / 2048 * 24_000 / 312e12 for name, value in flop.items()}
    # 24,000 and 56 are printed to two digits: 0.5 / 24 and 0.5 / 56
    assert mfu["all-products"] == pytest.approx(0.56, rel=0.5 / 24 + 0.5 / 56)


def packed(*, sequence: int, mean_document: int) -> Architecture:
    return msgspec.structs.replace(
        BLOOM.architecture, sequence=sequence, mask=Mask.DOCUMENTS, mean_document=mean_document
    )


@given(st.integers(1, 9), st.integers(1, 40))
def test_documents_leave_the_expected_share_of_every_way_to_cut_a_sequence(sequence: int, mean: int) -> None:
    """Each token but the last may end its document, with chance 1 / m: all 2^(s - 1) ways, by their chances."""
    expected = Fraction(0)
    for ends in itertools.product((True, False), repeat=sequence - 1):
        chance, lengths = Fraction(1), [1]
        for is_end in ends:
            chance *= Fraction(1, mean) if is_end else 1 - Fraction(1, mean)
            lengths = [*lengths, 1] if is_end else [*lengths[:-1], lengths[-1] + 1]
        expected += chance * Fraction(sum(length * length for length in lengths), 2)
    share = attended_share(packed(sequence=sequence, mean_document=mean))
    assert float(share) == pytest.approx(float(expected / sequence**2), rel=1e-9)


def test_one_endless_document_leaves_half_of_the_square() -> None:
    assert float(attended_share(packed(sequence=8192, mean_document=10**9))) == pytest.approx(0.5, rel=1e-4)
    llama = packed(sequence=8192, mean_document=1000)
    assert causal_half_flop(llama, samples=1) < causal_half_flop(
        msgspec.structs.replace(llama, mask=Mask.CAUSAL, mean_document=None), samples=1
    )


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 12), st.integers(1, 5))
def test_windows_of_some_layers_leave_the_mean_share_of_all_layers(
    s: int, window: int, layers: int, every: int
) -> None:
    shape = msgspec.structs.replace(
        BLOOM.architecture, sequence=s, layers=layers, sliding_window=window, full_every=every
    )
    area = Fraction(0)
    for layer in range(layers):
        reach = s if (layer + 1) % every == 0 else min(window, s)
        # pairs as areas: the s on the diagonal count half, and so do the s - reach just beyond the window
        area += sum(min(position + 1, reach) for position in range(s)) - Fraction(s, 2) + Fraction(s - reach, 2)
    assert attended_share(shape) == area / (layers * s * s)
    assert attended_share(shape) == sum(part * share for part, share in attended_shares(shape))
