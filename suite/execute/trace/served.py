"""Executes a model's forward pass on tensors without memory: what its cache holds, and what it needs meanwhile."""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from suite.execute.dry_run.allocations import Allocations
from suite.execute.dry_run.fake_tensors import fake_tensors
from suite.execute.measure.counters import ObservingMode
from suite.execute.trace.sources import SourceError, build
from suite.job.served_job import CachedTensors, ServedJob, ServedTrace

ROUTERS = ("gate", "router", "shared_expert_gate")  # linear layers that software leaves in 16 bits, by their last name
LEAST_DIMS = 3  # of a cached tensor: a batch, what tensor parallelism divides, and one more; counters have fewer
DEPTH = 6  # of objects within a cache
ATTENTION = ("keys", "values")  # names of what attention caches, whose operators do not grow in number with the tokens
FEW = 8  # tokens of a pass that shows how a model works
SCANS = 1.2  # times as many operators for twice the tokens: some layers read token by token
SHORT = (32, 64)  # tokens of passes whose bytes lie on a line with those of longer ones


class _ServedWeights(NamedTuple):
    linear: list[tuple[int, int, int]]
    tables: int
    other_matrices: int
    vectors: int


class _CachedTensor(NamedTuple):
    """A tensor of a layer's cache; equal ones of several layers are counted together."""

    layer: str
    name: str
    split: int
    element_bytes: int


_CacheSizes = dict[_CachedTensor, tuple[int, int]]  # layers, and bytes of all of them


