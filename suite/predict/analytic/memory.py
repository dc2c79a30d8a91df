"""State of one rank: bytes of weights, gradients and optimizer, by precision and ZeRO stage."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.layout import Layout
from reference_runs.run import Moments, Precision, Recipe, Workload
from reference_runs.stack import Keeping
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.parameters import RankParameters

FP32 = 4
STEP_COUNTER_BYTES = 4  # torch.optim.AdamW keeps one fp32 counter a parameter tensor that it updates


class StateBytes(NamedTuple):
    """Bytes of what a rank keeps from step to step, or of one parameter's share of it.

    Args:
        gradients: between backward pass and update, accumulated over micro-batches.
        gradient_copy: the optimizer's fp32 copy of the gradients.
        moments: first and second moment, in fp32 where nothing else is said.
    """

    weights: float
    gradients: float
    gradient_copy: float
    master_weights: float
    moments: float

    @property
    def all(self) -> float:
        """Bytes of all parts."""
        return self.weights + self.gradients + self.gradient_copy + self.master_weights + self.moments


BYTES_PER_PARAMETER = {
    Precision.FP32: StateBytes(4, 4, 0, 0, 8),
    Precision.BF16: StateBytes(2, 4, 0, 4, 8),
    Precision.FP16: StateBytes(2, 2, 0, 4, 8),
    Precision.FP16_GRADIENT_COPY: StateBytes(2, 2, 4, 4, 8),
    Precision.FP16_NO_MASTER: StateBytes(2, 2, 0, 0, 8),
    Precision.BF16_PURE: StateBytes(2, 2, 0, 0, 4),
}
MOMENT_BYTES = {Moments.FP32: 8, Moments.BF16: 4, Moments.FP8: 2, Moments.NONE: 0}  # a parameter, both moments
WEIGHT_ELEMENT_BYTES = {precision: int(each.weights) for precision, each in BYTES_PER_PARAMETER.items()}


def moment_bytes(precision: Precision, moments: Moments = Moments.FP32) -> float:
    """Bytes of both moments of a parameter: 8; 4 in bf16, which bf16-pure has in place of fp32; 2 in fp8; 0 without."""
    return min(MOMENT_BYTES[moments], BYTES_PER_PARAMETER[precision].moments)


def kept_moment_bytes(workload: Workload, *, stage: int, parameters: float) -> float:
    """Bytes that the optimizer keeps of a rank's parameter, on average over its `parameters`: moments or momentum.

    m, both moments of Adam's. With Muon m (1 - M / 2 N): one momentum of the M elements in the layers' matrices, both
    moments of the other N - M. Shards of a rank's N elements are taken to have as large a part of each.
    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks", kellerjordan.github.io; Liu
    et al. 2025, arXiv 2502.16982, section 2.3.
    """
    recipe = workload.recipe
    both = moment_bytes(recipe.precision, recipe.kept_moments)
    if not recipe.orthogonalises:
        return both
    from suite.predict.analytic.muon import momentum_elements  # other predictions start without it

    return both * (1 - momentum_elements(workload, stage=stage) / (2 * parameters))


def state_bytes(
    parameters: float,
    precision: Precision,
    *,
    gradients: float | None = None,
    optimizer: float | None = None,
    moments: Moments = Moments.FP32,
) -> StateBytes:
    """Bytes of weights, gradients and optimizer state of `parameters` parameters, by `BYTES_PER_PARAMETER`.

    bf16 training holds 2 + 4 + 12 = 18 bytes a parameter on one rank, and 6 + 12 / n with ZeRO-1 over n ranks.

    Args:
        gradients: parameters whose gradients this rank keeps; None: all of them.
        optimizer: parameters whose moments, master weights and gradient copy it keeps; None: all of them.
        moments: see `moment_bytes`.

    Source: Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1 (16 = 2 + 2 + 12); the docstring of `Precision` for
    the others; BigScience, train/tr11-176B-ml/README.md, section "Deepspeed config" (fp32 gradients, unsharded).
    Differs from the often quoted 16 by 2 in bf16, whose gradients are accumulated in fp32.
    """
    weight, gradient, copy, master, _ = BYTES_PER_PARAMETER[precision]
    moment = moment_bytes(precision, moments)
    own = parameters if optimizer is None else optimizer
    kept = parameters if gradients is None else gradients
    return StateBytes(weight * parameters, gradient * kept, copy * own, master * own, moment * own)


def bytes_per_parameter(precision: Precision, moments: Moments = Moments.FP32) -> float:
    """Bytes of state a parameter on one rank without sharding: 16 (fp32, fp16), 18 (bf16), 20, 12, 8."""
    return state_bytes(1, precision, moments=moments).all


def zero_bytes_per_parameter(precision: Precision, *, zero_stage: int, ranks: int) -> float:
    """Bytes of state a parameter on one of n data-parallel ranks.

                    fp16         bf16 (fp32 gradients)
        stage 0     16           18
        stage 1     4 + 12 / n   6 + 12 / n
        stage 2     2 + 14 / n   2 + 16 / n
        stage 3     16 / n       18 / n

    Source: Rajbhandari et al. 2020, arXiv 1910.02054, figure 1.
    """
    share = 1 / ranks
    return state_bytes(
        share if zero_stage >= 3 else 1,
        precision,
        gradients=share if zero_stage >= 2 else 1,
        optimizer=share if zero_stage >= 1 else 1,
    ).all


def zero_saving(precision: Precision, *, zero_stage: int, ranks: int) -> float:
    """Times less state than plain data parallelism: in fp16 towards 4 (stage 1), 8 (stage 2) and n (stage 3)."""
    return bytes_per_parameter(precision) / zero_bytes_per_parameter(precision, zero_stage=zero_stage, ranks=ranks)


def group_parameters(rank: RankParameters, recipe: Recipe) -> tuple[int, int]:
    """Parameters of a rank with weight decay, and without: vectors (biases, norms) decay only where the recipe says.

    Those of experts are left out: they are matrices, with decay, in a group of their own.
    """
    dense = rank.matrices - rank.experts
    return (dense + rank.vectors, 0) if recipe.decay_of_vectors else (dense, rank.vectors)


def shard_elements(elements: int, shards: int) -> int:
    """Elements of one shard when `elements` are padded to a multiple of `shards` and split evenly: ceil(N / n)."""
    return ceil_division(elements, shards)


def state_ranks(layout: Layout) -> int:
    """Ranks that hold the same parameters: data, expert and context parallel ones.

    Experts are the same on data and context parallel ranks alone, see `expert_state_ranks`.
    """
    return layout.state_ranks


def expert_state_ranks(layout: Layout) -> int:
    """Ranks that hold the same experts: data times context parallel."""
    return layout.data_parallel * layout.context_parallel


def expert_shards(layout: Layout) -> int:
    """Ranks over which ZeRO shards experts: those that hold the same ones, of a group with hybrid sharding."""
    return expert_state_ranks(layout) if layout.shard_ranks is None else layout.sharding_ranks


def optimizer_shards(layout: Layout) -> int:
    """Ranks that share one copy of the optimizer state: `sharding_ranks` from ZeRO-1 on, otherwise 1."""
    return layout.sharding_ranks if layout.zero_stage >= 1 else 1


def stored_elements(groups: tuple[int, int], layout: Layout, *, shards: int) -> tuple[int, int, int]:
    """Elements of weights, gradients and optimizer state that a rank stores of parameters in these groups, which are
    the same on so many ranks.
    """
    whole = groups[0] + groups[1]
    if layout.zero_stage == 0:
        return whole, whole, whole
    share = shard_elements(groups[0], shards) + shard_elements(groups[1], shards)
    padded = shards * share
    gradients = share if layout.zero_stage >= 2 else padded if layout.reduce_scatter else whole
    return (share if layout.zero_stage >= 3 else padded, gradients, share)


def shard_is_master(keeping: Keeping, workload: Workload) -> bool:
    """Whether ZeRO-2 and 3 keep their shard of the weights in fp32 alone, and gather it in 16 bit: FSDP's."""
    precision = workload.recipe.precision
    narrow = WEIGHT_ELEMENT_BYTES[precision] < FP32 and precision is not Precision.BF16_PURE
    return keeping.fp32_shards and narrow and workload.layout.zero_stage >= 2


