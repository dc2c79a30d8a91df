"""Write made-up batteries of many nodes, take them into the store of `fleet report`, and measure time and memory.

Each record is a recorded one, of full size, with another node, time and values; one node in a hundred is slow. The
files are in the system's cache when they are taken in. Processor seconds of commands have Python's start in them.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from suite.fleet.fleet_record import SCHEMA, FleetEnd, FleetRow
from suite.paths import ROOT

NODES_PER_RACK = 32
FIRST = 1_760_000_000.0  # seconds since 1970
INTERVAL = 86_400.0
SLOW_NODE = 100  # one node in so many
SLOW = 0.8


def template() -> tuple[dict[str, Any], dict[str, Any]]:
    """Both halves of the newest recorded battery."""
    path = sorted((ROOT / "results" / "recorded" / "acceptance").glob("*.end.json"))[-1]
    begin = path.with_name(path.name.replace(".end.", ".begin."))
    return msgspec.json.decode(begin.read_bytes()), msgspec.json.decode(path.read_bytes())


class _Pieces:
    """A record's text, cut where its values stand: a million records are joined, not encoded."""

    def __init__(self, content: dict[str, Any]) -> None:
        text = msgspec.json.format(msgspec.json.encode(content), indent=1)
        self._pieces = re.split(rb'"@(\w+)@"', text)

    def joined(self, values: Mapping[str, object]) -> bytes:
        """The text with these values."""
        pieces = list(self._pieces)
        for place in range(1, len(pieces), 2):
            pieces[place] = msgspec.json.encode(values[pieces[place].decode()])
        return b"".join(pieces)


def write_records(results: Path, *, nodes: int, batteries: int, seed: int) -> int:
    """So many batteries of each node, and a fleet that names nodes and racks; the bytes of all."""
    values = random.Random(seed)
    begin, end = template()
    place = results / "acceptance"
    place.mkdir(parents=True)
    measured = {}
    for number, finding in enumerate(end["findings"]):
        if finding.get("measured") is not None:
            measured[f"m{number}"] = finding["measured"]
            finding["measured"] = f"@m{number}@"
    begin |= {"id": "@id@", "node": "@node@", "started": "@started@"}
    end |= {"id": "@id@", "node": "@node@", "finished": "@finished@", "decision": "accepted"}
    halves = {"begin": _Pieces(begin), "end": _Pieces(end)}
    written, rows = 0, []
    for node in range(nodes):
        name = f"{node:08x}"
        for number in range(batteries):
            when = FIRST + number * INTERVAL + node
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(when))
            identity = f"{stamp}__{name}__{values.getrandbits(32):08x}"
            factor = SLOW if node % SLOW_NODE == 0 else 1.0
            shifted = {key: value * factor * values.gauss(1.0, 0.01) for key, value in measured.items()}
            facts = shifted | {"id": identity, "node": name, "started": when - 300, "finished": when}
            for half, pieces in halves.items():
                data = pieces.joined(facts)
                with open(f"{place}/{identity}.{half}.json", "wb") as file:
                    file.write(data)
                written += len(data)
        switch = f"rack{node // NODES_PER_RACK}"
        rows.append(FleetRow(node=f"n{node}", verdict="accepted", switch=switch, battery=identity))
    fleet = results / "fleet" / "made-up"
    fleet.mkdir(parents=True)
    last = FleetEnd(schema=SCHEMA, id="made-up", finished=FIRST + batteries * INTERVAL + nodes, rows=rows)
    (fleet / "end.json").write_bytes(msgspec.json.encode(last))
    return written


def measured_call(name: str, call: Callable[[], object]) -> None:
    """Print elapsed and processor seconds of a call that waits for its processes."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    call()
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - begun
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{name:32} {seconds:8.2f} s elapsed {processor:8.2f} s of processors", flush=True)


def report(results: Path, *options: str) -> None:
    """`fleet report`, whose memory is the largest sum of its processes' resident sets."""
    import psutil

    command = [sys.executable, "-m", "suite", "fleet", "report", str(results), "--json", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        most = 0
        while process.poll() is None:
            try:
                tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
                most = max(most, sum(one.memory_info().rss for one in tree))
            except psutil.Error:
                continue
            time.sleep(0.05)
    print(f"{'':32} {most / 2**20:8.0f} MiB at most, exit code {process.returncode}")


def ask(results: Path) -> None:
    """Time questions inside one process, after the start of Python and of DuckDB."""
    from suite.fleet.battery_queries import FleetSelection, FleetStore
    from suite.fleet.battery_store import STORE

    questions: dict[str, Callable[[FleetStore], Sequence[object]]] = {
        "history of a node": lambda store: store.history(FleetSelection(node="n7")),
        "table of all nodes": lambda store: store.nodes(FleetSelection()),
        "outliers": lambda store: store.outliers(),
    }
    for name, question in questions.items():
        for _ in range(3):
            begun, processor = time.perf_counter(), time.process_time()
            found = question(FleetStore(results / STORE))
            seconds, used = time.perf_counter() - begun, time.process_time() - processor
            print(f"{name:32} {seconds:8.3f} s elapsed {used:8.3f} s of processors, {len(found)} found")


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.fleet_records", description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--batteries", type=int, default=100, help="of each node")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--directory", type=Path, help="for the records; default: a temporary one")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        results = Path(directory, "results")
        size = write_records(results, nodes=given.nodes, batteries=given.batteries, seed=given.seed)
        print(f"{given.nodes * given.batteries:,} batteries, {size / 2**20:,.0f} MiB, load {os.getloadavg()[0]:.1f}")
        measured_call("ingestion and table", lambda: report(results))
        measured_call("nothing new, table", lambda: report(results))
        measured_call("history, --stored", lambda: report(results, "--stored", "--node", "n7"))
        stored = sum(path.stat().st_size for path in (results / "fleet-store").iterdir())
        print(f"store: {stored / 2**20:,.1f} MiB")
        ask(results)


if __name__ == "__main__":
    main(sys.argv[1:])