def trace_served(job: ServedJob) -> ServedTrace:
    """The weights, cache and activations of the job's model.

    Raises:
        SourceError: it cannot be built, is no model of transformers, or keeps nothing from token to token.
    """
    start = time.perf_counter()
    allocations = Allocations(lambda: "forward pass")
    with fake_tensors(allocations), torch.no_grad():
        built = build(job.source, dtype=torch.bfloat16, micro_batch=1, sequence=job.context)
        model = built.module.eval()
        context = job.context or min(built.sequence, job.usual)
        chunk = min(job.chunk, context)
        passes = _ForwardPasses(model, allocations)
        short = passes.scanned_tokens() if context > FEW else None
        # a scan token by token takes an operator and more for each: long sequences follow from short ones
        whole, half = (passes.extended_cache(t, short) if short else passes.cache(t) for t in (context, context // 2))
        prefill = passes.extended_peak(chunk, short) if short else passes.peak(chunk)
        weights = _weights(model)
    cache = [
        CachedTensors(**held._asdict(), layers=layers, bytes=size, half_bytes=half.get(held, (0, 0))[1])
        for held, (layers, size) in whole.items()
    ]
    config: Any = model.config
    text = config.get_text_config()
    return ServedTrace(
        model=type(model).__name__,
        software=built.software,
        context=context,
        chunk=chunk,
        heads=getattr(text, "num_attention_heads", None),
        **weights._asdict(),
        vocabulary=passes.vocabulary,
        cache=cache,
        prefill_bytes=prefill,
        seconds=time.perf_counter() - start,
    )


class _OperatorCount(ObservingMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators += 1
        return func(*args, **(kwargs or {}))


class _ForwardPasses:
    """Forward passes of one sequence.

    Attributes:
        vocabulary: columns of the logits.
    """

    def __init__(self, model: nn.Module, allocations: Allocations) -> None:
        self._model, self._allocations = model, allocations
        self.vocabulary = 0

    def cache(self, tokens: int) -> _CacheSizes:
        """Number of layers and bytes of the tensors that the model would be given with the next token."""
        return _cache(_forward(self._model, tokens, use_cache=True)) if tokens else {}

    def peak(self, tokens: int) -> int:
        """Bytes at the fullest moment, without weights and cache."""
        self._allocations.record()
        before = self._allocations.peak
        self.vocabulary = int(_forward(self._model, tokens, use_cache=False).logits.shape[-1])
        return self._allocations.peak - before

    def scanned_tokens(self) -> tuple[int, int] | None:
        """Lengths from which longer ones follow, of a model that reads some layers token by token; None: none does."""
        if all(held.name in ATTENTION for held in self.cache(FEW)):
            return None
        counts = []
        for tokens in (FEW, 2 * FEW):
            with _OperatorCount() as counted:
                self.cache(tokens)
            counts.append(counted.operators)
        return SHORT if counts[1] > SCANS * counts[0] else None

    def extended_cache(self, tokens: int, known: tuple[int, int]) -> _CacheSizes:
        """As `cache`, of a longer sequence than the known ones: on a straight line through them, up to a window."""
        config: Any = self._model.config
        window = getattr(config.get_text_config(), "sliding_window", None) or tokens + 1
        first, second = (self.cache(each) for each in known)
        return {
            held: (
                layers,
                _extended(
                    min(tokens, window - 1) if "Sliding" in held.layer else tokens,
                    known,
                    (first.get(held, (0, 0))[1], size),
                ),
            )
            for held, (layers, size) in second.items()
        }

    def extended_peak(self, tokens: int, known: tuple[int, int]) -> int:
        """At least the bytes of `peak`, of a longer sequence: one line of several, of which that is the largest."""
        first, second = (self.peak(each) for each in known)
        return _extended(tokens, known, (first, second))


def _extended(tokens: int, known: tuple[int, int], sizes: tuple[int, int]) -> int:
    return sizes[1] + (sizes[1] - sizes[0]) * (tokens - known[1]) // (known[1] - known[0])


def _forward(model: nn.Module, tokens: int, *, use_cache: bool) -> Any:
    """Output of a forward pass of one sequence; logits of its last token alone, where the model can."""
    inputs: dict[str, Any] = {"input_ids": torch.ones(1, tokens, dtype=torch.int64), "use_cache": use_cache}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        inputs["logits_to_keep"] = 1
    return model(**inputs)


def _cache(returned: Any) -> _CacheSizes:
    """Number of layers and bytes of each kind of tensor in a cache.

    Raises:
        SourceError: there is none.
    """
    caches = {name: value for name, value in returned.items() if name not in ("loss", "logits") and value is not None}
    found: _CacheSizes = {}
    for name, value in caches.items():
        for held, size in _tensors(value, type(value).__name__, name, DEPTH):
            layers, before = found.get(held, (0, 0))
            found[held] = layers + 1, before + size
    if not found:
        raise SourceError(f"its forward pass returns no cache, but {', '.join(returned.keys())}")
    return found


def _tensors(value: Any, layer: str, name: str, depth: int) -> Iterator[tuple[_CachedTensor, int]]:
    if isinstance(value, Tensor):
        if value.ndim >= LEAST_DIMS:
            yield _CachedTensor(layer, name, value.shape[1], value.element_size()), value.numel() * value.element_size()
    elif depth and isinstance(value, Mapping):
        for key, each in value.items():
            yield from _tensors(each, layer, name if isinstance(key, int) else str(key), depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each, layer, name, depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module)):
        for key, each in vars(value).items():
            yield from _tensors(each, type(value).__name__, key, depth - 1)


def _weights(model: nn.Module) -> _ServedWeights:
    """Weights by what formats of fewer bits store: linear layers and experts, without head and routers."""
    linear = Counter[tuple[int, int]]()
    counts = Counter[str]()
    seen: set[int] = set()
    head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    for path, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            if parameter.ndim == 1:
                counts["vectors"] += parameter.numel()
            elif module is head or isinstance(module, nn.Embedding):
                counts["tables"] += parameter.numel()
            elif (found := _matrices(path, module, parameter)) is not None:
                rows, columns, number = found
                linear[rows, columns] += number
            else:
                counts["other_matrices"] += parameter.numel()
    matrices = [(rows, columns, number) for (rows, columns), number in linear.items()]
    return _ServedWeights(matrices, counts["tables"], counts["other_matrices"], counts["vectors"])


def _matrices(path: str, module: nn.Module, parameter: Tensor) -> tuple[int, int, int] | None:
    """Outputs, inputs and number of the matrices of a linear layer or of experts; None: it is neither."""
    kind = type(module).__name__
    if path.rpartition(".")[2] in ROUTERS:
        return None
    if isinstance(module, nn.Linear):
        return parameter.shape[0], parameter.shape[1], 1
    if kind == "Conv1D":  # GPT-2's, whose weight is inputs by outputs
        return parameter.shape[1], parameter.shape[0], 1
    if parameter.ndim == 3 and "Expert" in kind:
        number, rows, columns = parameter.shape
        return (columns, rows, number) if getattr(module, "is_transposed", False) else (rows, columns, number)
    return None
