"""A process that has collected an area's tests: it knows which run a line, and each of its forks tries one mutant."""

from __future__ import annotations

import functools
import gc
import linecache
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.mutation.swap import LiveFunctions, changed_functions, live_functions, swap
from benchmarks.mutation.trial import OPTIONS, Noted, Trial, TrialOutcome, answer_of_fork

CHOICE = "not rare and not alone"


class CollectedTests(msgspec.Struct, frozen=True):
    """The tests of an area, unmutated.

    Args:
        names, seconds: of each test, `work` its seconds of a processor, which others on the machine lengthen less.
        lines: of each module, the tests that run each line.
        at_import: of each module, the lines that run while tests are collected.
        failures: what fails without any mutant; `failed` its tests, by index.
    """

    names: list[str]
    seconds: list[float]
    lines: dict[str, dict[int, list[int]]]
    at_import: dict[str, list[int]]
    failures: list[str]
    failed: list[int] = []
    work: list[float] = []


class TrialRequest(msgspec.Struct, frozen=True):
    """A module with the text that is mutated, and the tests to run, by index."""

    module: str
    text: str
    tests: list[int]
    limit_seconds: float


class WarmTests:
    """The process; `close` ends it."""

    def __init__(self, root: Path, files: Sequence[str], modules: Sequence[str], log: Path) -> None:
        here, there = socket.socketpair()
        sys.stdout.flush()
        self._process = os.fork()
        if self._process == 0:
            here.close()
            _warm(root, files, modules, log, there)
        there.close()
        self._stream = here.makefile("rwb")
        here.close()
        said = self._stream.readline()
        if said.strip():
            self.collected = msgspec.json.decode(said, type=CollectedTests)
        else:
            end = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            self.collected = CollectedTests([], [], {}, {}, [f"the tests cannot be collected, or do not end: {end}"])

    def tried(self, request: TrialRequest) -> Trial | None:
        """Trial of the mutant; None where only a new import can show it."""
        self._stream.write(msgspec.json.encode(request) + b"\n")
        self._stream.flush()
        return msgspec.json.decode(self._stream.readline(), type=Trial | None)

    def close(self) -> None:
        """End the process, with all that it started."""
        for target in (os.killpg, os.kill):
            try:
                target(self._process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        os.waitpid(self._process, 0)


def _warm(root: Path, files: Sequence[str], modules: Sequence[str], log: Path, end: socket.socket) -> None:
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(output, stream)
        import pytest

        pytest.main([*OPTIONS, "-m", CHOICE, *files], plugins=[_Served(root, modules, end)])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


class _Served:
    """A plugin of pytest: in place of running the collected tests it serves requests."""

    def __init__(self, root: Path, modules: Sequence[str], end: socket.socket) -> None:
        import coverage

        self._root, self._modules, self._end = root, modules, end
        self._stream = end.makefile("rwb")
        paths = [str(root / module) for module in modules]
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=paths)
        self._coverage.set_option("run:disable_warnings", ["no-data-collected", "module-not-imported"])
        self._failures: list[str] = []
        self._coverage.start()  # before any file of tests, conftest.py too, imports a module

    def pytest_collection(self) -> None:
        """Before the files are imported: examples that fail are not made smaller."""
        from hypothesis import Phase, settings

        settings.register_profile("mutation", settings(), phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutation")

    def pytest_collectreport(self, report: object) -> None:
        """A file that cannot be collected fails without any mutant."""
        if getattr(report, "failed", False):
            self._failures.append(f"{getattr(report, 'nodeid', '')}: {str(getattr(report, 'longrepr', ''))[-300:]}")

    def pytest_runtestloop(self, session: object) -> bool:
        """Run all tests once in a fork, and then some for each request."""
        items = getattr(session, "items", [])
        self._coverage.stop()
        data = self._coverage.get_data()
        at_import = {module: sorted(data.lines(str(self._root / module)) or ()) for module in self._modules}
        gc.collect()
        gc.freeze()
        self._say(answer_of_fork(lambda: msgspec.json.encode(self._unmutated(items, at_import)), limit_seconds=3600)[0])
        gc.unfreeze()
        live = live_functions(str(self._root / module) for module in self._modules)
        gc.freeze()
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        for line in self._stream:
            self._say(msgspec.json.encode(self._tried(msgspec.json.decode(line, type=TrialRequest), items, live)))
        return True

    def _say(self, message: bytes) -> None:
        self._stream.write(message + b"\n")
        self._stream.flush()

    def _unmutated(self, items: Sequence[object], at_import: dict[str, list[int]]) -> CollectedTests:
        self._coverage.erase()
        self._coverage.start()
        seconds, work, failed, following = list[float](), list[float](), list[int](), sys.gettrace()
        for index, item in enumerate(items):
            if sys.gettrace() is not following:  # a test took it away
                print("lines were no longer followed before", getattr(item, "nodeid", ""), flush=True)
                sys.settrace(following)
            forget_results()
            self._coverage.switch_context(str(index))
            began, worked, noted = time.monotonic(), sum(os.times()[:4]), Noted()
            _run(item, items[index + 1] if index + 1 < len(items) else None, noted)
            seconds.append(time.monotonic() - began)
            work.append(sum(os.times()[:4]) - worked)
            if noted.trial is not None:
                failed.append(index)
                self._failures.append(f"{noted.trial.test}: {noted.trial.error}")
        self._coverage.stop()
        data, lines = self._coverage.get_data(), {}
        for module in self._modules:
            contexts = data.contexts_by_lineno(str(self._root / module))
            lines[module] = {line: sorted(int(name) for name in names if name) for line, names in contexts.items()}
        names = [str(getattr(item, "nodeid", "")) for item in items]
        return CollectedTests(names, seconds, lines, at_import, self._failures, failed, work)

    def _tried(self, request: TrialRequest, items: Sequence[object], live: LiveFunctions) -> Trial | None:
        path = self._root / request.module
        old = path.read_text(encoding="utf-8")
        changed = changed_functions(str(path), old, request.text)
        if not changed:
            return None
        chosen = [items[index] for index in request.tests]

        def session() -> bytes:
            linecache.clearcache()  # Triton's interpreter reads the text of kernels, when they first run
            swap(live, str(path), changed)
            noted = Noted()
            for item, following in zip(chosen, [*chosen[1:], None], strict=True):
                _run(item, following, noted)
                if noted.trial is not None:
                    break
            outcome = TrialOutcome.SURVIVED if noted.passed else TrialOutcome.BROKEN
            return msgspec.json.encode(noted.trial or Trial(outcome, passed=noted.passed))

        path.write_text(request.text, encoding="utf-8")  # for processes that tests start
        try:
            said, spent = answer_of_fork(session, limit_seconds=request.limit_seconds)
        finally:
            path.write_text(old, encoding="utf-8")
        return Trial.of(said, spent, request.limit_seconds)


def forget_results() -> None:
    """Empty the caches of the suite's functions: what one test has cached, another one would not run."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("suite", "kernels"):
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()


def _run(item: object, following: object, noted: Noted) -> None:
    config = getattr(item, "config", None)
    manager = config.pluginmanager  # type: ignore[union-attr]  # an item of pytest has one
    manager.register(noted)
    try:
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)  # type: ignore[union-attr]
    finally:
        manager.unregister(noted)
