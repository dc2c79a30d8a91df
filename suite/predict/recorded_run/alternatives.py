"""The limits of a run's choices: a list of named answers for one run and machine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.layout import Layout, Recomputation, Schedule, layout_text
from reference_runs.run import Recipe, Workload
from suite.predict.analytic import limits
from suite.predict.analytic.activations import (
    activation_bytes,
    activation_conventions,
    best_checkpoint_layers,
    checkpoint_partitions,
    micro_batch_bytes,
)
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.flop import recomputation_from_input_ratio, recomputed_layers_from_input
from suite.predict.analytic.flop_conventions import six_n_flop
from suite.predict.analytic.gemm import arithmetic_intensity
from suite.predict.analytic.gradient_buckets import fused_messages
from suite.predict.analytic.layer_products import layer_products
from suite.predict.analytic.layer_time import head_seconds, layer_time
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.memory import (
    BYTES_PER_PARAMETER,
    bytes_per_parameter,
    zero_bytes_per_parameter,
    zero_saving,
)
from suite.predict.analytic.one_bit_compression import compression_ratio, error_feedback_bytes, training_saving
from suite.predict.analytic.parameters import active_parameter_count, parameter_count, rank_parameters
from suite.predict.analytic.pipeline_partition import balanced_partition, pipedream_partition
from suite.predict.analytic.pipeline_schedule import chunks_in_flight
from suite.predict.analytic.process_groups import group_ranks
from suite.predict.analytic.stage_layers import stage_layers
from suite.predict.analytic.staleness import bounded_training
from suite.predict.analytic.traffic import reduced_gradient_element_bytes
from suite.predict.analytic.training_cost import compute_optimal_parameters, compute_optimal_tokens, training_years
from suite.predict.recorded_run.prediction import RunPrediction

WARMUP_SHARE = 0.15  # of 1-bit Adam's steps, as in the recipe of Tang et al. 2021, arXiv 2102.02888, section 7
STRAGGLER, LATE_EVERY = 2.0, 10  # a late step takes twice as long, and is one of ten
STALENESS_BOUND = 3
NO_LINK = "not known: this machine has no link between accelerators"
SIMULATED_WORKERS, SIMULATED_STEPS = 8, 40


class Choice(msgspec.Struct, frozen=True):
    """One answer: its topic, what it is of, its value in a base unit (or words), and what it rests on."""

    topic: str
    name: str
    value: float | str | None
    unit: str
    note: str = ""


def choices(
    workload: Workload,
    machine: Machine,
    prediction: RunPrediction,
    *,
    memories: Mapping[str, float],
    host_bytes_per_second: float | None,
    interfaces: int | None,
    interface_bytes_per_second: float | None,
) -> list[Choice]:
    """Limits of, and alternatives to, a run's layout on a machine.

    On a machine without a link between its accelerators, a single one, nothing is said of what a link limits.

    Args:
        memories: bytes of one accelerator, by name.
        host_bytes_per_second: one way, between an accelerator and its host.
        interfaces: network interfaces of a node, each of `interface_bytes_per_second`.
    """
    return [
        *_tensor_parallel(workload, machine),
        *_memory(workload, machine, prediction, memories),
        *_batch(workload, machine),
        *_recomputation(workload),
        *_pipeline(workload, machine),
        *_communication(workload, machine, host_bytes_per_second, interfaces, interface_bytes_per_second),
        *_data_parallelism(prediction),
        *_precision(workload.recipe),
    ]


def _tensor_parallel(workload: Workload, machine: Machine) -> Iterator[Choice]:
    architecture, recipe, _ = workload
    element = BYTES_PER_PARAMETER[recipe.precision].weights
    topic, peak, link = "tensor parallelism", machine.peak_flop_per_second, machine.link_bytes_per_second
    if math.isinf(link):
        yield Choice(topic, "largest useful size", NO_LINK, "1")
    else:
        bound = limits.largest_useful_tensor_parallel(
            hidden=architecture.hidden,
            bytes_per_parameter=element,
            peak_flop_per_second=peak,
            link_bytes_per_second=link,
        )
        yield Choice(topic, "largest useful size", bound, "1", "arithmetic takes as long as communication")
        usable = limits.usable_tensor_parallel(min(bound, machine.accelerators_per_node), heads=architecture.heads)
        yield Choice(topic, "usable inside a node", usable, "1", "a power of two that divides the heads")
        ratio = limits.machine_flop_per_byte(peak_flop_per_second=peak, link_bytes_per_second=link)
        yield Choice(topic, "machine's flop per byte", ratio, "flop/byte", "peak over the link, one way")
    intensity = limits.head_flop_per_byte(
        hidden=architecture.hidden, heads=architecture.heads, bytes_per_parameter=element
    )
    yield Choice(topic, "flop per byte with a head on each", intensity, "flop/byte")
    _, rows, columns, depth = layer_products(workload)["expansion"]
    intense = arithmetic_intensity(M=rows, N=columns, K=depth, element_bytes=int(element))
    yield Choice(
        topic, "flop per byte of memory in the expansion", intense, "flop/byte", f"{rows} x {depth} x {columns}"
    )
    needed = limits.needed_link_bytes_per_second(peak_flop_per_second=peak, flop_per_byte=intensity)
    yield Choice(topic, "link that this needs, one way", needed, "byte/s")


def _memory(
    workload: Workload, machine: Machine, prediction: RunPrediction, memories: Mapping[str, float]
) -> Iterator[Choice]:
    architecture, recipe, layout = workload
    topic, precision, ranks = "memory", recipe.precision, group_ranks(layout, "dp")
    state = parameter_count(architecture) * bytes_per_parameter(precision)
    yield Choice(topic, "training state of the model", state, "byte", f"{bytes_per_parameter(precision):g} a parameter")
    whole = msgspec.structs.replace(
        layout, tensor_parallel=1, context_parallel=1, pipeline_stages=1, virtual_stages=1, sequence_parallel=False
    )
    activations = activation_bytes(Workload(architecture, recipe, whole), stage=0)
    total = limits.even_stage_bytes(state_bytes=state, activation_bytes=activations)
    least = limits.least_accelerators(total_bytes=total, memory_bytes=machine.memory_bytes)
    yield Choice(topic, "least accelerators for it", least, "1", "and the activations of one micro-batch")
    stages = limits.least_pipeline_stages(total_bytes=total, memory_bytes=machine.memory_bytes)
    yield Choice(topic, "least pipeline stages for it", stages, "1")
    for stage in range(4):
        largest = limits.largest_model_parameters(
            memory_bytes=machine.memory_bytes, precision=precision, zero_stage=stage, ranks=ranks
        )
        each = zero_bytes_per_parameter(precision, zero_stage=stage, ranks=ranks)
        saving = zero_saving(precision, zero_stage=stage, ranks=ranks)
        note = f"{each:.4g} bytes a parameter over {ranks} ranks, {saving:.3g} times less; no activations"
        yield Choice(topic, f"largest model with zero{stage}", largest, "1", note)
    rank = rank_parameters(architecture, layout, stage=0).all
    for stage in (1, 2, 3):
        shards = limits.least_shards(
            parameters=rank,
            memory_bytes=machine.memory_bytes,
            activation_bytes=prediction.memory[0].activations,
            precision=precision,
            zero_stage=stage,
        )
        yield Choice(topic, f"least ranks with zero{stage} for the first stage", shards or "none suffices", "1")
    cached = architecture.sequence
    uses = limits.fits(
        architecture, precision, memories, training_activation_bytes=0, cached_tokens=cached, cache_element_bytes=2
    )
    for use, names in uses.items():
        note = "state alone, no activations" if use.startswith("training") else f"and {cached} cached tokens"
        yield Choice("fits on one accelerator", use, ", ".join(names) or "none recorded", "", note)


def _batch(workload: Workload, machine: Machine) -> Iterator[Choice]:
    architecture, recipe, layout = workload
    topic, micro_batches = "batch and ranks", accumulation(recipe, layout)
    sizes = (layout.data_parallel, layout.tensor_parallel, layout.pipeline_stages, layout.context_parallel)
    yield Choice(topic, "world size", limits.world_size(sizes), "1", "product of the axes")
    replicas = limits.remaining_axis_size(layout.ranks, sizes=sizes[1:])
    yield Choice(topic, "replicas", replicas, "1", "ranks over the other axes")
    dimensions = sum(size > 1 for size in sizes)
    least = limits.least_accelerators_of_dimensions(dimensions)
    yield Choice(topic, f"least accelerators for {dimensions} parallel dimensions", least, "1")
    batch = limits.global_batch(
        accumulation=micro_batches, nodes=1, processes_per_node=layout.data_parallel, micro_batch=layout.micro_batch
    )
    yield Choice(topic, "samples of an update", batch, "sample", "accumulation * replicas * micro-batch")
    samples = ceil_division(recipe.tokens, architecture.sequence)
    of_replica = ceil_division(samples, layout.data_parallel)
    steps = limits.updates(samples=of_replica, micro_batch=layout.micro_batch)
    yield Choice(topic, "micro-steps of the training", steps, "1", "of one replica")
    taken = limits.updates(samples=of_replica, micro_batch=layout.micro_batch, accumulation=micro_batches)
    yield Choice(topic, "updates of the training", taken, "1", "at the full global batch")
    years = training_years(
        parameters=parameter_count(architecture), tokens=recipe.tokens, flop_per_second=machine.peak_flop_per_second
    )
    yield Choice(topic, "years on one accelerator", years, "year", "6 N D at its peak")
    active = active_parameter_count(architecture)
    note = f"20 a parameter (Chinchilla); the recipe has {recipe.tokens / active:,.4g}"
    yield Choice(topic, "compute-optimal tokens", compute_optimal_tokens(active), "token", note)
    optimal = compute_optimal_parameters(six_n_flop(parameters=active, tokens=recipe.tokens))
    yield Choice(topic, "compute-optimal parameters", optimal, "1", "for the flop of this training, 6 N D")


def _recomputation(workload: Workload) -> Iterator[Choice]:
    architecture, recipe, layout = workload
    topic, layers = "activations", stage_layers(architecture, layout, stage=0)
    for name, bytes_ in activation_conventions(workload).items():
        yield Choice(topic, name, bytes_, "byte", "of one micro-batch, all layers on one pipeline stage")
    unit = micro_batch_bytes(
        Workload(architecture, recipe, msgspec.structs.replace(layout, recomputation=Recomputation.NONE))
    )
    yield Choice(topic, "one layer keeps", unit.unit, "byte", "of one micro-batch, without recomputation")
    best = best_checkpoint_layers(workload, stage=0, micro_batches=accumulation(recipe, layout))
    yield Choice(topic, "layers a group of recomputation", best, "1", "least memory on the first stage")
    partitions = checkpoint_partitions(layers=architecture.layers)
    yield Choice(topic, "partitions, if a layer keeps what its input takes", partitions, "1", "sqrt(layers)")
    again = recomputed_layers_from_input(architecture.layers)
    ratio = recomputation_from_input_ratio(architecture.layers)
    note = f"instead of {architecture.layers}: {ratio:g} times a forward pass"
    yield Choice(topic, "layer-forwards repeated from the input alone", again, "1", note)
    kept = chunks_in_flight(pipeline_stages=layout.pipeline_stages, virtual_stages=layout.virtual_stages, stage=0)
    yield Choice(topic, "rounds in flight without flush", kept, "1", f"first stage; {layers} layers each")


def _pipeline(workload: Workload, machine: Machine) -> Iterator[Choice]:
    """Balanced stages with the head counted, and PipeDream's partition over the accelerators of a node."""
    architecture, recipe, layout = workload
    topic = "pipeline"
    layer = layer_time(workload, machine)
    head = sum(head_seconds(workload, machine))
    each = layer.forward_seconds + layer.backward_seconds + layer.operator_seconds + layer.operator_backward_seconds
    costs = [each] * (architecture.layers - 1) + [each + head]
    stages = balanced_partition(costs, stages=layout.pipeline_stages)
    layers = iter(costs)
    worst = max(sum(itertools.islice(layers, size)) for size in stages)
    even = worst * layout.pipeline_stages / sum(costs)
    yield Choice(topic, "layers of balanced stages", _run_lengths(stages), "", f"slowest {even:.3f} of the mean")
    groups = _grouped(costs, 2 * machine.accelerators_per_node)
    weights = [len(group) * BYTES_PER_PARAMETER[recipe.precision].weights for group in groups]
    of_layer = parameter_count(architecture) / architecture.layers / layout.tensor_parallel
    stream = layout.micro_batch * architecture.sequence * architecture.hidden * 2
    partition = pipedream_partition(
        layer_seconds=[sum(group) for group in groups],
        activation_bytes=[stream] * len(groups),
        weight_bytes=[weight * of_layer for weight in weights],
        workers=machine.accelerators_per_node,
        link_bytes_per_second=machine.achievable_link_bytes_per_second,
    )
    words = ", ".join(
        f"{sum(len(group) for group in groups[stage.first_layer : stage.last_layer + 1])} layers x{stage.replicas}"
        for stage in partition.stages
    )
    note = f"{partition.in_flight_micro_batches} micro-batches in flight; layers in {len(groups)} groups"
    yield Choice(topic, f"PipeDream's partition over {machine.accelerators_per_node} workers", words, "", note)
    dealt = [
        sum(len(group) for group in groups[stage.first_layer : stage.last_layer + 1]) for stage in partition.stages
    ]
    planned = partition_words([stage.replicas for stage in partition.stages], dealt)
    note = "executed by reproduce --layout, without tensor parallelism" if layout.tensor_parallel > 1 else ""
    yield Choice(topic, "that partition as a layout", f"{planned},micro{layout.micro_batch}", "", note)


