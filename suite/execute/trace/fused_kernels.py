"""Kernels of a graph that Inductor has scheduled: what each computes, moves, allocates and frees."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import (
    BaseSchedulerNode,
    ExternKernelSchedulerNode,
    NopKernelSchedulerNode,
    OutputNode,
    SchedulerBuffer,
    SchedulerNode,
)
from torch._inductor.utils import get_fused_kernel_name
from torch._inductor.virtualized import V
from torch.utils._pytree import tree_leaves

from suite.execute.measure.counters import LocalFlopCounter
from suite.execute.trace.operators import CallKey, short_path
from suite.job.operators import OperatorKind, TracePhase, kind_of_name

_PARTS = re.compile(r"\['([^']+)'\]|\.(\w+)|\[(\d+)\]")  # of a path as Dynamo has it: L['self']._modules['mlp'].up
_LONGEST_NAME = 80  # of a fused kernel
_CASTS = {"convert_element_type", "_to_copy"}
_FLOP = LocalFlopCounter().flop_registry


class BufferLayout(NamedTuple):
    """Sizes, strides and offset in elements, and dtype."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @property
    def stored_bytes(self) -> int:
        """Bytes of a storage that holds it."""
        if 0 in self.size:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.size, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize


class ScheduledKernel(NamedTuple):
    """A step of a graph: a kernel; or, without a call, the mere allocation or further name of a buffer.

    Args:
        call: of what it does; the module is relative to the compiled one.
        replaced: buffers whose memory its results take.
        allocated: buffers that it needs anew.
        aliases: buffers, and the buffer whose memory each is.
        freed: buffers that nothing reads afterwards.
    """

    call: CallKey | None
    replaced: tuple[str, ...]
    allocated: tuple[tuple[str, BufferLayout], ...]
    aliases: tuple[tuple[str, str], ...]
    freed: tuple[str, ...]


class GraphOutput(NamedTuple):
    """A result of a graph: a buffer as this layout, or else a value.

    Args:
        keeper: module that keeps it for the backward pass; None: it is a result of the module.
    """

    buffer: str
    layout: BufferLayout | None
    value: object
    keeper: str | None


def kernels(graph: GraphLowering) -> list[ScheduledKernel]:
    """Kernels of a scheduled graph, in their order."""
    made = {name: _layout(graph.graph_inputs[name].get_layout()) for name in graph.scheduler.name_to_donated_buffer}
    counted: set[fx.Node] = set()
    extern = {_source(node) for node in graph.scheduler.nodes if isinstance(node, ExternKernelSchedulerNode)}
    found = []
    for node in graph.scheduler.nodes:
        allocated: dict[str, BufferLayout] = {}
        aliases: list[tuple[str, str]] = []
        for buffer in node.get_outputs():
            _place(buffer, node, made, allocated, aliases)
        replaced = set() if node.is_extern() else _replaced(allocated, node.last_usage, made)
        made |= allocated
        call = _call(graph, node, extern, counted)
        freed = sorted(set(node.last_usage) - replaced)
        found.append(
            ScheduledKernel(call, tuple(sorted(replaced)), tuple(allocated.items()), tuple(aliases), tuple(freed))
        )
    return found


def outputs(graph: GraphLowering) -> list[GraphOutput]:
    """Results of a scheduled graph, in their order."""
    (last,) = graph.graph.find_nodes(op="output")
    nodes = tree_leaves(last.args[0], is_leaf=lambda leaf: isinstance(leaf, fx.Node) or leaf is None)
    results = last.meta.get("user_visible_output_idxs", range(len(nodes)))
    found = []
    for number, (node, made) in enumerate(zip(nodes, graph.graph_outputs, strict=True)):
        keeper = None
        if not graph.is_backward and number not in results:
            keeper = _module([node]) if isinstance(node, fx.Node) else ""
        if isinstance(made, ir.NoneAsConstantBuffer):
            found.append(GraphOutput("", None, None, None))
        elif isinstance(made, ir.ShapeAsConstantBuffer):
            found.append(GraphOutput("", None, _number(made.expr), None))
        else:
            found.append(GraphOutput(made.get_name(), _layout(made.get_layout()), None, keeper))
    return found


def _number(value: Any) -> int:
    return value if isinstance(value, int) else int(V.graph.sizevars.optimization_hint(value))


def _layout(layout: Any) -> BufferLayout:
    size, stride = (tuple(map(_number, values)) for values in (layout.size, layout.stride))
    return BufferLayout(size, stride, _number(layout.offset), layout.dtype)


