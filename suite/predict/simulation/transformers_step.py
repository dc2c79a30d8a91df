"""The memory of a step of a script's or transformers' modules under plain PyTorch: one device, DDP or FSDP2.

Weights under autocast and FSDP2's shards are fp32 alone, as `suite/execute/trace` executes them: a trace of the same
step on tensors without memory has the same peak (tests/predict/simulation/test_transformers_step.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.layout import Offload, Recomputation
from reference_runs.run import (
    Activation,
    Architecture,
    Mask,
    Norm,
    Position,
    Precision,
    QueryKeyNorm,
    Residual,
    Workload,
)
from reference_runs.stack import Modules
from suite.machine.gpu import cublas_workspace_bytes
from suite.machine.half_precision import Kernels
from suite.predict.analytic.memory import FP32, STEP_COUNTER_BYTES, WEIGHT_ELEMENT_BYTES, moment_bytes
from suite.predict.simulation.autograd_tape import ParameterLeaf, Tape, Value
from suite.predict.simulation.eager_operators import EagerOperators, Gradients, Tensor, Weight
from suite.predict.simulation.fsdp import FullySharding, Unit
from suite.predict.simulation.memory_blocks import Allocator, Category, MemoryBlock, StepPhase
from suite.predict.simulation.shared_inputs import INT64
from suite.predict.simulation.state import stored_element_bytes
from suite.predict.simulation.step_memory import ALIKE_FROM, CUDA_GRANULARITY, GENERATOR_BYTES, MULTIPLYING_THREADS
from suite.predict.simulation.transformers_layers import Layers, LayerWeights, is_gpt2, layer_weights, norm_weights
from suite.predict.simulation.zero_gradients import ZeroConfig, ZeroGradients

SHALLOW = 6  # layers of the shallower of the two models that are walked through in place of a deep one
Part = Mapping[str, int]
_GATED = (Activation.SWIGLU, Activation.GEGLU_TANH)


class EagerStep(NamedTuple):
    """How a script executes a step.

    Args:
        modules: transformers' or a script's.
        recompute_every: with full recomputation, of so many layers the last is computed again, and no other.
        synchronises_once: whether gradients are reduced after the last micro-batch alone; None: as PyTorch does by
            itself: DistributedDataParallel once, as Trainer and Accelerate have it, FSDP2 each time.
        zero: how DeepSpeed takes the gradients of a rank; None: it does not.
    """

    kernels: Kernels
    modules: Modules = Modules.TRANSFORMERS
    recompute_every: int = 1
    synchronises_once: bool | None = None
    zero: ZeroConfig | None = None


def not_described(workload: Workload, modules: Modules = Modules.TRANSFORMERS) -> list[str]:
    """Facts of the workload that these modules do not have; none: it is described."""
    unlike = [*_unlike_layers(workload.architecture), *_unlike_steps(workload)]
    return unlike + (_unlike_models(workload.architecture) if modules is Modules.TRANSFORMERS else [])


def _unlike_models(architecture: Architecture) -> list[str]:
    """Combinations that none of transformers' models has that are described."""
    gpt2, positions = is_gpt2(architecture), architecture.position
    unlike = {
        f"positions {positions}": positions is not (Position.LEARNED if gpt2 else Position.ROTARY),
        str(architecture.activation): architecture.activation not in ((Activation.GELU_TANH,) if gpt2 else _GATED),
        "grouped queries beside LayerNorms": gpt2 and architecture.kv_heads != architecture.heads,
        "norms without bias": gpt2 and not architecture.bias.norm,
    }
    return [name for name, applies in unlike.items() if applies]


def _unlike_layers(architecture: Architecture) -> list[str]:
    whole = architecture.position is not Position.ROTARY or architecture.rotary_dim == architecture.head_dim
    window = architecture.sliding_window or architecture.sequence
    routed = architecture.shared_experts or architecture.dense_layers or architecture.expert_groups
    routed = routed or architecture.expert_bias
    unlike = {
        str(architecture.norm): architecture.norm not in (Norm.PRE_LAYER_NORM, Norm.PRE_RMS_NORM),
        f"positions {architecture.position}": architecture.position not in (Position.LEARNED, Position.ROTARY),
        str(architecture.activation): architecture.activation is Activation.FAST_GELU,
        "rotation of a part of a head": not whole,
        f"residual {architecture.residual}": architecture.residual is not Residual.SEQUENTIAL,
        f"mask {architecture.mask}": architecture.mask is not Mask.CAUSAL,
        "norms of whole projections": architecture.query_key_norm is QueryKeyNorm.PROJECTION,
        "a sliding window": window < architecture.sequence,
        "attention sinks": architecture.attention_sinks,
        "linear or gated attention": architecture.linear_heads is not None or architecture.attention_gate,
        "norms without gain": not architecture.norm_gain,
        "a norm of embeddings": architecture.embedding_norm,
        "a top query layer": architecture.top_query_layer,
        "latent attention": architecture.key_value_rank is not None,
        "other experts than Mixtral's": bool(routed or architecture.capacity_factor or architecture.gate_scale),
        "a bias of the head": architecture.head_bias,
    }
    return [name for name, applies in unlike.items() if applies]


