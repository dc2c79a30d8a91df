"""Commands as they are typed: what they say, what they answer in JSON, and how they refuse their input."""

from __future__ import annotations

import json
import shlex

import pytest

from suite.__main__ import main
from tests.support.refusals import only_line

WORKING = "searching layouts: "  # how a command that takes seconds begins to say so


@pytest.fixture
def said(capsys):
    """A function that runs a command, expects its exit code, and returns what it printed."""

    def run(*arguments, code=0):
        assert main([*arguments]) == code
        return capsys.readouterr().out

    return run


@pytest.fixture
def answered(said):
    """A function that runs a command with --json, expects its exit code, and returns its one object."""

    def run(*arguments, code=0):
        (line,) = said(*arguments, "--json", code=code).splitlines()
        return json.loads(line)

    return run


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


@pytest.fixture
def not_refused(capsys, tmp_path, monkeypatch):
    """A function that lists the entries of a table that are not refused as the table says.

    An entry has arguments, and words that the one line on stderr has, one text or several. Exit code 2, an empty
    stdout and no results directory belong to a refusal. Words in `command` and `options` stand around the arguments;
    RESULTS is the results directory.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    results = tmp_path / "results"

    def run(command, table, options=""):
        wrong = []
        for arguments, words in table:
            typed = f"{command} {arguments} {options}".replace("RESULTS", str(results))
            code = main(shlex.split(typed))
            out, err = capsys.readouterr()
            err = "".join(line for line in err.splitlines(keepends=True) if not line.startswith(WORKING))
            is_line = err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err
            found = all(each in err for each in ([words] if isinstance(words, str) else words))
            if (code, out, is_line, found, results.exists()) != (2, "", True, True, False):
                wrong.append((typed, code, out, err))
        return wrong

    return run
