"""A process that does not outlive the block which started it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from suite.launch.interruption import held
from suite.paths import ROOT

ASKED_SECONDS = 20.0  # a battery that is asked to end kills its ranks, and stores what it knows
GONE_SECONDS = 10.0


@contextmanager
def child(
    command: Sequence[str], environment: Mapping[str, str], *, out: int | IO[bytes], err: int | IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """The process, at the checkout's root. After the block it is asked to end, and killed with its children."""
    process = None
    try:
        with held():  # a signal that comes now waits until the process can be ended
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=err)
        yield process
    finally:
        if process is not None:
            end(process)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end, then kill it and its children; they are gone 30 s later at most."""
    import psutil

    if process.poll() is not None:
        return
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(ASKED_SECONDS)
            return
        children += psutil.Process(process.pid).children(recursive=True)
        for each in children:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.kill()
        psutil.wait_procs(children, timeout=GONE_SECONDS)
    process.wait()
