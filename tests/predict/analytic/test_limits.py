from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from reference_runs.catalog import reference_run
from reference_runs.run import Architecture, Precision
from suite.predict.analytic.limits import (
    fits,
    fitting,
    fp16_spacing,
    global_batch,
    head_flop_per_byte,
    inference_bytes,
    key_value_cache_bytes,
    largest_model_parameters,
    largest_useful_tensor_parallel,
    least_accelerators,
    least_pipeline_stages,
    least_shards,
    remaining_axis_size,
    updates,
    usable_tensor_parallel,
)
from suite.predict.analytic.memory import zero_bytes_per_parameter
from suite.predict.analytic.parameters import parameter_count
from tests.support.strategies import architectures

LLAMA = reference_run("llama2-70b").architecture
COUNTS = st.integers(1, 10**4)
PARAMETERS = st.integers(1, 10**13)
MEMORIES = st.integers(1, 10**12)


@given(st.integers(1, 512), st.floats(1e12, 1e15), st.integers(1, 128), st.integers(1, 128))
def test_at_the_bound_a_rank_computes_exactly_as_much_as_its_link_needs(
    heads: int, peak: float, head_dim: int, ratio: int
) -> None:
    bound = largest_useful_tensor_parallel(
        hidden=heads * head_dim, bytes_per_parameter=2, peak_flop_per_second=peak, link_bytes_per_second=peak / ratio
    )
    # a rank of `bound` stands for a head among as many heads; six roundings
    as_heads: Any = bound
    at_bound = head_flop_per_byte(hidden=heads * head_dim, heads=as_heads, bytes_per_parameter=2)
    assert at_bound == pytest.approx(ratio, rel=1e-15, abs=0)


@given(st.floats(0.01, 300), st.integers(1, 512))
def test_the_usable_size_is_the_largest_power_of_two_that_divides_the_heads(bound: float, heads: int) -> None:
    fitting_sizes = [2**power for power in range(10) if 2**power <= bound and heads % 2**power == 0]
    assert usable_tensor_parallel(bound, heads=heads) == max([1, *fitting_sizes])


@given(PARAMETERS, MEMORIES)
def test_the_least_accelerators_hold_the_total_and_one_fewer_does_not(total: int, memory: int) -> None:
    number = least_accelerators(total_bytes=total, memory_bytes=memory)
    assert (number - 1) * memory < total <= number * memory
    stages = least_pipeline_stages(total_bytes=total, memory_bytes=memory)
    assert (stages - 1) * memory <= total < stages * memory


@given(
    st.integers(1, 10**10),
    st.integers(10**9, 10**12),
    st.integers(0, 10**11),
    st.sampled_from(Precision),
    st.integers(0, 3),
)
def test_the_least_shards_fit_and_one_fewer_does_not(
    parameters: int, memory: int, activations: int, precision: Precision, zero_stage: int
) -> None:
    def stored(shards: int) -> float:
        each = zero_bytes_per_parameter(precision, zero_stage=zero_stage, ranks=shards)
        return parameters * each + activations

    shards = least_shards(
        parameters=parameters,
        memory_bytes=memory,
        activation_bytes=activations,
        precision=precision,
        zero_stage=zero_stage,
    )
    # at the very edge a byte decides, of sums that are rounded to 2**-52 of at most 10**12
    edge = 1e-3
    if shards is None:
        assert stored(10**15) >= memory - edge
    else:
        assert stored(shards) < memory + edge
        assert shards == 1 or stored(shards - 1) >= memory - edge


def test_the_largest_models_on_64_accelerators_of_32_gb_are_those_of_zeros_table() -> None:
    # Rajbhandari et al. 2020, Table 2: theoretical maximum without model parallelism, printed to one decimal
    found = [
        largest_model_parameters(memory_bytes=32e9, precision=Precision.FP16, zero_stage=zero_stage, ranks=64)
        for zero_stage in range(4)
    ]
    assert found == pytest.approx([2.0e9, 7.6e9, 14.4e9, 128.0e9], abs=0.05e9)


