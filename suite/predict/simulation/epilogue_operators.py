"""Linear layers of suite/execute/model/fused_gemms.py: by cuBLASLt, whose GEMMs have GELU and sums in epilogues.

Their GEMMs are timed as calibrated. Bytes of a layer that no operator moves any more, in bf16, with M tokens, D hidden
states, F of the expansion:
    GELU                2 M F + 2 M F       what it is of is read, the activation written
    its gradient        2 M F (3)           what it is of and its gradient are read, the result is written
    sums of biases      2 M (5 D + F)       gradients of four outputs are read: of 3 D, D, F and D
Bytes that the epilogues move in addition, timed as a copy of as many and added to the GEMM:
    expansion           2 M F               what GELU is of is written beside the activation
    gradient of that    2 M F               it is read
Added, as arithmetic does not hide a GEMM's own output either: on lines through the recorded H100's times at
neighbouring depths, GEMMs of no depth take 0.3 to 1.5 times what a copy of their output's bytes takes (NT and NN, 3,136
columns or more). If arithmetic hid all of it, it would add nothing: `step_time.epilogue_seconds` is the difference.
Of tuned algorithms no gain is predicted: PyTorch's own operator is among those that are timed, so that the calibrated
time is their upper bound.
"""

from __future__ import annotations

from reference_runs.run import Workload
from suite.job.options import Optimization, StepOptions
from suite.predict.analytic.cuda_temporaries import column_sum_buffer_bytes
from suite.predict.simulation.autograd_tape import ParameterLeaf, Tape, Value
from suite.predict.simulation.decoder_parameters import Affine
from suite.predict.simulation.host_calls import AFTER_GELU, BEFORE_GELU, EPILOGUE_LINEAR
from suite.predict.simulation.memory_blocks import MemoryBlock
from suite.predict.simulation.operator_base import OperatorBase

MULTIPLE = 8  # of rows and columns of a weight that the library multiplies by, suite/execute/model/fused_gemms.py
WORKSPACE_BYTES = 32 << 20  # kernels/cublaslt.py


def cublaslt_workspace_bytes(options: StepOptions) -> int:
    """Bytes of the workspace that products by cuBLASLt have beside PyTorch's; none without these optimizations."""
    mine = (Optimization.EPILOGUES, Optimization.TUNED_GEMMS)
    return WORKSPACE_BYTES * any(name in options.training_options.optimizations for name in mine)


class EpilogueOperators(OperatorBase):
    """Linear layers whose gradients are cuBLASLt's."""

    def __init__(self, tape: Tape, workload: Workload, options: StepOptions, *, reads: bool) -> None:
        super().__init__(tape, workload, options, reads=reads)
        asked = options.training_options.optimizations
        self._sums_biases, self._tuned = Optimization.EPILOGUES in asked, Optimization.TUNED_GEMMS in asked

    def by_cublaslt(self, *, has_bias: bool, columns: int, rows: int) -> bool:
        """Whether a layer's gradients are."""
        fits = columns % MULTIPLE == rows % MULTIPLE == 0
        return fits and (self._tuned or (self._sums_biases and has_bias))

    def has_gelu_in_epilogues(self, *, columns: int, rows: int) -> bool:
        """Whether a feed-forward part with GELU by tanh's approximation has it in its GEMMs."""
        return self._sums_biases and columns % MULTIPLE == rows % MULTIPLE == 0

    def epilogue_linear(
        self, x: Value, weight: ParameterLeaf, bias: ParameterLeaf | None, *, tokens: int, columns: int, rows: int
    ) -> Value:
        """Keeps its input. Backward: gradients of input, weight and bias."""

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._host_backward(EPILOGUE_LINEAR)
            return self._gradients_of(tokens, columns, rows, has_bias=bias is not None)

        node = self.tape.record([x, self.weight(weight), *([self.weight(bias)] if bias else [])], [x.block], rule)
        self._count("product", tokens, rows, columns, variant="NT")
        self._host_forward(EPILOGUE_LINEAR)
        return Value(self.block(tokens * rows), node)

    def gelu_feed_forward(
        self, x: Value, expansion: Affine, contraction: Affine, *, tokens: int, hidden: int, width: int
    ) -> Value:
        """Keeps its input, and what GELU is of and gives. Backward: first the gradient of what it is of."""

        def before_rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._host_backward(BEFORE_GELU)
            return self._gradients_of(tokens, hidden, width, has_bias=expansion[1] is not None)

        def after_rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._host_backward(AFTER_GELU)
            self._count("epilogue", tokens * width, variant="")
            return self._gradients_of(tokens, width, hidden, has_bias=contraction[1] is not None)

        node = self.tape.record([x, *self._weights(expansion)], [x.block], before_rule)
        before, active = self.block(tokens * width), self.block(tokens * width)
        self._count("product", tokens, width, hidden, variant="NT")
        self._count("epilogue", tokens * width, variant="")
        self._host_forward(BEFORE_GELU)
        inputs = [Value(before, node), *self._weights(contraction)]
        node = self.tape.record(inputs, [before, active], after_rule)
        self._count("product", tokens, hidden, width, variant="NT")
        self._host_forward(AFTER_GELU)
        return Value(self.block(tokens * hidden), node)

    def _weights(self, matrix: Affine) -> list[Value]:
        return [self.weight(leaf) for leaf in matrix if leaf is not None]

    def _gradients_of(self, tokens: int, columns: int, rows: int, *, has_bias: bool) -> list[MemoryBlock | None]:
        """Gradients of input, weight and bias."""
        self._count("product", tokens, columns, rows, variant="NN")
        self._count("product", rows, columns, tokens, variant="TN")
        found: list[MemoryBlock | None] = [self.block(tokens * columns), self.block(rows * columns)]
        if has_bias:
            found.append(self.block(rows))
            if not self._sums_biases:
                self._count("column_sum", tokens, rows)
                self._in_passing(*column_sum_buffer_bytes(tokens, rows, self._gpu))
        return found
