"""Computes the worked examples of the pages for students, docs/formulas/: no formula stands here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout, Recomputation, Schedule
from reference_runs.run import FlopConvention, Precision, Workload
from suite.predict.analytic import goodput, limits, training_cost
from suite.predict.analytic.activations import micro_batch_bytes
from suite.predict.analytic.collective_time import Group, all_reduce_seconds, ring_pass_seconds
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.flop import hardware_flop
from suite.predict.analytic.flop_conventions import conventional_flop, palm_flop
from suite.predict.analytic.gemm import EfficiencyTable, arithmetic_intensity, gemm_flop, gemm_seconds
from suite.predict.analytic.memory import StateBytes, state_bytes
from suite.predict.analytic.one_bit_compression import compressed_all_reduce_sent_bytes
from suite.predict.analytic.parameters import active_parameter_count, parameter_count, parameter_counts
from suite.predict.analytic.pipeline_schedule import bubble_fraction
from suite.predict.analytic.process_groups import ring_sent_bytes, sent_bytes
from suite.predict.analytic.ring_attention import context_parallel_traffic
from suite.predict.analytic.traffic import expert_traffic, tensor_parallel_traffic

Computed = dict[str, Any]
WHOLE_PEAK = EfficiencyTable((1.0,), (1.0,), (1.0,), (((1.0,),),))  # a roofline without losses


def _workload(run: str, **switches: Any) -> Workload:
    recorded = reference_run(run)
    return Workload(recorded.architecture, recorded.recipe, Layout(**switches))


def _parameters(*, run: str) -> Computed:
    architecture = reference_run(run).architecture
    parts = {part: count for part, count in parameter_counts(architecture).items() if count}
    return {**parts, "all": parameter_count(architecture)}


def _flop_of_a_sequence(*, run: str) -> Computed:
    architecture = reference_run(run).architecture
    named = {
        "6 N": FlopConvention.SIX_N,
        "6 N + 12 L h s": FlopConvention.PALM,
        "exact": FlopConvention.ALL_PRODUCTS,
        "causal half": FlopConvention.CAUSAL_HALF,
    }
    flop = {name: conventional_flop(architecture, samples=1, convention=each) for name, each in named.items()}
    recomputed = hardware_flop(architecture, Layout(recomputation=Recomputation.FULL), samples=1)
    return {**flop, "exact, full recomputation": recomputed}


def _state(*, run: str) -> Computed:
    recorded = reference_run(run)
    state = state_bytes(parameter_count(recorded.architecture), recorded.recipe.precision)
    parts = {"weights": state.weights, "gradients": state.gradients, "master weights": state.master_weights}
    return {**parts, "moments": state.moments, "all": state.all}


def _zero(*, parameters: Any, ranks: int) -> Computed:
    shard = ceil_division(parameters, ranks)
    stages: dict[str, StateBytes] = {
        "no ZeRO": state_bytes(parameters, Precision.FP16),
        "ZeRO-1": state_bytes(parameters, Precision.FP16, optimizer=shard),
        "ZeRO-2": state_bytes(parameters, Precision.FP16, gradients=shard, optimizer=shard),
        "ZeRO-3": state_bytes(shard, Precision.FP16),
    }
    return {name: state.all for name, state in stages.items()}


def _layer_activations(*, run: str, tensor_parallel: int) -> Computed:
    split = {"tensor_parallel": tensor_parallel, "sequence_parallel": True}
    layouts: dict[str, dict[str, Any]] = {
        "one rank": {},
        "tensor parallel": {"tensor_parallel": tensor_parallel},
        "and sequence parallel": split,
        "and selective recomputation": {**split, "recomputation": Recomputation.SELECTIVE},
        "and full recomputation": {**split, "recomputation": Recomputation.FULL},
    }
    return {name: micro_batch_bytes(_workload(run, **switches)).unit for name, switches in layouts.items()}


def _bubble(*, pipeline_stages: int, micro_batches: int, virtual_stages: int) -> Computed:
    layouts = {
        "1F1B": Layout(pipeline_stages=pipeline_stages),
        "interleaved": Layout(pipeline_stages=pipeline_stages, virtual_stages=virtual_stages),
        "zero bubble": Layout(pipeline_stages=pipeline_stages, schedule=Schedule.ZERO_BUBBLE),
    }
    return {name: bubble_fraction(layout, micro_batches=micro_batches) for name, layout in layouts.items()}


def _collectives(*, ranks: int, payload_bytes: int, small_bytes: int, **link: float) -> Computed:
    group = Group(ranks, **link)
    return {
        "all-reduce sends": ring_sent_bytes("all_reduce", payload_bytes=payload_bytes, ranks=ranks),
        "all-gather sends": ring_sent_bytes("all_gather", payload_bytes=payload_bytes, ranks=ranks),
        "all-reduce takes": all_reduce_seconds(group, payload_bytes=payload_bytes, messages=1),
        "all-gather takes": ring_pass_seconds(group, payload_bytes=payload_bytes, messages=1),
        "small all-reduce takes": all_reduce_seconds(group, payload_bytes=small_bytes, messages=1),
    }


def _tensor_parallel(*, run: str, tensor_parallel: int) -> Computed:
    found: Computed = {}
    for sequence_parallel, words in ((False, ""), (True, ", sequence parallel")):
        workload = _workload(run, tensor_parallel=tensor_parallel, sequence_parallel=sequence_parallel)
        for traffic in tensor_parallel_traffic(workload, stage=0, micro_batches=1):
            if traffic.axis == "tp" and traffic.payload_bytes:
                name = f"{traffic.operation.replace('_', '-')}{words}"
                found[f"{name}: messages"] = traffic.messages
                found[f"{name}: sent"] = sent_bytes(traffic, workload.layout)
    return found


def _context_parallel(*, run: str, context_parallel: int) -> Computed:
    workload = _workload(run, context_parallel=context_parallel)
    traffic = context_parallel_traffic(workload, stage=0, micro_batches=1)
    return {"messages": traffic.messages, "sent": sent_bytes(traffic, workload.layout)}


def _experts(*, run: str) -> Computed:
    architecture = reference_run(run).architecture
    return {"parameters": parameter_count(architecture), "active": active_parameter_count(architecture)}


def _all_to_all(*, run: str, expert_parallel: int) -> Computed:
    workload = _workload(run, expert_parallel=expert_parallel)
    traffic = expert_traffic(workload, stage=0, micro_batches=1)
    sent = sent_bytes(traffic, workload.layout)
    return {"messages": traffic.messages, "payload": traffic.payload_bytes, "sent": sent}


def _palm_share(*, run: str, tokens: int, **given: Any) -> float:
    return training_cost.utilization(flop=palm_flop(reference_run(run).architecture, tokens=tokens), **given)


def _shares(*, run: str, peak_flop_per_second: float, **step: Any) -> Computed:
    recorded = reference_run(run)
    conventions = {"HFU": FlopConvention.MEGATRON_RECOMPUTED, "MFU": FlopConvention.MEGATRON_MODEL}
    flop = {
        name: conventional_flop(recorded.architecture, samples=recorded.recipe.global_batch, convention=convention)
        for name, convention in conventions.items()
    }
    shares = {
        name: training_cost.utilization(flop=each, peak_flop_per_second=peak_flop_per_second, **step)
        for name, each in flop.items()
    }
    return {"flop per second": training_cost.flop_per_second(flop=flop["HFU"], **step), **shares}


def _compute_optimal(*, flop: float) -> Computed:
    parameters = training_cost.compute_optimal_parameters(flop)
    return {"parameters": parameters, "tokens": training_cost.compute_optimal_tokens(parameters)}


def _one_bit(*, elements: int, payload_bytes: int, ranks: int) -> Computed:
    return {
        "in 16 bits": ring_sent_bytes("all_reduce", payload_bytes=payload_bytes, ranks=ranks),
        "in 1 bit": compressed_all_reduce_sent_bytes(elements, ranks=ranks),
    }


def _roofline(
    *, N: int, K: int, element_bytes: int, peak_flop_per_second: float, memory_bytes_per_second: float, **rows: int
) -> Computed:
    ridge = limits.machine_flop_per_byte(
        peak_flop_per_second=peak_flop_per_second, link_bytes_per_second=memory_bytes_per_second
    )
    found: Computed = {"ridge": ridge}
    for M in rows.values():
        shape = {"M": M, "N": N, "K": K}
        found[f"M = {M}: flop"] = gemm_flop(**shape)
        found[f"M = {M}: intensity"] = arithmetic_intensity(**shape, element_bytes=element_bytes)
        found[f"M = {M}: time"] = gemm_seconds(
            **shape,
            element_bytes=element_bytes,
            table=WHOLE_PEAK,
            peak_flop_per_second=peak_flop_per_second,
            memory_bytes_per_second=memory_bytes_per_second,
        )
    return found


def _energy_and_cost(
    *, accelerator_seconds: float, price_per_accelerator_hour: float, price_per_kilowatt_hour: float, **power: float
) -> Computed:
    joules = training_cost.energy_joules(accelerator_seconds=accelerator_seconds, **power)
    held = {"accelerator_seconds": accelerator_seconds, "price_per_accelerator_hour": price_per_accelerator_hour}
    return {
        "energy": joules,
        "cost of energy": training_cost.energy_cost(
            energy_joules=joules, price_per_kilowatt_hour=price_per_kilowatt_hour
        ),
        "cost of accelerators": training_cost.accelerator_cost(**held),
    }


def _failures(
    *,
    failures_per_accelerator_hour: float,
    accelerators: int,
    checkpoint_seconds: float,
    restart_seconds: float,
    training_seconds: float,
) -> Computed:
    between = goodput.seconds_between_failures(
        failures_per_accelerator_hour=failures_per_accelerator_hour, accelerators=accelerators
    )
    pauses = {"checkpoint_seconds": checkpoint_seconds, "between_failures_seconds": between}
    interval = goodput.daly_interval_seconds(**pauses)
    expected = goodput.expected_seconds(
        training_seconds=training_seconds, interval_seconds=interval, restart_seconds=restart_seconds, **pauses
    )
    return {"between failures": between, "between checkpoints": interval, "training with failures": expected}


# Example -> what computes it, as `suite.predict.validation.computations.COMPUTATIONS`.
LESSONS: dict[str, Callable[..., float | Computed]] = {
    "gpt2_parameters": _parameters,
    "llama3_8b_parameters": _parameters,
    "llama3_8b_flop_of_a_sequence": _flop_of_a_sequence,
    "llama3_8b_state": _state,
    "zero_7b5_on_64_ranks": _zero,
    "gpt3_layer_activations": _layer_activations,
    "pipeline_bubble": _bubble,
    "ring_collectives": _collectives,
    "gpt3_tensor_parallel_traffic": _tensor_parallel,
    "llama3_8b_context_parallel_traffic": _context_parallel,
    "mixtral_parameters": _experts,
    "mixtral_all_to_all": _all_to_all,
    "palm_utilization": _palm_share,
    "bloom_utilization": _shares,
    "compute_optimal": _compute_optimal,
    "one_bit_all_reduce": _one_bit,
    "gemm_roofline": _roofline,
    "bloom_energy_and_cost": _energy_and_cost,
    "llama3_failures": _failures,
}