@given(MEMORIES, st.integers(0, 10**12), st.sampled_from(Precision), st.integers(0, 3), COUNTS)
def test_the_largest_model_fills_the_memory(
    memory: int, activations: int, precision: Precision, zero_stage: int, ranks: int
) -> None:
    number = largest_model_parameters(
        memory_bytes=memory, precision=precision, zero_stage=zero_stage, ranks=ranks, activation_bytes=activations
    )
    stored = number * zero_bytes_per_parameter(precision, zero_stage=zero_stage, ranks=ranks)
    assert stored == pytest.approx(max(memory - activations, 0), rel=1e-15, abs=0)


@given(architectures(), st.integers(1, 50), st.sampled_from([torch.float16, torch.float32]))
def test_the_cache_holds_a_key_and_a_value_of_every_layer_and_token(
    architecture: Architecture, tokens: int, dtype: torch.dtype
) -> None:
    shape = (tokens, architecture.kv_heads, architecture.head_dim)
    tensors = [torch.empty(shape, dtype=dtype, device="meta") for _ in range(2 * architecture.layers)]
    found = key_value_cache_bytes(architecture, tokens=tokens, element_bytes=dtype.itemsize)
    assert found == sum(tensor.nbytes for tensor in tensors)


MEMORY_BYTES = {"rtx-4090": 24e9, "h100": 80e9, "h200": 141e9, "mi300x": 192e9, "cluster": 1.4e12}


def test_llama_70b_infers_where_its_weights_and_cache_fit() -> None:
    found = fits(
        LLAMA, Precision.BF16, MEMORY_BYTES, training_activation_bytes=0, cached_tokens=4096, cache_element_bytes=2
    )
    # 68.98e9 parameters of 2, 1 and half a byte, and 1.34e9 bytes of 80 layers' 8 key-value heads of 128
    assert parameter_count(LLAMA) == 68_976_648_192
    assert found == {
        "training, bf16": ("cluster",),
        "inference, 16-bit weights": ("h200", "mi300x", "cluster"),
        "inference, 8-bit weights": ("h100", "h200", "mi300x", "cluster"),
        "inference, 4-bit weights": ("h100", "h200", "mi300x", "cluster"),
    }
    needed = inference_bytes(LLAMA, weight_bits=16, cached_tokens=4096, cache_element_bytes=2)
    assert needed == 2 * 68_976_648_192 + 2 * 80 * 8 * 128 * 2 * 4096


@given(st.lists(st.floats(1, 1e12), max_size=6), st.floats(1, 1e12))
def test_fitting_accelerators_are_all_that_are_large_enough_in_order(sizes: list[float], needed: float) -> None:
    memories = {f"accelerator {number}": size for number, size in enumerate(sizes)}
    found = fitting(needed, memories)
    assert set(found) == {name for name, size in memories.items() if size >= needed}
    assert [memories[name] for name in found] == sorted(memories[name] for name in found)


def test_axes_that_do_not_divide_the_accelerators_are_refused() -> None:
    with pytest.raises(ValueError, match="280 ranks of the other axes do not divide 4481 accelerators"):
        remaining_axis_size(4481, sizes=(8, 35))


@example(1000, 5, 2)
@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 9))
def test_micro_steps_and_updates_equal_those_of_a_loop(samples: int, micro: int, accumulation: int) -> None:
    passes = list(range(0, samples, micro))
    assert updates(samples=samples, micro_batch=micro) == len(passes)
    taken = [passes[place : place + accumulation] for place in range(0, len(passes), accumulation)]
    assert updates(samples=samples, micro_batch=micro, accumulation=accumulation) == len(taken)
    batch = global_batch(accumulation=accumulation, nodes=256, processes_per_node=8, micro_batch=micro)
    assert batch == accumulation * 256 * 8 * micro


def test_fp16_spacing_is_the_step_to_the_next_number_and_other_exponents_are_refused() -> None:
    exponents = range(-14, 16)
    assert [fp16_spacing(exponent) for exponent in exponents] == [
        numpy.spacing(numpy.float16(2.0**exponent)) for exponent in exponents
    ]
    for exponent in (-15, 16):
        with pytest.raises(ValueError, match=f"exponent must be from -14 to 15, got {exponent}"):
            fp16_spacing(exponent)


def test_arrays_give_what_each_number_gives() -> None:
    totals: Any = numpy.array([1e9, 79e9, 80e9, 1850e9])
    for function in (least_accelerators, least_pipeline_stages):
        each = [function(total_bytes=total, memory_bytes=80e9) for total in totals.tolist()]
        found: Any = function(total_bytes=totals, memory_bytes=80e9)
        assert list(found) == each
