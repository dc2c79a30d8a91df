"""Parts that all operators of the simulated decoder share: their dtype, their counts, and the blocks of products."""

from __future__ import annotations

from reference_runs.run import Workload
from suite.job.options import Optimization, StepOptions
from suite.machine.gpu import sdpa_backend
from suite.machine.half_precision import WORK_DTYPES
from suite.predict.analytic.memory import FP32, WEIGHT_ELEMENT_BYTES
from suite.predict.simulation.autograd_tape import BackwardRule, ParameterLeaf, Tape, Value
from suite.predict.simulation.host_calls import ELEMENT_WISE, HostCalls
from suite.predict.simulation.memory_blocks import MemoryBlock


class OperatorBase:
    """The operators of one dtype on one device.

    Args:
        reads: whether weights are read through a function, apart from autograd's leaves.

    Attributes:
        element: bytes of an element of weights and hidden states.
        dtype: of these, in a calibration's words.
        ranks: of the tensor-parallel axis.
        scales_products: whether layers multiply in 8 bits.
    """

    def __init__(self, tape: Tape, workload: Workload, options: StepOptions, *, reads: bool) -> None:
        precision, layout = workload.recipe.precision, workload.layout
        self.tape = tape
        self.dtype = WORK_DTYPES[precision]
        self.element = WEIGHT_ELEMENT_BYTES[precision]
        self.half = self.element < FP32
        self.scales_products = workload.recipe.product_format.casts
        self.ranks = layout.tensor_parallel
        self._by_sequence = layout.sequence_parallel
        self._reads = reads
        self._in_place = options.training_options.in_place
        self._one_operator = options.training_options.cpp_operator
        self._compiled_loss = options.compiled and options.kernels.cuda
        self._cuda, self._gpu = options.kernels.cuda, options.kernels.gpu
        self._sdpa_backend = sdpa_backend(
            self._gpu,
            half=self.half,
            head_dim=workload.architecture.fused_head_dim,
            dropout=workload.recipe.attention_dropout,
            flash_3=Optimization.FLASH_ATTENTION_3 in options.training_options.optimizations,
        )
        self._widens = self.half and options.kernels.products_through_fp32
        self._root_mean_square = workload.architecture.norm.root_mean_square
        self._nothing = tape.block(0)

    def block(self, elements: int) -> MemoryBlock:
        """A new block of the operators' dtype."""
        return self.tape.block(self.element * elements)

    def _in_passing(self, *sizes: int) -> None:
        """Blocks that a kernel of a GPU needs together while it runs."""
        if self._cuda:
            _held = [self.tape.block(size) for size in sizes]

    def _count(self, operation: str, *sizes: int, variant: str = "forward", dtype: str = "", times: int = 1) -> None:
        """Count calls of an operator, in the operators' dtype where no other is named."""
        self.tape.count(operation, *sizes, variant=variant, dtype=dtype or self.dtype, times=times)

    def _host_forward(self, calls: HostCalls) -> None:
        """Count calls of modules, and views."""
        for operation, names in (("module", calls.modules), ("view", calls.views)):
            if names:
                self.tape.count(operation, times=len(names))

    def _host_backward(self, calls: HostCalls) -> None:
        """Count nodes of the backward pass."""
        self.tape.count("node", times=len(calls.nodes))

    def _product(self, elements: int, *factors: int) -> MemoryBlock:
        """The block of a product; `factors` are the elements of what is multiplied, and of a bias."""
        if not self._widens:
            return self.block(elements)
        wide = [self.tape.block(FP32 * factor) for factor in factors]
        result = self.tape.block(FP32 * elements)
        del wide
        rounded = self.block(elements)
        del result
        return rounded

    def weight(self, leaf: ParameterLeaf) -> Value:
        """A weight as it is read: its memory is counted elsewhere."""
        if self._reads:
            self.tape.count("weight_read", variant="forward")
        return Value(self._nothing, leaf)

    def copied(self, x: Value, *, elements: int) -> Value:
        """A contiguous copy; nothing is kept, and its gradient passes."""
        self._count("permuted", elements)
        return Value(self.block(elements), x.origin, x.output)

    def _passing(self, elements: int) -> BackwardRule:
        """The backward pass of a part of an activation, whose calls are counted as a whole."""

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            return [self.block(elements)]

        return rule

    def _like(self, elements: int, operation: str) -> BackwardRule:
        """The backward pass of an element-wise operator."""

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count(operation, elements, variant="backward")
            self._host_backward(ELEMENT_WISE)
            return [self.block(elements)]

        return rule