def partition_words(replicas: Sequence[int], layers: Sequence[int]) -> str:
    """PipeDream's layout with so many replicas and layers of each stage, in the words of the command line."""
    if len(replicas) == 1:
        return f"dp{replicas[0]}"
    words = Layout(
        pipeline_stages=len(replicas),
        schedule=Schedule.PIPEDREAM,
        stage_replicas=tuple(replicas),
        stage_layer_counts=tuple(layers),
    )
    kept = ("replicas", "layers", "pp", "pipedream")
    return ",".join(word for word in layout_text(words).split(",") if word.startswith(kept))


def _grouped(costs: list[float], groups: int) -> list[list[float]]:
    """The layers' costs in at most `groups` runs of neighbours: the partitioner's time grows with their square."""
    sizes = balanced_partition(costs, stages=min(groups, len(costs)))
    layers = iter(costs)
    return [list(itertools.islice(layers, size)) for size in sizes]


def _run_lengths(sizes: tuple[int, ...]) -> str:
    runs = [(len(list(run)), size) for size, run in itertools.groupby(sizes)]
    return ", ".join(f"{count} x {size}" if count > 1 else str(size) for count, size in runs)


def _communication(
    workload: Workload,
    machine: Machine,
    host_bytes_per_second: float | None,
    interfaces: int | None,
    interface_bytes_per_second: float | None,
) -> Iterator[Choice]:
    architecture, recipe, layout = workload
    topic, rank = "communication", rank_parameters(architecture, layout, stage=0).all
    element = reduced_gradient_element_bytes(recipe.precision)
    crossing = "a rank's gradients over its link, one way"
    if math.isinf(machine.link_bytes_per_second):
        yield Choice(topic, crossing, NO_LINK, "s")
    else:
        seconds = limits.gradient_transfer_seconds(
            parameters=rank, link_bytes_per_second=machine.link_bytes_per_second, gradient_bytes=element
        )
        yield Choice(topic, crossing, seconds, "s", "twice that with the way back")
    fused = fused_messages(element * rank, bucket_bytes=layout.bucket_bytes, copies=2)
    note = f"of {layout.bucket_bytes / 2**20:g} MiB exactly, {fused.copied_bytes / 1e9:,.1f} GB copied in and out"
    yield Choice(topic, "messages of fused gradients", fused.messages, "1", note)
    if host_bytes_per_second is not None:
        needed = limits.needed_network_bytes_per_second(
            accelerators_per_node=machine.accelerators_per_node, host_bytes_per_second=host_bytes_per_second
        )
        yield Choice(topic, "network for all of a node's host links", needed, "byte/s", "one way")
        if interfaces is not None and interface_bytes_per_second is not None:
            share = limits.network_share(
                needed_bytes_per_second=needed,
                interfaces=interfaces,
                interface_bytes_per_second=interface_bytes_per_second,
            )
            yield Choice(topic, "share that the node's interfaces carry", share, "1")
    ranks = group_ranks(layout, "dp")
    ratio = compression_ratio(rank, ranks=ranks, element_bytes=element) if ranks > 1 else 1.0
    yield Choice(topic, "1-bit compression of the gradients", ratio, "1", "times fewer bytes")
    saving = training_saving(warmup_share=WARMUP_SHARE, ratio=ratio)
    yield Choice(topic, "1-bit Adam, whole training", saving, "1", f"{WARMUP_SHARE:.0%} of the steps uncompressed")
    yield Choice(topic, "error feedback of 1-bit Adam", error_feedback_bytes(rank, ranks=ranks), "byte", "on a rank")


