"""Records operators as they run, with the module that they belong to in both passes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from suite.execute.measure.counters import LocalFlopCounter, ObservingMode
from suite.job.operators import OperatorKind, TracedOperator, TracePhase, kind_of_name

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")
_WRAPPERS = re.compile(r"_checkpoint_wrapped_module\.?|^module\.")
_MOST_SIZES = 8  # tensors whose sizes are listed; of longer lists the elements alone
_NO_WORK = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias", "lift_fresh"}
_NO_WORK |= {"_unsafe_view", "resize_", "set_", "wait_tensor", "is_same_size", "_foreach_copy_none"}
_NO_OPERATORS = ("prim", "profiler", "c10d", "_c10d_functional")  # the last two are counted as messages


class ModulePaths:
    """Knows which module runs, and for a node of the backward pass which one made it.

    PyTorch numbers nodes as they are made (`torch._C._autograd._get_sequence_nr`); its profiler goes by them too.

    Args:
        compiled: modules whose parts are not called one by one.
    """

    def __init__(self, model: nn.Module, compiled: Iterable[nn.Module] = ()) -> None:
        within = {id(part) for module in compiled for part in module.modules() if part is not module}
        self._modules = [module for module in model.modules() if id(module) not in within]
        self._names = {id(module): short_path(name) for name, module in model.named_modules()}
        self._stack: list[str] = []
        self._of_node: list[str] = []
        self._first = torch._C._autograd._get_sequence_nr()

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Within this, calls of modules are followed."""
        hooks = [
            hook
            for module in self._modules
            for hook in (
                module.register_forward_pre_hook(self._enter, prepend=True),
                module.register_forward_hook(self._leave, always_call=True),
            )
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, module: nn.Module, _inputs: object) -> None:
        self._note()
        self._stack.append(self._names.get(id(module), self.now))

    def _leave(self, _module: nn.Module, _inputs: object, _output: object) -> None:
        self._note()
        self._stack.pop()

    def _note(self) -> None:
        """Nodes that were made since the last time are of the module that runs."""
        made = torch._C._autograd._get_sequence_nr() - self._first - len(self._of_node)
        self._of_node += [self.now] * made

    @property
    def now(self) -> str:
        """Path of the module whose forward pass runs; empty: none."""
        return self._stack[-1] if self._stack else ""

    def within(self, path: str) -> str:
        """Path of a part of the module that runs, in either pass."""
        return ".".join(part for part in (self.of_operator(), path) if part)

    def of_operator(self) -> str:
        """Path of the module to which the operator belongs that runs now."""
        if self._stack:
            return self.now
        node = torch._C._current_autograd_node()
        number = -1 if node is None else node._sequence_nr() - self._first
        return self._of_node[number] if 0 <= number < len(self._of_node) else ""


def short_path(name: str) -> str:
    """A module's path without the numbers by which equal ones differ: model.layers.*.mlp."""
    return _NUMBER.sub("*", _WRAPPERS.sub("", name)).rstrip(".")


class CallKey(NamedTuple):
    """The fields that calls which are alike have in common; see `TracedOperator`."""

    operator: str
    kind: OperatorKind
    phase: TracePhase
    module: str
    sizes: tuple[tuple[int, ...], ...]
    dtype: str
    flop: int
    read_bytes: int
    written_bytes: int


class OperatorRecorder(ObservingMode):
    """Records every operator that does something: views and mere allocations do not.

    Args:
        phase: the part of a step that runs now.
    """

    def __init__(self, paths: ModulePaths, phase: Callable[[], TracePhase]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._paths = paths
        self._phase = phase
        self._flop: Mapping[Any, Callable[..., int]] = LocalFlopCounter().flop_registry
        self._calls = Counter[CallKey]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it calls operators on local tensors
        given = kwargs or {}
        returned = func(*args, **given)
        self.observe(func, args, given, returned)
        return returned

    def observe(self, func: Any, args: Any, kwargs: Mapping[str, Any], returned: Any) -> None:
        """Record an operator that ran, if it does something."""
        name = func._overloadpacket.__name__
        if not func.is_view and name not in _NO_WORK and func.namespace not in _NO_OPERATORS:
            self._calls[self._key(func, name, args, kwargs, returned)] += 1

    def _key(self, func: Any, name: str, args: Any, kwargs: Any, returned: Any) -> CallKey:
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, Tensor)]
        flop = self._flop.get(func._overloadpacket)
        count = 0 if flop is None else int(flop(*args, **kwargs, out_val=returned))
        sizes = tuple(tuple(each.shape) for each in inputs)
        if len(sizes) > _MOST_SIZES:
            sizes = ((sum(each.numel() for each in inputs),),)
        read, written = _moved(name, args, kwargs, outputs)
        return CallKey(
            f"{func.namespace}.{name}",
            _kind(name, inputs, outputs),
            self._phase(),
            self._paths.of_operator(),
            sizes,
            str(written[0].dtype).removeprefix("torch.") if written else "",
            count,
            sum(map(_bytes, read)),
            sum(map(_bytes, written)),
        )

    def add(self, call: CallKey) -> None:
        """Record a kernel of the compiled module that runs, to which its module is relative."""
        self._calls[call._replace(module=self._paths.within(call.module))] += 1

    def calls(self, kept: Mapping[str, int]) -> list[TracedOperator]:
        """Operators that ran, in their order; what is kept stands with a module's first operator of the forward pass.

        Args:
            kept: bytes by module.
        """
        left = dict(kept)
        found = []
        for key, number in self._calls.items():
            of_module = left.pop(key.module, 0) if key.phase is TracePhase.FORWARD else 0
            found.append(TracedOperator(**key._asdict(), calls=number, kept_bytes=of_module))
        return found


def _moved(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], returned: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Tensors that an operator reads, each once, and those that it writes.

    An operator on lists writes into its first ones and returns nothing; a copy does not read what it writes. FSDP2
    copies a rank's shards into its part of the message, not into the whole.
    """
    first = _tensors(args[:1])
    if name == "all_gather_copy_in":
        return first, first
    written = _tensors(kwargs.get("out")) or returned or first
    is_overwritten = name in ("copy_", "_foreach_copy_") or kwargs.get("out") is not None
    unread = {id(each) for each in (_tensors(kwargs.get("out")) or first if is_overwritten else ())}
    return [each for each in _tensors((args, kwargs)) if id(each) not in unread], written


def _tensors(values: object) -> list[Tensor]:
    return list({id(leaf): leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)}.values())


def _bytes(tensor: Tensor) -> int:
    """Bytes that an operator touches of a tensor: an expanded one is stored once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _kind(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> OperatorKind:
    if name in ("_to_copy", "copy_", "_foreach_copy_"):
        source = inputs[-1] if name != "_to_copy" else inputs[0]
        is_cast = bool(outputs) and source.dtype is not outputs[0].dtype
        return OperatorKind.CAST if is_cast else OperatorKind.PERMUTATION
    return kind_of_name(name)
