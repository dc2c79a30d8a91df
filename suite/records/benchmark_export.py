"""Launches for services that keep benchmarks: PyTorch's benchmark database, Bencher, and asv.

Sources: PyTorch, pytorch/test-infra, its benchmark database's records of version 3; Bencher, Bencher Metric Format;
asv 0.6.6, results.py, benchmarks.py, machine.py (files of version 2, of machines 1).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reference_runs.errors import InputError
from suite.metrics.figures import Quantity
from suite.paths import ROOT, whole_file
from suite.records.summary import LaunchSummary

ASV_RESULTS, ASV_MACHINE = 2, 1  # versions of asv's files
_BENCHMARKS = "benchmarks.json"
_COMMIT = re.compile(r"\(([0-9a-f]{7,40})\b")
_SECONDS = ("step_seconds", "step_seconds_at_cpu_speed")
_COLUMNS = (
    *("result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25"),
    *("stats_q_75", "stats_number", "stats_repeat", "samples", "profile"),
)


class LaunchFigure(NamedTuple):
    """A measured figure of a whole launch.

    Args:
        predicted: None where nothing was.
    """

    launch: LaunchSummary
    quantity: str
    value: float
    predicted: float | None

    @property
    def execution(self) -> str:
        """Words that distinguish how a run was executed: layout, compiler, precision, kernels, hash of its policy."""
        launch = self.launch
        compiled = "compiled" if launch.compiled else "eager"
        words = (launch.layout, compiled, launch.precision, launch.kernels, *launch.optimizations)
        return " ".join((*words, f"batch{launch.global_batch}", f"policy-{launch.hashes.get('policy', '')[:8]}"))


def measured(launches: Iterable[LaunchSummary]) -> list[LaunchFigure]:
    """Measured figures of whole launches, without those of single axes, operations and terms."""
    return [
        LaunchFigure(launch, key[0], float(value), None if (p := launch.predicted.of(key[0])) is None else float(p))
        for launch in launches
        for key, value in launch.measured.items()
        if not any(key[1:])
    ]


def pytorch_records(figures: Iterable[LaunchFigure]) -> list[dict[str, Any]]:
    """Records of PyTorch's benchmark database, one a launch and figure; the target is the predicted value."""
    return [
        {
            "benchmark": {
                "name": "llm-reference-runs",
                "mode": "training",
                "dtype": each.launch.precision,
                "extra_info": {
                    **{
                        name: getattr(each.launch, name) for name in ("id", "layout", "ranks", "device", "global_batch")
                    },
                    **{name: getattr(each.launch, name) for name in ("machine", "node", "suite", "started", "kernels")},
                    "optimizations": list(each.launch.optimizations),
                },
            },
            "model": {
                "name": each.launch.run,
                "type": "OSS model",
                "origins": [],
                "backend": "inductor" if each.launch.compiled else "eager",
            },
            "metric": {
                "name": each.quantity,
                "benchmark_values": [each.value],
                **({} if each.predicted is None else {"target_value": each.predicted}),
                "extra_info": {"unit": _unit(each.quantity)},
            },
        }
        for each in figures
    ]


def bencher(figures: Iterable[LaunchFigure]) -> dict[str, dict[str, dict[str, float]]]:
    """A report in the Bencher Metric Format: benchmark -> measure -> median, and least and most of several launches.

    A report is of one commit on one machine: of each benchmark the newest suite's launches count.

    Raises:
        InputError: launches of several machines.
    """
    chosen = list(figures)
    if len(nodes := {each.launch.node for each in chosen}) > 1:
        what = "a report of Bencher is of one machine"
        raise InputError(what, got=f"{len(nodes)}: {', '.join(sorted(nodes))}", allowed="one", where="--machine")
    newest: dict[str, LaunchSummary] = {}
    for each in chosen:
        name = _name(each)
        if name not in newest or each.launch.started >= newest[name].started:
            newest[name] = each.launch
    report: dict[str, dict[str, dict[str, float]]] = {}
    for (name, quantity), values in _by(
        ((_name(each), each.quantity), each.value) for each in chosen if each.launch.suite == newest[_name(each)].suite
    ).items():
        spread = {"lower_value": min(values), "upper_value": max(values)} if len(values) > 1 else {}
        report.setdefault(name, {})[quantity] = {"value": statistics.median(values), **spread}
    return report


