"""Bytes of operators as they run: each tensor that is read or written counts once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard  # noqa: F401  # it registers its operators

from suite.execute.trace.operators import ModulePaths, OperatorRecorder
from suite.job.operators import TracePhase

SIZE = 64  # bytes of each tensor


def moved(run: Callable[[], object]) -> tuple[int, int]:
    """Tensors that a call reads and writes."""
    recorder = OperatorRecorder(ModulePaths(nn.Module()), lambda: TracePhase.UPDATE)
    with recorder:
        run()
    (call,) = recorder.calls({})
    assert call.calls == 1
    return call.read_bytes // SIZE, call.written_bytes // SIZE


def test_operators_on_lists_and_into_given_tensors_move_what_they_read_and_write() -> None:
    weights, gradients, squares = ([torch.ones(16) for _ in range(4)] for _ in range(3))
    whole, shards = torch.ones(64), [torch.ones(4, 4) for _ in range(4)]
    fsdp = torch.ops.fsdp
    expected: dict[str, tuple[Callable[[], object], tuple[int, int]]] = {
        "in place": (lambda: torch._foreach_mul_(weights, 2.0), (4, 4)),
        "one tensor twice": (lambda: torch._foreach_addcmul_(squares, gradients, gradients), (8, 4)),
        "copies of lists": (lambda: torch._foreach_copy_(weights, gradients), (4, 4)),
        "a copy": (lambda: weights[0].copy_(gradients[0]), (1, 1)),
        "new ones": (lambda: torch._foreach_sqrt(squares), (4, 4)),
        "into a given tensor": (lambda: torch.add(weights[0], gradients[0], out=squares[0]), (2, 1)),
        "gradients into a message": (lambda: fsdp.chunk_cat(shards, 0, 2, out=whole.view(2, 32)), (4, 4)),
        "shards into a message": (lambda: fsdp.all_gather_copy_in(weights[:1], whole, [16], 16, 0), (1, 1)),
    }
    wrong = {name: found for name, (run, wanted) in expected.items() if (found := moved(run)) != wanted}
    assert wrong == {}
