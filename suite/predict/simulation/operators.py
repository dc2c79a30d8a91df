"""What each operator of the executed model allocates, keeps for the backward pass, gives back, and computes.

Seen in PyTorch 2.13 by its profiler's memory events and operators on the CPU; tools/autograd/derivatives.yaml says what
is kept. Numbers of views and nodes are those of PyTorch's operators behind each line of suite/execute/model.
"""

from __future__ import annotations

from suite.job.options import DEFAULT_OPTIONS, TrainingOptions
from suite.machine.half_precision import Kernels
from suite.predict.simulation.autograd_tape import Block, Leaf, Rule, Tape, Value

FP32 = 4


class Operators:
    """The operators of one dtype on one device.

    Args:
        element: bytes of an element of weights and hidden states.
        ranks: of the tensor-parallel axis.
        by_sequence: whether these ranks have parts of the sequence between the split matrices.
        dtype: of weights and hidden states, in a calibration's words.
        reads: whether weights are read through a function, apart from autograd's leaves.
        script: whether operators write into their inputs, and whether scale, mask and softmax are one.
    """

    def __init__(
        self,
        tape: Tape,
        element: int,
        kernels: Kernels,
        *,
        ranks: int,
        by_sequence: bool,
        dtype: str,
        reads: bool,
        script: TrainingOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.tape = tape
        self._reads = reads
        self._in_place = script.in_place
        self._one_operator = script.cpp_operator
        self.dtype = dtype
        self.ranks = ranks
        self._by_sequence = by_sequence
        self.element = element
        self.half = element < FP32
        self._cuda = kernels.cuda
        self._widens = self.half and kernels.products_through_fp32
        self._nothing = tape.block(0)

    def block(self, elements: int) -> Block:
        """A new block of the operators' dtype."""
        return self.tape.block(self.element * elements)

    def _does(self, operation: str, *sizes: int, variant: str = "forward", dtype: str = "", times: int = 1) -> None:
        """Count work of an operator, in the operators' dtype where no other is named."""
        self.tape.work(operation, *sizes, variant=variant, dtype=dtype or self.dtype, times=times)

    def _handles(self, *, modules: int = 0, views: int = 0, nodes: int = 0) -> None:
        """Count what only the host does: calls of modules, views, and nodes of the backward pass."""
        for operation, times in (("module", modules), ("view", views), ("node", nodes)):
            if times:
                self.tape.work(operation, times=times)

    def _product(self, elements: int, *factors: int) -> Block:
        """The block of a product; `factors` are the elements of what is multiplied, and of a bias."""
        if not self._widens:
            return self.block(elements)
        wide = [self.tape.block(FP32 * factor) for factor in factors]
        result = self.tape.block(FP32 * elements)
        del wide
        rounded = self.block(elements)
        del result
        return rounded

    def weight(self, leaf: Leaf) -> Value:
        """A weight as it is read: its memory is counted elsewhere."""
        if self._reads:
            self.tape.work("weight_read", variant="forward")
        return Value(self._nothing, leaf)

    def linear(self, x: Value, weight: Leaf, bias: Leaf | None, *, tokens: int, columns: int, rows: int) -> Value:
        """Keeps its input. Backward: gradients of input, weight and bias; without bias the weight's comes first."""

        def rule(_kept: list[Block], _gradients: list[Block | None]) -> list[Block | None]:
            self._does("product", tokens, columns, rows, variant="NN")
            self._does("product", rows, columns, tokens, variant="TN")
            self._handles(nodes=4)
            if bias:
                self._does("column_sum", tokens, rows)
            if bias is None:
                of_weight = self._product(rows * columns, tokens * rows, tokens * columns)
                return [self._product(tokens * columns, tokens * rows, rows * columns), of_weight]
            of_input = self._product(tokens * columns, tokens * rows, rows * columns)
            of_weight = self._product(rows * columns, tokens * rows, tokens * columns)
            return [of_input, of_weight, self.block(rows)]

        inputs = [x, self.weight(weight), *([self.weight(bias)] if bias else [])]
        node = self.tape.record(inputs, [x.block], rule)
        self._does("product", tokens, rows, columns, variant="NT")
        if bias and not self._cuda:  # a GPU's kernels add it to the product as they write that
            self._does("bias", tokens * rows)
        self._handles(modules=1, views=3)
        return Value(self._product(tokens * rows, tokens * columns, rows * columns, *([rows] if bias else [])), node)

    def for_columns(self, x: Value, *, elements: int) -> Value:
        """The input of a matrix whose columns are split, whole on every rank."""
        if self.ranks == 1 or not self._by_sequence:
            return self.summed_back(x, elements=elements)
        node = self.tape.record([x], [], lambda _, gradients: [self._scattered(elements, gradients)])
        return Value(self._gathered(elements), node)

    def summed_back(self, x: Value, *, elements: int) -> Value:
        """What every rank has whole, and whose gradients the ranks sum."""
        if self.ranks == 1:
            return x
        return Value(x.block, self.tape.record([x], [], self._passing(elements)))

    def of_rows(self, x: Value, *, elements: int) -> Value:
        """The sum over ranks of what a matrix whose rows are split gives; with sequence parallelism the rank's part."""
        if self.ranks == 1:
            return x
        if not self._by_sequence:
            return self.copied(x, elements=elements)
        node = self.tape.record([x], [], lambda _, _gradients: [self._gathered(elements)])
        return Value(self._scattered(elements, []), node)

    def _gathered(self, elements: int) -> Block:
        """All ranks' parts as they come, one rank's behind the other's, and joined along the sequence."""
        message = self.block(elements)
        joined = self.block(elements)
        del message
        return joined

    def _scattered(self, elements: int, given: list[Block | None]) -> Block:
        """The message has the parts of the sequence one behind the other, so that it is a copy."""
        message = self.block(elements)
        given.clear()
        part = self.block(elements // self.ranks)
        del message
        return part

    def scores(self, q: Value, k: Value, *, queries: int, elements: int, sizes: tuple[int, int, int]) -> Value:
        """q k^T: keeps both, of `queries` elements each; `sizes` are samples times heads, sequence, head size."""

        def rule(_kept: list[Block], _gradients: list[Block | None]) -> list[Block | None]:
            self._does("batched_product", *sizes, variant="TN")
            self._does("batched_product", *sizes, variant="NN")
            self._handles(nodes=7)
            of_k = self._product(queries, queries, elements)
            return [self._product(queries, elements, queries), of_k]

        node = self.tape.record([q, k], [q.block, k.block], rule)
        self._does("batched_product", *sizes, variant="NT")
        self._handles(views=7)
        return Value(self._product(elements, queries, queries), node)

    def softmax(self, scores: Value, *, elements: int, length: int) -> Value:
        """Softmax in fp32 of the scaled scores and their bias, rounded to the dtype: keeps the fp32 result.

        Each step has a block of its own: wide scores, scaled, biased, softmax.
        """
        tape, size = self.tape, FP32 * elements

        def rule(kept: list[Block], gradients: list[Block | None]) -> list[Block | None]:
            if self.half:
                self._does("to_fp32", elements)
                self._does("from_fp32", elements)
                gradients[:] = [tape.block(size)]
            self._does("softmax", elements // length, length, variant="backward", dtype="fp32")
            if self._one_operator:
                self._handles(nodes=1)
                of_scores = tape.block(size)
                kept.clear()
                return [self.block(elements) if self.half else of_scores]
            self._does("scale", elements, dtype="fp32")
            self._handles(nodes=5 if self.half else 3)
            of_softmax = tape.block(size)
            gradients.clear()
            kept.clear()
            of_scores = tape.block(size)
            del of_softmax
            return [self.block(elements) if self.half else of_scores]

        if self.half:
            self._does("to_fp32", elements)
            self._does("from_fp32", elements)
        if not self._one_operator:
            self._does("scale", elements, dtype="fp32")
            self._does("add", elements, dtype="fp32")
        self._does("softmax", elements // length, length, dtype="fp32")
        wide = tape.block(size) if self.half else scores.block
        if self._in_place or self._one_operator:
            softmax = tape.block(size)
            del wide
        else:
            scaled = tape.block(size)
            del wide
            biased = tape.block(size)
            del scaled
            softmax = tape.block(size)
            del biased
        node = tape.record([scores], [softmax], rule)
        return Value(self.block(elements) if self.half else softmax, node)

    def context(
        self, weights: Value, v: Value, *, scores: int, values: int, strided: bool, sizes: tuple[int, int, int]
    ) -> Value:
        """Weights times values: keeps both. Backward copies a gradient that does not lie head by head (`strided`)."""

        def rule(_kept: list[Block], gradients: list[Block | None]) -> list[Block | None]:
            if strided:
                self._does("permuted", values)
                gradients[:] = [self.block(values)]
            self._does("batched_product", *sizes, variant="TN")
            self._does("batched_product", *sizes, variant="NT")
            self._handles(nodes=8)
            of_v = self._product(values, scores, values)
            return [self._product(scores, values, values), of_v]

        node = self.tape.record([weights, v], [weights.block, v.block], rule)
        self._does("batched_product", *sizes, variant="NN")
        self._handles(views=7)
        return Value(self._product(values, scores, values), node)

    def attention(self, q: Value, k: Value, v: Value, *, queries: int, sizes: tuple[int, int, int]) -> Value:
        """Fused attention: keeps queries, keys, values, its output, and an fp32 log-sum-exp a row of scores.

        Backward: the three gradients; on a GPU the sum of the queries' gradients, and a product a row, in fp32. What a
        kernel holds of the scores in passing is left out: a few blocks for each of its threads, at most 1.6 MB.
        Source: aten/src/ATen/native/cpu/FlashAttentionKernel.cpp; native/transformers/cuda/flash_attn/flash_api.cpp.
        """
        tape = self.tape
        rows = sizes[0] * sizes[1]

        def rule(_kept: list[Block], _gradients: list[Block | None]) -> list[Block | None]:
            self._does("attention", *sizes, variant="backward")
            self._handles(nodes=3)
            of_inputs: list[Block | None] = [self.block(queries) for _ in range(3)]
            if self._cuda:
                sums, products = tape.block(FP32 * queries), tape.block(FP32 * rows)
                del sums, products
            return of_inputs

        self._does("attention", *sizes)
        self._handles(views=2)
        out, logarithms = self.block(queries), tape.block(FP32 * rows)
        return Value(out, tape.record([q, k, v], [q.block, k.block, v.block, out, logarithms], rule))

    def copied(self, x: Value, *, elements: int) -> Value:
        """A contiguous copy; nothing is kept, and its gradient passes."""
        self._does("permuted", elements)
        return Value(self.block(elements), x.origin, x.output)

    def parts(self, x: Value, *, parts: int, elements: int) -> list[Value]:
        """Views of the `parts` of a fused projection's output. Backward stacks their gradients, then copies them into
        the projection's order."""

        def rule(_kept: list[Block], gradients: list[Block | None]) -> list[Block | None]:
            self._does("scale", parts * elements)
            self._does("permuted", parts * elements)
            self._handles(nodes=3)
            stacked = self.block(parts * elements)
            gradients.clear()
            copied = self.block(parts * elements)
            del stacked
            return [copied]

        node = self.tape.record([x], [], rule, outputs=parts)
        self._handles(views=3)
        return [Value(x.block, node, part) for part in range(parts)]

    def rotated(self, x: Value, turn: Value, *, elements: int, turned: int, turns: int) -> Value:
        """`turned` of the elements rotated, the others passed: keeps the cosines and sines, in the dtype.

        Forward: turned by the cosine; halves swapped, one of them negated; by the sine; the sum; joined with the rest.
        Backward: back through both products; each slice of the input has a whole gradient of its own, which are added.

        Args:
            turns: cosines and sines.
        """

        def rule(kept: list[Block], gradients: list[Block | None]) -> list[Block | None]:
            self._does("scale", turned, times=4)
            self._does("scale", turned // 2)
            self._does("scale", elements, times=2)
            self._does("add", elements)
            self._handles(nodes=12)
            by_sine = self.block(turned)
            negated = self.block(turned // 2)
            by_cosine = self.block(turned)
            kept.clear()
            swapped = self.block(turned)
            del by_sine, negated, swapped
            of_input = self.block(elements)
            gradients.clear()
            of_turned = self.block(elements)
            del by_cosine, of_turned
            return [of_input]

        if self.half:
            self._does("from_fp32", turns)
        self._does("scale", turned, times=3)
        self._does("scale", turned // 2)
        self._does("add", turned)
        self._does("scale", elements)
        self._handles(views=6)
        factors = self.block(turns) if self.half else turn.block
        by_cosine = self.block(turned)
        negated = self.block(turned // 2)
        swapped = self.block(turned)
        del negated
        node = self.tape.record([x], [factors], rule)
        by_sine = self.block(turned)
        del swapped
        sums = self.block(turned)
        del by_cosine, by_sine
        joined = self.block(elements)
        del sums
        return Value(joined, node)

    def dropout(self, x: Value, probability: float, *, elements: int) -> Value:
        """Keeps what it multiplies with: the dtype's on a CPU, a byte an element on a GPU."""
        if probability == 0:
            return x
        self._does("dropout", elements)
        rule = self._like(elements, "dropout")
        if self._cuda:
            dropped = self.block(elements)
            return Value(dropped, self.tape.record([x], [self.tape.block(elements)], rule))
        node = self.tape.record([x], [self.block(elements)], rule)
        return Value(self.block(elements), node)

    def _passing(self, elements: int) -> Rule:
        """The backward pass of a part of an activation, whose work is counted as a whole."""

        def rule(_kept: list[Block], _gradients: list[Block | None]) -> list[Block | None]:
            return [self.block(elements)]

        return rule

    def _like(self, elements: int, operation: str, *, nodes: int = 1) -> Rule:
        """The backward pass of an element-wise operator."""

        def rule(_kept: list[Block], _gradients: list[Block | None]) -> list[Block | None]:
            self._does(operation, elements, variant="backward")
            self._handles(nodes=nodes)
            return [self.block(elements)]

        return rule

    def element_wise(self, x: Value, operation: str, *, elements: int) -> Value:
        """An activation that keeps its input."""
        self._does(operation, elements)
        node = self.tape.record([x], [x.block], self._like(elements, operation))
        return Value(self.block(elements), node)

    def relu(self, x: Value, *, elements: int) -> Value:
        """Keeps its output."""
        self._does("relu", elements)
        out = self.block(elements)
        return Value(out, self.tape.record([x], [out], self._like(elements, "relu")))

    def fast_gelu(self, x: Value, *, elements: int) -> Value:
        """x / (1 + exp(-1.702 |x|)) * exp(0.851 (x - |x|)), one operator after the other."""
        self._does("fast_gelu", elements)
        size = self._magnitude(x, elements)
        first = self._exponential(self._scaled(size, elements), elements)
        quotient = self._quotient(x, self._shifted(first, elements), elements)
        del first
        difference = self._scaled(self._difference(x, size, elements), elements)
        return self._product_of_both(quotient, self._exponential(difference, elements), elements)

    def _magnitude(self, x: Value, elements: int) -> Value:
        """|x|: keeps x. Backward: its signs, then their product with the gradient."""

        def rule(_kept: list[Block], _gradients: list[Block | None]) -> list[Block | None]:
            self._does("fast_gelu", elements, variant="backward")
            self._handles(nodes=9)
            signs = self.block(elements)
            of_input = self.block(elements)
            del signs
            return [of_input]

        return Value(self.block(elements), self.tape.record([x], [x.block], rule))

    def _exponential(self, x: Value, elements: int) -> Value:
        """Keeps its output."""
        out = self.block(elements)
        return Value(out, self.tape.record([x], [out], self._passing(elements)))

    def _shifted(self, x: Value, elements: int) -> Value:
        """x plus a number; the gradient passes."""
        return Value(self.block(elements), x.origin, x.output)

    def _difference(self, x: Value, y: Value, elements: int) -> Value:
        """x - y: the gradient passes to x."""
        node = self.tape.record([x, y], [], lambda _, gradients: [gradients[0], self.block(elements)])
        return Value(self.block(elements), node)

    def _quotient(self, x: Value, y: Value, elements: int) -> Value:
        """x / y: keeps both. Backward: g / y; x / y, that over y, -g, and the product of these."""

        def rule(_kept: list[Block], _gradients: list[Block | None]) -> list[Block | None]:
            of_x = self.block(elements)
            once = self.block(elements)
            twice = self.block(elements)
            del once
            negative = self.block(elements)
            of_y = self.block(elements)
            del twice, negative
            return [of_x, of_y]

        node = self.tape.record([x, y], [x.block, y.block], rule)
        return Value(self.block(elements), node)

    def _product_of_both(self, x: Value, y: Value, elements: int) -> Value:
        """x y, element by element: keeps both."""

        def rule(_kept: list[Block], _gradients: list[Block | None]) -> list[Block | None]:
            return [self.block(elements), self.block(elements)]

        node = self.tape.record([x, y], [x.block, y.block], rule)
        return Value(self.block(elements), node)

    def gated(self, x: Value, *, elements: int) -> Value:
        """GELU of every other one of 2 `elements`, times its neighbour: keeps them, and the GELU."""

        def rule(_kept: list[Block], _gradients: list[Block | None]) -> list[Block | None]:
            self._does("geglu", elements, variant="backward")
            self._handles(nodes=4)
            return [self.block(2 * elements)]

        self._does("geglu", elements)
        node = self.tape.record([x], [], rule, outputs=2)
        gate, neighbour = Value(x.block, node), Value(x.block, node, 1)
        activated = Value(self.block(elements), self.tape.record([gate], [gate.block], self._passing(elements)))
        return self._product_of_both(activated, neighbour, elements)

    def scaled(self, x: Value, *, elements: int) -> Value:
        """x times a number, which its gradient is multiplied by too; nothing is kept."""
        self._does("scale", elements)
        return Value(self.block(elements), self.tape.record([x], [], self._like(elements, "scale")))

    def _scaled(self, x: Value, elements: int) -> Value:
        return Value(self.block(elements), self.tape.record([x], [], self._passing(elements)))

    def sum(self, x: Value, y: Value, *, elements: int, into_y: bool = False) -> Value:
        """x + y; its gradient is that of both. `into_y`: written there, where operators write into their inputs."""
        self._does("add", elements)
        node = self.tape.record([x, y], [], lambda _, gradients: [gradients[0], gradients[0]])
        return Value(y.block if into_y and self._in_place else self.block(elements), node)

    def norm(self, x: Value, weight: Leaf, bias: Leaf | None, *, tokens: int, hidden: int) -> Value:
        """LayerNorm: keeps its input, mean and deviation; on a GPU the statistics are fp32."""
        leaves = [leaf for leaf in (weight, bias) if leaf]

        def rule(_kept: list[Block], _gradients: list[Block | None]) -> list[Block | None]:
            self._does("layer_norm", tokens, hidden, variant="backward")
            self._handles(nodes=1)
            return [self.block(tokens * hidden), *(self.block(hidden) for _ in leaves)]

        self._does("layer_norm", tokens, hidden)
        self._handles(modules=1)
        out = self.block(tokens * hidden)
        statistics = [self.tape.block((FP32 if self._cuda else self.element) * tokens) for _ in range(2)]
        node = self.tape.record([x, *map(self.weight, leaves)], [x.block, *statistics], rule)
        return Value(out, node)

    def embedding(self, indices: Block, weight: Leaf, *, tokens: int, rows: int, hidden: int) -> Value:
        """Keeps the indices. Backward: a table of zeros, and the gradients added to the rows that were read."""

        def rule(_kept: list[Block], _gradients: list[Block | None]) -> list[Block | None]:
            self._does("embedding", tokens, hidden, variant="backward")
            self._does("zeros", max(0, rows - tokens) * hidden)
            self._handles(nodes=1)
            return [self.block(rows * hidden)]

        self._does("embedding", tokens, hidden)
        self._handles(modules=1)
        node = self.tape.record([self.weight(weight)], [indices], rule)
        return Value(self.block(tokens * hidden), node)

    def chunked_loss(
        self, x: Value, weight: Leaf, targets: Block, *, tokens: int, columns: int, rows: int, chunks: int
    ) -> Value:
        """Cross-entropy of which a part of the tokens has logits at a time: keeps the gradients of input and weight.

        With N tokens in c chunks of C = ceil(N / c), and e bytes of an element:
            e N D + e V D    gradients of the hidden states and of the weight, from the first chunk on
            4 C V            fp32 logits, which become their gradient where they lie
            e C V, e V D     in 16 bit too: logits and their gradient, and a chunk's share of the weight's
        """
        tape, most = self.tape, -(-tokens // chunks)

        def rule(kept: list[Block], _gradients: list[Block | None]) -> list[Block | None]:
            self._does("scale", tokens * columns)
            self._does("scale", rows * columns)
            self._handles(nodes=3)
            return list(kept)

        of_x, of_weight = self.block(tokens * columns), self.block(rows * columns)
        total = tape.block(2 * FP32)
        self._does("zeros", rows * columns, dtype="fp32")
        for first in range(0, tokens, most):
            own = min(most, tokens - first)
            self._does("product", own, rows, columns, variant="NT")
            self._does("product", own, columns, rows, variant="NN")
            self._does("product", rows, columns, own, variant="TN")
            self._does("cross_entropy", own, rows, dtype="fp32")
            self._does("scale", own * rows, dtype="fp32", times=2)
            if self.half:
                self._does("to_fp32", own * rows)
                self._does("from_fp32", own * rows)
            tape.work("call", times=14)
            half = self._product(own * rows, own * columns, rows * columns) if self.half else None
            logits = tape.block(FP32 * own * rows)
            del half
            gradient = self.block(own * rows) if self.half else logits
            if self.half:
                self._product(own * columns, own * rows, rows * columns)
                del logits
                self._product(rows * columns, own * rows, own * columns)
            else:
                del logits
            del gradient
        assert targets
        loss = tape.block(FP32)
        del total
        return Value(loss, tape.record([x, self.weight(weight)], [of_x, of_weight], rule))

    def loss(self, logits: Value, targets: Block, *, tokens: int, rows: int) -> Value:
        """Cross-entropy in fp32: keeps the logarithms of the softmax, the targets, and their total weight.

        Backward: the gradient of the logarithms, then of the fp32 logits, then rounded.
        Of logits whose vocabulary is split: less their maximum, exponentials of that, logarithms; backward -1 at the
        targets, exponentials, their sum, and that times the gradient.
        Source: torch/distributed/tensor/parallel/loss.py.
        """
        tape, size = self.tape, FP32 * tokens * rows

        def rule(kept: list[Block], gradients: list[Block | None]) -> list[Block | None]:
            self._does("cross_entropy", tokens, rows, variant="backward", dtype="fp32")
            if self.half:
                self._does("from_fp32", tokens * rows)
            self._handles(nodes=4)
            gradients[:] = [tape.block(size)]
            if self.ranks > 1:
                exponentials = tape.block(size)
                sums = tape.block(size)
                del exponentials
            of_logits = tape.block(size)
            if self.ranks > 1:
                del sums
            gradients.clear()
            kept.clear()
            return [self.block(tokens * rows) if self.half else of_logits]

        if self.half:
            self._does("to_fp32", tokens * rows)
        self._does("cross_entropy", tokens, rows, dtype="fp32")
        self._handles(modules=1, views=3)
        wide = tape.block(size) if self.half else logits.block
        if self.ranks > 1:
            shifted = tape.block(size)
            del wide
            exponentials = tape.block(size)
            del exponentials
            wide = shifted
            del shifted
        logarithms = tape.block(size)
        del wide
        loss, weight = tape.block(FP32), tape.block(FP32)
        return Value(loss, tape.record([logits], [logarithms, targets, weight], rule))