def _data_parallelism(prediction: RunPrediction) -> Iterator[Choice]:
    """Bulk-synchronous, stale-synchronous and asynchronous workers whose steps are late now and then."""
    if prediction.step is None:
        return
    table = late_steps(prediction.step.total_seconds)
    late = f"{SIMULATED_WORKERS} workers, 1 step in {LATE_EVERY} takes {STRAGGLER:g} times as long"
    for name, bound in (("bulk-synchronous", 0), ("stale-synchronous", STALENESS_BOUND), ("asynchronous", None)):
        training = bounded_training(table, bound=bound)
        each = training.iterations_per_second / SIMULATED_WORKERS
        note = f"at most {training.largest_staleness} steps stale; {late}"
        yield Choice("stragglers", f"{name}: steps a second of a worker", each, "1/s", note)


def late_steps(step_seconds: float) -> list[list[float]]:
    """Seconds of the simulated workers' steps: scattered over workers and steps, one in ten is late.

    Which ones: those that a linear congruential sequence (x -> 16807 x mod 2^31 - 1) makes a multiple of ten.
    """
    state, table = 1, []
    for _ in range(SIMULATED_WORKERS):
        row = []
        for _ in range(SIMULATED_STEPS):
            state = 16807 * state % (2**31 - 1)
            row.append(step_seconds * (STRAGGLER if state % LATE_EVERY == 0 else 1.0))
        table.append(row)
    return table


def _precision(recipe: Recipe) -> Iterator[Choice]:
    spacing = limits.fp16_spacing(math.floor(math.log2(recipe.init_std)))
    note = "of weights as large as the initialisation's standard deviation; the reason for fp32 master weights"
    yield Choice("precision", "distance between fp16 numbers", spacing, "1", note)
    yield Choice("precision", "updates lost below", spacing / 2, "1")