def adds_in_16_bit(keeping: Keeping, workload: Workload) -> bool:
    """Whether gradients of bf16 training are added up in 16 bits."""
    return keeping.narrow_gradients and workload.recipe.precision is Precision.BF16


def state_of_modules(state: StateBytes, keeping: Keeping, workload: Workload, *, share: float) -> StateBytes:
    """`state` where gradients are in 16 bits, or shards in fp32: no master weights beside them, gradients in fp32.

    FSDP's shard: 4 + 4 + 8 bytes a parameter of the shard; with ZeRO-2 the gathered 16-bit weights stay besides.
    NeMo: 2 + 2 + 4 + 8, see `adds_in_16_bit`.

    Source: Zhao et al. 2023, arXiv 2304.11277, section 4.4 (sharded parameters in full precision, a low-precision
    shard for the passes alone).
    """
    precision = workload.recipe.precision
    if adds_in_16_bit(keeping, workload):
        return state._replace(gradients=state.gradients * WEIGHT_ELEMENT_BYTES[precision] / FP32)
    if not shard_is_master(keeping, workload):
        return state
    gathered = 0 * state.weights if workload.layout.zero_stage == 3 else state.weights
    gradients = max(FP32 / BYTES_PER_PARAMETER[precision].gradients, 1) * state.gradients
    return StateBytes(FP32 * share + gathered, gradients, 0 * share, 0 * share, state.moments)


def unscattered_gradient_bytes(workload: Workload, keeping: Keeping, *, parameters: float, micro_batches: int) -> float:
    """Bytes of whole fp32 gradients that torchtitan's pipeline stages add up before FSDP2 scatters them; else 0.

    4 a parameter of the rank, from the first micro-batch's backward pass to the last's, with several micro-batches.

    Source: torch/distributed/pipelining/stage.py, backward_maybe_with_nosync (set_requires_gradient_sync(False) until
    the last backward pass); _fsdp_param.py, unsharded_accumulated_grad, in the dtype of the reduction.
    """
    layout = workload.layout
    if not keeping.titan or layout.zero_stage < 2:
        return 0
    piped = (layout.pipeline_stages > 1) * 1 * (layout.sharding_ranks > 1) * (micro_batches > 1)
    return FP32 * piped * parameters
