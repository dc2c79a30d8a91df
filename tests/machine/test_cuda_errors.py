"""The CUDA error that ended a rank is found in what is left of it."""

from __future__ import annotations

from suite.machine.cuda_errors import cuda_error, cuda_errors

WATCHDOG = (
    "[rank1]:[E1125 16:02:11.5 ProcessGroupNCCL.cpp:2093] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group "
    "watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered"
)
TERMINATED = (
    "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: "
    "CUDA error: an illegal memory access was encountered"
)


def test_an_error_is_found_in_any_text() -> None:
    of_nccl = "NCCL error in: x.cpp:1, unhandled cuda error\nLast error:\nCuda failure 700 'an illegal memory access'"
    assert cuda_error(of_nccl) == "Cuda failure 700 'an illegal memory access'"
    assert cuda_error("CUDA driver error: device not ready") == "CUDA driver error: device not ready"
    assert cuda_error("CUDA out of memory") == ""


def test_each_rank_has_its_first_error() -> None:
    log = "\n".join(
        [
            "W1125 torch/distributed/run.py:803",
            WATCHDOG,
            "[rank1]: CUDA error: a later one",
            TERMINATED,
            "CUDA error: of nobody",
        ]
    )
    assert cuda_errors(log) == {
        1: "CUDA error: uncorrectable ECC error encountered",
        3: "CUDA error: an illegal memory access was encountered",
        None: "CUDA error: of nobody",
    }
