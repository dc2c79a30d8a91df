"""CUDA errors in what a rank said: in an exception, or in the log of a rank that could say nothing else."""

from __future__ import annotations

import re

_ERROR = re.compile(r"(?:CUDA (?:driver )?error: |Cuda failure ).*")
_RANK = re.compile(r"\[rank(\d+)\]|\bRank (\d+)\]")  # of PyTorch's log, and of NCCL's watchdog
MOST_CHARACTERS = 300


def cuda_error(text: str) -> str:
    """The first CUDA error of a text; empty without one."""
    found = _ERROR.search(text)
    return "" if found is None else found[0][:MOST_CHARACTERS]


def cuda_errors(log: str) -> dict[int | None, str]:
    """The first CUDA error of each rank in a log of all; under None, of lines that name no rank.

    An error of a kernel or of the memory often ends in NCCL's watchdog, which logs it and aborts: the rank itself
    cannot report it any more.
    """
    errors: dict[int | None, str] = {}
    for line in log.splitlines():
        if error := cuda_error(line):
            rank = _RANK.search(line)
            errors.setdefault(None if rank is None else int(rank[1] or rank[2]), error)
    return errors
