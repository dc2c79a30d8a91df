"""PyTorch's operators as eager modules call them: what each allocates, keeps for its backward pass and gives there.

A tensor knows its dtype, so that autocast follows by PyTorch's own lists: matrices and attention in 16 bit, powers and
norms in fp32, sums and products in the wider dtype of both. Functions of the backward pass must not refer to tensors:
what they hold would live as long as their node.

Source: tools/autograd/derivatives.yaml (what is kept); aten/src/ATen/autocast_mode.h (AT_FORALL_LOWER_PRECISION_FP,
AT_FORALL_FP32). Compared with transformers' modules on tensors without memory: tests/predict/simulation/
test_transformers_step.py.
"""

from __future__ import annotations

from typing import NamedTuple

from suite.machine.gpu import Gpu, sdpa_backend
from suite.predict.analytic.cuda_temporaries import (
    GENERATOR_BYTES,
    attention_workspace_bytes,
    column_sum_buffer_bytes,
    embedding_backward_bytes,
)
from suite.predict.analytic.memory import FP32
from suite.predict.simulation.autograd_tape import BackwardRule, Node, ParameterLeaf, Tape, Value
from suite.predict.simulation.memory_blocks import MemoryBlock
from suite.predict.simulation.shared_inputs import INT64

HALF = 2
Blocks = list[MemoryBlock]
Gradients = list[MemoryBlock | None]


class Tensor(Value):
    """A tensor or view of so many elements, of so many bytes each."""

    __slots__ = ("element", "elements")

    def __init__(
        self,
        block: MemoryBlock,
        elements: int,
        element: int,
        origin: Node | ParameterLeaf | None = None,
        output: int = 0,
    ) -> None:
        super().__init__(block, origin, output)
        self.elements = elements
        self.element = element

    def view(self, origin: Node | ParameterLeaf | None, *, elements: int | None = None, output: int = 0) -> Tensor:
        """A view that comes from another node."""
        return Tensor(self.block, self.elements if elements is None else elements, self.element, origin, output)


class Weight(NamedTuple):
    """A parameter of so many rows and columns, which its layer stores in so many bytes an element."""

    leaf: ParameterLeaf
    rows: int
    columns: int
    element: int


