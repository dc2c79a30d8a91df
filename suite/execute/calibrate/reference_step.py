"""Trains a calibration's trials, a few steps at a time, as a launch of theirs would."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from suite.execute.measure import clock
from suite.execute.parallel.mesh import device_mesh, dropout_seed
from suite.execute.parallel.parallelize import parallelize
from suite.execute.precision import prepare_arithmetic
from suite.execute.training.step import Steps
from suite.job.calibration_job import CalibrationJob, ReferenceSteps
from suite.job.events import Event, Phase
from suite.job.training_job import WARM_UP_STEPS, Job
from suite.machine.reference_step import ReferenceStep

SEED = 20261124
TOKENS = 2**16  # drawn at random: what is trained on decides no time
STEPS = 3  # timed in a burst, behind one that is not: what was measured before left its own data in the caches


class Trials:
    """The trials of a calibration on this rank, each on the first so many ranks; all ranks must make the same calls.

    Built at the first burst. A trial's steps go on from burst to burst, so that they are spread over the calibration,
    but for the masks of dropout, which are drawn anew: random numbers are the calibration's again behind a burst.

    Args:
        report: given the seconds of every timed step of this rank.

    Attributes:
        seconds: that bursts have taken.
        next_seconds: that the next one will, as the steps of the last one that this rank took part in.
    """

    def __init__(self, job: CalibrationJob, device: torch.device, report: Callable[[Event], None]) -> None:
        self.seconds = self.next_seconds = 0.0
        self._job = job
        self._device = device
        self._report = report
        self._meshes: dict[int, DeviceMesh] = {}
        self._steps: dict[int, Steps] = {}
        self._tokens_file = Path(job.directory) / f"trial_{dist.get_rank()}.tokens"

    def burst(self) -> None:
        """Train every trial for a few steps."""
        start, self.next_seconds = time.perf_counter(), 0.0
        gc.collect()  # what tasks have left is not the steps'
        gc.enable()  # as in a launch
        try:
            for number, trial in enumerate(self._job.trials):
                self._report(Phase(str(trial), time.time()))
                mesh = self._mesh(trial)
                if dist.get_rank() < trial.layout.ranks:
                    with torch.random.fork_rng(devices=[]):
                        self._train(number, trial, mesh)
                dist.barrier()
        finally:
            gc.disable()
        self.seconds += time.perf_counter() - start

    def _mesh(self, trial: ReferenceStep) -> DeviceMesh:
        """Of the trial's ranks; made by all ranks together."""
        ranks = trial.layout.ranks
        if ranks not in self._meshes:
            self._meshes[ranks] = device_mesh(trial.layout, self._device.type)
        return self._meshes[ranks]

    def _train(self, number: int, trial: ReferenceStep, mesh: DeviceMesh) -> None:
        torch.set_num_threads(trial.threads)
        with _as_in_a_launch():
            if number not in self._steps:
                self._steps[number] = self._begun(trial, mesh)
            found = [_step_seconds(self._steps[number], self._device) for _ in range(1 + STEPS)]
        self.next_seconds += sum(found)
        self._report(ReferenceSteps(number, tuple(found[1:]), time.time()))

    def _begun(self, trial: ReferenceStep, mesh: DeviceMesh) -> Steps:
        """The trial, trained until it is warm: the first step eagerly, as a launch's is."""
        if not self._tokens_file.exists():
            drawn = numpy.random.default_rng(SEED).integers(trial.architecture.vocabulary, size=TOKENS)
            drawn.astype("<i4").tofile(self._tokens_file)
        job = Job(
            name=str(trial),
            architecture=trial.architecture,
            recipe=trial.recipe,
            layout=trial.layout,
            device=self._device.type,
            compiled=trial.compiled,
            seed=SEED,
            steps=WARM_UP_STEPS,
            tokens_file=str(self._tokens_file),
            tokens=TOKENS,
            directory=self._job.directory,
            threads=trial.threads,
            collective_timeout_seconds=self._job.collective_timeout_seconds,
        )
        prepare_arithmetic(trial.recipe.precision, self._device)
        training = parallelize(job, mesh=mesh, device=self._device)
        torch.manual_seed(dropout_seed(SEED, mesh, trial.layout))
        steps = Steps(job, training, mesh, self._device)
        for step in range(WARM_UP_STEPS):
            self._report(Phase(f"{trial}: warm-up", time.time()))  # compiling may take long: the rank is alive
            with torch.compiler.set_stance("force_eager") if step == 0 else nullcontext():
                _step_seconds(steps, self._device)
        return steps


def _step_seconds(steps: Steps, device: torch.device) -> float:
    start = clock.now(device)
    steps.update(steps.forward_and_backward())
    return clock.now(device) - start


@contextmanager
def _as_in_a_launch() -> Iterator[None]:
    """What a launch sets for compilation, whatever the calibration has set; taken back behind it."""
    with (
        torch._functorch.config.patch(donated_buffer=True),
        torch._dynamo.config.patch(optimize_ddp=False, fail_on_recompile_limit_hit=True),
    ):
        yield
