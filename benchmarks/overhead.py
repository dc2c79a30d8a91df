"""Time and peak memory of a miniature's step under the suite, over those of the same step in a bare PyTorch loop.

    python -m benchmarks.overhead bloom-mini
    python -m benchmarks.overhead --all --pairs 40

Both loops run in one process of one rank. Their steps alternate in the order suite, bare, bare, suite. Each pair is the
same step of the same run, with equal batches, losses and masks. The interval is that of the median ratio of one
process, from the binomial distribution of its signs, with pairs taken as independent.

On a CPU the suite takes CPU speed samples between the timed steps, as in a run. Each step includes its share of their
time, the mean over all; the ratio "alone" does not. The ratio of processor time is meant for `--threads 1`, because
waiting threads of OpenMP use processor time too.

Both loops train the same, to the bit where they are deterministic (see `check_equal_work`). They start anew every
`PAIRS_A_START` pairs, because a rounding of a norm grows with every update until equal work can no longer be verified.

Exit codes: 0 within the limits, 1 beyond one, 3 where the interval holds the limit, 2 bad usage, 4 unequal work or an
execution that failed. Several miniatures give the code of the worst.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import statistics
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from benchmarks.bare_loop import BareLoop
from benchmarks.equal_work import EQUAL_STEPS, UnequalWorkError, check_equal_work, check_losses, is_exact, untied
from benchmarks.turns import SuiteLoop, Turn
from reference_runs.catalog import miniatures
from reference_runs.errors import InputError
from suite.execute.measure.peak_memory import AllocatedPeak
from suite.execute.parallel.mesh import device_mesh, dropout_seed
from suite.execute.precision import prepare_arithmetic
from suite.job.training_job import WARM_UP_STEPS, Job
from suite.metrics.launch_statistics import median_interval
from suite.reproduce.plan import corpus_for, job_for, plan
from suite.reproduce.request import Request

TIME_LIMIT = 1.03
MEMORY_LIMIT = 1.02
FAILED = 4
# 27 with the updates before them. Two equal bare loops of gpt2-mini, whose norms differed by 2^-22 from the fourth
# update on, exceeded the bound of `check_losses` after 37 updates (CPU, 2026-11-23).
PAIRS_A_START = 20
WARM_UP = WARM_UP_STEPS + 2  # Adam's state and PyTorch's caches exist after the first; the ramp-up ends in the second


class Interval(NamedTuple):
    """A median and its confidence interval of 95 % or more; unbounded for too few values."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Pair(NamedTuple):
    """One step of each loop: seconds, ratio of processor times, seconds of speed samples before it, loss difference."""

    seconds: float
    bare_seconds: float
    processor: float
    sampling_seconds: float
    loss_difference: float


class Overhead(NamedTuple):
    """Ratios of suite over bare, and the values that they come from.

    Args:
        seconds: ratio of step times, each with its share of the speed samples; `alone` is without it.
        loss_difference: the largest of all pairs.
        sampling_seconds: a step's share of the speed samples.
    """

    seconds: Interval
    bare_seconds: float
    peak_bytes: int
    bare_peak_bytes: int
    loss_difference: float
    processor: Interval
    sampling_seconds: float
    alone: Interval

    @property
    def memory(self) -> float:
        """The suite's peak over the bare loop's."""
        return self.peak_bytes / self.bare_peak_bytes


def interval(values: Sequence[float]) -> Interval:
    """The median and the order statistics around it, for any distribution."""
    bounds, _, _ = median_interval(values)
    return Interval(statistics.median(values), *(bounds or (-math.inf, math.inf)))


def exit_code(overhead: Overhead) -> int:
    """0 if both ratios are within their limits, 1 if one exceeds its limit, 3 if the interval contains the limit."""
    if overhead.seconds.low > TIME_LIMIT or overhead.memory > MEMORY_LIMIT:
        return 1
    return 0 if overhead.seconds.high <= TIME_LIMIT else 3


def peak_bytes(make: Callable[[], SuiteLoop | BareLoop], device: torch.device, seed: int) -> int:
    """The most that PyTorch's allocator holds in one step of the only loop of the process."""
    gc.collect()
    peak = AllocatedPeak(device)
    turn = Turn(make, device, seed, samples=False)  # a run counts its peak before the first sample
    for _ in range(WARM_UP):
        turn.step()
    peak.settle()
    with peak.window():
        turn.step()
    peak.finish()
    return peak.bytes


def overhead(job: Job, device: torch.device, *, pairs: int, progress: Callable[[str], None]) -> Overhead:
    """Both ratios of one job. The process group exists already.

    Raises:
        UnequalWorkError: the loops do not train the same.
    """
    seed = dropout_seed(job.seed, device_mesh(job.layout, device.type), job.layout)
    ours, bare = partial(SuiteLoop, job, device), partial(BareLoop, job, device)
    progress("peak memory of each alone")
    our_peak = peak_bytes(ours, device, seed)
    bare_peak = peak_bytes(bare, device, seed)
    progress("the same work")
    if not is_exact(job, device) and is_exact(untied(job), device):
        without_ties = untied(job)
        check_equal_work(
            Turn(partial(SuiteLoop, without_ties, device), device, seed),
            Turn(partial(BareLoop, without_ties, device), device, seed),
        )
    progress("time, in alternation")
    taken: list[Pair] = []
    while len(taken) < pairs:
        gc.collect()  # frees the models of the previous start, which would share the caches
        taken += _from_a_start(
            Turn(ours, device, seed), Turn(bare, device, seed), min(PAIRS_A_START, pairs - len(taken))
        )
    share = statistics.fmean(pair.sampling_seconds for pair in taken)
    return Overhead(
        interval([(pair.seconds + share) / pair.bare_seconds for pair in taken]),
        statistics.median(pair.bare_seconds for pair in taken),
        our_peak,
        bare_peak,
        max(pair.loss_difference for pair in taken),
        processor=interval([pair.processor for pair in taken]),
        sampling_seconds=share,
        alone=interval([pair.seconds / pair.bare_seconds for pair in taken]),
    )


