"""How long a command of the suite takes, whatever speed the processor happens to have at the moment."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys

from suite.paths import ROOT

# A process that, like a command, imports Python modules and little else; nothing of ours is in it.
YARDSTICK = (
    "-I",
    "-c",
    "import asyncio, email.mime.multipart, http.server, logging.config, unittest.mock, xml.dom.minidom",
)
YARDSTICK_SECONDS = 0.1  # where the stated times hold; an AMD EPYC has taken 0.14 to 0.25 s in its slow hours
TURNS = 7


def command_seconds(*arguments: str, turns: int = TURNS) -> float:
    """Processor seconds of `python -m suite ARGUMENTS`, the median of runs, where the yardstick takes as stated.

    On a quiet machine they are the wall time, as such a command waits for nothing. Virtual processors have slow phases
    of seconds: each run is divided by one of the yardstick next to it. Bytecode is kept, as usual, whatever this
    process does: compiling all that it imports would nearly double a command's time.
    """
    ratios = []
    for _ in range(turns):
        yardstick = _processor_seconds(*YARDSTICK)
        ratios.append(_processor_seconds("-m", "suite", *arguments) / yardstick)
    return statistics.median(ratios) * YARDSTICK_SECONDS


def slowness(turns: int = TURNS) -> float:
    """How many times as long as stated the yardstick takes now, the median of runs."""
    return statistics.median(_processor_seconds(*YARDSTICK) for _ in range(turns)) / YARDSTICK_SECONDS


def _processor_seconds(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=kept, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