def _place(
    buffer: SchedulerBuffer,
    node: BaseSchedulerNode,
    made: Mapping[str, BufferLayout],
    allocated: dict[str, BufferLayout],
    aliases: list[tuple[str, str]],
) -> None:
    """Say where a buffer lies: in memory of its own, in another's, or nowhere as its own kernel alone reads it."""
    name, layout = buffer.get_name(), buffer.node.layout
    if isinstance(layout, ir.NonOwningLayout):  # a part of what is concatenated
        whole = layout.view.get_name()
        if whole not in made and whole not in allocated:
            allocated[whole] = _layout(V.graph.get_buffer(whole).get_layout())
        aliases.append((name, whole))
    elif others := [*buffer.get_aliases(), *buffer.get_mutations()]:
        aliases.append((name, others[0]))
    elif isinstance(layout, ir.Layout) and name not in made and not _is_inside(buffer, node):
        allocated[name] = _layout(layout)


def _is_inside(buffer: SchedulerBuffer, node: BaseSchedulerNode) -> bool:
    inside = set(node.get_nodes())
    return all(not isinstance(user.node, OutputNode) and user.node in inside for user in buffer.users)


def _replaced(
    allocated: Mapping[str, BufferLayout], freed: Iterable[str], made: Mapping[str, BufferLayout]
) -> set[str]:
    """Buffers whose memory a fused kernel's results take: read by it for the last time, and of equal size."""
    left = sorted(name for name in freed if name in made)
    found = set()
    for layout in allocated.values():
        equal = (name for name in left if made[name].stored_bytes == layout.stored_bytes and name not in found)
        if (name := next(equal, None)) is not None:
            found.add(name)
    return found


def _call(
    graph: GraphLowering, node: BaseSchedulerNode, extern: set[fx.Node | None], counted: set[fx.Node]
) -> CallKey | None:
    """The work of a node's kernel; None where it launches none.

    Args:
        extern: operators that are kernels of their own; a fused kernel may copy what goes into them.
        counted: operators whose flop is some kernel's already.
    """
    is_extern = isinstance(node, ExternKernelSchedulerNode)
    if isinstance(node, NopKernelSchedulerNode) or (is_extern and isinstance(node.node, ir.MultiOutput)):
        return None
    origins = _origins(node)
    source = _source(node) if isinstance(node, ExternKernelSchedulerNode) else None
    if source is not None:
        origins = [source]
    computed = [origin for origin in origins if _flop(origin) and (is_extern or origin not in extern)]
    flop = sum(_flop(origin) for origin in computed if origin not in counted)
    counted.update(computed)
    read, written = _moved(node)
    dtypes = [layout.dtype for each in node.get_outputs() if isinstance(layout := each.node.layout, ir.Layout)]
    if is_extern:
        name = "inductor.extern" if source is None else _name(source)
        sizes = () if source is None else _sizes(source)
        kind = kind_of_name(name.rpartition(".")[2])
        dtypes = dtypes or ([] if source is None else _dtypes(source))
    else:
        name = f"inductor.{get_fused_kernel_name(list(node.get_nodes()), 'original_aten')[:_LONGEST_NAME]}"
        # iterations and, of reductions, elements that each reduces: products, or the loops' lengths
        sizes = (tuple(math.prod(map(_number, tree_leaves(size))) for size in node.group[1]),)
        kind = _fused_kind(node, origins)
    return CallKey(
        operator=name,
        kind=kind,
        phase=_phase(graph, origins),
        module=_module(origins),
        sizes=sizes,
        dtype=str(dtypes[0]).removeprefix("torch.") if dtypes else "",
        flop=flop,
        read_bytes=read,
        written_bytes=written,
    )


def _origins(node: BaseSchedulerNode) -> list[fx.Node]:
    """Operators that a kernel is made of."""
    found = {origin for each in node.get_nodes() if each.node is not None for origin in each.node.get_origins()}
    return sorted((origin for origin in found if origin.op == "call_function"), key=lambda origin: origin.name)


def _source(node: ExternKernelSchedulerNode) -> fx.Node | None:
    """The operator that a kernel of PyTorch's own library computes."""
    assert node.node is not None
    if (source := node.node.get_origin_node()) is not None:
        return source
    origins, target = _origins(node), getattr(node.node, "op_overload", None)
    equal = [origin for origin in origins if target in (origin.target, _operator(origin).target)]
    return next(iter([*equal, *filter(_flop, origins), *origins]), None)


