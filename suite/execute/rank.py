"""One rank as a process: it ends with its parent, reports its events, and exits without an abort."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NoReturn

import msgspec

from suite.job.events import Event, Failed, Status, recording_path, stacks_path
from suite.machine import processes
from suite.machine.gpu import cuda_error
from suite.machine.processes import LAUNCH_VARIABLE
from suite.paths import whole_file


class NotFiniteError(ArithmeticError):
    """The loss is NaN or infinite; `at_fault`: this rank's share of it is."""

    def __init__(self, message: str, *, at_fault: bool) -> None:
        super().__init__(message)
        self.at_fault = at_fault


class Reporter:
    """Appends events to this rank's file, a JSON object a line, each with one write."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __call__(self, event: Event) -> None:
        os.write(self._file, msgspec.json.encode(event) + b"\n")


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, even if it is stopped. Linux only.

    If the parent died before the kernel was asked, another process is the parent now, one without the mark of the
    launch: then exit at once. (Python needs 0.1 s to get here.)
    """
    processes.die_with_parent()
    launch = os.environ.get(LAUNCH_VARIABLE)
    if launch is None or sys.platform != "linux":
        return
    if f"{LAUNCH_VARIABLE}={launch}".encode() not in processes.environment_of(os.getppid()):
        os._exit(1)


def answer_on_request(directory: str, rank: int) -> None:
    """On SIGUSR1, write the Python stacks of all threads, and the collectives of PyTorch's flight recorder.

    The signal's handler writes the stacks. The recorder must be asked in Python, while the main thread may wait in a
    collective for ever. So a second thread asks, which the signal wakes through a pipe.
    """
    file = open(stacks_path(directory, rank), "w", encoding="utf-8")  # noqa: SIM115  # open for the process's life
    awaken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGUSR1, lambda *_: None)  # a handler of Python's writes the signal's number to the pipe
    threading.Thread(target=_record_flights, args=(awaken, Path(recording_path(directory, rank))), daemon=True).start()
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True, chain=True)


def _record_flights(awaken: int, path: Path) -> None:
    while numbers := os.read(awaken, 64):
        if signal.SIGUSR1 in numbers and (recording := _flight_recording()):
            with whole_file(path) as temporary:
                temporary.write_bytes(recording)


def _flight_recording() -> bytes:
    """PyTorch's record of the last collectives as JSON: NCCL's, or else gloo's; empty if neither has one."""
    from torch._C import _distributed_c10d as recorders

    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        ask = getattr(recorders, name, None)
        recording = bytes(ask(True, False)) if ask else b""
        if b'"record_id"' in recording:
            return recording
    return b""


def failure(error: BaseException) -> Failed:
    """The event for an exception: its status, and whether this rank is at fault or saw another one fail."""
    import torch  # after die_with_parent, which must not wait for it

    text = "".join(traceback.format_exception(error))
    while error.__cause__ is not None and not isinstance(error, NotFiniteError):
        error = error.__cause__  # pipelines wrap what a stage raises
    line = f"{type(error).__name__}: {error}".splitlines()[0][:500]
    if isinstance(error, NotFiniteError):
        return Failed(Status.NAN, line, error.at_fault, text, time.time())
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error):
        return Failed(Status.OUT_OF_MEMORY, line, True, text, time.time())
    signs = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "Timed out", "timed out")
    of_peer = isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
    of_device = cuda_error(str(error))  # of this rank's own, also where a collective is what saw it
    if of_device not in line:
        line = f"{line}: {of_device}"[:500]
    return Failed(Status.CRASHED, line, not of_peer or bool(of_device), text, time.time())


def leave(code: int) -> NoReturn:
    """End the process at once: gloo's threads abort some plain exits, 2 of 10 (torch 2.13, CPU)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
