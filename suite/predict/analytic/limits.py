"""Limits: how far tensor parallelism pays, whether memory suffices, how batches divide, what a link carries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from reference_runs.run import Architecture, Precision
from suite.predict.analytic.elementwise import ceil_division, larger
from suite.predict.analytic.memory import bytes_per_parameter, zero_bytes_per_parameter
from suite.predict.analytic.parameters import parameter_count

INFERENCE_WEIGHT_BITS = (16, 8, 4)


# Tensor parallelism


def head_flop_per_byte(*, hidden: int, heads: int, bytes_per_parameter: float) -> float:
    """Flop that an accelerator with one attention head computes for each byte that it is sent: 2 * 3 h / a / w.

    A token's h w bytes come in; query, key and value of one head of h / a columns are 3 products of 2 h h / a flop.
    """
    return 2 * 3 * hidden / heads / bytes_per_parameter


def machine_flop_per_byte(*, peak_flop_per_second: float, link_bytes_per_second: float) -> float:
    """Flop that an accelerator computes at its peak while its link brings one byte, one way: P / B.

    Vendors print both directions together: half of that is one way.
    """
    return peak_flop_per_second / link_bytes_per_second


def needed_link_bytes_per_second(*, peak_flop_per_second: float, flop_per_byte: float) -> float:
    """One-way bytes per second that keep an accelerator busy which computes `flop_per_byte` with each byte."""
    return peak_flop_per_second / flop_per_byte


def largest_useful_tensor_parallel(
    *, hidden: int, bytes_per_parameter: float, peak_flop_per_second: float, link_bytes_per_second: float
) -> float:
    """Tensor-parallel ranks up to which arithmetic takes as long as communication: 2 * 3 h / w / (P / B).

    With h / t columns of query, key and value each, a rank of t computes 2 * 3 h / t / w flop with each byte (see
    `head_flop_per_byte`, where t = a), which must be P / B at least: peak flop over one-way bytes per second.

    Source: derived here. It counts the inputs of one product and the printed peaks; an all-reduce sends up to twice as
    much, and the feed-forward part computes more with each byte.
    """
    ratio = machine_flop_per_byte(
        peak_flop_per_second=peak_flop_per_second, link_bytes_per_second=link_bytes_per_second
    )
    return 2 * 3 * hidden / bytes_per_parameter / ratio


def usable_tensor_parallel(bound: float, *, heads: int) -> int:
    """The largest power of two up to `bound` (at least 1) that divides the heads."""
    size = 1
    while 2 * size <= bound and heads % (2 * size) == 0:
        size *= 2
    return size


# Memory


def least_accelerators(*, total_bytes: float, memory_bytes: float) -> float:
    """Accelerators whose memories together hold `total_bytes`, a whole number: ceil(total / memory)."""
    return -(-total_bytes // memory_bytes)


def largest_model_parameters(
    *, memory_bytes: float, precision: Precision, zero_stage: int, ranks: int = 1, activation_bytes: float = 0
) -> float:
    """Parameters whose training state fits next to `activation_bytes` on each of `ranks` data-parallel accelerators.

    (memory - activations) / `zero_bytes_per_parameter` (memory.py); 0 where activations fill the memory.
    Source: Rajbhandari et al. 2020, arXiv 1910.02054, table 2 (activations left out).
    """
    each = zero_bytes_per_parameter(precision, zero_stage=zero_stage, ranks=ranks)
    return larger(memory_bytes - activation_bytes, 0.0) / each


def least_shards(
    *, parameters: float, memory_bytes: float, activation_bytes: float, precision: Precision, zero_stage: int
) -> int | None:
    """Data-parallel ranks over which ZeRO must shard for state and activations to stay below the memory; None: no
    number suffices.

    The least n with unsharded + sharded / n < memory - activations.
    """
    whole, halved = (zero_bytes_per_parameter(precision, zero_stage=zero_stage, ranks=ranks) for ranks in (1, 2))
    sharded = 2 * (whole - halved) * parameters
    room = memory_bytes - activation_bytes - (whole * parameters - sharded)
    return math.floor(sharded / room) + 1 if room > 0 else None


def even_stage_bytes(
    *, state_bytes: float, activation_bytes: float, pipeline_stages: float = 1, micro_batches_in_flight: float = 1
) -> float:
    """Bytes on one of p equal pipeline stages that keeps f micro-batches in flight: (S + f A) / p.

    With S bytes of training state and A bytes of activations of one micro-batch through the whole model.
    Differs from `stage_memory` (stage_memory.py) by the tables on the outer stages, logits and buffers.
    """
    return (state_bytes + micro_batches_in_flight * activation_bytes) / pipeline_stages


def least_pipeline_stages(*, total_bytes: float, memory_bytes: float) -> float:
    """Pipeline stages, a whole number, whose even shares stay below the memory: the least p with total / p < memory.

    Differs from `least_accelerators` where the shares would fill the memory to the last byte.
    """
    return total_bytes // memory_bytes + 1


def key_value_cache_bytes(architecture: Architecture, *, tokens: int, element_bytes: float) -> float:
    """Bytes of the keys and values that inference keeps for `tokens` tokens: 2 L k d w a token.

    With L layers, k key-value heads of size d, w bytes an element; 2 for keys and values. Latent attention keeps c + r
    elements in place of 2 k d: the compressed state and the keys' rotated part. (Of a sliding window, give the tokens
    within it.)
    """
    width = 2 * architecture.kv_heads * architecture.head_dim
    if architecture.key_value_rank is not None:
        width = architecture.key_value_rank + (architecture.rotary_dim or 0)
    return architecture.layers * width * element_bytes * tokens


def inference_bytes(
    architecture: Architecture, *, weight_bits: int, cached_tokens: int, cache_element_bytes: float
) -> float:
    """Bytes that inference needs: weights of `weight_bits` bits and the cache (see `key_value_cache_bytes`).

    Left out: scales of quantised weights (about 0.5 bit a weight in groups of 32), activations, the framework.
    """
    cache = key_value_cache_bytes(architecture, tokens=cached_tokens, element_bytes=cache_element_bytes)
    return parameter_count(architecture) * weight_bits / 8 + cache


def fitting(needed_bytes: float, memory_bytes: Mapping[str, float]) -> tuple[str, ...]:
    """Names of the accelerators whose one memory holds `needed_bytes`, the smallest memory first."""
    names = sorted(memory_bytes, key=lambda name: (memory_bytes[name], name))
    return tuple(name for name in names if memory_bytes[name] >= needed_bytes)


def fits(
    architecture: Architecture,
    precision: Precision,
    memory_bytes: Mapping[str, float],
    *,
    training_activation_bytes: float,
    cached_tokens: int,
    cache_element_bytes: float,
) -> dict[str, tuple[str, ...]]:
    """Names of the accelerators of which a single one fits the model, for training and for inference by weight bits.

    Training needs the whole state in `precision` and `training_activation_bytes`; inference, `inference_bytes`.
    """
    state = parameter_count(architecture) * bytes_per_parameter(precision)
    inference = {
        f"inference, {bits}-bit weights": inference_bytes(
            architecture, weight_bits=bits, cached_tokens=cached_tokens, cache_element_bytes=cache_element_bytes
        )
        for bits in INFERENCE_WEIGHT_BITS
    }
    needed = {f"training, {precision.value}": state + training_activation_bytes} | inference
    return {use: fitting(bytes_, memory_bytes) for use, bytes_ in needed.items()}


# Batches and ranks


def world_size(sizes: Iterable[int]) -> int:
    """Ranks of a job whose axes have these sizes: their product."""
    return math.prod(sizes)


def remaining_axis_size(accelerators: int, *, sizes: Iterable[int]) -> int:
    """Size of the one axis that is left when the others have these sizes: accelerators / their product.

    Raises:
        ValueError: the product does not divide the accelerators.
    """
    taken = world_size(sizes)
    if accelerators % taken:
        raise ValueError(f"{taken} ranks of the other axes do not divide {accelerators} accelerators")
    return accelerators // taken


def least_accelerators_of_dimensions(parallel_dimensions: int) -> int:
    """Accelerators on which `parallel_dimensions` axes can each have two ranks at least: 2^d."""
    return 1 << parallel_dimensions


def global_batch(*, accumulation: int, nodes: int, processes_per_node: int, micro_batch: int) -> int:
    """Samples of one update: accumulation * nodes * processes per node * micro-batch.

    Holds where every process is a data-parallel rank; with model parallelism, data_parallel replaces the processes.
    """
    return accumulation * nodes * processes_per_node * micro_batch


def updates(*, samples: int, micro_batch: int, accumulation: int = 1) -> int:
    """Weight updates of one rank over `samples`, the last one perhaps of less: ceil(samples / (b a)).

    Of one micro-batch each, as many as forward and backward passes.
    """
    return ceil_division(samples, micro_batch * accumulation)


# Links


def gradient_transfer_seconds(*, parameters: float, link_bytes_per_second: float, gradient_bytes: float = 4) -> float:
    """Seconds in which the gradients of `parameters` cross a link one way: 4 N / B in fp32.

    Twice that where averages come back the same way.
    """
    return gradient_bytes * parameters / link_bytes_per_second


def needed_network_bytes_per_second(*, accelerators_per_node: int, host_bytes_per_second: float) -> float:
    """One-way bytes per second out of a node whose accelerators all send as fast as their host links allow: a B."""
    return accelerators_per_node * host_bytes_per_second


def network_share(*, needed_bytes_per_second: float, interfaces: int, interface_bytes_per_second: float) -> float:
    """Share of a needed bandwidth that a node's network interfaces give; 1 or more: they suffice."""
    return interfaces * interface_bytes_per_second / needed_bytes_per_second


# Number formats

FP16_STORED_BITS = 10  # of the significand, IEEE 754 binary16
FP16_EXPONENTS = range(-14, 16)  # of normal numbers


def fp16_spacing(exponent: int) -> float:
    """Distance between neighbouring fp16 numbers in [2^e, 2^(e + 1)): 2^(e - 10). An update below half of it is lost.

    Source: IEEE 754-2019, binary16: 10 stored bits of the significand.

    Raises:
        ValueError: an exponent that no normal fp16 number has.
    """
    if exponent not in FP16_EXPONENTS:
        raise ValueError(f"exponent must be from {FP16_EXPONENTS[0]} to {FP16_EXPONENTS[-1]}, got {exponent}")
    return 2.0 ** (exponent - FP16_STORED_BITS)
