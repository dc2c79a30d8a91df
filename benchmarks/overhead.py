"""What a miniature's step takes under the suite, over the same step in a bare PyTorch loop: time and peak memory.

    python -m benchmarks.overhead bloom-mini
    python -m benchmarks.overhead --all --pairs 40

Both loops live in one process of one rank and take turns, step by step, in the order suite, bare, bare, suite: phases
of the machine that are longer than a step fall on both. Each pair is the same step of the same run, with equal batches,
losses and masks. The interval is that of the median ratio of one process, from the binomial distribution of its signs.

The suite's laps of fixed work, before and behind each timed step of a processor, are taken as in a run: whatever they
do to the caches counts. Their own time is no part of a step; it is told apart.

Beside it stands the ratio of processor time, which other processes disturb less. It is meant for `--threads 1`: waiting
threads of OpenMP take processor time too.

Exit codes: 0 within the limits, 1 beyond one, 3 where the interval holds the limit, 2 bad usage, 4 unequal work.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from benchmarks.bare_loop import BareLoop
from reference_runs.catalog import miniatures
from reference_runs.errors import InputError
from reference_runs.run import Precision
from suite.execute.measure import clock
from suite.execute.measure.memory import AllocatedPeak
from suite.execute.measure.pace import LAPS_AT_A_STEP, Pacer
from suite.execute.parallel.mesh import device_mesh, dropout_seed
from suite.execute.parallel.parallelize import parallelize
from suite.execute.precision import prepare_arithmetic
from suite.execute.rank import Reporter
from suite.execute.step import Steps
from suite.job import WARM_UP_STEPS, Job, StepKind, events_path
from suite.job import Step as StepEvent
from suite.plan import Request, corpus_for, job_for, plan

TIME_LIMIT = 1.03
MEMORY_LIMIT = 1.02
CONFIDENCE = 0.95
WARM_UP = (
    WARM_UP_STEPS + 2
)  # Adam's state and PyTorch's caches are there after the first; the ramp-up ends in the second


class Interval(NamedTuple):
    """A median, and the interval that holds the true one with `CONFIDENCE` or more."""

    median: float
    low: float
    high: float


class Overhead(NamedTuple):
    """Ratios of suite over bare, and what stands behind them."""

    seconds: Interval
    bare_seconds: float
    peak_bytes: int
    bare_peak_bytes: int
    loss_difference: float
    processor: Interval | None = None
    laps_seconds: float = 0.0

    @property
    def memory(self) -> float:
        """The suite's peak over the bare loop's."""
        return self.peak_bytes / self.bare_peak_bytes


class UnequalWorkError(Exception):
    """The two loops did not train the same."""


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median and the order statistics around it, whatever the distribution.

    With n values, the number below the true median is binomial (n, 1/2); k is the largest rank with
        2 P(X < k) <= 1 - confidence
    and the interval is from the k-th smallest to the k-th largest value. Without such a k it is unbounded.
    Source: Conover 1999, Practical Nonparametric Statistics, section 3.2.
    """
    ordered, n = sorted(values), len(values)
    median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    rank, below = 0, 0.0
    while 2 * (below + math.comb(n, rank) / 2**n) <= 1 - confidence:
        below += math.comb(n, rank) / 2**n
        rank += 1
    if rank == 0:
        return Interval(median, -math.inf, math.inf)
    return Interval(median, ordered[rank - 1], ordered[n - rank])


def exit_code(overhead: Overhead) -> int:
    """0 where both ratios are within their limits, 1 where one is beyond, 3 where the interval holds the limit."""
    if overhead.seconds.low > TIME_LIMIT or overhead.memory > MEMORY_LIMIT:
        return 1
    return 0 if overhead.seconds.high <= TIME_LIMIT else 3


class SuiteLoop:
    """The suite's training step as `suite.execute.train` runs it on timed steps, its report included."""

    def __init__(self, job: Job, device: torch.device) -> None:
        mesh = device_mesh(job.layout, device.type)
        self.training = parallelize(
            job.architecture, job.recipe, job.layout, mesh=mesh, device=device, compiled=False, seed=job.seed
        )
        self.device = device
        self._steps = Steps(job, self.training, mesh, device)
        self._report = Reporter(events_path(job.directory, 0))
        self._pacer = Pacer(device)

    def laps(self) -> None:
        """What a rank takes before a timed step, and again behind it."""
        self._pacer.laps(LAPS_AT_A_STEP)

    def step(self) -> tuple[float, float]:
        """One step; returns its loss and the gradient's norm without the loss scale."""
        start = clock.now(self.device)
        loss = self._steps.forward_and_backward()
        outcome = self._steps.update(loss)
        seconds = clock.now(self.device) - start
        norm = outcome.gradient_norm if math.isfinite(outcome.gradient_norm) else None
        number, kind = self._steps.step - 1, StepKind.TIMED
        self._report(
            StepEvent(number, kind, outcome.loss, seconds, time.time(), norm, outcome.loss_scale, outcome.skipped)
        )
        return outcome.loss, outcome.gradient_norm

    def weights(self) -> dict[str, Tensor]:
        """Stored weights by their names in the whole model, read as its modules read them."""
        (chunk,) = self.training.chunks
        with torch.no_grad():
            return {leaf.name: _read(chunk, leaf.name) for leaf in self.training.leaves}