def _name(each: LaunchFigure) -> str:
    return f"{each.launch.run} {each.execution}"


def write_asv(figures: Iterable[LaunchFigure], directory: Path, *, force: bool = False) -> int:
    """Write or join a results directory of asv: benchmarks.json, of each machine machine.json and a file a commit.

    A benchmark is a figure of a run; its parameter is how it was executed. Benchmarks that are there stay, and so do
    facts of a machine that are there. Returns launches without a commit, which asv has no place for.

    Args:
        force: whether results that are there are overwritten, and benchmarks of the same name that are not from here.

    Raises:
        InputError: it cannot be written, a file of results is there, or what is there is not asv's.
    """
    with_commit = [(each, found[1]) for each in figures if (found := _COMMIT.search(each.launch.suite))]
    chosen, commits = [each for each, _ in with_commit], full_commits({commit for _, commit in with_commit})
    executions = {
        name: sorted(set(words))
        for name, words in _by((f"{each.launch.run}.{each.quantity}", each.execution) for each in chosen).items()
    }
    there = _asv_file(directory / _BENCHMARKS, ASV_RESULTS)
    files: dict[str, Any] = {_BENCHMARKS: _merged(there, _asv_benchmarks(chosen, executions), directory, force=force)}
    for (node, commit, environment), of_file in _by(
        ((each.launch.node, commits[commit], _environment(each.launch)), each) for each, commit in with_commit
    ).items():
        machine, results = f"{node}/machine.json", f"{node}/{commit[0][:8]}-{environment}.json"
        files[machine] = _asv_machine(of_file[0].launch) | _asv_file(directory / machine, ASV_MACHINE)
        files[results] = _asv_results(of_file, commit, environment, executions)
        if os.path.lexists(directory / results) and not force:
            what, got = "results of the same machine, commit and environment are there", str(directory / results)
            raise InputError(what, got=got, allowed="another directory, or --force", where="--out")
    try:
        for name, content in files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            with whole_file(directory / name) as temporary:
                temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write the directory: {error.strerror}", got=str(directory), where="--out") from error
    return len({each.launch.id for each in figures}) - len({each.launch.id for each in chosen})


def _asv_file(path: Path, version: int) -> dict[str, Any]:
    """A file of asv that is there, of this version; empty where there is none.

    Raises:
        InputError: it cannot be read, or is no such file.
    """
    if not os.path.lexists(path):
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError("cannot join the file that is there", got=f"{path}: {error}", where="--out") from error
    if not isinstance(found, dict) or found.get("version") != version:
        got = found.get("version") if isinstance(found, dict) else type(found).__name__
        what = f"{path} is no file of asv's version {version}"
        raise InputError(what, got=got, allowed="a results directory of asv", where="--out")
    return found


def _merged(there: dict[str, Any], own: dict[str, Any], directory: Path, *, force: bool) -> dict[str, Any]:
    """Benchmarks that are there and own ones; a benchmark in both has the parameters of both.

    Raises:
        InputError: a benchmark that is there has the name of an own one and is another, and `force` is not given.
    """
    merged = {**there, "version": ASV_RESULTS}
    for name, benchmark in own.items():
        before = there.get(name)
        if isinstance(before, dict) and before.get("version") == benchmark["version"]:
            params = [*(before.get("params") or [[]])[0]]
            params += [each for each in benchmark["params"][0] if each not in params]
            merged[name] = benchmark | {"params": [params]}
        elif before is None or force:
            merged[name] = benchmark
        else:
            what, got = "another benchmark has the same name", f"{name} in {directory / _BENCHMARKS}"
            raise InputError(what, got=got, allowed="another directory, or --force", where="--out")
    return merged


