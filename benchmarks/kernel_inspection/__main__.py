"""Compile what the runs launch for an H100, without one, and print what the machine code lets expect.

    python -m benchmarks.kernel_inspection
    python -m benchmarks.kernel_inspection --run gpt2-124m --kernel row_norm
    python -m benchmarks.kernel_inspection --write docs/kernels.md

Runs are the miniatures in their GPU size, GPT-2 as recorded, and `full width`: row kernels at the widths of the
recorded runs, and kernels that no run launches. Nothing is measured. Exit code 0, and 1 where a share falls short
without a reason; 2: bad usage, or Triton cannot compile here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.kernel_inspection.hopper import LATENCY_SECONDS
from benchmarks.kernel_inspection.launches import run_launches
from benchmarks.kernel_inspection.machine_code import compiled
from benchmarks.kernel_inspection.prediction import forecast
from benchmarks.kernel_inspection.table import BEGIN, END, Inspected, merged, reason, table, written_into
from benchmarks.kernel_inspection.walks import RULES
from benchmarks.kernel_inspection.wide import WIDE, wide_launches
from kernels.operator import INTERPRETED


def inspected(runs: Sequence[str], kernel: str, latency: float) -> Iterator[Inspected]:
    """Every launch of these runs whose name has `kernel` in it, compiled and predicted."""
    listed = run_launches() | {WIDE: wide_launches}
    for run in runs or listed:
        for launch in listed[run]():
            if kernel in launch.name and launch.name in RULES:
                code = compiled(launch)
                yield Inspected(launch, code, forecast(launch, code, latency))


def main(arguments: Sequence[str]) -> int:
    """Print the table, or write it; returns the exit code."""
    parser = argparse.ArgumentParser(
        "benchmarks.kernel_inspection", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", action="append", default=[], choices=[*run_launches(), WIDE], metavar="NAME")
    parser.add_argument("--kernel", default="", help="a part of kernels' names")
    parser.add_argument("--latency", type=float, default=LATENCY_SECONDS * 1e6, help="of a load, in us (%(default)s)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table between the marks of this page")
    asked = parser.parse_args(arguments)
    try:
        page = asked.write.read_text(encoding="utf-8") if asked.write else f"{BEGIN}{END}"
        written_into(page, "")
        found = list(inspected(asked.run, asked.kernel, asked.latency * 1e-6))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"error: {asked.write}: {error}\n")
        return 2
    text = table(found)
    if asked.write:
        asked.write.write_text(written_into(page, text), encoding="utf-8")
    else:
        sys.stdout.write(text)
    short = [one for one, _ in merged(found) if one.falls_short]
    unexplained = [one.launch for one in short if reason(one) is None]
    sys.stderr.write(f"{len(found)} launches, {len(short)} rows fall short, {len(unexplained)} without a reason\n")
    return 1 if unexplained else 0


if __name__ == "__main__":
    if INTERPRETED:
        sys.stderr.write("error: TRITON_INTERPRET: allowed unset, got 1\n")
        sys.exit(2)
    sys.exit(main(sys.argv[1:]))
