"""Steps that torch.compile compiled: python -m tests.execute.trace.compiled_layers; a line of its input is a job.

A line of its output has the bytes that the forward pass keeps, and the library's kernels of each compiled graph.
"""

from __future__ import annotations

import json
import re
import sys
import warnings

import msgspec
import torch
from torch._inductor.utils import run_and_get_code

from suite.execute.measure.counters import KeptForBackward
from suite.execute.trace.sources import build
from suite.execute.trace.step import decoder_layers
from suite.job.trace_job import TraceJob

LIBRARY = re.compile(r"^\s+(?:\w+ = )?(?:extern_kernels\.\w+|torch\.ops\.[\w.]+|aten\.[\w.]+)\(", re.MULTILINE)


def compiled(job: TraceJob) -> tuple[int, list[int]]:
    """Bytes kept by a forward pass with compiled layers, and the calls of library kernels in each layer's graphs."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    built = build(job.source, dtype=torch.float32, micro_batch=job.micro_batch, sequence=job.sequence)
    for layer in decoder_layers(built.module):
        layer.forward = torch.compile(layer.forward)  # type: ignore[method-assign]
    kept = KeptForBackward(lambda: (*built.module.parameters(), *built.module.buffers()))

    def step() -> None:
        with kept.hooks():
            loss = built.loss()
        loss.backward()

    _, codes = run_and_get_code(step)
    return kept.bytes(), [len(LIBRARY.findall(code[code.index("def call(") :])) for code in codes]


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    for line in sys.stdin:
        print(json.dumps(compiled(msgspec.json.decode(line, type=TraceJob))), flush=True)
