"""Computes what worked examples claim, by the functions that predict runs: no formula stands here.

Those of the pages for students are in `suite.predict.validation.lessons`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout, Recomputation
from reference_runs.run import FlopConvention, Precision
from suite.predict.analytic import flop, limits
from suite.predict.analytic.activations import approximate_activation_bytes, checkpoint_partitions, forty_s_h_l_bytes
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.flop_conventions import conventional_flop, six_n_flop
from suite.predict.analytic.gemm import arithmetic_intensity, gemm_flop
from suite.predict.analytic.memory import bytes_per_parameter, state_bytes, zero_saving
from suite.predict.analytic.one_bit_compression import compression_ratio, training_saving
from suite.predict.analytic.pipeline_schedule import chunks_in_flight, micro_batches_in_flight
from suite.predict.analytic.serving import token_cache_bytes
from suite.predict.analytic.staleness import bounded_training
from suite.predict.analytic.training_cost import six_n_seconds, training_seconds, training_steps, training_years
from suite.predict.validation.lessons import LESSONS, Computed

Value = int | float | str


def _tensor_parallel(*, heads: int, **bounding: Any) -> Computed:
    bound = limits.largest_useful_tensor_parallel(**bounding)
    return {"bound on GPUs": bound, "usable GPUs": limits.usable_tensor_parallel(bound, heads=heads)}


def _tensor_parallel_both_ways(*, link_bytes_per_second_both_ways: float, **given: Any) -> Computed:
    peak = given["peak_flop_per_second"]
    both = given | {"link_bytes_per_second": link_bytes_per_second_both_ways}
    needed, needed_both = (
        limits.machine_flop_per_byte(peak_flop_per_second=peak, link_bytes_per_second=link["link_bytes_per_second"])
        for link in (given, both)
    )
    return _tensor_parallel(**given) | {
        "required flop per byte": needed,
        "flop per byte, both ways": needed_both,
        "bound on GPUs, both ways": _tensor_parallel(**both)["bound on GPUs"],
    }


def _in_flight(*, pipeline_stages: int, micro_batches: int) -> list[float]:
    layout = Layout(pipeline_stages=pipeline_stages)
    return [
        micro_batches_in_flight(layout, micro_batches=micro_batches, stage=stage) for stage in range(pipeline_stages)
    ]


def _by_stage(values: Iterable[float]) -> Computed:
    return {f"stage {number}": value for number, value in enumerate(values, start=1)}


def _overflow(*, memory_bytes: float, pipeline_stages: int, micro_batches: int, **stage_bytes: float) -> Computed:
    stages = [
        limits.even_stage_bytes(micro_batches_in_flight=kept, **stage_bytes)
        for kept in _in_flight(pipeline_stages=pipeline_stages, micro_batches=micro_batches)
    ]
    full = [
        str(number) for number, size in enumerate(stages, start=1) if not limits.fitting(size, {"GPU": memory_bytes})
    ]
    return {**_by_stage(stages), "stages that overflow": ", ".join(full)}


def _least_stages(*, parameters: float, activation_bytes: float, memory_bytes: float) -> Computed:
    state = state_bytes(parameters, Precision.BF16).all
    total = limits.even_stage_bytes(state_bytes=state, activation_bytes=activation_bytes)
    stages = limits.least_pipeline_stages(total_bytes=total, memory_bytes=memory_bytes)
    share = limits.even_stage_bytes(state_bytes=state, activation_bytes=activation_bytes, pipeline_stages=stages)
    return {"stages": stages, "on each GPU": share}


def _sharded_stages(
    *, parameters: Any, pipeline_stages: int, activation_bytes: float, micro_batches: int, ranks: int = 1
) -> Computed:
    state = state_bytes(parameters, Precision.BF16, optimizer=ceil_division(parameters, ranks)).all
    return _by_stage(
        limits.even_stage_bytes(
            state_bytes=state,
            activation_bytes=activation_bytes,
            pipeline_stages=pipeline_stages,
            micro_batches_in_flight=kept,
        )
        for kept in _in_flight(pipeline_stages=pipeline_stages, micro_batches=micro_batches)
    )


def _unlimited_shards(*, parameters: float, **memory: float) -> Computed:
    ranks = limits.least_shards(parameters=parameters, precision=Precision.BF16, zero_stage=1, **memory)
    return {
        "state over unlimited ranks": state_bytes(parameters, Precision.BF16, optimizer=0).all,
        "ranks that suffice": "none" if ranks is None else str(ranks),
    }


def _zero_savings(*, ranks: int, many_ranks: int) -> Computed:
    return {
        f"stage {stage}, {words}": zero_saving(Precision.FP16, zero_stage=stage, ranks=number)
        for words, number, stages in ((f"{ranks} ranks", ranks, (1, 2, 3)), ("many ranks", many_ranks, (1, 2)))
        for stage in stages
    }


def _iterations_ahead(*, S: int, fast_seconds: float, slow_seconds: float, iterations: int) -> Computed:
    seconds = [list(repeat(fast_seconds, iterations)), list(repeat(slow_seconds, iterations))]
    bounds = {f"S = {S}": S, "S = 0": 0, "unbounded": None}
    return {
        f"iterations ahead, {words}": bounded_training(seconds, bound=bound).largest_staleness
        for words, bound in bounds.items()
    }


def _network(*, accelerators: int, host_bytes_per_second: float, interfaces: int, **interface: float) -> Computed:
    bandwidth = limits.needed_network_bytes_per_second
    needed = bandwidth(accelerators_per_node=accelerators, host_bytes_per_second=host_bytes_per_second)
    return {
        "needed": needed,
        "available": bandwidth(
            accelerators_per_node=interfaces, host_bytes_per_second=interface["interface_bytes_per_second"]
        ),
        "available share": limits.network_share(needed_bytes_per_second=needed, interfaces=interfaces, **interface),
    }


def _trained_tokens(*, run: str, claimed_tokens: int) -> Computed:
    recorded = reference_run(run)

    def flop_of(tokens: int) -> float:
        samples = training_steps(tokens=tokens, global_batch=1, sequence=recorded.architecture.sequence)
        return conventional_flop(recorded.architecture, samples=samples, convention=FlopConvention.MEGATRON_RECOMPUTED)

    return {
        "trained tokens": recorded.recipe.tokens,
        "flop of the trained tokens": flop_of(recorded.recipe.tokens),
        "flop of the claimed tokens": flop_of(claimed_tokens),
    }


def _measured_replicas(*, run: str, claimed_accelerators: int, tensor_parallel: int, pipeline_stages: int) -> Computed:
    measured = [measurement.accelerators for measurement in reference_run(run).measured]
    return {
        f"on {accelerators} accelerators": limits.remaining_axis_size(
            accelerators, sizes=(tensor_parallel, pipeline_stages)
        )
        for accelerators in (claimed_accelerators, *measured)
    }


def _selective_recomputation(*, run: str) -> Computed:
    architecture = reference_run(run).architecture
    selective = Recomputation.SELECTIVE
    return {
        "flop added": flop.recomputed_flop(
            architecture, samples=1, recomputation=selective, layers=architecture.layers
        ),
        "hardware flop": flop.hardware_flop(architecture, Layout(recomputation=selective), samples=1),
    }


def _token_caches(**runs: str) -> Computed:
    return {model: token_cache_bytes(reference_run(run).architecture) for model, run in runs.items()}


# Example -> what computes it from the inputs as keywords: one value, or one for each result by its name.
COMPUTATIONS: dict[str, Callable[..., Value | Computed]] = {
    "training_flop_6nd": six_n_flop,
    "head_per_gpu_flop_per_byte": limits.head_flop_per_byte,
    "head_per_gpu_bandwidth_4090": lambda *, peak_flop_per_second, flop_per_byte, flop_per_byte_both_ways: {
        "one way": limits.needed_link_bytes_per_second(
            peak_flop_per_second=peak_flop_per_second, flop_per_byte=flop_per_byte
        ),
        "both ways": limits.needed_link_bytes_per_second(
            peak_flop_per_second=peak_flop_per_second, flop_per_byte=flop_per_byte_both_ways
        ),
    },
    "max_tensor_parallel_4090": _tensor_parallel,
    "max_tensor_parallel_h100": _tensor_parallel_both_ways,
    "llama2_70b_weights": lambda *, parameters: state_bytes(parameters, Precision.FP16).weights,
    "llama2_70b_gradients": lambda *, parameters: state_bytes(parameters, Precision.FP16).gradients,
    "llama2_70b_adam": lambda *, parameters: state_bytes(0, Precision.FP16, gradients=0, optimizer=parameters).all,
    "llama2_70b_activations": approximate_activation_bytes,
    "llama2_70b_total": lambda *, parameters, activation_bytes: limits.even_stage_bytes(
        state_bytes=state_bytes(parameters, Precision.FP16).all, activation_bytes=activation_bytes
    ),
    "llama2_70b_gpus_80gb": limits.least_accelerators,
    "llama2_70b_gpus_24gb": limits.least_accelerators,
    "pipeline_in_flight_activations": lambda *, stages, groups: {
        f"rounds, {stages} stages": chunks_in_flight(pipeline_stages=stages, virtual_stages=1, stage=0),
        f"rounds, {groups} groups": chunks_in_flight(pipeline_stages=groups, virtual_stages=1, stage=0),
    },
    "full_recompute_without_checkpoints": lambda *, layers: {
        "layer-forwards": flop.recomputed_layers_from_input(layers),
        "times one forward pass": flop.recomputation_from_input_ratio(layers),
    },
    "layer_per_gpu_compute_4090": six_n_seconds,
    "layer_gradient_transfer_pcie4": lambda *, gradient_bytes, gradient_and_average_bytes, **link: {
        "gradients out": limits.gradient_transfer_seconds(gradient_bytes=gradient_bytes, **link),
        "and averages back": limits.gradient_transfer_seconds(gradient_bytes=gradient_and_average_bytes, **link),
    },
    "aggregated_step_4090": lambda *, rounds, layer_seconds: training_seconds(
        tokens=rounds, global_batch=1, sequence=1, step_seconds=layer_seconds
    ),
    "cluster_batch_2048": lambda *, accelerators, micro_batch: limits.global_batch(
        accumulation=1, nodes=1, processes_per_node=accelerators, micro_batch=micro_batch
    ),
    "tp8_pipeline_stages": lambda *, accelerators, tensor_parallel: limits.remaining_axis_size(
        accelerators, sizes=(tensor_parallel,)
    ),
    "global_batch": limits.global_batch,
    "accumulation_steps_and_updates": lambda *, samples, micro_batch, accumulation: {
        "micro-steps": limits.updates(samples=samples, micro_batch=micro_batch),
        "updates": limits.updates(samples=samples, micro_batch=micro_batch, accumulation=accumulation),
    },
    "layout_world_sizes": lambda **sizes: {run: limits.world_size(axes) for run, axes in sizes.items()},
    "minimum_gpus_for_n_dimensional_parallelism": lambda **cases: {
        case: limits.least_accelerators_of_dimensions(dimensions) for case, dimensions in cases.items()
    },
    "gemm_flop": lambda *, element_bytes, **shape: {
        "flop": gemm_flop(**shape),
        "arithmetic intensity": arithmetic_intensity(element_bytes=element_bytes, **shape),
    },
    "gpt3_fp32_training_state": lambda *, parameters: state_bytes(parameters, Precision.FP32).all,
    "zero_stage_savings": _zero_savings,
    "one_bit_compression": compression_ratio,
    "one_bit_adam_end_to_end": training_saving,
    "ssp_iteration_bound": _iterations_ahead,
    "checkpoint_partitions": checkpoint_partitions,
    "gpt3_fp32_weights": lambda *, parameters: state_bytes(parameters, Precision.FP32).weights,
    "gpt3_fp32_weights_and_adam": lambda *, parameters: state_bytes(parameters, Precision.FP32, gradients=0).all,
    "gpt3_one_v100_years": training_years,
    "megatron_bytes_per_parameter": lambda: bytes_per_parameter(Precision.BF16),
    "megatron_13b_state": lambda *, parameters: state_bytes(parameters, Precision.BF16).all,
    "activations_40shl_13b": forty_s_h_l_bytes,
    "zero1_13b_does_not_fit": _unlimited_shards,
    "pipeline_13b_minimum_stages": _least_stages,
    "one_f_one_b_in_flight": lambda **pipeline: _by_stage(_in_flight(**pipeline)),
    "pipeline_13b_pp4_by_stage": _overflow,
    "pp4_zero2_13b_by_stage": _sharded_stages,
    "pp8_13b_first_stage": lambda **pipeline: _sharded_stages(**pipeline)["stage 1"],
    "training_70b_cluster_units": lambda **sizes: {case: limits.world_size(units) for case, units in sizes.items()},
    "fp16_spacing": limits.fp16_spacing,
    "nics_for_pcie4": _network,
    "opt_175b_training_tokens": _trained_tokens,
    "mt_nlg_measured_layout": _measured_replicas,
    "selective_recomputation_flop": _selective_recomputation,
    "kv_cache_of_a_token": _token_caches,
    **LESSONS,
}
