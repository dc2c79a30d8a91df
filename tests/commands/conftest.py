"""Commands that refuse their input, in one line, and leave nothing."""

from __future__ import annotations

import pytest

from suite.__main__ import main
from tests.support.refusals import only_line


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch):
    """A function that runs a command, expects its refusal, and returns the one line on stderr."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*arguments):
        assert main([*arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        return only_line(err)

    return run


@pytest.fixture
def reproduce_refused(refused, tmp_path):
    """As `refused`, for `reproduce` on the CPU: neither a record nor its directory may appear."""

    def run(name, *arguments):
        device = () if "--device" in arguments else ("--device", "cpu")
        line = refused("reproduce", name, *device, *arguments, "--results", str(tmp_path / "results"))
        assert not (tmp_path / "results").exists()
        return line

    return run


@pytest.fixture
def reasons(capsys, tmp_path, monkeypatch):
    """A function that runs `reproduce` on the CPU, expects its refusal, and returns the line of each reason."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(name, *arguments):
        assert main(["reproduce", name, "--device", "cpu", *arguments, "--results", str(tmp_path / "results")]) == 2
        assert not (tmp_path / "results").exists()
        out, err = capsys.readouterr()
        assert out == ""
        return [only_line(f"{line}\n") for line in err.splitlines()]

    return run
