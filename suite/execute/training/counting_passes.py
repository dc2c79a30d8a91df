"""Passes after the last step that count what belongs to no step: model flop, and what autograd keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor

from reference_runs.layout import Recomputation
from suite.execute.measure.counters import KeptForBackward, eagerly, flop_counter
from suite.execute.training.step import Steps


def model_flop(steps: Steps) -> int:
    """Flop of a step of this rank without recomputation: those of one sample, for each of its samples.

    One sample at a time, because a whole micro-batch without recomputation may not fit where training does.
    """
    flop = flop_counter(recomputes=False)
    layout = steps.job.layout
    for chunk in steps.training.chunks:
        chunk.recompute(Recomputation.NONE)
    # DTensor computes new shapes once more, to know how they are placed: count the second pass
    for mode in (nullcontext(), flop) if layout.tensor_parallel > 1 else (flop,):
        with eagerly(), mode:
            for output in steps.chunk_outputs(samples=1):
                output.backward(torch.ones_like(output))
    for chunk in steps.training.chunks:
        chunk.recompute(layout.recomputation, checkpoint_layers=layout.checkpoint_layers)
    return int(flop.get_total_flops()) * steps.micro_batches * layout.micro_batch


def activation_bytes(steps: Steps) -> int:
    """Bytes that autograd keeps for the backward pass of one micro-batch, executed eagerly."""
    training = steps.training

    def weights() -> Iterator[Tensor]:
        yield from training.weights
        for chunk in training.chunks:
            yield from chunk.parameters()  # gathered ones, while fully sharded blocks compute

    kept = KeptForBackward(weights)
    with eagerly(), kept.hooks():
        outputs = list(steps.chunk_outputs(samples=steps.job.layout.micro_batch))
    assert outputs
    return kept.bytes()
