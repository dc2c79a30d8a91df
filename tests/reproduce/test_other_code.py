"""A launch by other code is asked to end when this process is interrupted or its time is over."""

from __future__ import annotations

import pytest

from suite.launch.interruption import OutOfTimeError
from suite.reproduce import other_code
from suite.reproduce.other_code import old_launch

PATIENT = """
import pathlib, signal, sys, time
def ended(*_):
    pathlib.Path("ended").write_text("its record is whole")
    sys.exit(130)
signal.signal(signal.SIGINT, ended)
pathlib.Path("started").touch()
while True:
    time.sleep(0.05)
"""
DEAF = """
import pathlib, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
pathlib.Path("started").touch()
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def tree(tmp_path):
    """A function that makes a working tree whose suite is this text."""

    def made(text):
        (tmp_path / "suite").mkdir()
        (tmp_path / "suite" / "__init__.py").touch()
        (tmp_path / "suite" / "__main__.py").write_text(text)
        return tmp_path

    return made


@pytest.fixture
def interrupted(monkeypatch):
    """A function that interrupts, as soon as a tree's suite has started."""

    def so(place, ending):
        def once_started():
            if (place / "started").exists():
                raise ending

        monkeypatch.setattr(other_code, "check_interrupted", once_started)

    return so


@pytest.mark.parametrize("ending", [OutOfTimeError, KeyboardInterrupt])
def test_it_ends_its_record_before_this_process_goes_on(tree, interrupted, ending):
    place = tree(PATIENT)
    interrupted(place, ending)
    with pytest.raises(ending):
        old_launch(place, [])
    assert (place / "ended").read_text() == "its record is whole"


def test_one_that_does_not_end_is_killed(tree, interrupted, monkeypatch):
    place = tree(DEAF)
    interrupted(place, OutOfTimeError)
    monkeypatch.setattr(other_code, "ENDING_SECONDS", 0.2)
    with pytest.raises(OutOfTimeError):
        old_launch(place, [])
