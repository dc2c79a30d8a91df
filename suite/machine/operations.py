"""The operations that a machine profile times and a simulated step lists: their kinds, and the bytes that they move."""

from __future__ import annotations

import enum
from typing import NamedTuple

ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


class OperationKind(enum.StrEnum):
    """The part of the machine whose speed decides an operation's seconds."""

    HOST = "host"
    PRODUCT = "product"
    ELEMENTWISE = "elementwise"
    COLLECTIVE = "collective"


class Moved(NamedTuple):
    """The least elements that are read and written for each element of the input: in the input's dtype, and in fp32."""

    own: int = 0
    wide: int = 0


class Operation(NamedTuple):
    """One operation.

    Args:
        forward, backward: elements that it moves.
        cold: whether it is timed after the caches were overwritten, as an operator of a step finds them. Host calls
            follow each other and find their data in the caches.
    """

    kind: OperationKind
    forward: Moved = Moved()
    backward: Moved = Moved()
    cold: bool = True


_ACTIVATION = Operation(OperationKind.ELEMENTWISE, Moved(2), Moved(3))
_CAST = Operation(OperationKind.ELEMENTWISE, Moved(1, 1), Moved(1, 1))
_HOST_CALL = Operation(OperationKind.HOST, cold=False)
_MEMORY = Operation(OperationKind.ELEMENTWISE)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
# Host calls that the simulation of a step lists, timed under other names: a call is timed by `calls`; a node of
# autograd's graph and a start of its engine by the backward pass of `view`
SIMULATED_HOST_CALLS = ("call", "node", "backward")

OPERATIONS: dict[str, Operation] = {
    **dict.fromkeys(("product", "square_product", "batched_product", "attention"), Operation(OperationKind.PRODUCT)),
    **dict.fromkeys(
        ("gelu_tanh", "gelu", "relu", "fast_gelu", "chain", "layer_norm", "rms_norm", "softmax"), _ACTIVATION
    ),
    **dict.fromkeys(("geglu", "geglu_tanh", "swiglu"), Operation(OperationKind.ELEMENTWISE, Moved(3), Moved(5))),
    "dropout": Operation(OperationKind.ELEMENTWISE, Moved(3), Moved(3)),
    "scale": Operation(OperationKind.ELEMENTWISE, Moved(2), Moved(2)),
    "embedding": Operation(OperationKind.ELEMENTWISE, Moved(2), Moved(2)),
    "cross_entropy": Operation(OperationKind.ELEMENTWISE, Moved(1), Moved(2)),
    "add": Operation(OperationKind.ELEMENTWISE, Moved(3)),
    "permuted": Operation(OperationKind.ELEMENTWISE, Moved(2)),
    **dict.fromkeys(("zeros", "vector_norm", "column_sum"), Operation(OperationKind.ELEMENTWISE, Moved(1))),
    **dict.fromkeys(("to_fp32", "from_fp32"), _CAST),
    **dict.fromkeys(("bias", "accumulate", "sum_of_gradients"), Operation(OperationKind.ELEMENTWISE)),
    **dict.fromkeys(("copy", "triad", "host_to_device", "device_to_host"), _MEMORY),
    "adam": Operation(OperationKind.ELEMENTWISE, Moved(0, 7)),
    "adam_tensors": Operation(OperationKind.HOST),  # Adam's time for a tensor, without its elements
    **dict.fromkeys(("calls", "view", "module", "weight_read", "checkpoint", "region", "sharded_unit"), _HOST_CALL),
    **dict.fromkeys(SIMULATED_HOST_CALLS, _HOST_CALL),
    "engine": Operation(OperationKind.HOST),  # part of the timing of a backward operator, so it is timed as one
    **dict.fromkeys(COLLECTIVES, Operation(OperationKind.COLLECTIVE)),
}
HOST_CALLS = frozenset(name for name, operation in OPERATIONS.items() if not operation.cold)


def moved_bytes(operation: str, variant: str, dtype: str) -> int:
    """The least bytes that an operation moves for each element of its input; 0 if not known."""
    known = OPERATIONS[operation]
    moved = known.backward if variant == "backward" else known.forward
    return moved.own * ELEMENT_BYTES[dtype] + ELEMENT_BYTES["fp32"] * moved.wide
