"""Seconds and kernels of one micro-batch's computation on a pipeline stage: products, operators, casts, repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reference_runs.layout import CORE_ATTENTION, Layout, Recomputation
from reference_runs.placement import head_stage
from reference_runs.run import Workload
from reference_runs.stack import Stack
from suite.predict.analytic.elementwise import larger, smaller
from suite.predict.analytic.flop import repeated_layers
from suite.predict.analytic.layer_time import LayerTime
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.memory_bound_operators import BACKWARD, embedding_bytes, loss_bytes
from suite.predict.analytic.product_formats import cast_kernels, layer_casts
from suite.predict.analytic.stage_layers import stage_layer_kinds, stage_layers

LEAST_SECONDS = 1e-300  # no time, but not 0
ALL_REDUCES = 2  # of tensor parallelism in a layer's forward pass
ROUTING_KERNELS = 15
COLLECTIVE_LAUNCHES = 2  # of the host for each collective: an event recorded and waited for on either side of it
HOST_SHARPNESS = 8  # of the smooth maximum of accelerator and host: 9 % above either where both are equal


class StageComputation(NamedTuple):
    """Seconds of one micro-batch on a stage: products and operators of both passes, and what is computed again.

    Args:
        casts: of inputs in the forward pass.
        gradient_casts: in the backward pass.
        casts_again: of inputs that the backward pass repeats.
        weight_casts: of all weights once; part of no pass.
    """

    forward: float
    backward: float
    operators: float
    operators_backward: float
    again: float
    operators_again: float
    casts: float
    gradient_casts: float
    casts_again: float
    weight_casts: float

    @property
    def backward_pass(self) -> float:
        """Seconds of the backward pass, with what it repeats."""
        casts = self.gradient_casts + self.casts_again
        return self.backward + self.again + self.operators_backward + self.operators_again + casts

    @property
    def both_passes(self) -> float:
        """Seconds of forward and backward pass."""
        return self.forward + self.operators + self.casts + self.backward_pass


def stage_computation(
    workload: Workload, machine: Machine, *, stage: int, kinds: Sequence[LayerTime], head: tuple[float, float]
) -> StageComputation:
    """The computation of pipeline stage `stage`.

    Args:
        kinds: of each of `layer_kinds` (stage_layers.py).
        head: of both passes.
    """
    bandwidth = machine.achievable_memory_bytes_per_second
    layers_of_kinds = stage_layer_kinds(workload.architecture, workload.layout, stage=stage)
    of_kinds = [(layer, layers) for layer, (_, layers) in zip(kinds, layers_of_kinds, strict=True)]
    first, last = stage == 0, stage == head_stage(workload.layout)
    embedding = machine.residual_passes * embedding_bytes(workload) / bandwidth
    loss = machine.loss_passes * machine.stack.loss_share * loss_bytes(workload) / bandwidth
    ends = first * embedding + last * loss
    repeated = [_recomputed(workload.layout, layer, layers) for layer, layers in of_kinds]
    return StageComputation(
        forward=sum(layers * layer.forward_seconds for layer, layers in of_kinds) + last * head[0],
        backward=sum(layers * layer.backward_seconds for layer, layers in of_kinds) + last * head[1],
        operators=sum(layers * layer.operator_seconds for layer, layers in of_kinds) + ends,
        operators_backward=sum(layers * layer.operator_backward_seconds for layer, layers in of_kinds)
        + BACKWARD * ends,
        again=sum(again for again, _, _ in repeated),
        operators_again=sum(operators for _, operators, _ in repeated),
        casts=sum(layers * layer.input_cast_seconds for layer, layers in of_kinds),
        gradient_casts=sum(layers * layer.gradient_cast_seconds for layer, layers in of_kinds),
        casts_again=sum(casts for _, _, casts in repeated),
        weight_casts=sum(layers * layer.weight_cast_seconds for layer, layers in of_kinds),
    )


class MicroBatch(NamedTuple):
    """Seconds of one micro-batch on a stage.

    Args:
        seconds: of the slower of accelerator and host.
        launch_seconds: beyond computation and messages.
        slowdown: of the accelerator by the host.
    """

    seconds: float
    launch_seconds: float
    slowdown: float


def micro_batch_seconds(
    workload: Workload, machine: Machine, *, stage: int, computation: StageComputation, message_seconds: float
) -> MicroBatch:
    """One micro-batch on pipeline stage `stage` whose messages inside the layers take so many seconds."""
    layout, stack = workload.layout, machine.stack
    launched = stage_kernels(workload, machine, stage=stage)
    accelerator = computation.both_passes + machine.kernel_seconds * launched
    accelerator = accelerator + message_seconds
    host = machine.launch_seconds * host_launches(workload, machine, stage=stage)
    waits = stack.synchronises_layers and layout.recomputation is not Recomputation.NONE
    seconds = _slower_of(accelerator, host) + (host if waits else 0.0 * host)
    slowdown = seconds / larger(accelerator, LEAST_SECONDS)
    return MicroBatch(seconds, seconds - accelerator + machine.kernel_seconds * launched, slowdown)


def _slower_of(accelerator: float, host: float) -> float:
    """The larger of two times, smoothed: (a^s + h^s)^(1/s), at sharpness s."""
    longer: float = larger(accelerator, host)
    shorter: float = smaller(accelerator, host)
    sharpened: float = (shorter / larger(longer, LEAST_SECONDS)) ** HOST_SHARPNESS  # a stage may have nothing to do
    smoothed: float = longer * (1 + sharpened) ** (1 / HOST_SHARPNESS)
    return smoothed


def stage_kernels(workload: Workload, machine: Machine, *, stage: int) -> float:
    """Kernels of one micro-batch on pipeline stage `stage`, tensor-parallel collectives included.

    Those of the stack for each layer's forward pass, twice as many in the backward pass, of what is repeated, of head
    and loss; of casts one or two (`cast_kernels`) for each matrix.
    """
    launched = _stack_kernels(workload, machine, stage=stage, collective=1)
    for kind, number in stage_layer_kinds(workload.architecture, workload.layout, stage=stage):
        casts = layer_casts(workload._replace(architecture=kind))
        forward = number + _whole_layers_repeated(workload.layout.recomputation, number)
        matrices = casts.input_matrices * forward + casts.gradient_matrices * number
        launched = launched + cast_kernels(workload.recipe.product_format) * matrices
    return launched


def host_launches(workload: Workload, machine: Machine, *, stage: int) -> float:
    """Launches by the host for one micro-batch on pipeline stage `stage`, a kernel's launch being the unit.

    A collective takes two: events that make two streams wait for each other take as long as the kernel. A cast takes
    none of its own: it is launched with the product that it is for (Transformer Engine, pytorch/module/linear.py).
    Those of experts are launched as one, but Python makes an object for each expert's input and output gradient, of
    both products, which takes as long as a launch (2.8, pytorch/module/grouped_linear.py, split_quantize,
    prepare_for_saving).
    """
    launched = _stack_kernels(workload, machine, stage=stage, collective=COLLECTIVE_LAUNCHES)
    if workload.recipe.product_format.casts and machine.stack.transformer_engine:
        for kind, layers in stage_layer_kinds(workload.architecture, workload.layout, stage=stage):
            own = (kind.experts or 0) // workload.layout.expert_ranks
            forward = layers + _whole_layers_repeated(workload.layout.recomputation, layers)
            launched = launched + 2 * own * (forward + layers)
    return launched


def _stack_kernels(workload: Workload, machine: Machine, *, stage: int, collective: int) -> float:
    """Kernels of the stack, of which a collective counts as so many; twice as many with sequence parallelism."""
    layout, stack = workload.layout, machine.stack
    layers = stage_layers(workload.architecture, layout, stage=stage)
    last = stage == head_stage(layout)
    collectives = ALL_REDUCES * (layout.tensor_parallel > 1) * (1 + layout.sequence_parallel)
    kernels = stack.layer_kernels + collective * collectives
    launched = kernels * ((1 + BACKWARD) * layers + _repeated_layers(layout.recomputation, layers))
    for kind, routed in stage_layer_kinds(workload.architecture, layout, stage=stage):
        more = expert_kernels(workload._replace(architecture=kind), stack, collective=collective)
        launched = launched + more * ((1 + BACKWARD) * routed + _repeated_layers(layout.recomputation, routed))
    return launched + last * ((1 + BACKWARD) * stack.head_kernels)


def expert_kernels(workload: Workload, stack: Stack, *, collective: int) -> float:
    """Kernels by which the forward pass through a layer with experts has more than that through a dense one.

    15 for router, dispatch and combine where fused kernels permute rows (up to three times as many where not): the
    router's cast, product, softmax, top-k in two, and spread probabilities; 2 of the loss that balances; row numbers,
    counts of rows and their copy to the host; permute, sort, sort back, sum up. 2 E / n - 2 products more of the E / n
    experts of a rank, and 2 of shared ones; 2 exchanges of n ranks, of which each counts as `collective`. Where experts
    have biases, Transformer Engine's stack adds them (`weighed_bias_bytes`) by 8 E / n + 6 in all passes, a third of
    them here. A dense layer has none.
    """
    architecture, ranks = workload.architecture, workload.layout.expert_ranks
    if architecture.experts is None:
        return 0.0
    products = 2 * (architecture.experts // ranks) - 2 + 2 * (architecture.shared_experts > 0)
    biases = stack.transformer_engine * architecture.expert_bias * (8 / 3 * (architecture.experts // ranks) + 2)
    return ROUTING_KERNELS + products + biases + 2.0 * collective * (ranks > 1)


def _whole_layers_repeated(recomputation: Recomputation, layers: int) -> float:
    """Layer-forwards, casts of their inputs included, that the backward pass through `layers` repeats."""
    return 0.0 if recomputation is Recomputation.SELECTIVE else 1.0 * repeated_layers(recomputation, layers)


def _repeated_layers(recomputation: Recomputation, layers: int) -> float:
    """Layer-forwards, in kernels, that one micro-batch's backward pass through `layers` repeats.

    Selective recomputation repeats a quarter of a layer's kernels.
    """
    if recomputation is Recomputation.SELECTIVE:
        return 0.25 * layers
    return 1.0 * repeated_layers(recomputation, layers)


def _recomputed(layout: Layout, layer: LayerTime, layers: int) -> tuple[float, float, float]:
    """Seconds of products, operators and casts that one micro-batch's backward pass through `layers` repeats.

    Of selective recomputation the operators on scores alone: those of other modules, and their casts, are left out.
    """
    if layout.recomputation is Recomputation.SELECTIVE:
        scores = layer.attention_operator_seconds * (layout.recomputed >= CORE_ATTENTION)
        return layers * layer.selective_seconds, layers * scores, 0.0
    again = repeated_layers(layout.recomputation, layers)
    return again * layer.repeated_seconds, again * layer.operator_seconds, again * layer.input_cast_seconds
