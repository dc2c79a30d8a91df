"""A machine's rates, as the time model needs them: one frozen record of numbers."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from reference_runs.architecture import Architecture
from reference_runs.stack import Accumulation, AttentionKernel, ContextParallel, Generation, Modules, Stack
from suite.machine.half_precision import Kernels
from suite.predict.analytic.elementwise import smaller
from suite.predict.analytic.gemm import EfficiencyTable, IntensityTable, ProductTables

PLAIN = Stack(
    generation=Generation.CURRENT,
    attention=AttentionKernel.UNFUSED,
    layer_kernels=1,
    head_kernels=1,
    python_launches=True,
    fused_bias=True,
    fused_rotary=True,
    loss_share=1.0,
    accumulation=Accumulation.IN_PRODUCT,
    tensor_parallel_chunks=1,
    transformer_engine=False,
    overlaps_input_gradients=False,
    overlaps_data_parallel=True,
    overlaps_gathers=False,
    reduces_in_16_bit=False,
    gathers_in_format=False,
    context_parallel=ContextParallel.GATHERED,
    overlaps_experts=False,
    sends_once_to_nodes=False,
    overlaps_pipeline=False,
    synchronises_layers=False,
    one_ring=False,
    modules=Modules.EAGER,
    fp32_shards=False,
)
"""The stack of the textbooks: one kernel for each operator, nothing overlapped but data-parallel traffic."""


class AcceleratorPeak(NamedTuple):
    """Dense flop per second of one accelerator, in the dtype of the precision.

    Args:
        is_measured: whether it is the highest rate measured, for want of a data sheet.
        product_flop_per_second: in the format of the layers' products, where they have one of their own.
    """

    flop_per_second: float
    is_measured: bool = False
    product_flop_per_second: float | None = None


def attention_clock_share(clock_share: float, *, matrix: float, attention: float) -> float:
    """Clock of fused attention under a limit of power, over that of a board without the limit.

    A limit that holds the clock of large products down to `clock_share` leaves min(1, clock_share (m / a)^(1/3)) to a
    kernel that reaches the share a of the peak where products reach m: dynamic power is in proportion to the rate, and
    at a given rate for each clock to the clock's third power. Derived here; the rest as `clock_share` of the board.
    """
    return clock_share if clock_share == 1 else smaller(1.0, clock_share * (matrix / attention) ** (1 / 3))


def head_share(architecture: Architecture, exponential_flop: float) -> float:
    """Share of the peak that fused attention reaches with this size of heads, over that with heads of 128.

    f (d) / f (128) with f (d) = 4 d / (4 d + x): a score takes 4 d flop of the matrix units, and one exponential of
    units that compute it in the time of x flop; the two do not overlap. On H100 that gives 0.76 for heads of 64, where
    FlashAttention 3 has 497 of 648 Tflop/s. With values of another size than keys, d is the mean of both. Linear
    attention has no exponentials of scores.

    Source: Shah et al. 2024, arXiv 2407.08608, section 3.2 (989 Tflop/s beside 3.9 T exponentials a second), figure 5
    (from memory, not re-read).
    """
    if architecture.linear:
        return 1.0
    each = 2 * (architecture.head_dim + (architecture.value_head_dim or architecture.head_dim))
    return each / (each + exponential_flop) * (4 * 128 + exponential_flop) / (4 * 128)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """One node's accelerators, memories and links: peaks, and the share of each that programs reach.

    Args:
        peak_flop_per_second: dense, of one accelerator, in the dtype of the run.
        peak_is_measured: whether that is the highest rate that was measured, for want of a data sheet.
        memory_bytes: of one accelerator.
        memory_bytes_per_second: peak of one accelerator's memory, reading plus writing.
        matrix_efficiency: share of the peak that matrix products reach, by shape.
        fused_attention_efficiency: share of the peak that a kernel reaches which never stores the scores, with heads
            of 128.
        exponential_flop: of matrix products in the time of one exponential (`head_share`).
        link_bytes_per_second: peak that one accelerator sends to others of its node, one way; infinite: it is alone.
        link_latency_seconds: of one step of a collective inside a node.
        kernels: of the accelerator, as far as the memory of operators depends on them.
        direct_link: whether one accelerator reaches the memory of the others of its node, as through NVLink.
        network_bytes_per_second: peak that a node sends over all its network interfaces, one way.
        usual_network_bytes_per_second: one accelerator's share of what leaves the usual node; None: not known.
        network_latency_seconds: of one step of a collective that leaves the node.
        watts: of one accelerator; None: not recorded.
        power_share: of `watts` that training draws on average.
        overlap_share: of the computation that data-parallel traffic may overlap with, the part that hides it.
        overlap_cost: seconds by which each hidden second of that traffic slows the computation around it.
        matrix_saturation: elements d by which a product of M x K by K x N takes 1 + d (1 / M + 1 / N + 1 / K) times as
            long as at `matrix_efficiency`.
        misalignment: factor on the time of the head's products where a rank's rows of the vocabulary are no multiple of
            8, which tensor cores load at once.
        kernel_seconds: of each kernel, beyond its flop and bytes: filling and draining the multiprocessors.
        launch_seconds: of the host for each kernel; where the host is slower, the accelerator waits.
        residual_passes: bytes that operators on hidden states move over the least that they can move.
        inner_passes: the same of operators inside attention and feed-forward, which tensor parallelism splits.
        product_overlap: share by which bytes and arithmetic of matrix products overlap.
        score_product_overlap: share by which bytes and arithmetic of the products with stored scores overlap.
        score_passes: the same of the operators on stored attention scores.
        loss_passes: the same of the cross-entropy.
        update_passes: the same of the optimizer's update.
        network_contention: share by which each doubling of the nodes of a group slows its network down.
        step_overhead_seconds: of each step, what no other term describes.
        stack: what the software fuses, overlaps and waits for.
        product_peak_flop_per_second: of the layers' products, in the format that the recipe computes them in; they
            reach `matrix_efficiency` times `format_efficiency` of it. None: no format of their own.
        host_bytes_per_second: peak between one accelerator and its host, one way; None: not recorded.
        expert_slowdown: factor on the time of products that a router shares out over experts, for experts that are not
            equally busy and for products that are grouped.
    """

    peak_flop_per_second: float
    memory_bytes: float
    memory_bytes_per_second: float
    memory_efficiency: float
    matrix_efficiency: EfficiencyTable | IntensityTable | ProductTables
    fused_attention_efficiency: float
    link_bytes_per_second: float
    link_efficiency: float
    link_latency_seconds: float
    network_bytes_per_second: float
    network_efficiency: float
    network_latency_seconds: float
    accelerators_per_node: int
    watts: float | None
    power_share: float
    overlap_share: float
    matrix_saturation: float = 0.0
    misalignment: float = 1.0
    kernel_seconds: float = 0.0
    launch_seconds: float = 0.0
    residual_passes: float = 1.0
    inner_passes: float = 1.0
    product_overlap: float = 1.0
    score_product_overlap: float = 1.0
    score_passes: float = 1.0
    loss_passes: float = 1.0
    update_passes: float = 1.0
    network_contention: float = 0.0
    step_overhead_seconds: float = 0.0
    stack: Stack = PLAIN
    peak_is_measured: bool = False
    product_peak_flop_per_second: float | None = None
    host_bytes_per_second: float | None = None
    format_efficiency: float = 1.0
    expert_slowdown: float = 1.0
    overlap_cost: float = 0.0
    usual_network_bytes_per_second: float | None = None
    direct_link: bool = True
    exponential_flop: float = 0.0
    kernels: Kernels = Kernels(cuda=True)

    @property
    def peak(self) -> AcceleratorPeak:
        """The rate that MFU and HFU are shares of."""
        return AcceleratorPeak(self.peak_flop_per_second, self.peak_is_measured, self.product_peak_flop_per_second)

    def product_rate(self, *, in_format: bool) -> float:
        """Flop per second that `matrix_efficiency` is a share of, `in_format` in that of the recipe's products."""
        if not in_format:
            return self.peak_flop_per_second
        assert self.product_peak_flop_per_second is not None  # machines are made for a recipe
        return self.product_peak_flop_per_second * self.format_efficiency

    @property
    def achievable_memory_bytes_per_second(self) -> float:
        """Bytes per second between an accelerator and its memory that programs reach."""
        return self.memory_bytes_per_second * self.memory_efficiency

    @property
    def achievable_link_bytes_per_second(self) -> float:
        """Bytes per second that collectives send from one accelerator inside its node."""
        return self.link_bytes_per_second * self.link_efficiency

    @property
    def achievable_network_bytes_per_second(self) -> float:
        """Bytes per second that collectives send out of one node."""
        return self.network_bytes_per_second * self.network_efficiency
