"""Processes that count ranks without their memory, side by side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TextIO

import msgspec

from suite.job.dry_run_job import Answer, AskedRank, NotCounted
from suite.job.training_job import Job
from suite.launch.interruption import check_interrupted, held
from suite.machine.processes import die_with_parent
from suite.machine.scratch import scratch_directory
from suite.paths import ROOT

TAIL = 2000  # characters of a worker's messages that are kept


def answers(job: Job, asked: Sequence[AskedRank], *, workers: int) -> Iterator[Answer]:
    """Counts of ranks, as they come. The first failure is the last answer.

    No worker outlives the iterator; if this process is killed, the kernel kills them.

    Args:
        asked: the ranks, and what is counted of each.
    """
    waiting, answered = SimpleQueue[AskedRank](), SimpleQueue[Answer]()
    for question in sorted(asked, key=lambda each: -_passes(job, each)):  # the longest first
        waiting.put(question)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(scratch_directory()))
        (scratch / "job.json").write_bytes(msgspec.json.encode(job))
        processes: list[subprocess.Popen[str]] = []
        conversations: list[threading.Thread] = []
        stack.callback(_end, processes, conversations)
        for number in range(min(workers, len(asked))):
            log = stack.enter_context((scratch / f"{number}.log").open("w"))
            with held():
                processes.append(_worker(scratch / "job.json", log))
            talk = (processes[-1], Path(log.name), waiting, answered)
            conversations.append(threading.Thread(target=_converse, args=talk, daemon=True))
            conversations[-1].start()
        for _ in asked:
            answer = answered.get()
            check_interrupted()
            yield answer
            if isinstance(answer, NotCounted):
                return


def _passes(job: Job, asked: AskedRank) -> int:
    """Number of passes through layers, in all steps."""
    return (asked.layers or job.architecture.layers) * sum(step.micro_batches for step in asked.steps)


def _worker(job: Path, log: TextIO) -> subprocess.Popen[str]:
    return subprocess.Popen(
        _command(job),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=environment(),
        start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the others
        preexec_fn=die_with_parent,
    )


def _command(job: Path) -> list[str]:
    return [sys.executable, "-m", "suite.execute.dry_run", str(job)]


def environment() -> dict[str, str]:
    """Variables of a worker: one thread, and the suite among its modules."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path), "OMP_NUM_THREADS": "1"}


def _converse(
    process: subprocess.Popen[str], log: Path, waiting: SimpleQueue[AskedRank], answered: SimpleQueue[Answer]
) -> None:
    """Give a worker one rank after the other, until none is left or it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    while True:
        try:
            asked = waiting.get_nowait()
        except Empty:
            break
        try:
            os.write(process.stdin.fileno(), msgspec.json.encode(asked) + b"\n")  # unbuffered: nothing is left of it
            line = process.stdout.readline()
        except OSError:  # it has ended
            line = ""
        if not line:
            said = log.read_text(errors="replace")[-TAIL:]
            message = f"the worker of rank {asked.rank} ended with {process.wait()}"
            answered.put(NotCounted(rank=asked.rank, message=message, traceback=said))
            return
        try:
            answered.put(msgspec.json.decode(line, type=Answer))
        except msgspec.MsgspecError:
            message = f"no answer of rank {asked.rank}: {line[:200]!r}"
            answered.put(NotCounted(rank=asked.rank, message=message, traceback=""))
            return
    process.stdin.close()


def _end(processes: Sequence[subprocess.Popen[str]], conversations: Sequence[threading.Thread]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # of its own session, with the child that counts
    for process, conversation in zip(processes, conversations, strict=False):
        conversation.join()
        with process, suppress(OSError):  # waits for it, and closes what is left of the pipes
            pass
