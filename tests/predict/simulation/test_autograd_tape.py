from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from suite.predict.simulation.autograd_tape import ParameterLeaf, Tape, Value
from suite.predict.simulation.memory_blocks import Allocator, MemoryBlock


def ended(tape: Tape, received: list[MemoryBlock]) -> Value:
    """A value that gives its gradient to `received`."""
    return Value(tape.block(0), ParameterLeaf(received.append))


def doubled(tape: Tape, x: Value, size: int) -> Value:
    """An operator that keeps its input."""
    node = tape.record([x], [x.block], lambda _kept, _gradients: [tape.block(size)])
    return Value(tape.block(size), node)


@given(st.lists(st.integers(0, 1000)), st.integers(1, 512))
def test_blocks_count_until_nothing_refers_to_them(sizes: list[int], granularity: int) -> None:
    allocator = Allocator(granularity)
    blocks = [MemoryBlock(allocator, size) for size in sizes]
    whole = sum(-(-size // granularity) * granularity for size in sizes)
    assert allocator.held == whole
    assert all(block.bytes % granularity == 0 for block in blocks)
    blocks.clear()
    assert allocator.held == 0
    assert allocator.most == whole


@given(st.integers(1, 20), st.integers(1, 100))
def test_a_chain_keeps_all_inputs_and_frees_them_as_it_runs_back(length: int, size: int) -> None:
    allocator = Allocator()
    tape = Tape(allocator, counts=False)
    received: list[MemoryBlock] = []
    x = ended(tape, received)
    for _ in range(length):
        x = doubled(tape, x, size)
    # the output of all operators; the first one's input has no bytes
    assert allocator.held == allocator.most == length * size
    tape.backward(x, tape.block(size))
    del x
    assert [block.bytes for block in received] == [size]
    assert allocator.held == size
    # all outputs, the gradient that is given, and the one that the last operator makes of it
    assert allocator.most == (length + 2) * size


@given(st.integers(1, 20), st.integers(1, 100))
def test_a_backward_pass_in_halves_gives_what_a_whole_one_gives_and_keeps_what_the_second_half_reads(
    length: int, size: int
) -> None:
    allocator = Allocator()
    tape = Tape(allocator)
    given_back: list[MemoryBlock] = []
    of_weights: list[MemoryBlock] = []
    leaf = ParameterLeaf(given_back.append, is_weight=False)
    weight = Value(tape.block(0), ParameterLeaf(of_weights.append))
    x = Value(tape.block(size), leaf)
    for _ in range(length):

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            return [tape.block(size) if wanted else None for wanted in (tape.of_inputs, tape.of_weights)]

        node = tape.record([x, weight], [x.block], rule)
        x = Value(tape.block(size), node)
    half = tape.backward_to(leaf, x, tape.block(size))
    del x, node
    assert ([block.bytes for block in given_back], of_weights) == ([size], [])
    # every operator's input, and the gradient of its output; and that of the first one's input
    assert allocator.held == (2 * length + 1) * size
    tape.backward_to_weights(half)
    assert [block.bytes for block in of_weights] == [size] * length
    assert allocator.held == (1 + length) * size


@given(st.integers(1, 20), st.integers(1, 100))
def test_until_the_second_half_a_checkpoint_keeps_what_it_computed_again_from(length: int, size: int) -> None:
    allocator = Allocator()
    tape = Tape(allocator, generator_bytes=7)
    of_inputs: list[MemoryBlock] = []
    of_weights: list[MemoryBlock] = []
    leaf = ParameterLeaf(of_inputs.append, is_weight=False)
    weight = Value(tape.block(0), ParameterLeaf(of_weights.append))

    def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
        return [tape.block(size) if wanted else None for wanted in (tape.of_inputs, tape.of_weights)]

    def weighted(x: Value) -> Value:
        node = tape.record([x, weight], [x.block], rule)
        return Value(tape.block(size), node)

    def through(x: Value) -> Value:
        for _ in range(length):
            x = doubled(tape, x, size)
        return x

    out = weighted(tape.checkpoint(through, [weighted(Value(tape.block(size), leaf))]))
    half = tape.backward_to(leaf, out, tape.block(size))
    del out
    # of both operators with weights the input, and the gradient of the output; the checkpoint's input and generator
    assert allocator.held == size * (2 + 2 + 1 + len(of_inputs)) + 7
    tape.backward_to_weights(half)
    assert [block.bytes for block in (*of_inputs, *of_weights)] == [size] * 3
    assert allocator.held == 3 * size


@given(st.integers(2, 20), st.integers(1, 100))
def test_a_checkpoint_keeps_its_input_alone_and_computes_again_what_it_needs(length: int, size: int) -> None:
    calls: list[int] = []

    def through(x: Value) -> Value:
        for number in range(length):
            calls.append(number)
            x = doubled(tape, x, size)
        return x

    allocator = Allocator()
    tape = Tape(allocator, generator_bytes=7, counts=True)
    received: list[MemoryBlock] = []
    start = doubled(tape, ended(tape, received), size)
    out = tape.checkpoint(through, [start])
    assert tape.kept_bytes == size
    del start
    assert allocator.held == 2 * size + 7
    tape.backward(out, tape.block(size))
    # the last operator's input is the last that is kept: its output is not computed a second time
    assert calls == [*range(length), *range(length)]
    assert [block.bytes for block in received] == [size]


def test_recomputation_ends_before_the_output_of_the_last_operator_that_keeps() -> None:
    def through(x: Value) -> Value:
        node = doubled(tape, x, 1).origin
        return Value(tape.block(1000), node)

    allocator = Allocator()
    tape = Tape(allocator)
    out = tape.checkpoint(through, [ended(tape, [])])
    assert allocator.held == 1000
    tape.backward(out, tape.block(3))
    assert allocator.most == 1000 + 3 + 1


def test_gradients_of_a_value_that_is_read_twice_are_added_in_place() -> None:
    allocator = Allocator()
    tape = Tape(allocator)
    received: list[MemoryBlock] = []
    x = doubled(tape, ended(tape, received), 10)
    both = tape.record([x, x], [], lambda _kept, _gradients: [tape.block(10), tape.block(10)])
    tape.backward(Value(tape.block(0), both), tape.block(0))
    assert len(received) == 1
    assert allocator.held == 20  # x and the gradient


def test_nothing_is_added_to_a_borrowed_gradient() -> None:
    allocator = Allocator()
    tape = Tape(allocator)
    borrowed = tape.block(10)
    borrowed.borrowed = True
    given_on: list[MemoryBlock | None] = []

    def rule(_kept: list[MemoryBlock], gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
        given_on.extend(gradients)
        return [None]

    x = Value(tape.block(0), tape.record([ended(tape, [])], [], rule))
    other = doubled(tape, x, 10)
    both = tape.record([x, other], [], lambda _kept, gradients: [gradients[0], gradients[0]])
    tape.backward(Value(tape.block(0), both), borrowed)
    assert len(given_on) == 1
    assert given_on[0] is not borrowed


def test_what_needs_no_gradient_is_not_recorded() -> None:
    tape = Tape(Allocator())
    assert tape.record([Value(tape.block(1))], [tape.block(1)], lambda _kept, _gradients: [None]) is None