def _from_a_start(ours: Turn, bare: Turn, pairs: int) -> list[Pair]:
    """Pairs of two new loops, after the steps that verify equal work and the warm-up.

    Raises:
        UnequalWorkError: the loops do not train the same.
    """
    check_equal_work(ours, bare)
    rates, taken = [_rate(bare)], []
    for number in range(-WARM_UP, pairs):
        outcomes = {turn: turn.step() for turn in ((ours, bare) if number % 2 == 0 else (bare, ours))}
        (our_seconds, our_loss), (bare_seconds, bare_loss) = outcomes[ours], outcomes[bare]
        check_losses(our_loss, bare_loss, bare, rates)
        rates.append(_rate(bare))
        if number >= 0:
            processor = ours.processor_seconds / bare.processor_seconds
            taken.append(Pair(our_seconds, bare_seconds, processor, ours.sampling_seconds, abs(our_loss - bare_loss)))
    return taken


def _rate(bare: Turn) -> float:
    assert isinstance(bare.loop, BareLoop)
    return float(bare.loop.optimizer.param_groups[0]["lr"])


def measured(name: str, asked: argparse.Namespace, progress: Callable[[str], None]) -> Overhead:
    """Both ratios of the miniature `name` in this process.

    Args:
        asked: options of the command line.
        progress: receives the name of each phase.

    Raises:
        InputError: unknown name, layout or device.
        UnequalWorkError: the loops do not train the same.
    """
    with tempfile.TemporaryDirectory(prefix="overhead-") as scratch:
        steps = EQUAL_STEPS + WARM_UP + min(asked.pairs, PAIRS_A_START)
        request = Request(
            name=name,
            ranks=1,
            layout=asked.layout,
            device=asked.device,
            compiled=False,
            steps=max(steps, 20),
            results=Path(scratch),
        )
        planned = plan(request)
        job = job_for(planned, corpus_for(planned, None), scratch)
        device = torch.device(planned.device, 0) if planned.device == "cuda" else torch.device("cpu")
        torch.set_num_threads(asked.threads or job.threads)
        torch.use_deterministic_algorithms(planned.device == "cpu")
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # set by module code
        prepare_arithmetic(job.recipe.precision, device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if planned.device == "cuda" else "gloo",
            store=dist.HashStore(),  # type: ignore[attr-defined]  # torch does not export it by name
            rank=0,
            world_size=1,
            timeout=timedelta(seconds=60),
        )
        try:
            return overhead(job, device, pairs=asked.pairs, progress=progress)
        finally:
            dist.destroy_process_group()


def line(name: str, result: Overhead) -> str:
    """One miniature's result in a line."""
    verdict = {0: "pass", 1: "FAIL", 3: "undecided"}[exit_code(result)]
    return (
        f"{name:<14} time {result.seconds}  processor {result.processor}  "
        f"bare step {1e3 * result.bare_seconds:.1f} ms  speed samples {1e3 * result.sampling_seconds:.1f} ms  "
        f"alone {result.alone}  "
        f"memory {result.memory:.3f} ({result.peak_bytes / 1e6:.1f} / {result.bare_peak_bytes / 1e6:.1f} MB)  "
        f"largest loss difference {result.loss_difference:.1e}  {verdict}"
    )


def worst(codes: Sequence[int]) -> int:
    """The exit code of several miniatures. One that was killed, or ended with any other code, has failed."""
    known = [code if code in (0, 1, 2, 3) else FAILED for code in codes]
    return next(code for code in (FAILED, 2, 1, 3, 0) if code in known)


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line names; return the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.overhead", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="miniatures; bloom-mini by default")
    parser.add_argument("--all", action="store_true", help="all miniatures, each in a process of its own")
    parser.add_argument("--pairs", type=int, default=30, help="timed steps of each loop (default: 30)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--layout", help="another layout of one rank, such as zero0")
    parser.add_argument("--threads", type=int, help="threads of operators on a CPU, such as 1 (default: as a run has)")
    asked = parser.parse_args(arguments)
    if asked.pairs < 1:
        parser.error(f"--pairs: 1 or more, got {asked.pairs}")
    if asked.threads is not None and asked.threads < 1:
        parser.error(f"--threads: 1 or more, got {asked.threads}")
    names = list(miniatures()) if asked.all else asked.names or ["bloom-mini"]
    if len(names) > 1:
        options = [argument for argument in arguments if argument not in (*names, "--all")]
        command = [sys.executable, "-m", "benchmarks.overhead", *options]
        return worst([subprocess.run([*command, name]).returncode for name in names])
    (name,) = names

    def progress(phase: str) -> None:
        sys.stderr.write(f"{name}: {phase}\n")

    try:
        result = measured(name, asked, progress)
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except UnequalWorkError as error:
        sys.stderr.write(f"error: unequal work: {error}\n")
        return FAILED
    except Exception:  # not exit code 1, which says that a ratio exceeds its limit
        traceback.print_exc()
        return FAILED
    print(line(name, result), flush=True)
    return exit_code(result)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # otherwise gloo's threads abort some processes, see suite.execute.rank.leave