def _read(chunk: nn.Module, name: str) -> Tensor:
    module, _, own = name.rpartition(".")
    weight = getattr(chunk.get_submodule(module), own).detach()
    whole: Tensor = weight.to_local() if isinstance(weight, DTensor) else weight
    return whole


class Turn:
    """A loop with random numbers of its own, so that both loops draw the same masks.

    Attributes:
        processor_seconds: of the process in the last step, all its threads together.
        laps_seconds: of the laps around the last step; 0 in the bare loop.
    """

    def __init__(
        self, make: Callable[[], SuiteLoop | BareLoop], device: torch.device, seed: int, *, laps: bool = True
    ) -> None:
        self.device = device
        self._takes_laps = laps
        self.loop = make()
        torch.manual_seed(seed)
        self.processor_seconds = self.laps_seconds = 0.0
        self._numbers = self._state()

    def step(self) -> tuple[float, float]:
        """One step: its seconds, with the device's work, and its loss."""
        torch.set_rng_state(self._numbers[0])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(self._numbers[1], self.device)
        laps = self._laps()
        start, processor = clock.now(self.device), time.process_time()
        loss, _ = self.loop.step()
        seconds = clock.now(self.device) - start
        self.processor_seconds = time.process_time() - processor
        self.laps_seconds = laps + self._laps()
        self._numbers = self._state()
        return seconds, loss

    def _laps(self) -> float:
        if not (isinstance(self.loop, SuiteLoop) and self._takes_laps):
            return 0.0
        start = time.perf_counter()
        self.loop.laps()
        return time.perf_counter() - start

    def _state(self) -> tuple[Tensor, Tensor]:
        cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.empty(0)
        return torch.get_rng_state(), cuda


def peak_bytes(make: Callable[[], SuiteLoop | BareLoop], device: torch.device, seed: int) -> int:
    """The most that PyTorch's allocator holds in one step of a loop that is alone in the process."""
    gc.collect()
    peak = AllocatedPeak(device)
    turn = Turn(make, device, seed, laps=False)  # a run counts its peak before there are any
    for _ in range(WARM_UP):
        turn.step()
    peak.settle()
    with peak.window():
        turn.step()
    peak.finish()
    return peak.bytes


def check_equal_work(ours: Turn, bare: Turn) -> None:
    """Take the first step of both loops and compare losses and updated weights.

    The losses are means of the same numbers, added up in another order: m micro-batches, m 2^-24 relative.

    The gradients are the same, and their norms fp32 sums of up to n elements in another order: n 2^-24 relative, by
    which the clipped gradients may differ. Adam's first update is at most the learning rate l, and changes in
    proportion by no more than that, and by 16 roundings of its own. So masters differ by at most
        l (n + 16) 2^-24
    and what is stored of them by a unit in the last place more: eps times the larger, or the least normal number. A
    tied bf16 table is the exception: the suite adds up the gradients of its two uses in fp32, PyTorch in bf16. So its
    own updates differ by at most 2 l, and the clipped gradients of all others by 2^-8 relative.

    Raises:
        UnequalWorkError: either differs by more.
    """
    assert isinstance(ours.loop, SuiteLoop)
    assert isinstance(bare.loop, BareLoop)
    job = bare.loop.job
    (_, our_loss), (_, bare_loss) = ours.step(), bare.step()
    micro_batches = job.recipe.global_batch // job.layout.micro_batch
    if not abs(our_loss - bare_loss) <= micro_batches * 2**-24 * abs(bare_loss):
        raise UnequalWorkError(f"first losses: {our_loss} under the suite, {bare_loss} in the bare loop")
    rate = bare.loop.optimizer.param_groups[0]["lr"]
    rounded = (max(parameter.numel() for parameter in bare.loop.parameters) + 16) * 2**-24
    tied = job.recipe.precision is Precision.BF16 and job.architecture.tied_embeddings
    for name, weight in ours.loop.weights().items():
        other = bare.loop.model.get_parameter(name).detach()
        info = torch.finfo(other.dtype)
        ours_wide, other_wide = weight.float(), other.float()
        unit = info.eps * torch.maximum(ours_wide.abs(), other_wide.abs()).clamp(min=info.tiny)
        update = rounded + (2.0 if name == "embedding.weight" else 2**-8) * tied
        if not bool(((ours_wide - other_wide).abs() <= unit + rate * update).all()):
            raise UnequalWorkError(f"weights of {name} differ by more than rounding after the first update")