def _unlike_steps(workload: Workload) -> list[str]:
    architecture, recipe, layout = workload
    split = layout.tensor_parallel * layout.pipeline_stages * layout.context_parallel * layout.expert_parallel
    wide = recipe.precision is Precision.FP32 or (not layout.fully_sharded and recipe.precision is Precision.BF16)
    unlike = {
        "tensors or layers split over ranks": split > 1,
        f"ZeRO-{layout.zero_stage}": layout.zero_stage == 1 and layout.state_ranks > 1,
        f"recomputation {layout.recomputation}": layout.recomputation not in (Recomputation.NONE, Recomputation.FULL),
        f"groups of {layout.checkpoint_layers} layers": layout.checkpoint_layers > 1,
        "offloading": layout.offload is not Offload.NONE,
        f"precision {recipe.precision}": recipe.precision not in (Precision.FP32, Precision.BF16, Precision.BF16_PURE),
        "experts in fp32 or under autocast": architecture.experts is not None and wide,
        f"products in {recipe.product_format}": recipe.product_format.casts,
        "a gradient of embeddings that is shrunk": recipe.embedding_gradient_shrink is not None,
    }
    return [name for name, applies in unlike.items() if applies]


class TransformersRank:
    """A rank's model, and where its gradients accumulate.

    Attributes:
        parts: of each pass, the most that is held from one border of layers to the next.
    """

    def __init__(self, allocator: Allocator, workload: Workload, step: EagerStep) -> None:
        architecture, recipe, layout = workload
        self.allocator, self.workload, self.step = allocator, workload, step
        self.tape = tape = Tape(allocator, generator_bytes=0 if step.kernels.cuda else GENERATOR_BYTES)
        tape.enter(StepPhase.FORWARD)
        self.parts: list[tuple[StepPhase, list[Part]]] = []
        sharded = layout.fully_sharded
        self.sharding = FullySharding(tape, recipe, layout, step.kernels) if sharded else None
        once = not sharded if step.synchronises_once is None else step.synchronises_once
        if self.sharding is not None:
            self.sharding.synchronises_once = once
        self.autocast = recipe.precision is Precision.BF16 and not sharded
        self.element = FP32 if self.autocast else WEIGHT_ELEMENT_BYTES[recipe.precision]
        self.zero = None if step.zero is None else ZeroGradients(tape, step.zero)
        self.gradients: dict[int, MemoryBlock] = {}
        self.sizes: list[int] = []
        kernels = step.kernels
        operators = EagerOperators(tape, autocast=self.autocast, gpu=kernels.gpu, cuda=kernels.cuda)
        self.modules = Layers(operators, workload, step.modules)
        tied = architecture.tied_embeddings
        self.table = self._weight(None, architecture.padded_vocabulary, architecture.hidden, readers=1 + tied)
        learned, rows = architecture.position is Position.LEARNED, architecture.sequence + architecture.extra_positions
        self.positions = self._weight(None, rows, architecture.hidden) if learned else None
        self.layers = [self._layer() for _ in range(architecture.layers)]
        self.norm = norm_weights(self._root, architecture)
        self.head = self.table if tied else self._root(architecture.padded_vocabulary, architecture.hidden)

    def _root(self, rows: int, columns: int = 1) -> Weight:
        return self._weight(None, rows, columns)

    def _layer(self) -> tuple[Unit | None, LayerWeights]:
        unit = None if self.sharding is None else self.sharding.new_layer()

        def new(rows: int, columns: int = 1, *, of: int = 1) -> Weight:
            return self._weight(unit, rows, columns, of=of)

        return unit, layer_weights(new, self.workload.architecture)

    def _weight(self, unit: Unit | None, rows: int, columns: int, *, readers: int = 1, of: int = 1) -> Weight:
        """A weight of the rank; FSDP2 shards the first dimension, which is `of` long of a tensor of so many experts."""
        self.sizes.append(rows * columns)
        if self.sharding is None:
            leaf = self._leaf(rows * columns, readers)
        elif of > 1:
            leaf = self.sharding.leaf(unit or self.sharding.root, of, rows // of * columns, readers)
        else:
            leaf = self.sharding.leaf(unit or self.sharding.root, rows, columns, readers)
        return Weight(leaf, rows, columns, self.element)

    def _leaf(self, elements: int, readers: int) -> ParameterLeaf:
        """The leaf of a weight; gradients of several readers are summed before they accumulate."""
        name, size, waiting = len(self.sizes), elements * self.element, list[MemoryBlock]()

        def deliver(block: MemoryBlock) -> None:
            waiting.append(block)
            if len(waiting) < readers:
                return
            if readers > 1 and not self.autocast:
                block = self.tape.block(size)
            waiting.clear()
            if self.zero is not None:
                self.zero.take(block)
            if self.zero is None or self.zero.keeps_whole:
                self.gradients.setdefault(name, block).move(Category.GRADIENTS)

        return ParameterLeaf(deliver)

    def stored(self) -> dict[Category, int]:
        """Bytes that live through the step: weights, moments, and DistributedDataParallel's buckets."""
        recipe, layout = self.workload.recipe, self.workload.layout
        elements, whole = sum(self.sizes), self.element * sum(self.sizes)
        stored, buckets = whole, whole if layout.data_parallel > 1 else 0
        if self.sharding is not None:
            elements = sum(sum(unit.shards) for unit in (self.sharding.root, *self.sharding.layers))
            stored, buckets = stored_element_bytes(recipe.precision) * elements, 0
        moments = int(moment_bytes(recipe.precision, recipe.kept_moments))
        state = moments * elements + (moments > 0) * STEP_COUNTER_BYTES * len(self.sizes)
        return {Category.WEIGHTS: stored, Category.OPTIMIZER: state, Category.BUFFERS: buckets}

    def enter(self, phase: StepPhase) -> None:
        """Begin a pass, or the update."""
        self.tape.enter(phase, Category.UPDATE if phase is StepPhase.UPDATE else None)
        self.parts.append((phase, []))

    def border(self) -> None:
        """Leave a layer, or a pass."""
        self.parts[-1][1].append(self.allocator.most_of_part())

    def forward(self) -> Value:
        """The loss of a micro-batch."""
        self.enter(StepPhase.FORWARD)
        modules, layout = self.modules, self.workload.layout
        tokens = self.tape.block(INT64 * modules.sizes.tokens)
        if self.sharding is not None:
            self.sharding.entered(self.sharding.root, None)
        x = modules.embedding(tokens, self.table, self.positions)
        turns, mask = modules.rotary_embedding(x), modules.mask(x)
        full = layout.recomputation is Recomputation.FULL
        for number, (unit, weights) in enumerate(self.layers, 1):
            again = full and number % self.step.recompute_every == 0
            x = self._through(x, unit, weights, turns, mask, again=again)
        del turns, mask
        normed = modules.norm(x, self.norm)
        is_script = self.step.modules is Modules.SCRIPTS
        if not is_script:  # whose output has the normed states until the loss is there, and not what the layers put out
            del x
        logits = modules.operators.linear(normed, self.head)
        if is_script:
            del normed
        loss: Value = modules.loss(logits)
        del logits
        modules.operators.leave_autocast()
        loss = loss if self.sharding is None else self.sharding.left(self.sharding.root, loss)
        self.border()
        return loss

    def _through(
        self,
        x: Tensor,
        unit: Unit | None,
        weights: LayerWeights,
        turns: tuple[Tensor, Tensor] | None,
        mask: list[Tensor],
        *,
        again: bool,
    ) -> Tensor:
        """A layer with what FSDP2 does before and after it; `again`: computed again for the backward pass."""
        elements, element = x.elements, x.element

        def layer(x: Value, *_shared: Value) -> Value:
            repeats = self.tape.repeats
            try:
                return self.modules.layer(Tensor(x.block, elements, element, x.origin, x.output), weights, turns)
            finally:
                if repeats:
                    self.modules.operators.leave_autocast()

        given: Value = x
        if self.sharding is not None and unit is not None:
            entered = self.sharding.entered(unit, x)
            assert entered is not None
            given = entered
            del entered
        out = self.tape.checkpoint(layer, [given, *(turns or ()), *mask]) if again else layer(given)
        if self.sharding is not None and unit is not None:
            out = self.sharding.left(unit, out)
        self.border()
        return Tensor(out.block, elements, element, self.tape.record([out], [], self._enter_layer_backward))

    def _enter_layer_backward(self, _kept: list[MemoryBlock], gradients: Gradients) -> Gradients:
        self.border()
        return list(gradients)

    def backward(self, loss: Value, *, last: bool) -> None:
        """The backward pass of a micro-batch."""
        self.enter(StepPhase.BACKWARD)
        if self.sharding is not None:
            self.sharding.last = last
        self.tape.backward(loss, self.tape.block(FP32))
        if self.sharding is not None:
            self.sharding.finish()
        if self.zero is not None:
            self.zero.finish(self.gradients, last=last)
        self.border()


def stored_bytes(workload: Workload, step: EagerStep) -> Mapping[Category, int]:
    """Bytes of a rank's weights, optimizer state and buckets of gradients."""
    return TransformersRank(Allocator(), workload, step).stored()


@lru_cache(maxsize=1024)
def transformers_peaks(workload: Workload, step: EagerStep) -> Mapping[str, Mapping[str, int]]:
    """The most bytes that are allocated at a time in each `StepPhase`, by `Category`.

    Layers are alike. From one border of layers to the next, counted from the first or from the last of many, every
    block is a line in their number: deep models are on the line through two shallow ones, up to roundings of 512 bytes.
    The buckets of DeepSpeed's stage 2, which begin and end anywhere in a layer, are not.
    """
    layers = workload.architecture.layers
    if layers <= SHALLOW + 1 or step.recompute_every > 1 or (step.zero is not None and step.zero.stage == 2):
        parts = _parts(workload, step)
    else:
        few, more = (_parts(_with_layers(workload, number), step) for number in (SHALLOW, SHALLOW + 1))
        beyond = layers - SHALLOW
        parts = [
            (phase, [_beyond(*ends, beyond) for ends in zip(_ends(first), _ends(second), strict=True)])
            for (phase, first), (_, second) in zip(few, more, strict=True)
        ]
    of_phases: dict[str, list[Part]] = {}
    for phase, of_pass in parts:
        of_phases.setdefault(phase, []).extend(of_pass)
    return {phase: max(of_phase, key=lambda part: sum(part.values())) for phase, of_phase in of_phases.items()}


def _with_layers(workload: Workload, layers: int) -> Workload:
    return workload._replace(architecture=msgspec.structs.replace(workload.architecture, layers=layers))


def _ends(parts: list[Part]) -> list[Part]:
    """Parts of the layers at both ends of a pass; in deeper models more are between them."""
    return parts if len(parts) == 1 else [*parts[: SHALLOW // 2], *parts[-SHALLOW // 2 :]]


def _beyond(few: Part, more: Part, layers: int) -> Part:
    """A part of a model with so many layers more than `few` has, `more` one."""
    return {name: few.get(name, 0) + layers * (more.get(name, 0) - few.get(name, 0)) for name in {**few, **more}}


def _parts(workload: Workload, step: EagerStep) -> list[tuple[StepPhase, list[Part]]]:
    """The most that is held from one border of layers to the next, by `Category`, for each pass of a step."""
    allocator = Allocator(CUDA_GRANULARITY if step.kernels.cuda else 1)
    rank = TransformersRank(allocator, workload, step)
    tape, held = rank.tape, list[MemoryBlock]()
    for category, size in rank.stored().items():
        allocator.enter(StepPhase.FORWARD, category)
        held.append(tape.block(size))
    if step.kernels.cuda:
        allocator.enter(StepPhase.FORWARD, Category.WORKSPACES)
        held += [tape.block(cublas_workspace_bytes(step.kernels.gpu)) for _ in range(MULTIPLYING_THREADS)]
    number = accumulation(workload.recipe, workload.layout)
    micro_batches = min(number, ALIKE_FROM)
    for micro_batch in range(micro_batches):
        rank.backward(rank.forward(), last=micro_batch == micro_batches - 1)
    rank.enter(StepPhase.UPDATE)
    rank.border()
    held.clear()
    return [
        (phase, [{name: size for name, size in part.items() if size} for part in of_pass])
        for phase, of_pass in rank.parts
    ]
