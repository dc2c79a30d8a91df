"""Launches whose ranks are forks of a process that has imported PyTorch and the suite: each saves 2 s of a processor.

torchrun is PyTorch's own, in a fork too, and the ranks run the same modules with the same arguments, environment and
mark of their launch. What forks do not show: ranks have one seed of Python's hashes, where new processes have one each;
and what a launch needs besides its imports. So tests of launches and faults start new processes.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # who asks has no packages: it is started without them
    import pytest

    from suite.machine.interpreter import Interpreter

ROOT = Path(__file__).resolve().parents[2]
MARK = "SUITE_LAUNCH"
OWN = {MARK, "PYTEST_CURRENT_TEST", "OMP_NUM_THREADS"}  # what differs between launches of one server
MARK_BYTES = 200
TORCHRUN = ("torch.distributed.run", "suite.execute.torchrun")
MOST_SERVERS = 3  # of one process, each with the environment of some launches, and 0.2 GB
PRELOADED = (*TORCHRUN, "suite.execute.__main__", "suite.execute.dry_run.rank", "tests.end_to_end.layouts.worker")


def warm(command: list[str], environment: Mapping[str, str]) -> list[str]:
    """A command that does in this environment what `command` does: a Python module, or torchrun of one."""
    if command[:2] != [sys.executable, "-m"] or sys.platform != "linux":
        return command
    shared = tuple(sorted((name, value) for name, value in environment.items() if name not in OWN))
    server = _SERVERS.pop(shared, None) or _started(shared)
    _SERVERS[shared] = server  # the last one used stands last
    while len(_SERVERS) > MOST_SERVERS:
        _end(_SERVERS.pop(next(iter(_SERVERS))))
    return [sys.executable, "-I", "-S", __file__, server.socket, *command[2:]]


def launch_warm_ranks(patch: pytest.MonkeyPatch) -> None:
    """From now on, in this process."""
    from suite.launch import launcher
    from suite.launch.multi_host import Hosts
    from suite.reproduce.dry_run import workers

    command, environment, dry = launcher._command, launcher._environment, workers._command

    def warm_command(job: launcher.AnyJob, hosts: Hosts, identity: str, interpreter: Interpreter) -> list[str]:
        real = command(job, hosts, identity, interpreter)
        return warm(real, environment(job, "", hosts, interpreter)) if job.device == "cpu" else real

    patch.setattr(launcher, "_command", warm_command)
    patch.setattr(workers, "_command", lambda job: warm(dry(job), workers.environment()))


class Server(NamedTuple):
    """A process that forks launches for who connects to its (abstract) socket."""

    socket: str
    process: subprocess.Popen[bytes]


_SERVERS: dict[tuple[tuple[str, str], ...], Server] = {}


def _started(shared: tuple[tuple[str, str], ...]) -> Server:
    """A server with these variables: libraries read them as they are loaded."""
    path = f"warm-{os.getpid()}-{time.monotonic_ns()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.warm_ranks", path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**dict(shared), "OMP_NUM_THREADS": "1", MARK: "-" * MARK_BYTES},
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return Server(path, process)


def _end(server: Server) -> None:
    server.process.terminate()
    server.process.communicate()


@atexit.register
def _end_all() -> None:
    while _SERVERS:
        _end(_SERVERS.popitem()[1])


def ask(path: str, arguments: list[str]) -> int:
    """Have a launch done, with this process's environment and output; returns its exit code."""
    request = json.dumps([arguments, dict(os.environ), str(Path.cwd())]).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("\0" + path)
        socket.send_fds(connection, [len(request).to_bytes(8)], [0, 1, 2])
        connection.sendall(request)
        return (connection.recv(1) or b"\1")[0]  # nothing from a launch that was killed


def serve(path: str) -> None:
    """Import what ranks need, then fork a launch for each request."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    mark = libc.getenv(MARK.encode())  # what /proc shows of the environment lies there
    del os.environ[MARK]
    gc.disable()
    for module in PRELOADED:
        __import__(module)
        gc.disable()  # one of them ends by enabling it
    gc.freeze()
    gc.enable()
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a fork has no other threads"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + path)
        listener.listen()
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, _reap)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _launch(connection, mark)
            connection.close()


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _launch(connection: socket.socket, mark: int) -> None:
    _end_with_parent()
    os.setsid()
    header, files, _, _ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as stream:
        (module, *arguments), environment, directory = json.loads(stream.read(int.from_bytes(header)))
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(connection, fcntl.F_GETFL)
    fcntl.fcntl(connection, fcntl.F_SETFL, flags | os.O_ASYNC)  # SIGIO ends this process when the client has ended
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    identity = environment.get(MARK, "").encode()
    assert len(identity) <= MARK_BYTES
    ctypes.memmove(mark, identity.ljust(MARK_BYTES, b"\0"), MARK_BYTES)
    _replace_environment(environment)
    os.chdir(directory)
    if module in TORCHRUN:
        _take_forks(arguments)
    code = _run(module, arguments)
    connection.sendall(bytes([code & 255]))
    os._exit(code)


def _take_forks(arguments: list[str]) -> None:
    """Have torchrun take its ranks from forks."""
    given = dict(word.split("=", 1) for word in arguments if word.startswith("--") and "=" in word)
    starts = 1 + int(given.get("--max-restarts", 0))
    forks = [Fork() for _ in range(int(given["--nproc-per-node"]) * starts)]

    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    SubprocessHandler._popen = lambda _, command, variables: forks.pop(0).begin(command, variables)


class Fork:
    """A process that waits to become a rank; torchrun sees of it what it sees of a subprocess.Popen.

    It is made before torchrun starts threads.
    """

    def __init__(self) -> None:
        requests, self._request = os.pipe()
        begun, beginning = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._request)
            _end_with_parent()
            os.setsid()  # torchrun ends a rank by its process group
            os.close(beginning)
            with os.fdopen(requests, "rb") as stream:
                request = stream.readline()  # not to the end: forks after this one hold the pipe open too
            _become_rank(*json.loads(request))
        os.close(requests)
        os.close(beginning)
        os.read(begun, 1)
        os.close(begun)

    def begin(self, command: tuple[str, ...], environment: dict[str, str]) -> Fork:
        with os.fdopen(self._request, "wb") as stream:
            stream.write(json.dumps([command, environment]).encode() + b"\n")
        return self

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("rank", timeout or 0.0)
            time.sleep(0.01)
        return code


def _become_rank(command: list[str], environment: dict[str, str]) -> None:
    _, unbuffered, dash_m, module, *arguments = command
    assert (unbuffered, dash_m) == ("-u", "-m")
    _replace_environment(environment)
    os._exit(_run(module, arguments))


def _run(module: str, arguments: list[str]) -> int:
    """Runs the module as `python -m` does; returns the exit code that a Python process would have."""
    sys.argv = [module, *arguments]
    is_package = hasattr(sys.modules.get(module), "__path__")
    sys.modules.pop(f"{module}.__main__" if is_package else module, None)  # it runs as __main__ once more
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _replace_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
