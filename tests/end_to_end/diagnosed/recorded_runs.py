"""The table of small runs, and their logs and traces: as they were recorded, or of runs that are started here."""

from __future__ import annotations

import gzip
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from suite.__main__ import main

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
RUN_SECONDS = 300
_STEPS = 2  # kept of a trace
_KEPT_ARGUMENTS = ("Sequence number", "Fwd thread id", "Collective name", "Process Group Name", "Process Group Ranks")


class SmallRun(msgspec.Struct, frozen=True):
    """A run of small_runs.py, and what `diagnose` names of it.

    Args:
        against: name of the run that it is compared with.
        cause: what one of the first three causes begins with; None: no cause is named.
        is_first: whether that is the first.
    """

    framework: str
    fault: str = "none"
    ranks: int = 1
    traced: bool = False
    against: str | None = None
    cause: str | None = None
    is_first: bool = True


class _Table(msgspec.Struct):
    versions: dict[str, str]
    runs: dict[str, SmallRun]


TABLE = msgspec.toml.decode((HERE / "runs.toml").read_text(encoding="utf-8"), type=_Table)
RUNS = TABLE.runs
DIAGNOSED = {name: run for name, run in RUNS.items() if run.cause or run.ranks == 1}


def named_causes(name: str, folder: Path, capsys: Any) -> list[str]:
    """Words of the causes that `diagnose` names of a run whose log or traces are in `folder`."""
    run = RUNS[name]
    files = map(str, files_of(name, folder))
    other = []
    if run.against:
        other = ["--against", *map(str, files_of(run.against, folder)[:1])]
    main(["diagnose", *(list(files)[: 1 if run.against else None]), *other, "--json"])
    answer = json.loads(capsys.readouterr().out)
    return [cause["words"] for cause in answer.get("diagnosis", answer)["causes"]]


def files_of(name: str, folder: Path) -> list[Path]:
    """The log of a run, or its traces in the order of its ranks."""
    return sorted(folder.glob(f"{name}.rank*.json.gz" if RUNS[name].traced else f"{name}.log"))


def record(name: str, folder: Path, made: Path) -> None:
    """Start a run, and keep its log or traces in `folder`, without paths and what is not read.

    Args:
        made: an empty folder for all that the run writes.
    """
    run = RUNS[name]
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    processes = []
    for rank in range(run.ranks):
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": run.ranks, "LOCAL_WORLD_SIZE": run.ranks}
        if run.framework != "deepspeed":
            numbers = {}
        settings = {"OMP_NUM_THREADS": 1, "HF_HUB_OFFLINE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, **{word: str(value) for word, value in (numbers | settings).items()}}
        environment |= {"TRACED": "1"} if run.traced else {}
        with (made / f"log{rank}").open("wb") as log:
            command = [sys.executable, str(HERE / "small_runs.py"), run.framework, run.fault, str(made)]
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    codes = [process.wait(timeout=RUN_SECONDS) for process in processes]
    text = (made / "log0").read_text(encoding="utf-8", errors="replace")
    assert codes == [0] * run.ranks, text[-2000:]
    if run.traced:
        for rank, path in enumerate(sorted(made.glob("*trace*json*"))):
            write_trace(path, folder / f"{name}.rank{rank}.json.gz", rank)
    else:
        (folder / f"{name}.log").write_text("\n".join(log_lines(text)), encoding="utf-8", newline="")


def log_lines(text: str) -> Iterator[str]:
    """Lines of a log without warnings of the process and its paths, which say where it ran."""
    for line in text.split("\n"):
        if "/" + "site-packages" not in line and not re.search(r"(?:^|[\s'\"])/\w+/", line):
            yield line


def _kept_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    kept = {word: arguments[word] for word in _KEPT_ARGUMENTS if word in arguments}
    if kept.get("Fwd thread id", 0) != 0:  # in the backward pass
        del kept["Sequence number"], kept["Fwd thread id"]
    return kept


def write_trace(path: Path, to: Path, rank: int) -> None:
    """Write the host's events of a trace, with the fields that are read, of its marked steps or of five updates."""
    text = path.read_bytes()
    events = json.loads(gzip.decompress(text) if path.suffix == ".gz" else text)["traceEvents"]
    kept = [each for each in events if each.get("ph") == "X" and each.get("cat") in ("cpu_op", "user_annotation")]
    steps = [each for each in kept if each["name"].startswith("ProfilerStep#")]
    count = _STEPS
    if not steps:
        count = _STEPS + 1  # updates, between which there are steps
        steps = [each for each in kept if each["name"].startswith("Optimizer.step#")][2 : 3 + _STEPS]
    begin = min(each["ts"] for each in steps)
    end = max(each["ts"] + each["dur"] for each in sorted(steps, key=lambda each: each["ts"])[:count])
    threads: dict[Any, int] = {}
    trimmed = [
        {
            "ph": "X",
            "cat": each["cat"],
            "name": each["name"],
            "tid": threads.setdefault(each["tid"], len(threads)),
            "ts": round(each["ts"] - begin),
            "dur": round(each["dur"]),
            **({"args": kept_ones} if (kept_ones := _kept_arguments(each.get("args", {}))) else {}),
        }
        for each in kept
        if begin <= each["ts"] <= end
    ]
    head = {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": trimmed}
    to.write_bytes(gzip.compress(json.dumps(head, separators=(",", ":")).encode(), 9, mtime=0))
