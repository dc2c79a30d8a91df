"""Executes a model's forward pass on tensors without memory: what its cache holds, and what it needs meanwhile."""

from __future__ import annotations

import inspect
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from suite.execute.dry_run.allocations import Allocations
from suite.execute.dry_run.fake_tensors import fake_tensors
from suite.execute.trace.sources import SourceError, build
from suite.job.served_job import CachedTensors, ServedJob, ServedTrace

ROUTERS = ("gate", "router", "shared_expert_gate")  # linear layers that software leaves in 16 bits, by their last name
LEAST_DIMS = 3  # of a cached tensor: a batch, what tensor parallelism divides, and one more; counters have fewer
DEPTH = 6  # of objects within a cache


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
        allocations.record()
        before = allocations.peak
        logits = _forward(model, chunk, use_cache=False).logits
        prefill, vocabulary = allocations.peak - before, logits.shape[-1]
        del logits
        half = _cached(_forward(model, context // 2, use_cache=True)) if context > 1 else []
        whole = _cached(_forward(model, context, use_cache=True))
        weights = _weights(model)
    layers = Counter(held for held, _ in whole)
    sizes, halves = _sums(whole), _sums(half)
    cache = [
        CachedTensors(**held._asdict(), layers=layers[held], bytes=size, half_bytes=halves.get(held, 0))
        for held, size in sizes.items()
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
        vocabulary=vocabulary,
        cache=cache,
        prefill_bytes=prefill,
        seconds=time.perf_counter() - start,
    )


def _forward(model: nn.Module, tokens: int, *, use_cache: bool) -> Any:
    """Output of a forward pass of one sequence; logits of its last token alone, where the model can."""
    inputs: dict[str, Any] = {"input_ids": torch.ones(1, tokens, dtype=torch.int64), "use_cache": use_cache}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        inputs["logits_to_keep"] = 1
    return model(**inputs)


def _cached(returned: Any) -> list[tuple[_CachedTensor, int]]:
    """The tensors that the model would be given with the next token, with their bytes.

    Raises:
        SourceError: there are none.
    """
    caches = {name: value for name, value in returned.items() if name not in ("loss", "logits") and value is not None}
    found = [held for name, value in caches.items() for held in _tensors(value, type(value).__name__, name, DEPTH)]
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


def _sums(found: list[tuple[_CachedTensor, int]]) -> dict[_CachedTensor, int]:
    sums: dict[_CachedTensor, int] = defaultdict(int)
    for held, size in found:
        sums[held] += size
    return dict(sums)


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
