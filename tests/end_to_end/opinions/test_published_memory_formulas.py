"""Formulas that Megatron-LM and DeepSpeed publish, as they are known (not re-read for this file), and ours.

docs/trust.md says where they disagree, who is right, and why.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.layout import Layout
from reference_runs.run import Architecture, Position, Precision, Workload
from suite.predict.analytic.activations import embedding_activation_bytes, head_activation_bytes, layer_activation_bytes
from suite.predict.analytic.memory import zero_bytes_per_parameter
from suite.predict.analytic.parameters import parameter_count
from tests.predict.analytic.test_activations import SIXTEEN_BIT, gpt_shapes


def megatron_parameters(a: Architecture) -> Fraction:
    """Megatron-LM, megatron/training/theoretical_memory_usage.py, compute_weight_and_optimizer_memory, without experts.

    2 L h^2 (1 + kv / heads + f / h * (3/2 with a gate) + 2 / h + 1 / (L h)) + h v
    """
    layers, h, f = a.layers, a.hidden, a.ffn_hidden
    block = 1 + Fraction(a.kv_heads, a.heads) + Fraction(f, h) + Fraction(2, h) + Fraction(1, layers * h)
    return 2 * layers * h * h * block + h * a.padded_vocabulary


def megatron_state_bytes(*, sharded: bool, ranks: int) -> Fraction:
    """The same function: 18 bytes a parameter, or 6 + 12 / n with the distributed optimizer."""
    return 6 + Fraction(12, ranks) if sharded else Fraction(18)


def megatron_activation_bytes(a: Architecture, *, b: int, t: int) -> Fraction:
    """The same file, compute_activation_memory, one pipeline stage: sequence parallelism, selective recomputation.

    (s b h (18 + 4 f / h) L + 8 s b + s b h + 4 s b h (1 + v / h)) / t: layers, ids of tokens and positions, the mask
    of the embedding's dropout, and the head.
    """
    s, h = a.sequence, a.hidden
    layers = s * b * h * (18 + 4 * Fraction(a.ffn_hidden, h)) * a.layers
    return (layers + 8 * s * b + s * b * h + 4 * s * b * h * (1 + Fraction(a.padded_vocabulary, h))) / t


@given(gpt_shapes())
def test_megatron_leaves_biases_of_products_position_vectors_and_a_norm_of_the_embedding_out(a: Architecture) -> None:
    biases = a.layers * (3 * a.hidden + a.hidden + a.ffn_hidden + a.hidden)
    positions = a.sequence * a.hidden if a.position is Position.LEARNED else 0
    norm = 2 * a.hidden if a.embedding_norm else 0
    assert parameter_count(a) - megatron_parameters(a) == biases + positions + norm


@given(st.integers(1, 4096))
def test_megatron_s_bytes_of_state_are_ours_of_bf16(ranks: int) -> None:
    for stage, sharded in ((0, False), (1, True)):
        ours = zero_bytes_per_parameter(Precision.BF16, zero_stage=stage, ranks=ranks)
        assert ours == pytest.approx(float(megatron_state_bytes(sharded=sharded, ranks=ranks)), rel=1e-15)


@given(gpt_shapes(tensor_parallel=4), st.integers(1, 8), st.sampled_from([1, 2, 4]))
def test_megatron_s_activations_are_ours_with_a_share_of_the_ids_and_without_a_norm_of_the_embedding(
    a: Architecture, b: int, t: int
) -> None:
    layout = Layout(micro_batch=b, tensor_parallel=t, sequence_parallel=True)
    workload = Workload(a, SIXTEEN_BIT, layout)
    scores = 5 * Fraction(a.heads * a.sequence**2 * b, t)  # what selective recomputation does not keep
    ours = (sum(layer_activation_bytes(workload).values()) - scores) * a.layers
    ours += sum(embedding_activation_bytes(workload).values()) + sum(head_activation_bytes(workload).values())
    ids, norm = Fraction(8 * a.sequence * b, t), Fraction(2 * a.sequence * b * a.hidden, t) if a.embedding_norm else 0
    assert ours - megatron_activation_bytes(a, b=b, t=t) == norm - ids
