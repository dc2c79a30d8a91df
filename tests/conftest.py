from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest

from suite.machine.devices import has_driver
from tests.support.covering import make_others_rare
from tests.support.examples import register
from tests.support.warm_ranks import launch_warm_ranks

gc.disable()  # until all files are imported, which leaves no garbage
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # what tests start sees it, also where the tests run under nohup
os.environ.pop("COLUMNS", None)  # of the terminal that tests are started from, or set by their workers
os.environ["SUITE_CALIBRATE"] = "0"  # no test's `reproduce` measures the machine unless it says so
if not has_driver():
    os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are imported: theirs run on the CPU

LONGEST_FIRST = (  # of launches
    "test_chosen_layouts.py",
    "test_comparison.py",
    "test_faults.py",
)

register()


def pytest_addoption(parser: pytest.Parser) -> None:
    """To import all files costs each process 17 s (an Intel Xeon, 2026-11-26)."""
    parser.addoption("--naming", default="", help="leave out test files without these words, such as mark.ranks")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    words = config.getoption("naming")
    is_test = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    return True if is_test and words not in collection_path.read_text(encoding="utf-8") else None


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files are begun first: the last ones would run alone."""
    make_others_rare(items)
    order = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


def pytest_collection_finish() -> None:
    """Garbage is looked for from now on, and not among the half a million objects of what is imported."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """OpenMP's threads of what a test starts sleep while they wait, unless it measures times.

    By default they spin: where other processes want the cores too, 20 steps of 60,000 parameters took 94 s, not 2.
    """
    if item.get_closest_marker("timing"):
        os.environ.pop("OMP_WAIT_POLICY", None)
    else:
        os.environ["OMP_WAIT_POLICY"] = "passive"


@pytest.fixture
def warm_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that this process launches on CPUs, or runs dry, are forks of one that has imported what they need."""
    launch_warm_ranks(monkeypatch)