def overhead(job: Job, device: torch.device, *, pairs: int, told: Callable[[str], None]) -> Overhead:
    """Both ratios of one job; the process group is there.

    Raises:
        UnequalWorkError: the loops do not train the same.
    """
    seed = dropout_seed(job.seed, device_mesh(job.layout, device.type), job.layout)

    def ours() -> SuiteLoop:
        return SuiteLoop(job, device)

    def bare() -> BareLoop:
        return BareLoop(job, device)

    told("peak memory of each alone")
    our_peak = peak_bytes(ours, device, seed)
    bare_peak = peak_bytes(bare, device, seed)
    told("time, taking turns")
    turns = Turn(ours, device, seed), Turn(bare, device, seed)
    check_equal_work(*turns)
    for _ in range(WARM_UP - 1):
        for turn in turns:
            turn.step()
    ratios, processor, bare_seconds, laps, difference = [], [], [], [], 0.0
    for pair in range(pairs):
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        taken = {which: turns[which].step() for which in order}
        ratios.append(taken[0][0] / taken[1][0])
        processor.append(turns[0].processor_seconds / turns[1].processor_seconds)
        bare_seconds.append(taken[1][0])
        laps.append(turns[0].laps_seconds)
        difference = max(difference, abs(taken[0][1] - taken[1][1]))
    bare_median = median_interval(bare_seconds).median
    return Overhead(
        median_interval(ratios),
        bare_median,
        our_peak,
        bare_peak,
        difference,
        processor=median_interval(processor),
        laps_seconds=median_interval(laps).median,
    )


def measured(
    name: str,
    *,
    pairs: int,
    device_name: str,
    layout: str | None,
    threads: int | None,
    told: Callable[[str], None],
) -> Overhead:
    """Both ratios of the miniature `name` in this process.

    Args:
        threads: that operators use; None: as many as a run of the suite has.

    Raises:
        InputError: unknown name, layout or device.
        UnequalWorkError: the loops do not train the same.
    """
    with tempfile.TemporaryDirectory(prefix="overhead-") as scratch:
        steps = WARM_UP + pairs + 1
        request = Request(
            name=name,
            ranks=1,
            layout=layout,
            device=device_name,
            compiled=False,
            steps=max(steps, 20),
            results=Path(scratch),
        )
        planned = plan(request)
        job = job_for(planned, corpus_for(planned, None), scratch)
        device = torch.device(planned.device, 0) if planned.device == "cuda" else torch.device("cpu")
        torch.set_num_threads(threads or job.threads)
        torch.use_deterministic_algorithms(planned.device == "cpu")
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # set by module code
        prepare_arithmetic(job.recipe.precision, device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if planned.device == "cuda" else "gloo",
            store=dist.HashStore(),  # type: ignore[attr-defined]  # torch does not list it among its names
            rank=0,
            world_size=1,
            timeout=timedelta(seconds=60),
        )
        try:
            return overhead(job, device, pairs=pairs, told=told)
        finally:
            dist.destroy_process_group()


def line(name: str, found: Overhead) -> str:
    """One miniature's result in a line."""
    verdict = {0: "pass", 1: "FAIL", 3: "undecided"}[exit_code(found)]
    processor = found.processor
    of_processor = "processor {:.3f} [{:.3f}, {:.3f}]  ".format(*processor) if processor else ""
    return (
        f"{name:<14} time {found.seconds.median:.3f} [{found.seconds.low:.3f}, {found.seconds.high:.3f}]  "
        f"{of_processor}bare step {1e3 * found.bare_seconds:.1f} ms  laps {1e3 * found.laps_seconds:.1f} ms  "
        f"memory {found.memory:.3f} ({found.peak_bytes / 1e6:.1f} / {found.bare_peak_bytes / 1e6:.1f} MB)  "
        f"largest loss difference {found.loss_difference:.1e}  {verdict}"
    )


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line names; returns the exit code."""
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
        same = ["--pairs", str(asked.pairs), "--device", asked.device]
        same += ["--layout", asked.layout] if asked.layout else []
        same += ["--threads", str(asked.threads)] if asked.threads else []
        codes = [
            subprocess.run([sys.executable, "-m", "benchmarks.overhead", name, *same]).returncode for name in names
        ]
        return next((code for code in (4, 2, 1, 3) if code in codes), max(codes))
    (name,) = names

    def told(phase: str) -> None:
        sys.stderr.write(f"{name}: {phase}\n")

    try:
        found = measured(
            name,
            pairs=asked.pairs,
            device_name=asked.device,
            layout=asked.layout,
            threads=asked.threads,
            told=told,
        )
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except UnequalWorkError as error:
        sys.stderr.write(f"error: unequal work: {error}\n")
        return 4
    print(line(name, found), flush=True)
    return exit_code(found)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # gloo's threads abort some processes that end otherwise, see suite.execute.rank.leave
