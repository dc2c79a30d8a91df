"""The one registry of operations: what times them, what plans them and what a simulated step lists agree with it."""

from __future__ import annotations

from suite.execute.calibrate.run import TIMED
from suite.machine.cpu_speed import kind
from suite.machine.operations import (
    COLLECTIVES,
    HOST_CALLS,
    OPERATIONS,
    SIMULATED_HOST_CALLS,
    OperationKind,
    moved_bytes,
)
from suite.machine.timing_tables import Subject


def test_every_operation_is_timed_or_listed_by_a_simulated_step_alone() -> None:
    timed = {*TIMED, *COLLECTIVES, "sharded_unit"}
    assert timed == OPERATIONS.keys() - {*SIMULATED_HOST_CALLS, "sum_of_gradients"}


def test_calls_of_the_host_are_timed_without_overwriting_caches() -> None:
    assert HOST_CALLS - set(SIMULATED_HOST_CALLS) == {
        *("calls", "view", "module", "weight_read", "checkpoint", "region", "sharded_unit")
    }
    assert {name for name, operation in OPERATIONS.items() if operation.kind is OperationKind.HOST} - HOST_CALLS == {
        "engine",
        "adam_tensors",
    }


def test_operations_have_their_kind_and_the_least_bytes_of_an_element() -> None:
    kinds = {
        "attention": OperationKind.PRODUCT,
        "layer_norm": OperationKind.ELEMENTWISE,
        "rms_norm": OperationKind.ELEMENTWISE,
        "triad": OperationKind.ELEMENTWISE,
        "engine": OperationKind.HOST,
        "send": OperationKind.COLLECTIVE,
    }
    assert {name: kind(Subject(operation=name)) for name in kinds} == kinds
    least = {
        ("gelu", "backward", "bf16"): 6,  # input, gradient, and what is written
        ("to_fp32", "forward", "fp16"): 6,
        ("adam", "", "fp32"): 28,  # weight, both moments read and written; the gradient read
        ("zeros", "forward", "bf16"): 2,
        ("calls", "", "fp32"): 0,
    }
    assert {operation: moved_bytes(*operation) for operation in least} == least
