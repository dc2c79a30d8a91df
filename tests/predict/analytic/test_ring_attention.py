"""Rings of keys and values: which rank computes most, what adds up its blocks, and which messages attention hides."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout, Recomputation
from reference_runs.run import Mask, Workload
from reference_runs.stack import ContextParallel, Stack, stack
from suite.predict.analytic.machine import PLAIN
from suite.predict.analytic.ring_attention import attention_forwards, exposed_ring_seconds, ring_work
from tests.support.strategies import BLOOM

LLAMA = reference_run("llama3.1-8b")  # 32 layers, 32 heads of 128, 8 of keys and values


def of(context_parallel: ContextParallel) -> Stack:
    return msgspec.structs.replace(PLAIN, context_parallel=context_parallel)


def llama(ranks: int, **layout: object) -> Workload:
    asked = msgspec.structs.replace(Layout(context_parallel=ranks, fused_attention=True), **layout)
    return Workload(LLAMA.architecture, LLAMA.recipe, asked)


def blocks(rank: int, ranks: int) -> Fraction:
    """Blocks that a rank of PyTorch 2.5.1 computes: half of its own, and each of an earlier rank."""
    behaviours = ["half" if i == 0 else "whole" if (rank - i) % ranks < rank else "skipped" for i in range(ranks)]
    return Fraction(1, 2) * behaviours.count("half") + behaviours.count("whole")


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_consecutive_parts_give_the_last_rank_most_blocks(ranks: int) -> None:
    of_ranks = [blocks(rank, ranks) for rank in range(ranks)]
    imbalance = max(of_ranks) / (sum(of_ranks) / ranks)
    assert ring_work(llama(ranks), of(ContextParallel.PYTORCH_2_5)).imbalance == pytest.approx(float(imbalance))
    for balanced in (ContextParallel.GATHERED, ContextParallel.RING, ContextParallel.PYTORCH):
        assert ring_work(llama(ranks), of(balanced)).imbalance == 1
    whole = llama(ranks)._replace(architecture=msgspec.structs.replace(LLAMA.architecture, mask=Mask.PREFIX))
    assert ring_work(whole, of(ContextParallel.PYTORCH_2_5)).imbalance == 1


@pytest.mark.parametrize("ranks", [2, 5])
def test_blocks_are_added_up_in_fp32(ranks: int) -> None:
    """Bytes of each tensor that is read or written, in the order of `_templated_ring_attention`."""
    work = ring_work(llama(ranks, tensor_parallel=2), of(ContextParallel.PYTORCH))
    elements = LLAMA.architecture.sequence // ranks * 4096 / 2
    forward = backward = 0
    for block in range(ranks):
        if block < ranks - 1:
            forward += 2 * (2 + 2)  # keys and values are joined
            backward += 2 * (2 + 2)
        forward += 2 + 4 if block == 0 else 4 + 2 + 4
        backward += 4 + 2 + 4  # gradients of queries
        backward += 2 * (4 + 2 + 4)  # those of keys and values
        backward += 2 * (4 + 4)  # are joined
    forward += 4 + 2
    assert work[1:] == pytest.approx((elements * forward, elements * backward))
    assert ring_work(llama(ranks), of(ContextParallel.RING))[1:] == (0, 0)
    assert ring_work(llama(1), of(ContextParallel.PYTORCH))[1:] == (0, 0)


@pytest.mark.parametrize(
    ("backward_share", "seconds", "exposed"),
    [(2.5, 200.0, 200 - 183.75), (2.0, 200.0, 200 - 157.5), (2.5, 100.0, 0.0), (2.0, 157.5, 0.0)],
)
def test_blocks_of_a_ring_hide_behind_attention_but_for_one(
    backward_share: float, seconds: float, exposed: float
) -> None:
    """70 layers of 0.5 s, 3 micro-batches, half of the blocks on their way; both passes are 3.5 or 3 forward ones."""
    workload = Workload(BLOOM.architecture, BLOOM.recipe, Layout(context_parallel=2))
    found = [
        exposed_ring_seconds(
            workload, of(each), seconds, kinds=[(0.5, 70)], backward_share=backward_share, micro_batches=3
        )
        for each in (ContextParallel.RING, ContextParallel.GATHERED)
    ]
    assert found == [exposed, seconds]


@pytest.mark.parametrize("forward", [0.0, 1.0, 3.0, 1000.0])
@pytest.mark.parametrize("recomputation", [Recomputation.NONE, Recomputation.FULL, Recomputation.SELECTIVE_OP])
def test_pytorchs_ring_waits_as_a_walk_over_its_blocks_says(forward: float, recomputation: Recomputation) -> None:
    """Four ranks, keys and values repeated to four times their heads; gradients of twice the bytes come home last."""
    workload, ranks, backward = llama(4, recomputation=recomputation), 4, 2.5 * forward
    passes = 2 if recomputation is Recomputation.FULL else 1
    assert attention_forwards(workload.layout, 32) == passes * 32
    counted = 2 * 32 * 3 * (passes + 2)  # two micro-batches, three messages in each forward pass, six backward
    sent = 4 * 0.25
    waited = 0.0
    for _ in range(ranks - 1):  # each block's message against the computation of one block
        waited += passes * max(sent - forward / ranks, 0.0) + max(3 * sent - backward / ranks, 0.0)
    waited += 2 * sent
    found = exposed_ring_seconds(
        workload,
        of(ContextParallel.PYTORCH),
        counted * 0.25,
        kinds=[(forward, 20), (forward, 12)],
        backward_share=2.5,
        micro_batches=2,
    )
    assert found == pytest.approx(2 * 32 * waited)


def test_torchtitan_has_pytorchs_ring_and_its_rows_of_2024_that_of_2_5() -> None:
    assert stack("torchtitan").switches.context_parallel is ContextParallel.PYTORCH
    assert stack("torchtitan-2024").switches.context_parallel is ContextParallel.PYTORCH_2_5
    assert stack("torchtitan-async-tp-2024").switches.context_parallel is ContextParallel.PYTORCH_2_5
