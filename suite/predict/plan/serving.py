"""Which formats of weights let a model be served on so many accelerators, and for how many sequences at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from reference_runs.accelerator import Accelerator
from reference_runs.errors import InputError
from reference_runs.run import Architecture
from suite.job.served_job import CachedTensors, ServedTrace
from suite.predict.analytic.cuda_temporaries import bytes_outside_allocator
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.serving import logit_bytes, prefill_bytes, sequence_cache_bytes
from suite.predict.analytic.usable_memory import usable_memory
from suite.predict.analytic.weight_formats import (
    ELEMENT_BYTES,
    SERVED,
    Matrices,
    WeightFormat,
    WeightParts,
    weight_parts,
)

MEMORY_SHARE = 0.9  # of an accelerator's memory: vLLM's --gpu-memory-utilization, TGI's --cuda-memory-fraction
CHUNK = 2048  # tokens of a forward pass of prefill: vLLM's --max-num-batched-tokens where nothing is set
MOST_RANKS = 128
KEYS_AND_VALUES = ("keys", "values")  # names of tensors in transformers' caches


class ServedRank(NamedTuple):
    """Memory that one tensor-parallel rank needs.

    Args:
        sequence: bytes of the cache of one sequence of the asked context.
        token: bytes that a token adds, on average over the second half of the context: none where windows are full.
        logits: bytes of a sequence's logits.
        prefill: bytes of activations of a forward pass of a chunk of prefill.
    """

    weights: WeightParts
    sequence: int
    token: int
    logits: int
    prefill: int


class ServingQuestion(NamedTuple):
    """Accelerators, and what is to be served on them.

    Args:
        ranks: accelerators, which share the model by tensor parallelism.
        context: tokens of each sequence.
        sequences: at a time.
        chunk: tokens of a forward pass of prefill.
        cache_bytes: of an element of the key-value cache.
        memory_share: of an accelerator's memory that the software takes.
    """

    device: Accelerator
    ranks: int
    context: int
    sequences: int
    chunk: int
    cache_bytes: int
    memory_share: float

    def room(self, ranks: int) -> float:
        """Bytes for tensors on each of so many accelerators: the share, less CUDA's context and NCCL's buffers."""
        memory = usable_memory(self.device.board)
        outside = bytes_outside_allocator(int(ranks > 1)) if memory.context else 0
        return self.memory_share * (memory.printed - memory.driver) - outside


class ServedFormat(NamedTuple):
    """Memory of one format of weights on each accelerator.

    Args:
        needed: bytes with the asked number of sequences.
        fitting: sequences that fit; 0 where not even the weights do.
        enough: the fewest accelerators on which the asked number fits; None: more than are considered.
    """

    weight_format: WeightFormat
    weight_bytes: int
    needed: int
    fitting: int
    enough: int | None


class Serving(NamedTuple):
    """The answer: of each format."""

    question: ServingQuestion
    rank: ServedRank
    room: float
    formats: tuple[ServedFormat, ...]

    @property
    def fits(self) -> list[WeightFormat]:
        """The formats in which the asked number of sequences fits."""
        return [each.weight_format for each in self.formats if each.needed <= self.room]


def serving(question: ServingQuestion, rank_of: Callable[[int], ServedRank], *, ranks: Iterable[int]) -> Serving:
    """The answer to the question.

    Args:
        rank_of: what a rank of so many needs.
        ranks: numbers of accelerators that split the model, in their order.
    """
    considered = [(number, rank_of(number)) for number in ranks]
    own, room = rank_of(question.ranks), question.room(question.ranks)
    formats = []
    for weight_format in SERVED:
        needed = needed_bytes(own, weight_format, sequences=question.sequences)
        free = room - needed_bytes(own, weight_format, sequences=0)
        enough = next(
            (
                number
                for number, rank in considered
                if needed_bytes(rank, weight_format, sequences=question.sequences) <= question.room(number)
            ),
            None,
        )
        fitting = max(0, int(free // (own.sequence + own.logits)))
        formats.append(ServedFormat(weight_format, own.weights.bytes(weight_format), needed, fitting, enough))
    return Serving(question, own, room, tuple(formats))


def needed_bytes(rank: ServedRank, weight_format: WeightFormat, *, sequences: int) -> int:
    """Bytes of weights, a chunk of prefill, and so many sequences' caches and logits."""
    return rank.weights.bytes(weight_format) + rank.prefill + sequences * (rank.sequence + rank.logits)