class _Operator(NamedTuple):
    """An operator of a graph: PyTorch's, its arguments, and what it returns."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    returned: Any


def _operator(node: fx.Node) -> _Operator:
    """The operator of a node; of one that only saves or restores the state of random numbers, what runs in it."""
    returned: Any = node.meta.get("val")
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: each.meta.get("val"))
    within = [number for number, arg in enumerate(args) if isinstance(arg, torch._ops.OpOverload)]
    if not within or not isinstance(node.target, torch._ops.HigherOrderOperator):
        return _Operator(node.target, tuple(args), dict(kwargs), returned)
    (number,) = within
    if node.target.name() == "run_and_save_rng_state":
        returned = returned[1]
    rest = {name: value for name, value in kwargs.items() if name != "rng_state"}
    return _Operator(args[number], tuple(args[number + 1 :]), rest, returned)


def _flop(node: fx.Node) -> int:
    """Flop of an operator by PyTorch's counter; 0 of those that it does not count."""
    operator = _operator(node)
    count = _FLOP.get(getattr(operator.target, "_overloadpacket", None))
    return 0 if count is None else int(count(*operator.args, **operator.kwargs, out_val=operator.returned))


def _name(node: fx.Node) -> str:
    target = _operator(node).target
    packet = getattr(target, "_overloadpacket", None)
    if packet is None:
        return f"inductor.{getattr(target, '__name__', target)}"
    return f"{target.namespace}.{packet.__name__}"


def _sizes(node: fx.Node) -> tuple[tuple[int, ...], ...]:
    operator = _operator(node)
    tensors = (leaf for leaf in tree_leaves((operator.args, operator.kwargs)) if isinstance(leaf, Tensor))
    return tuple(tuple(map(_number, tensor.shape)) for tensor in tensors)


def _dtypes(node: fx.Node) -> list[torch.dtype]:
    return [leaf.dtype for leaf in tree_leaves(_operator(node).returned) if isinstance(leaf, Tensor)]


def _fused_kind(node: BaseSchedulerNode, origins: Iterable[fx.Node]) -> OperatorKind:
    if node.is_reduction():
        return OperatorKind.NORM
    names = {_name(origin).rpartition(".")[2] for origin in origins}
    if names and names <= _CASTS:
        return OperatorKind.CAST
    kinds = {kind_of_name(name) for name in names}
    return OperatorKind.PERMUTATION if kinds == {OperatorKind.PERMUTATION} else OperatorKind.ELEMENT_WISE


def _phase(graph: GraphLowering, origins: Iterable[fx.Node]) -> TracePhase:
    if not graph.is_backward:
        return TracePhase.FORWARD
    again = [origin.meta.get("partitioner_tag") == "is_forward" for origin in origins]
    return TracePhase.RECOMPUTATION if again and all(again) else TracePhase.BACKWARD


def _module(nodes: Iterable[fx.Node]) -> str:
    """Path of the first module among those whose operators these are, relative to the compiled one."""
    for node in nodes:
        stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
        if stack:
            path, _ = list(stack.values())[-1]
            parts = ["".join(part) for part in _PARTS.findall(path)]
            return short_path(".".join(part for part in parts[1:] if part != "_modules"))
    return ""


def _moved(node: BaseSchedulerNode) -> tuple[int, int]:
    """Bytes that a kernel reads and those that it writes, each element of a buffer at most once."""
    read, written = defaultdict[str, float](float), defaultdict[str, float](float)
    inside = {b.get_name() for b in node.get_outputs() if _is_inside(b, node)}
    for each in node.get_nodes():
        elements = math.inf
        if isinstance(each, SchedulerNode):
            elements = math.prod([_number(size) for sizes in each.get_ranges() for size in sizes])
        for dependencies, moved in ((each.read_writes.reads, read), (each.read_writes.writes, written)):
            for name in {dependency.name for dependency in dependencies} - inside:
                moved[name] += elements
    made = {b.get_name() for b in node.get_outputs()}
    return (
        sum(_bytes(name, elements) for name, elements in read.items() if name not in made),
        sum(_bytes(name, elements) for name, elements in written.items()),
    )


def _bytes(name: str, elements: float) -> int:
    """Bytes of so many elements of a buffer, or of all that there are."""
    buffer = V.graph.name_to_buffer.get(name) or V.graph.graph_inputs.get(name)
    if buffer is None:
        return 0
    layout = buffer.get_output_spec() if isinstance(buffer, ir.Buffer) else buffer.get_layout()
    if isinstance(layout, ir.MultiOutputLayout):
        users = [user.node for user in V.graph.scheduler.name_to_buf[name].users]
        parts = [user.node for user in users if isinstance(user, BaseSchedulerNode)]
        return sum(_bytes(part.get_name(), math.inf) for part in parts if isinstance(part, ir.MultiOutput))
    if not isinstance(layout, ir.Layout):
        return 0
    held = math.prod(map(_number, layout.size))
    return int(min(elements, held)) * layout.dtype.itemsize
