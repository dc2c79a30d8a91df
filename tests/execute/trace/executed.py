"""Peaks of steps with memory: python -m tests.execute.trace.executed; a line of its input is a job.

It shares with a trace the code that builds a model; the loop is a plain one, and PyTorch's allocator counts.
"""

from __future__ import annotations

import gc
import json
import sys
from contextlib import nullcontext
from typing import Any

import msgspec
import torch
from torch import nn

from suite.execute.measure.peak_memory import AllocatedPeak
from suite.execute.trace import adapters
from suite.execute.trace.cuda_autocast import cuda_autocast
from suite.execute.trace.recomputation import recompute
from suite.execute.trace.sources import build
from suite.execute.trace.step import decoder_layers
from suite.execute.trace.updates import optimizers
from suite.job.trace_job import NumberFormat, TraceJob


def executed_peak(job: TraceJob) -> int:
    """The most that the allocator held in the second step."""
    peak = AllocatedPeak(torch.device("cpu"))
    torch.manual_seed(0)
    dtype = torch.bfloat16 if job.number_format is NumberFormat.BF16_PURE else torch.float32
    built = build(job.source, dtype=dtype, micro_batch=job.micro_batch, sequence=job.sequence)
    layers = decoder_layers(built.module)
    if job.adapters is not None:
        adapters.in_four_bits = _in_four_bits
        adapters.adapt(built.module, layers, job.adapters, sharded=False)
    if job.recompute:
        recompute(
            built.module, layers, every=job.recompute_every, saves_products=job.saves_products, keep=lambda _: None
        )
    updates = optimizers(job.optimizer, built.module, layers)

    def step() -> None:
        for _ in range(job.micro_batches):
            with cuda_autocast() if job.number_format is NumberFormat.BF16 else nullcontext():
                loss = built.loss()
            loss.backward()
        for update in updates:
            update.step()
            update.zero_grad()

    step()
    gc.collect()
    with peak.window():
        step()
    peak.finish()
    return peak.bytes


def _in_four_bits(layer: Any) -> nn.Module:
    """The layer by bitsandbytes' own classes."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    weight = layer.weight.detach()
    weight = weight if isinstance(layer, nn.Linear) else weight.t().contiguous()  # transformers' Conv1D
    rows, columns = weight.shape
    packed = Linear4bit(columns, rows, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
    packed.weight = Params4bit(weight, requires_grad=False, quant_type="nf4", module=packed).to(weight.device)
    packed.bias = layer.bias
    return packed


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(executed_peak(msgspec.json.decode(line, type=TraceJob))), flush=True)
