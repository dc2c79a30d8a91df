from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.machine.devices import has_driver, usable_cores
from tests.support import choice
from tests.support.covering import make_others_rare
from tests.support.examples import register
from tests.support.turns import turn
from tests.support.warm_ranks import launch_warm_ranks

gc.disable()  # until all files are imported, which leaves no garbage
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # what tests start sees it, also where the tests run under nohup
os.environ.pop("COLUMNS", None)  # of the terminal that tests are started from, or set by their workers
os.environ["SUITE_CALIBRATE"] = "0"  # no test's `reproduce` measures the machine unless it says so
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # read when PyTorch is imported: a worker on every core computes in one thread
if not has_driver():
    os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are imported: theirs run on the CPU

LAUNCHES = 3  # at a time: while the ranks of one start, wait or end, those of the others compute
TURNS = "TESTS_TURNS"  # tells workers the directory of the lock that they share
turns = pytest.StashKey[Path]()

register()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--choice", choices=choice.CHOICES, default=choice.ALL, help="by tests/durations.tsv: see support/choice.py"
    )
    parser.addoption("--write-durations", type=Path, help="measure processor time, and write it to this file")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: while ranks start, wait for each other and end, theirs are idle."""
    return usable_cores() + 1


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files whose tests are all quick are not imported where only longer ones are wanted."""
    if config.getoption("choice") not in (choice.MEDIUM, choice.SLOW) or collection_path.suffix != ".py":
        return None
    tests = {test.partition("::")[0] for test in choice.read(choice.FILE)}
    name = str(collection_path.relative_to(config.rootpath))
    return True if collection_path.name.startswith("test_") and name not in tests else None


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    make_others_rare(items)
    durations = choice.read(choice.FILE)
    wanted = config.getoption("choice")
    if wanted != choice.ALL:
        chosen = choice.chosen([item for item in items if not item.get_closest_marker("rare")], durations, wanted)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]
    choice.put_long_files_first(items, durations)


def pytest_collection_finish() -> None:
    """Garbage is looked for from now on, and not among the half a million objects of what is imported."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Each test in its turn, where several run side by side.

    OpenMP's threads of what a test starts sleep while they wait. By default they spin: where other processes want the
    cores too, 20 steps of 60,000 parameters took 94 s, not 2. A test that runs alone has the usual settings.
    """
    alone, ranks = (item.get_closest_marker(name) is not None for name in ("alone", "ranks"))
    worker, directory = os.environ.get("PYTEST_XDIST_WORKER", ""), item.config.stash.get(turns, None)
    if alone:
        os.environ.pop("OMP_WAIT_POLICY", None)
    else:
        os.environ["OMP_WAIT_POLICY"] = "passive"
    if alone or ranks or not worker:
        os.environ.pop("OMP_NUM_THREADS", None)
    else:
        os.environ["OMP_NUM_THREADS"] = "1"
    place = f"ranks{int(worker.removeprefix('gw')) % LAUNCHES}" if worker and ranks else ""
    with turn(directory, alone=alone, place=place) if directory else contextlib.nullcontext():
        return (yield)


class Durations:
    """Notes the processor time of each test where it runs, and writes what all workers reported."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.seconds, self.clock = path, dict[str, float](), choice.Clock()

    def pytest_collection_finish(self) -> None:
        self.clock.lap()  # what it took to import the files is no test's

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":  # what the test patched, perhaps what the clock needs, is as it was
            item.user_properties.append((choice.PROPERTY, self.clock.lap()))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.seconds[report.nodeid] = float(str(dict(report.user_properties)[choice.PROPERTY]))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the file; for a part of the tests, or where one failed, it keeps what it had of the others."""
        if self.path:
            config = session.config
            is_all = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.getoption("keyword")
            is_whole = exitstatus == 0 and is_all
            choice.write(self.path, self.seconds, {} if is_whole else choice.read(self.path))


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if is_worker:
        config.stash[turns] = Path(os.environ.pop(TURNS))  # what its tests start are no workers of this run
    elif config.getoption("numprocesses", None):
        os.environ[TURNS] = tempfile.mkdtemp(prefix="tests-turns-")
    path = config.getoption("write_durations")
    if path:
        config.pluginmanager.register(Durations(None if is_worker else path))


def pytest_unconfigure() -> None:
    if TURNS in os.environ:
        shutil.rmtree(os.environ.pop(TURNS))


@pytest.fixture
def warm_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that this process launches on CPUs, or runs dry, are forks of one that has imported what they need."""
    launch_warm_ranks(monkeypatch)
