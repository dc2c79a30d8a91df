"""Memory of a decoder whose operators are Triton's, counted by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kernels.linear_cross_entropy import rows_of_a_chunk as of_kernel
from reference_runs.catalog import miniatures, reference_run
from reference_runs.layout import Layout
from reference_runs.miniature import miniature
from reference_runs.run import Activation, QueryKeyNorm, Workload
from suite.job.options import StepOptions
from suite.machine.half_precision import Kernels
from suite.predict.simulation.step_memory import executed_activation_bytes, executed_peak_bytes
from suite.predict.simulation.triton_operators import rows_of_a_chunk
from suite.reproduce.supported import without_triton_kernel

TORCH = StepOptions(kernels=Kernels(cuda=True))
FEW_LAYERS = 4  # keep and need less as all do
TRITON = msgspec.structs.replace(TORCH, triton=True)


def test_the_loss_has_chunks_of_as_many_rows_as_the_kernel() -> None:
    sizes = [(1, 8, 16), (4096, 64, 50304), (32768, 2048, 6304)]
    assert [rows_of_a_chunk(*each) for each in sizes] == [of_kernel(*each) for each in sizes]


def small(name: str) -> Workload:
    """A miniature in its GPU size, one sample at a time, without dropout and recomputation, in 16 bit."""
    run = miniature(reference_run(miniatures()[name]), "cuda", ranks=1)
    recipe = msgspec.structs.replace(run.recipe, embedding_dropout=0.0, hidden_dropout=0.0, attention_dropout=0.0)
    return Workload(run.architecture, recipe, Layout(micro_batch=1))


def test_a_pre_norm_decoder_keeps_what_its_kernels_save() -> None:
    workload = small("gpt2-mini")
    a = workload.architecture
    t, d, f, h, v = a.sequence, a.hidden, a.ffn_hidden, a.heads, a.padded_vocabulary
    of_layer = sum(
        (
            2 * t * d + 8 * t,  # input of the first norm, its mean and deviation
            2 * t * d,  # normal: input of the projection
            3 * 2 * t * d,  # queries, keys, values, one storage
            2 * h * t * t,  # attention weights
            2 * t * d,  # context
            2 * t * d + 8 * t,  # residual stream: input of the second norm
            2 * t * d,  # normal: input of the expansion
            2 * t * f + 2 * t * f,  # inputs of activation and contraction
        )
    )
    of_loss = 2 * t * d + 8 * t + 2 * t * d + 2 * v * d  # final norm; gradients of hidden states and weight
    tokens = 8 * t
    assert executed_activation_bytes(workload, TRITON, stage=0) == a.layers * of_layer + of_loss + tokens


@pytest.mark.parametrize(
    ("changes", "of_queries", "of_keys", "of_activation"),
    [
        ({}, 0, 0, 2),
        ({"activation": Activation.RELU_SQUARED}, 0, 0, 1),
        # of queries and keys the copy that is normed, and 1 / root of each head
        ({"query_key_norm": QueryKeyNorm.HEAD}, 1, 1, 2),
    ],
)
def test_a_llama_keeps_what_its_kernels_save(
    changes: dict[str, Any], of_queries: int, of_keys: int, of_activation: int
) -> None:
    workload = small("llama2-mini")
    a = msgspec.structs.replace(workload.architecture, **changes)
    t, d, f, h, g, v = a.sequence, a.hidden, a.ffn_hidden, a.heads, a.kv_heads, a.padded_vocabulary
    assert g < h
    queries, keys = 2 * t * h * a.head_dim, 2 * t * g * a.head_dim
    of_layer = sum(
        (
            2 * t * d + 4 * t,  # input of the first norm, and 1 / root
            2 * t * d,  # normal: input of the projection
            of_queries * (queries + 4 * t * h) + of_keys * (keys + 4 * t * g),
            queries + keys,  # rotated
            queries + 2 * keys,  # values, where they lie in the projection's output
            2 * h * t * t,  # attention weights
            queries,  # context
            2 * t * d + 4 * t,  # residual stream: input of the second norm
            2 * t * d,  # normal: input of the expansion
            of_activation * 2 * t * f + 2 * t * f,  # inputs of activation and contraction
        )
    )
    turns = 2 * 4 * t * a.head_dim  # cosines and sines
    of_loss = 2 * t * d + 4 * t + 2 * t * d + 2 * v * d  # final norm; gradients of hidden states and weight
    tokens = 8 * t
    kept = executed_activation_bytes(workload._replace(architecture=a), TRITON, stage=0)
    assert kept == a.layers * of_layer + turns + of_loss + tokens


def test_triton_s_kernels_keep_less_and_need_less_than_pytorch_s_operators() -> None:
    for name, run in miniatures().items():
        if without_triton_kernel(reference_run(run).architecture):
            continue
        workload = small(name)
        few = msgspec.structs.replace(workload.architecture, layers=min(workload.architecture.layers, FEW_LAYERS))
        workload = workload._replace(architecture=few)
        kept = [executed_activation_bytes(workload, options, stage=0) for options in (TORCH, TRITON)]
        peaks = [executed_peak_bytes(workload, options, stage=0, replica=0) for options in (TORCH, TRITON)]
        assert kept[1] < kept[0], name
        assert peaks[1] < peaks[0], name
