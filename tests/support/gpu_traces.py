"""Synthetic traces of a GPU in the form in which Kineto writes them: a host launches, a device executes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STREAM, MESSAGES = 7, 20  # of computation, and of NCCL
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute"
ATTENTION = "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t>>(Flash_fwd_params)"
NORM = "void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float)"
ADAM = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>(long)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


class GpuTrace:
    """Writes the events of steps; times in microseconds. The host launches, and the device executes in order."""

    def __init__(self, rank: int = 0) -> None:
        self.rank, self.host, self.device, self.calls = rank, 1000.0, 0.0, 0
        self.events: list[dict[str, Any]] = []

    def span(self, category: str, name: str, start: float, end: float, tid: int = 1, **arguments: Any) -> None:
        """One event with a duration."""
        times = {"ts": round(start, 3), "dur": round(end - start, 3)}
        event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, **times, "args": arguments}
        self.events.append(event)

    def launch(self, name: str, duration: float, *, by: float = 5.0, after: float = 0.0, **arguments: Any) -> float:
        """A kernel that the host takes `by` to launch; `after`: what it waits for. Its end."""
        self.calls += 1
        stream = arguments.setdefault("stream", STREAM)
        self.span("cuda_runtime", "cudaLaunchKernel", self.host, self.host + by, correlation=self.calls)
        self.host += by
        free = self.device if stream == STREAM else 0.0
        start = max(free, self.host + 2, after)
        arguments |= {"device": self.rank, "correlation": self.calls}
        self.span("kernel", name, start, start + duration, stream, **arguments)
        if stream == STREAM:
            self.device = start + duration
        return start + duration

    def host_span(self, category: str, name: str, duration: float, **arguments: Any) -> None:
        """Occupy the host for a while."""
        self.span(category, name, self.host, self.host + duration, **arguments)
        self.host += duration

    def synchronise(self) -> None:
        """The host waits until the device has nothing to do."""
        end = max(self.host, self.device) + 5
        self.host_span("cuda_runtime", "cudaStreamSynchronize", end - self.host)

    def write(self, path: Path) -> Path:
        """The trace as a file."""
        head = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": 2}}
        path.write_text(json.dumps({**head, "traceEvents": self.events}, indent=1), encoding="utf-8")
        return path


def with_shapes(trace: GpuTrace, m: int, n: int, k: int) -> GpuTrace:
    """The trace with an operator for each GEMM that says its shape, as `record_shapes=True` does."""
    for kernel in [event for event in trace.events if event["name"] == GEMM]:
        number = 10_000 + kernel["args"]["correlation"]
        kernel["args"]["External id"] = number
        said = {"Input Dims": [[m, k], [k, n], []], "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"]}
        trace.span("cpu_op", "aten::mm", kernel["ts"] - 3, kernel["ts"] - 2, **{"External id": number, **said})
    return trace


def gpu_steps(  # each is a slow-down of its own
    rank: int = 0,
    *,
    steps: int = 4,
    layers: int = 8,
    launching: float = 5.0,
    loading: float = 0.0,
    logging: float = 0.0,
    recomputes: bool = False,
    norm: float = 60.0,
    message: float = 500.0,
    late: float = 0.0,
    others_late: float = 0.0,
) -> GpuTrace:
    """Steps of a small model, undisturbed by default: 90 % of a step is GEMMs and attention.

    Args:
        launching: the host's time for each kernel.
        loading: its wait for samples, in each step.
        logging: its time after it waited for the device, in each step.
        message: of an all-reduce a step, which 8 layers of the backward pass hide.
        late: what this rank's GEMMs take longer in a step; `others_late`: what the rank waits for another's.
    """
    trace = GpuTrace(rank)
    for step in range(steps):
        begin = trace.host
        if loading:
            name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            trace.host_span("user_annotation", name, loading)
        for _ in range(layers):
            _layer(trace, launching, norm, late / layers / 3)
        message_starts = trace.device
        for _ in range(layers):
            node = trace.host
            if recomputes:
                inside = trace.host
                _layer(trace, launching, norm, 0.0)
                trace.span("cpu_op", "aten::linear", inside, trace.host, **{"Sequence number": 9, "Fwd thread id": 0})
            _layer(trace, launching, norm, late / layers / 3)
            _layer(trace, launching, norm, late / layers / 3)
            name = "autograd::engine::evaluate_function: AddmmBackward0"
            trace.span("cpu_op", name, node, trace.host, **{"Sequence number": 5, "Fwd thread id": 1})
        group = {"Process Group Name": "0", "Process Group Description": "mesh_dp", "Process Group Ranks": "[0, 1]"}
        named = {"Collective name": "allreduce", **group, "stream": MESSAGES}
        reduced = trace.launch(ALL_REDUCE, message, after=message_starts, by=launching, **named)
        arrival = trace.device
        done = trace.launch(ALL_REDUCE, 20.0 + others_late, by=launching, after=max(reduced, arrival), **named)
        trace.device = max(trace.device, done)
        trace.launch(ADAM, 200.0, by=launching)
        if logging:
            trace.synchronise()
            trace.host += logging
        trace.span("user_annotation", f"ProfilerStep#{step}", begin, trace.host)
    return trace


def _layer(trace: GpuTrace, launching: float, norm: float, late: float) -> None:
    trace.launch(NORM, norm, by=launching)
    trace.launch(GEMM, 300.0 + late, by=launching)
    trace.launch(ATTENTION, 150.0, by=launching)
    trace.launch(GEMM, 300.0, by=launching)
