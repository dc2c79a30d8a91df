"""An export of Nsight Systems, written here with the tables of its documentation, has the terms of Kineto's trace."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from reference_runs.errors import InputError
from reference_runs.training_traces.kineto import kineto_traces
from reference_runs.training_traces.nsight import nsight_traces
from suite.predict.diagnosis.trace_terms import step_terms
from tests.support.gpu_traces import GpuTrace, gpu_steps

PROCESS = (7 << 32) + (
    4711 << 24
)  # of a global process: hardware, machine, and number; a thread's last 24 bits are its own
TABLES = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
    correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER,
    nameId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER);
"""


def export(trace: GpuTrace, path: Path) -> Path:
    names: dict[str, int] = {}
    with closing(sqlite3.connect(path)) as database:
        database.executescript(TABLES)
        for event in trace.events:
            start = int(event["ts"] * 1000)
            end = start + int(event["dur"] * 1000)
            name = names.setdefault(event["name"], len(names) + 1)
            of = event["args"].get("correlation")
            if event["cat"] == "kernel":
                row = (start, end, 0, 7, of, PROCESS, name, name)
                database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            elif event["cat"] == "cuda_runtime":
                row = (start, end, PROCESS + 12, of, name)
                database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", row)
            else:
                row = (start, end, 59, None, PROCESS + 12, name)
                database.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)", row)
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, text) for text, number in names.items()])
        database.commit()
    return path


def test_both_profilers_show_the_same_terms(tmp_path: Path) -> None:
    trace = gpu_steps(loading=30_000.0, logging=2000.0, message=9000.0)
    [kineto] = map(step_terms, kineto_traces(trace.write(tmp_path / "trace.json")))
    [nsight] = map(step_terms, nsight_traces(export(trace, tmp_path / "rank3.sqlite")))
    assert nsight.terms == pytest.approx(kineto.terms)
    assert (nsight.steps, nsight.kernels, nsight.waits) == (kineto.steps, kineto.kernels, kineto.waits)
    assert nsight.rank == 3


def test_the_export_is_not_written_to(tmp_path: Path) -> None:
    path = export(gpu_steps(steps=1), tmp_path / "trace.sqlite")
    before = path.read_bytes()
    nsight_traces(path)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (before, [path])


@pytest.mark.parametrize("damage", ["cut", "no kernels", "no tables"])
def test_a_damaged_export_is_refused_in_a_line(tmp_path: Path, damage: str) -> None:
    path = export(gpu_steps(steps=1), tmp_path / "trace.sqlite")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:9000])
    else:
        table = "CUPTI_ACTIVITY_KIND_KERNEL"
        statements = {"no kernels": f"DELETE FROM {table}", "no tables": f"DROP TABLE {table}"}  # noqa: S608  # no input
        with closing(sqlite3.connect(path)) as database:
            database.execute(statements[damage])
            database.commit()
    with pytest.raises(InputError, match="not an export of Nsight Systems|no kernel in it"):
        nsight_traces(path)