def served_by_formula(architecture: Architecture, question: ServingQuestion, ranks: int) -> ServedRank:
    """Memory that one of so many ranks needs of a model that formulas describe."""
    whole, half = (
        sequence_cache_bytes(architecture, context=context, element_bytes=question.cache_bytes, tensor_parallel=ranks)
        for context in (question.context, question.context // 2)
    )
    return ServedRank(
        weight_parts(architecture, tensor_parallel=ranks),
        whole,
        _token_bytes(whole, half, question.context),
        logit_bytes(architecture.padded_vocabulary),
        prefill_bytes(architecture, tokens=min(question.chunk, question.context), tensor_parallel=ranks),
    )


def served_by_trace(trace: ServedTrace, question: ServingQuestion, ranks: int) -> ServedRank:
    """Memory that one of so many ranks needs of a model that was traced.

    Linear layers, experts and tables are split evenly; norms, biases, routers and convolutions are on every rank, and
    so are heads of keys and values that are fewer than the ranks. Activations are those of the unsplit model.
    """
    linear = (Matrices(ceil_division(rows, ranks), columns, number) for rows, columns, number in trace.linear)
    weights = WeightParts(tuple(linear), ceil_division(trace.tables, ranks), trace.other_matrices + trace.vectors)
    whole, half = (
        sum(_held_bytes(each, size, question.cache_bytes, ranks) for each, size in sizes)
        for sizes in zip(*(((each, each.bytes), (each, each.half_bytes)) for each in trace.cache), strict=True)
    )
    token = _token_bytes(whole, half, trace.context)
    return ServedRank(weights, whole, token, logit_bytes(trace.vocabulary), trace.prefill_bytes)


def _token_bytes(whole: int, half: int, context: int) -> int:
    """Bytes that a token of the context's second half adds."""
    return (whole - half) // (context - context // 2)


def _held_bytes(tensors: CachedTensors, size: int, cache_bytes: int, ranks: int) -> int:
    """Bytes of cached tensors on one of so many ranks; the cache's format is that of keys and values alone."""
    if tensors.name in KEYS_AND_VALUES and tensors.element_bytes == ELEMENT_BYTES:
        size = size * cache_bytes // ELEMENT_BYTES
    return size * ceil_division(tensors.split, ranks) // tensors.split


def splitting_ranks(*widths: int) -> list[int]:
    """Numbers of accelerators, powers of two, that divide each of the widths."""
    powers = (2**power for power in range(MOST_RANKS.bit_length()))
    return [number for number in powers if all(width % number == 0 for width in widths)]


def split_widths(architecture: Architecture) -> dict[str, int]:
    """Sizes that tensor parallelism divides, by their names in a run file."""
    widths = {"heads": architecture.heads}
    if architecture.linear_key_heads is not None:
        widths["linear_key_heads"] = architecture.linear_key_heads
    if architecture.experts is None or architecture.dense_layers:
        widths["ffn_hidden"] = architecture.ffn_hidden
    if architecture.experts is not None:
        widths["expert_ffn_hidden"] = architecture.expert_width
    return widths


def check_split(ranks: int, widths: dict[str, int]) -> None:
    """Refuse a number of accelerators that does not divide a width.

    Raises:
        InputError: it does not.
    """
    for name, width in widths.items():
        if width % ranks:
            raise InputError(f"does not divide the model's {name} = {width:,}", got=ranks, where="--gpus")
