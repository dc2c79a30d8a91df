"""Time the kernels, store what came of it, and write table and plots next to it.

    python -m benchmarks.kernels -k layer_norm
    python -m benchmarks.kernels --benchmark-compare=0001
    python -m benchmarks.kernels --without-compiled
    python -m benchmarks.kernels --optimizations default

`--benchmark-storage` says where to, results/kernels by default. A way of a part of GPT-2's step that this machine
cannot have is a line.

Exit codes are pytest's: 0, 1 where one function of one case fails or computes something else (all others are timed), 5
where nothing was selected; 2 where TRITON_INTERPRET is set, as that times the interpreter, and of bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.machine.packages import described, lacking

if missing := lacking(("pytest", "pytest_benchmark", "triton")):
    sys.stderr.write(f"error: {sys.executable} lacks {described(missing)}; or nox -s bench\n")
    sys.exit(2)

import pytest
import triton

from benchmarks.kernels.case import COMPILED, DEVICE, SELECTION
from benchmarks.kernels.plot import draw
from benchmarks.kernels.step_parts import optimizations_to_time
from benchmarks.kernels.table import table
from kernels.operator import INTERPRETED
from reference_runs.errors import InputError
from suite.execute.measure.system_load import GpuLog, SharedProcessors, environment

STORAGE = "results/kernels"
POINTS = str(Path(__file__).with_name("speed.py"))


class MachineLog:
    """A plugin: names machine and failures in what is stored, and what the machine went through meanwhile."""

    def __init__(self) -> None:
        self._gpu = GpuLog(DEVICE)
        self._processors = SharedProcessors()
        self._processors.start()
        self.failures: dict[str, str] = {}
        self.lacking: dict[str, None] = {}  # lines, each once

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the last line of an error, and sample the GPU."""
        if report.when == "call":
            self._gpu.sample()
        if report.skipped:
            self.lacking[report.longrepr[2].removeprefix("Skipped: ")] = None
        if report.failed:
            self.failures[report.nodeid.partition("[")[2].rstrip("]")] = _last_line(report)

    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Keep the facts that make times comparable, and none that differs from call to call or names the host."""
        processor = machine_info["cpu"].get("brand_raw", machine_info["processor"])
        facts = environment(DEVICE) | {"cpu": processor, "cores": str(os.cpu_count()), "triton": triton.__version__}
        kept = {name: machine_info[name] for name in ("machine", "system", "python_version")}
        machine_info.clear()
        machine_info.update(kept | facts)

    def pytest_benchmark_update_commit_info(self, commit_info: dict[str, Any]) -> None:
        """Which commit, and not the folder's name."""
        for name in commit_info.keys() - {"id", "time", "dirty"}:
            del commit_info[name]

    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        """Failures and conditions next to the times; samples to the nanosecond, which is what clocks tell."""
        for stored in output_json["benchmarks"]:
            for samples in (stored["stats"], stored["extra_info"]):
                for name in {"data", "warm_up_seconds"} & samples.keys():
                    samples[name] = [round(sample, 9) for sample in samples[name]]
        self._processors.update()
        shared = self._processors.since_start
        output_json["failures"] = self.failures
        output_json["lacking"] = [*self.lacking]
        output_json["gpu_samples"] = self._gpu.samples
        if shared is not None:
            output_json["processor_seconds"] = {
                name: getattr(shared, name) for name in ("own", "busy", "steal", "whole")
            }


def _last_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else str(report.longrepr)).strip().splitlines()
    return lines[0] if lines else "no message"


def main(arguments: Sequence[str]) -> int:
    """Time what is selected; returns the exit code."""
    own = argparse.ArgumentParser(
        "benchmarks.kernels",
        usage="python -m benchmarks.kernels [--without-compiled] [--optimizations NAMES] [OPTIONS OF PYTEST]",
        description=__doc__,
        epilog="Everything else goes to pytest: python -m pytest --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    without_compiled = "leave out what torch.compile tunes, which takes most of the time"
    own.add_argument("--without-compiled", action="store_true", help=without_compiled)
    optimizations = (
        "time parts of GPT-2's step alone, by PyTorch's way and the ways with these optimizations of reproduce: names, "
        "default, or none for PyTorch's way alone"
    )
    own.add_argument("--optimizations", metavar="NAMES", help=optimizations)
    selecting, arguments = own.parse_known_args(arguments)
    if INTERPRETED:
        sys.stderr.write("error: TRITON_INTERPRET: allowed unset, got 1\n")
        return 2
    if selecting.without_compiled:
        SELECTION.left_out.add(COMPILED)
    if selecting.optimizations is not None:
        try:
            SELECTION.optimizations = optimizations_to_time(selecting.optimizations)
        except InputError as error:
            sys.stderr.write(f"error: {error}\n")
            return 2
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--benchmark-storage", default=STORAGE)
    parser.add_argument("--benchmark-compare", nargs="?")
    asked, _ = parser.parse_known_args(arguments)
    compares = any(argument.startswith("--benchmark-compare") for argument in arguments)
    storage = Path(asked.benchmark_storage.removeprefix("file://"))
    options = [f"--benchmark-storage={storage}", "--benchmark-autosave", "--benchmark-save-data"]
    options += ["--benchmark-group-by=group"] if compares else ["--benchmark-quiet"]
    options += ["-o", "filterwarnings=default", "--disable-warnings", "-p", "no:cacheprovider", "--tb=short"]
    before = set(storage.rglob("*.json"))
    start = time.perf_counter()
    code = int(pytest.main([POINTS, *options, *arguments], plugins=[MachineLog()]))
    for path in sorted(set(storage.rglob("*.json")) - before):
        record = json.loads(path.read_text(encoding="utf-8"))
        # indented, as pytest-benchmark writes it, half of it is spaces
        path.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8")
        text = table(record)
        path.with_suffix(".md").write_text(text, encoding="utf-8")
        print(f"\n{text}\n{path.with_suffix('.md')}")
        if missing := lacking(["matplotlib"]):
            print(f"no pictures for want of {described(missing)}")
        else:
            print(*draw(record, path.with_suffix("")), sep="\n")
    print(f"{time.perf_counter() - start:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