class EagerOperators:
    """Operators of one device.

    Args:
        autocast: whether matrices are multiplied in 16 bit, whatever their dtype is.
    """

    def __init__(self, tape: Tape, *, autocast: bool, gpu: Gpu, cuda: bool) -> None:
        self.tape, self.autocast = tape, autocast
        self._gpu, self._cuda = gpu, cuda
        self._nothing = tape.block(0)
        self._casts: dict[int, Tensor] = {}

    def leave_autocast(self) -> None:
        """Forget the casts of weights, as the end of an autocast region does."""
        self._casts.clear()

    def new(self, elements: int, element: int, origin: Node | None = None) -> Tensor:
        """A tensor with memory of its own."""
        return Tensor(self.tape.block(elements * element), elements, element, origin)

    def _block(self, elements: int, element: int) -> MemoryBlock:
        return self.tape.block(elements * element)

    def _gives(self, elements: int, element: int) -> BackwardRule:
        """The backward pass of an operator with one input, whose gradient has a block of its own."""
        return lambda _kept, _gradients: [self._block(elements, element)]

    def read(self, weight: Weight) -> Tensor:
        """The weight; its memory is counted elsewhere."""
        return Tensor(self._nothing, weight.rows * weight.columns, weight.element, weight.leaf)

    def cast(self, x: Tensor, element: int) -> Tensor:
        """`Tensor.to`: itself where it has the dtype."""
        if x.element == element:
            return x
        node = self.tape.record([x], [], self._gives(x.elements, x.element))
        return self.new(x.elements, element, node)

    def _lower(self, x: Tensor) -> Tensor:
        return self.cast(x, HALF) if self.autocast else x

    def _lower_weight(self, weight: Weight) -> Tensor:
        """The weight as a product reads it: autocast casts each once in a region."""
        if not self.autocast or weight.element == HALF:
            return self.read(weight)
        if id(weight.leaf) not in self._casts:
            self._casts[id(weight.leaf)] = self.cast(self.read(weight), HALF)
        return self._casts[id(weight.leaf)]

    def linear(self, x: Tensor, weight: Weight, bias: Weight | None = None) -> Tensor:
        """`mm`, or `addmm` with a bias: keeps its input and the weight."""
        rows, columns, tokens = weight.rows, weight.columns, x.elements // weight.columns
        x, read = self._lower(x), self._lower_weight(weight)
        inputs = [x, read, *([self._lower_weight(bias)] if bias else [])]
        element, has_bias = x.element, bias is not None

        def rule(_kept: Blocks, _gradients: Gradients) -> Gradients:
            of_bias = [self._block(rows, element)] if has_bias else []
            if has_bias and self._cuda:
                _held = [self.tape.block(size) for size in column_sum_buffer_bytes(tokens, rows, self._gpu)]
            of_weight = self._block(rows * columns, element)
            return [self._block(tokens * columns, element), of_weight, *of_bias]

        node = self.tape.record(list(inputs), [x.block, read.block], rule)
        return self.new(tokens * rows, element, node)

    def matmul(self, x: Tensor, y: Tensor, *, elements: int) -> Tensor:
        """`bmm`, whose product has so many elements: keeps both."""
        x, y = self._lower(x), self._lower(y)
        sizes, element = (x.elements, y.elements), x.element

        def rule(_kept: Blocks, _gradients: Gradients) -> Gradients:
            return [self._block(size, element) for size in sizes]

        return self.new(elements, element, self.tape.record([x, y], [x.block, y.block], rule))

    def copied(self, x: Tensor, *, times: int = 1) -> Tensor:
        """Copies of x side by side, or one in another order: keeps nothing. Backward: their sum."""
        node = self.tape.record([x], [], self._gives(x.elements, x.element))
        return self.new(x.elements * times, x.element, node)

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """x y; of the smaller one, or of a parameter, every element meets several: keeps each that the other needs.

        Backward: both products; then, without the gradient, they are cast and summed to what each input has.
        Source: torch/csrc/autograd/engine.cpp, call_function, validate_outputs.
        """
        element, elements = max(x.element, y.element), max(x.elements, y.elements)
        keeps = [one.block for one, other in ((x, y), (y, x)) if other.origin is not None]
        wanted = [(each.elements, each.element, each.origin is not None) for each in (x, y)]

        def rule(_kept: Blocks, gradients: Gradients) -> Gradients:
            found: Gradients = [self._block(elements, element) if needs else None for _, _, needs in reversed(wanted)]
            gradients.clear()
            for number, (size, each, needs) in enumerate(reversed(wanted)):
                if needs and (size, each) != (elements, element):
                    found[number] = self._block(size, each)
            return found[::-1]

        node = self.tape.record([x, y], keeps, rule)
        return self.new(elements, element, node)

    def scale(self, x: Tensor) -> Tensor:
        """x times a number, or less it, or plus it: keeps nothing."""
        return self.new(x.elements, x.element, self.tape.record([x], [], self._gives(x.elements, x.element)))

    def shift(self, x: Tensor) -> Tensor:
        """x plus a number: its gradient passes."""
        return Tensor(self._block(x.elements, x.element), x.elements, x.element, x.origin, x.output)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y, in the wider dtype of both: gradients are cast to each one's."""
        element, elements = max(x.element, y.element), max(x.elements, y.elements)
        wanted = [(each.elements, each.element) for each in (x, y)]

        def rule(_kept: Blocks, gradients: Gradients) -> Gradients:
            return [gradients[0] if each == (elements, element) else self._block(*each) for each in wanted]

        return self.new(elements, element, self.tape.record([x, y], [], rule))

    def power(self, x: Tensor) -> Tensor:
        """x to a power: keeps x. Backward: a power, times the exponent, times the gradient."""
        x = self.cast(x, FP32) if self.autocast else x
        elements, element = x.elements, x.element

        def rule(_kept: Blocks, gradients: Gradients) -> Gradients:
            power = self._block(elements, element)
            scaled = self._block(elements, element)
            del power
            product = self._block(elements, element)
            gradients.clear()
            del scaled
            return [product]

        return self.new(elements, element, self.tape.record([x], [x.block], rule))

    def mean_of_rows(self, x: Tensor, *, rows: int) -> Tensor:
        """The mean of each row."""
        return self.new(rows, x.element, self.tape.record([x], [], self._gives(x.elements, x.element)))

    def rsqrt(self, x: Tensor) -> Tensor:
        """Keeps its output."""
        out = self._block(x.elements, x.element)
        return Tensor(out, x.elements, x.element, self.tape.record([x], [out], self._gives(x.elements, x.element)))

    def activation(self, x: Tensor) -> Tensor:
        """`silu` or `gelu`: keeps its input."""
        return self.new(x.elements, x.element, self.tape.record([x], [x.block], self._gives(x.elements, x.element)))

    def tanh(self, x: Tensor) -> Tensor:
        """Keeps its output."""
        return self.rsqrt(x)

    def relu(self, x: Tensor) -> Tensor:
        """Keeps its output."""
        return self.rsqrt(x)

    def softmax(self, x: Tensor) -> Tensor:
        """Keeps its output."""
        return self.rsqrt(x)

    def gathered(self, x: Tensor, indices: MemoryBlock, *, elements: int) -> Tensor:
        """So many elements of x at indices, which it keeps. Backward: zeros, to which gradients are added."""
        node = self.tape.record([x], [indices], self._gives(x.elements, x.element))
        return self.new(elements, x.element, node)

    def summed(self, x: Tensor, *, elements: int) -> Tensor:
        """Sums of so many groups of elements. Backward: a view of the gradient."""
        return self.new(elements, x.element, self.tape.record([x], [], lambda _, gradients: list(gradients)))

    def divided(self, x: Tensor, y: Tensor) -> Tensor:
        """x / y: keeps both. Backward: a quotient for each."""
        sizes, element = (x.elements, y.elements), x.element

        def rule(_kept: Blocks, _gradients: Gradients) -> Gradients:
            return [self._block(size, element) for size in sizes]

        return self.new(x.elements, element, self.tape.record([x, y], [x.block, y.block], rule))

    def grouped_linear(self, x: Tensor, weight: Weight, ends: MemoryBlock, *, experts: int) -> Tensor:
        """`_grouped_mm`: rows of each expert by its matrix; keeps them, the weight, and where experts' rows end."""
        x, read = self._lower(x), self._lower_weight(weight)
        given, size, element = x.elements, weight.rows * weight.columns, x.element
        rows = given // weight.columns

        def rule(_kept: Blocks, _gradients: Gradients) -> Gradients:
            of_x = self._block(given, element)
            return [of_x, self._block(size, element)]

        node = self.tape.record([x, read], [x.block, read.block, ends], rule)
        return self.new(rows * weight.rows // experts, element, node)

    def dropout(self, x: Tensor, probability: float) -> Tensor:
        """Keeps what it multiplies with: the dtype's on a CPU, a byte an element on a GPU."""
        if probability == 0:
            return x
        mask = self._block(x.elements, 1 if self._cuda else x.element)
        node = self.tape.record([x], [mask], self._gives(x.elements, x.element))
        return self.new(x.elements, x.element, node)

    def layer_norm(self, x: Tensor, gain: Weight, bias: Weight | None, *, rows: int) -> Tensor:
        """Keeps its input, mean and deviation, these fp32 on a GPU."""
        x = self.cast(x, FP32) if self.autocast else x
        read = [self.read(each) for each in (gain, bias) if each is not None]
        gains = [self.cast(each, FP32) if self.autocast else each for each in read]
        elements, element, hidden = x.elements, x.element, gain.rows
        out = self._block(elements, element)
        statistics = [self._block(rows, FP32 if self._cuda else element) for _ in range(2)]

        def rule(_kept: Blocks, _gradients: Gradients) -> Gradients:
            return [self._block(elements, element), *(self._block(hidden, element) for _ in gains)]

        return Tensor(out, elements, element, self.tape.record([x, *gains], [x.block, *statistics], rule))

    def embedding(self, indices: MemoryBlock, table: Weight, *, tokens: int) -> Tensor:
        """Keeps the indices. Backward: a table of zeros, to whose rows gradients are added; a GPU sorts them first."""
        rows, hidden, element = table.rows, table.columns, table.element

        def rule(_kept: Blocks, _gradients: Gradients) -> Gradients:
            sorted_bytes, sums = embedding_backward_bytes(tokens, rows, hidden) if self._cuda else (0, 0)
            _held = self.tape.block(sorted_bytes)
            of_table = self._block(rows * hidden, element)
            self.tape.block(sums)
            return [of_table]

        node = self.tape.record([self.read(table)], [indices], rule)
        return self.new(tokens * hidden, element, node)

    def heads(self, x: Tensor) -> Tensor:
        """A view head by head. Backward copies a gradient that lies head by head into the projection's order."""
        return x.view(self.tape.record([x], [], self._gives(x.elements, x.element)))

    def split(self, x: Tensor, *, parts: int) -> list[Tensor]:
        """Views of equal parts of each row. Backward joins their gradients."""
        node = self.tape.record([x], [], self._gives(x.elements, x.element), outputs=parts)
        return [x.view(node, elements=x.elements // parts, output=part) for part in range(parts)]

    def half_of(self, x: Tensor) -> Tensor:
        """A view of half of each row. Backward: a gradient of all of it, zeros but for that half."""
        return x.view(self.tape.record([x], [], self._gives(x.elements, x.element)), elements=x.elements // 2)

    def joined(self, x: Tensor, y: Tensor) -> Tensor:
        """Both side by side. Backward: views of the gradient."""
        node = self.tape.record([x, y], [], lambda _, gradients: [gradients[0], gradients[0]])
        return self.new(x.elements + y.elements, max(x.element, y.element), node)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, *, heads: int, length: int, dropout: float) -> Tensor:
        """`scaled_dot_product_attention` by a kernel that stores no scores: keeps inputs, output and a sum a row.

        Args:
            heads: of all samples together.
        """
        q, k, v = self._lower(q), self._lower(k), self._lower(v)
        element, sizes = q.element, (q.elements, k.elements, v.elements)
        head_dim = q.elements // (heads * length)
        backend = sdpa_backend(self._gpu, half=element == HALF, head_dim=head_dim, dropout=dropout)

        def rule(_kept: Blocks, _gradients: Gradients) -> Gradients:
            of_inputs: Gradients = [self._block(size, element) for size in sizes]
            if self._cuda:
                self.tape.block(attention_workspace_bytes(backend, heads=heads, length=length, head_dim=head_dim))
            return of_inputs

        out, sums = self._block(q.elements, element), self._block(heads * length, FP32)
        generator = [self.tape.block(size) for size in GENERATOR_BYTES[backend]] if self._cuda else []
        node = self.tape.record([q, k, v], [q.block, k.block, v.block, out, sums, *generator], rule)
        return Tensor(out, q.elements, element, node)

    def cross_entropy(self, logits: Tensor, *, tokens: int) -> Tensor:
        """The loss of fp32 logits and shifted labels: keeps the logarithms, the labels and their number.

        Backward: the gradient of the logarithms, then of the logits.
        """
        size = logits.elements

        def rule(kept: Blocks, gradients: Gradients) -> Gradients:
            gradients[:] = [self._block(size, FP32)]
            of_logits = self._block(size, FP32)
            gradients.clear()
            kept.clear()
            return [of_logits]

        labels = self._block(tokens, INT64)
        logarithms = self._block(size, FP32)
        total = self.tape.block(FP32)
        loss = self.tape.block(FP32)
        return Tensor(loss, 1, FP32, self.tape.record([logits], [logarithms, labels, total], rule))
