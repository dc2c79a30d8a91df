"""One command on one node by ReFrame's own runner: prints what it said, and ends as it does.

python -m suite.fleet.reframe_command RESULTS NODE LABEL COMMAND…

ReFrame takes the site's configuration from RFM_CONFIG_FILES, and system and partition from RFM_SYSTEM. Its files lie
below RESULTS, which all nodes see, until it ends.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from suite.fleet.engines.reframe_engine import NOT_STARTED, reframe_program
from suite.launch import slurm
from suite.launch.interruption import check_interrupted, end_as_interrupted, held, interrupted_by
from suite.machine.processes import die_with_parent
from suite.paths import ROOT
from suite.reproduce.scheduled import scratch

CHECK = ROOT / "deploy" / "reframe" / "command.py"
POLL_SECONDS = 0.2
CANCELLED_WITHIN_SECONDS = 15.0  # less than what a fleet grants this command
CONFIGURATION = "RFM_CONFIG_FILES"
_ENDED = re.compile(r"suite: exit code (\d+)\s*\Z")  # of the check


class _TestedCase(msgspec.Struct):
    """A check on one partition as a report of ReFrame has it."""

    result: str
    fail_phase: str | None = None
    fail_reason: str | None = None


class _Run(msgspec.Struct):
    testcases: list[_TestedCase]


class _Report(msgspec.Struct):
    runs: list[_Run]


def main() -> int:
    """Run it, and say how it ended."""
    results, node, label, *command = sys.argv[1:]
    end_as_interrupted()
    try:
        with scratch(Path(results), shared=True) as place:
            return _ended(Path(place), node, label, command)
    except KeyboardInterrupt:
        return 128 + (interrupted_by() or 0)


def _ended(place: Path, node: str, label: str, command: list[str]) -> int:
    said, report, output = place / "said", place / "report.json", place / "output"
    request = {"node": node, "label": label, "directory": str(ROOT), "command": command, "said": str(said)}
    (place / "request.json").write_bytes(msgspec.json.encode(request))
    words = [reframe_program(), "-c", str(CHECK), "-S", f"request={place}/request.json", "-r", "--nocolor"]
    words += ["--prefix", str(place / "reframe"), "--report-file", str(report)]
    with output.open("wb") as lines, held():
        process = subprocess.Popen(
            words,
            cwd=place,
            env=os.environ | _configuration(),
            stdin=subprocess.DEVNULL,
            stdout=lines,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
    try:
        while process.poll() is None:
            check_interrupted()
            time.sleep(POLL_SECONDS)
    finally:
        _end(process, label)
    if not said.exists():
        print(f"{NOT_STARTED}: {_reason(report, output)}")
        return 1
    text = said.read_text(encoding="utf-8", errors="replace")
    if (code := _ENDED.search(text)) is not None:
        print(text[: code.start()], end="")
        return int(code[1])
    print(text, _reason(report, output), sep="\n")
    return 1


def _configuration() -> dict[str, str]:
    """The site's files from the directory of ReFrame's: they may be given from the one of this command."""
    if not (files := os.environ.get(CONFIGURATION)):
        return {}
    return {CONFIGURATION: ":".join(str(Path(name).absolute()) if name else "" for name in files.split(":"))}


def _end(process: subprocess.Popen[bytes], label: str) -> None:
    """ReFrame cancels its job when it is asked to end; not one whose number Slurm has not answered yet."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            process.wait(CANCELLED_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        slurm.cancel(label)


def _reason(report: Path, output: Path) -> str:
    """Why it failed: by the report, or where there is none by the last line that ReFrame printed."""
    with suppress(OSError, msgspec.MsgspecError):
        runs = msgspec.json.decode(report.read_bytes(), type=_Report).runs
        failed = [case for run in runs for case in run.testcases if case.result in ("fail", "abort")]
        if failed:
            return " ".join((failed[0].fail_reason or failed[0].fail_phase or "no reason").split())
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if "ERROR" in line or "error:" in line]
    return next((line.strip() for line in (errors or lines)[::-1] if line.strip()), "it said nothing")


if __name__ == "__main__":
    sys.exit(main())