def full_commits(commits: Iterable[str]) -> dict[str, tuple[str, int | None]]:
    """Whole hashes of commits that are known by their beginning, and when each was made, in ms since 1970.

    A commit that this checkout does not have stays as it is, without a moment.
    """
    found: dict[str, tuple[str, int | None]] = {}
    for commit in commits:
        command = ["git", "-C", str(ROOT), "show", "-s", "--format=%H %ct", f"{commit}^{{commit}}"]
        try:
            words = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.split()
            found[commit] = (words[0], 1000 * int(words[1]))
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            found[commit] = (commit, None)
    return found


def _asv_benchmarks(chosen: Sequence[LaunchFigure], executions: Mapping[str, list[str]]) -> dict[str, Any]:
    quantities = {f"{each.launch.run}.{each.quantity}": each.quantity for each in chosen}
    return {
        name: {
            "code": "",
            "name": name,
            "param_names": ["execution"],
            "params": [[repr(words) for words in executions[name]]],
            "timeout": 60.0,
            "type": "time" if quantity in _SECONDS else "track",
            "unit": "seconds" if quantity in _SECONDS else _unit(quantity),
            "version": hashlib.sha256(name.encode()).hexdigest(),
        }
        for name, quantity in quantities.items()
    }


def _asv_machine(launch: LaunchSummary) -> dict[str, Any]:
    hardware = launch.hardware
    return {
        "arch": hardware.get("architecture", ""),
        "cpu": hardware.get("cpu", ""),
        "machine": launch.node,
        "num_cpu": hardware.get("cores", ""),
        "os": launch.software.get("system", ""),
        "ram": hardware.get("memory", ""),
        "version": ASV_MACHINE,
    }


def _asv_results(
    of_file: Sequence[LaunchFigure],
    commit: tuple[str, int | None],
    environment: str,
    executions: Mapping[str, list[str]],
) -> dict[str, Any]:
    """Results of a commit on a machine: each benchmark's median over its launches by execution, and all samples."""
    first = of_file[0].launch
    machine = {name: value for name, value in _asv_machine(first).items() if name != "version"}
    rows: dict[str, list[Any]] = {}
    for name, several in _by((f"{each.launch.run}.{each.quantity}", each) for each in of_file).items():
        values = _by((each.execution, each.value) for each in several)
        samples = [values.get(words) for words in executions[name]]
        ends = [None if each is None else _quartiles(each) for each in samples]
        row = {
            "result": [None if each is None else statistics.median(each) for each in samples],
            "params": [[repr(words) for words in executions[name]]],
            "version": hashlib.sha256(name.encode()).hexdigest(),
            "started_at": int(1000 * min(each.launch.started for each in several)),
            "stats_q_25": [each and each[0] for each in ends],
            "stats_q_75": [each and each[1] for each in ends],
            "stats_number": [None if each is None else 1 for each in samples],
            "stats_repeat": [None if each is None else len(each) for each in samples],
            "samples": samples,
        }
        rows[name] = [row.get(column) for column in _COLUMNS]
    return {
        "commit_hash": commit[0],
        "env_name": environment,
        "date": commit[1] or int(1000 * first.started),
        "params": {**machine, "python": _python(first)},
        "python": _python(first),
        "requirements": {},
        "env_vars": {},
        "result_columns": list(_COLUMNS),
        "results": rows,
        "durations": {},
        "version": ASV_RESULTS,
    }


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _environment(launch: LaunchSummary) -> str:
    """Name of the environment: Python's and PyTorch's versions."""
    name = f"python{_python(launch)}-torch{launch.software.get('torch', '')}"
    return re.sub(r"[^\w.+-]+", "_", name)


def written_json(content: object, path: Path) -> None:
    """Write JSON, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    try:
        with whole_file(path) as temporary:
            temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write the file: {error.strerror}", got=str(path), where="--out") from error


def _python(launch: LaunchSummary) -> str:
    return launch.software.get("python", "")


def _unit(quantity: str) -> str:
    return Quantity(quantity).unit if quantity in tuple(Quantity) else ""


def _by(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    """Values by their key, in the order of the first of each."""
    found: dict[Any, list[Any]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
