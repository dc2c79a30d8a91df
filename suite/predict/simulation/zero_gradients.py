"""Gradients of a rank under DeepSpeed's ZeRO: the buckets that they are copied into, and the part that the rank keeps.

Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py (setup_buckets, reduce_independent_p_g_buckets_and_remove_grads,
average_tensor, copy_grads_in_partition, independent_gradient_partition_epilogue) and stage3.py
(_setup_for_real_optimizer, __avg_scatter_grads, partition_grads); runtime/comm/coalesced_collectives.py.
"""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.layout import Offload
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.memory import FP32
from suite.predict.simulation.autograd_tape import Tape
from suite.predict.simulation.memory_blocks import Category, MemoryBlock

ELEMENT_BYTES = 2  # of weights and gradients: DeepSpeed casts the whole model to 16 bits


class ZeroConfig(NamedTuple):
    """Keys of DeepSpeed's configuration that memory depends on; sizes in elements. `contiguous_gradients` is on.

    Args:
        elements: parameters of the model.
        wide_gradients: gradients add up in fp32 (`data_types.grad_accum_dtype`); with stage 1 that is another
            optimizer, which is not described.
    """

    stage: int
    ranks: int
    elements: int
    reduce_bucket_size: int
    overlap_comm: bool
    prefetch_bucket_size: int = 50_000_000
    param_persistence_threshold: int = 100_000
    max_live_parameters: int = 1_000_000_000
    sub_group_size: int = 1_000_000_000
    wide_gradients: bool = False
    offload: Offload = Offload.NONE

    @property
    def share(self) -> int:
        """Parameters of which a rank has the optimizer's state."""
        return ceil_division(self.elements, self.ranks)

    @property
    def part_bytes(self) -> int:
        """Bytes of the reduced gradients that a rank keeps on its accelerator."""
        if self.offload is not Offload.NONE:
            return 0
        return (FP32 if self.wide_gradients else ELEMENT_BYTES) * self.share

    @property
    def bucket_bytes(self) -> int:
        """Bytes of one bucket, however few gradients there are."""
        return ELEMENT_BYTES * self.reduce_bucket_size

    @property
    def message_bytes(self) -> int:
        """Bytes of a full bucket in the order of its ranks, as it is sent; stage 3 has the result beside it."""
        sent = ELEMENT_BYTES * min(self.reduce_bucket_size, self.elements) * (self.ranks > 1)
        return sent + ceil_division(sent, self.ranks) * (self.stage == 3)


class ZeroGradients:
    """Gradients as backward passes make them, and the memory that they take.

    Stage 1 keeps all of them until the last micro-batch, and its bucket from the first one on. Stages 2 and 3 copy each
    into a bucket and free it. With stage 2 buckets live for one backward pass, and so does its own part of the
    reduced gradients, until it is added to that of earlier micro-batches; stage 3 has both from the beginning.
    """

    def __init__(self, tape: Tape, config: ZeroConfig) -> None:
        self._tape, self._config = tape, config
        self._buckets: list[MemoryBlock] = []
        self._delivered = 0
        self._part: MemoryBlock | None = None
        self._kept: MemoryBlock | None = None

    @property
    def keeps_whole(self) -> bool:
        """Whether whole gradients live until the last micro-batch."""
        return self._config.stage == 1

    def take(self, gradient: MemoryBlock) -> None:
        """The gradient of one parameter has been computed."""
        config = self._config
        if config.stage < 3 and not self._buckets:
            self._buckets = [self._new(config.bucket_bytes) for _ in range(1 + config.overlap_comm)]
        self._delivered += gradient.bytes // ELEMENT_BYTES
        if not self.keeps_whole and self._delivered > config.reduce_bucket_size:
            self._reduce()

    def finish(self, gradients: dict[int, MemoryBlock], *, last: bool) -> None:
        """End the backward pass of a micro-batch, with the whole gradients that were kept."""
        if last or not self.keeps_whole:
            self._reduce()
            gradients.clear()
            self._buckets.clear()
        self._delivered = 0
        self._kept, self._part = self._kept or self._part, None

    def _reduce(self) -> None:
        config = self._config
        if config.stage < 3 and self._part is None and not (config.wide_gradients and self._kept):
            self._part = self._new(config.part_bytes, Category.GRADIENTS)
        self._new(config.message_bytes)

    def _new(self, size: int, category: Category = Category.BUFFERS) -> MemoryBlock:
        block = self._tape.block(size)
        block.move(category)
        return block
