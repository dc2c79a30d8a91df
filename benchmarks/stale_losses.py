"""Losses of one miniature under updates that are late, next to updates that are not: the same batches and seeds.

    python -m benchmarks.stale_losses gpt2-mini --global-batch 16 --steps 300 --seeds 1 2 3 --plot losses.svg \
        --variant "1F1B" "--layout pp2,1f1b" --variant "PipeDream" "--layout pp2,pipedream,micro16"

The first variant is what others are compared with. Each launch is one of `python -m suite reproduce`, with the options
of its variant; so any of its options can be compared. The final loss is the mean of the last tenth of the steps. A
variant differs by more than the seeds where its mean final loss is further from the first one's than the two ranges of
the seeds are wide together. `--out FILE.json` keeps the losses, and `--read FILE.json` goes on with those of a file.

Exit codes: 0 done, 2 bad usage or input, 4 a launch failed.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

FAILED = 4
SMOOTHED = 10  # steps whose mean a drawn point is


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Losses of every step of one launch; `options`: what it was given besides the run, the seed and the steps."""

    variant: str
    options: str
    seed: int
    losses: list[float]

    @property
    def final(self) -> float:
        """Mean of the last tenth of the steps."""
        return statistics.fmean(self.losses[-max(1, len(self.losses) // 10) :])


class Difference(msgspec.Struct, frozen=True):
    """Final losses of a variant over its seeds, and how far their mean is from the first variant's.

    Args:
        beyond_seeds: whether that is more than the ranges of both over the seeds together.
    """

    variant: str
    mean: float
    least: float
    most: float
    difference: float
    beyond_seeds: bool


def differences(launches: Sequence[Launch]) -> list[Difference]:
    """Difference of every variant, in the order of the launches."""
    names = list(dict.fromkeys(launch.variant for launch in launches))
    finals = {name: [launch.final for launch in launches if launch.variant == name] for name in names}
    first = finals[names[0]]
    found = []
    for name in names:
        own = finals[name]
        apart = statistics.fmean(own) - statistics.fmean(first)
        ranges = max(own) - min(own) + max(first) - min(first)
        found.append(Difference(name, statistics.fmean(own), min(own), max(own), apart, abs(apart) > ranges))
    return found


def table(launches: Sequence[Launch]) -> str:
    """In Markdown."""
    lines = ["| updates | final loss | of the seeds | less the first | beyond the seeds |", "|---|---|---|---|---|"]
    for of in differences(launches):
        beyond = "yes" if of.beyond_seeds else "no"
        lines.append(
            f"| {of.variant} | {of.mean:.4f} | {of.least:.4f} to {of.most:.4f} | {of.difference:+.4f} | {beyond} |"
        )
    return "\n".join(lines)


def launched(run: str, variant: str, options: str, *, seed: int, steps: int, results: str) -> Launch:
    """One launch.

    Raises:
        subprocess.CalledProcessError: it ended otherwise than with figures; what it said went to stderr.
    """
    command = [sys.executable, "-m", "suite", "reproduce", run, *shlex.split(options), "--seed", str(seed)]
    command += ["--steps", str(steps), "--results", results, "--json", "--no-calibrate"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    answer = next((msgspec.json.decode(line) for line in done.stdout.splitlines() if '"losses"' in line), None)
    if answer is None or len(answer["losses"]) < steps:
        raise subprocess.CalledProcessError(done.returncode, command)
    return Launch(variant=variant, options=options, seed=seed, losses=answer["losses"])


def draw(launches: Sequence[Launch], path: Path) -> None:
    """Mean loss of each variant over its seeds, smoothed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name in dict.fromkeys(launch.variant for launch in launches):
        curves = [launch.losses for launch in launches if launch.variant == name]
        mean = [statistics.fmean(at) for at in zip(*curves, strict=True)]
        smooth = [statistics.fmean(mean[first : first + SMOOTHED]) for first in range(0, len(mean), SMOOTHED)]
        axes.plot([SMOOTHED * (n + 1) for n in range(len(smooth))], smooth, label=name, linewidth=1.2)
    axes.set_xlabel("step")
    axes.set_ylabel(f"loss, mean of the seeds and of {SMOOTHED} steps")
    axes.legend()
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Launch what is asked for, and print the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stale_losses", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("run")
    parser.add_argument("--variant", nargs=2, action="append", default=[], metavar=("NAME", "OPTIONS"))
    parser.add_argument("--global-batch", type=int)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", type=Path)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args(arguments)
    launches: list[Launch] = []
    if given.read is not None:
        launches = msgspec.json.decode(given.read.read_bytes(), type=list[Launch])
    elif not given.variant:
        parser.error("no --variant and nothing to --read")
    batch = f" --global-batch {given.global_batch}" if given.global_batch else ""
    known = {(launch.variant, launch.options, launch.seed) for launch in launches}
    with tempfile.TemporaryDirectory() as results:
        for (name, options), seed in itertools.product(given.variant, given.seeds):
            if (name, options + batch, seed) in known:
                continue
            try:
                launches.append(
                    launched(given.run, name, options + batch, seed=seed, steps=given.steps, results=results)
                )
            except subprocess.CalledProcessError as error:
                print(f"{name}, seed {seed}: {error}", file=sys.stderr)
                return FAILED
            if given.out is not None:
                given.out.write_bytes(msgspec.json.encode(launches))
            print(f"{name}, seed {seed}: {launches[-1].final:.4f}", file=sys.stderr)
    print(table(launches))
    if given.plot is not None:
        draw(launches, given.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
