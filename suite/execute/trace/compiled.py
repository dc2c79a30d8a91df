"""Modules that torch.compile compiles up to Inductor's schedule of kernels, and that run without memory.

Dynamo, AOTAutograd with the min-cut partitioner, and Inductor's passes, lowering and fusion are PyTorch's own. Kernels
are not compiled: in place of each, what it writes is allocated, and what nothing reads afterwards is freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._dynamo import utils as dynamo
from torch._inductor import config
from torch._inductor.graph import GraphLowering

from suite.execute.trace.fused_kernels import GraphOutput, kernels, outputs
from suite.execute.trace.operators import CallKey
from suite.job.trace_job import Compiler, GraphBreak


class CompiledRegions:
    """Compiles modules, equal ones once.

    Args:
        compiler: whose rules say what is one kernel.
    """

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self.ran: Callable[[CallKey], None] = lambda _: None
        self.kept: Callable[[Tensor, str], None] = lambda *_: None

    @contextmanager
    def followed(self, ran: Callable[[CallKey], None], kept: Callable[[Tensor, str], None]) -> Iterator[None]:
        """Within this, tell of each kernel that runs, and of each tensor that a forward pass keeps, with its module.

        Paths of modules are relative to the compiled one.
        """
        before = self.ran, self.kept
        self.ran, self.kept = ran, kept
        yield
        self.ran, self.kept = before

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Within this, calls of compiled modules are compiled where that is due, and run."""
        options = {
            "cpu_backend": self._compiler.value,
            "compile_threads": 1,  # no pool of processes
            "force_disable_caches": True,
            "cpp.vec_isa_ok": True,  # else a C++ program is compiled, which finds it out
        }

        def run_graph(graph: GraphLowering) -> RunGraph:
            return RunGraph(graph, self)

        torch._dynamo.reset()
        dynamo.graph_break_reasons.clear()
        dynamo.counters.clear()
        by_layer = torch._dynamo.config.patch(optimize_ddp=False)  # which would split a model compiled as a whole
        with by_layer, config.patch(options), mock.patch.object(GraphLowering, "compile_to_module", run_graph):
            yield

    def compile(self, modules: Iterable[nn.Module]) -> None:
        """Compile the forward passes of these, without the hooks around each."""
        for module in modules:
            module.forward = torch.compile(module.forward)

    def breaks(self) -> list[GraphBreak]:
        """Where Dynamo could not go on, each place and reason once; without a place, where it left a function alone."""
        found = {}
        for each in dynamo.graph_break_reasons:
            frame = each.user_stack[-1] if each.user_stack else None
            place, reason = f"{frame.filename}:{frame.lineno}" if frame else "", _first_line(each.reason)
            found[place, reason] = GraphBreak(place=place, reason=reason)
        known = {reason for _, reason in found}
        for words in dynamo.counters["graph_break"]:
            if (reason := _first_line(words)) not in known:
                found["", reason] = GraphBreak(place="", reason=reason)
        return list(found.values())


def _first_line(words: str) -> str:
    return words.strip().splitlines()[0]


class RunGraph:
    """A scheduled graph in the place of the Python module that Inductor would have written."""

    def __init__(self, graph: GraphLowering, regions: CompiledRegions) -> None:
        graph.init_wrapper_code()
        graph._update_scheduler()
        self._regions = regions
        self._inputs = list(graph.graph_input_names)
        self._constants = dict(graph.constants)
        self._kernels = kernels(graph)
        self._outputs = outputs(graph)

    def call(self, args: list[Any]) -> list[Any]:
        """Results for these inputs, which it takes out of the list: each lives until the last kernel that reads it."""
        tensors = {**self._constants, **dict(zip(self._inputs, args, strict=True))}
        args.clear()
        for kernel in self._kernels:
            if kernel.call is not None:
                self._regions.ran(kernel.call)
            for name in kernel.replaced:
                del tensors[name]
            for name, layout in kernel.allocated:
                tensors[name] = torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype)
            for name, other in kernel.aliases:
                tensors[name] = tensors.get(other)
            for name in kernel.freed:
                tensors.pop(name, None)
        returned = [_returned(output, tensors) for output in self._outputs]
        for output, tensor in zip(self._outputs, returned, strict=True):
            if output.keeper is not None and isinstance(tensor, Tensor):
                self._regions.kept(tensor, output.keeper)
        return returned


def _returned(output: GraphOutput, tensors: Mapping[str, Any]) -> Any:
    layout = output.layout
    if layout is None:
        return output.value
    tensor = tensors[output.buffer]
    if (tuple(tensor.shape), tensor.stride(), tensor.storage_offset()) == layout[:3]:
        return tensor
    return torch.as_strided(tensor, layout.size, layout.stride, layout.offset)
