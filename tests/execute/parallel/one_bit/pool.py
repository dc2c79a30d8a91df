"""Four processes that have joined gloo, and groups of the first 1, 2, 3 and 4 of them; a call runs on one group."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from suite.machine.processes import die_with_parent

RANKS = 4
SECONDS = float(os.environ.get("TESTS_RANK_SECONDS", "120"))
OTHERS_SECONDS = 30.0  # for the others' answers, once one rank has failed: they may wait for it for ever
HOW = "TESTS_START_RANKS"  # "fork" where this process has imported PyTorch and calculated nothing yet


class Pool:
    """Runs functions of importable modules on several ranks."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = multiprocessing.get_context(os.environ.get(HOW, "spawn"))
        self._ends: list[Connection] = []
        self._scratch = tempfile.TemporaryDirectory(prefix="tests-pool-")  # of sockets that hand tensors over
        self._processes = []
        for rank in range(RANKS):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, port, theirs, self._scratch.name), daemon=True)
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)

    def __call__(self, ranks: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Results of `function(group, *arguments)` on each of the first `ranks` ranks.

        Raises:
            RuntimeError: it failed on some.
            TimeoutError: it failed on none, and some did not answer in time.
        """
        name = (function.__module__, function.__qualname__)
        waiting = {end: rank for rank, end in enumerate(self._ends[:ranks])}
        for end in waiting:
            end.send((ranks, name, arguments))
        answers: dict[int, Any] = {}
        failures: dict[int, str] = {}
        limit = time.monotonic() + SECONDS
        while waiting and (ready := wait([*waiting], max(0.0, limit - time.monotonic()))):
            for end in ready:
                assert isinstance(end, Connection)
                rank = waiting.pop(end)
                done, answer = end.recv()
                (answers if done else failures)[rank] = answer
                if not done:
                    limit = min(limit, time.monotonic() + OTHERS_SECONDS)
        late = f"rank {', '.join(map(str, waiting.values()))} did not answer in time" if waiting else ""
        if waiting:  # whoever answers later would answer the next call
            self.close()
        if failures:
            raise RuntimeError("\n".join([*(failures[rank] for rank in sorted(failures)), late]))
        if late:
            raise TimeoutError(late)
        return [answers[rank] for rank in range(ranks)]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        self._scratch.cleanup()


def _serve(rank: int, port: int, end: Connection, scratch: str) -> None:
    die_with_parent()
    tempfile.tempdir = scratch
    warnings.resetwarnings()  # a fork has pytest's, which are errors
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=2 * SECONDS),
    )
    groups = {ranks: dist.new_group(list(range(ranks))) for ranks in range(1, RANKS + 1)}
    while True:
        ranks, (module, name), arguments = end.recv()
        try:
            end.send((True, getattr(importlib.import_module(module), name)(groups[ranks], *arguments)))
        except Exception:  # whatever it is: the caller gets it, and the rank continues
            end.send((False, f"rank {rank}: {traceback.format_exc()}"))
