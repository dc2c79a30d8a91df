"""Memory that tensors can fill, against what programs found."""

from __future__ import annotations

import pytest

from reference_runs.accelerator import accelerator
from suite.predict.analytic.cuda_temporaries import CONTEXT_BYTES
from suite.predict.analytic.usable_memory import GIB, UsableMemory, usable_memory


def test_it_is_what_out_of_memory_messages_print_less_a_context() -> None:
    printed = {"v100-sxm-32gb": (30.5, 31.7), "a100-sxm-40gb": (39.4, 39.6), "a100-sxm-80gb": (79.1, 79.2)}
    for name, (least, most) in printed.items():
        memory = usable_memory(accelerator(name).board)
        assert least - 0.01 <= (memory.usable + memory.context) / GIB <= most + 0.01, name
        assert memory.context == CONTEXT_BYTES
        assert 0.3 < memory.context / GIB < 1


def test_what_is_kept_is_said() -> None:
    kept = UsableMemory(printed=80 * GIB, driver=0.9 * GIB, context=0.59 * GIB)
    assert kept.usable == pytest.approx(78.51 * GIB)
    assert kept.words == "80 - 0.9 driver - 0.59 CUDA"


def test_where_no_driver_is_recorded_all_is_usable() -> None:
    board = accelerator("tpu-v4").board
    memory = usable_memory(board)
    assert (memory.usable, memory.words) == (board.memory_bytes, "")
