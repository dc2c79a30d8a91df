"""Trains a calibration's reference steps, a few at a time, as a launch would."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import nullcontext
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
STEPS = 3  # timed in a block, after an untimed one: the task before the block left its own data in the caches


class ReferenceTraining:
    """The reference steps of a calibration on this rank. All ranks must make the same calls.

    A block is `STEPS` consecutive steps of every reference step. The models are built at the first block, and their
    training continues from block to block. A block leaves the calibration's random number generator as it was.

    Args:
        report: receives the seconds of every timed step of this rank.

    Attributes:
        seconds: of all blocks so far.
        next_seconds: expected of the next block, from the steps of the last one on this rank.
    """

    def __init__(self, job: CalibrationJob, device: torch.device, report: Callable[[Event], None]) -> None:
        self.seconds = self.next_seconds = 0.0
        self._job = job
        self._device = device
        self._report = report
        self._meshes: dict[int, DeviceMesh] = {}
        self._steps: dict[int, Steps] = {}
        self._tokens_file = Path(job.directory) / f"reference_step_{dist.get_rank()}.tokens"

    def train_block(self) -> None:
        """Train one block."""
        start, self.next_seconds = time.perf_counter(), 0.0
        gc.collect()  # garbage of the tasks
        gc.enable()  # as in a launch
        try:
            for number, step in enumerate(self._job.reference_steps):
                self._report(Phase(str(step), time.time()))
                ranks = step.layout.ranks
                if ranks not in self._meshes:  # all ranks create it together
                    self._meshes[ranks] = device_mesh(step.layout, self._device.type)
                if dist.get_rank() < ranks:
                    with torch.random.fork_rng(devices=[]):
                        self._train(number, step, self._meshes[ranks])
                dist.barrier()
        finally:
            gc.disable()
        self.seconds += time.perf_counter() - start

    def _train(self, number: int, step: ReferenceStep, mesh: DeviceMesh) -> None:
        torch.set_num_threads(step.threads)
        with (  # the settings of compilation that a launch uses
            torch._functorch.config.patch(donated_buffer=True),
            torch._dynamo.config.patch(optimize_ddp=False, fail_on_recompile_limit_hit=True),
        ):
            if number not in self._steps:
                self._steps[number] = self._warmed_up(step, mesh)
            seconds = [_step_seconds(self._steps[number], self._device) for _ in range(1 + STEPS)]
        self.next_seconds += sum(seconds)
        self._report(ReferenceSteps(number, tuple(seconds[1:]), time.time()))

    def _warmed_up(self, step: ReferenceStep, mesh: DeviceMesh) -> Steps:
        """The training after its warm-up steps; the first one runs eagerly, as in a launch."""
        if not self._tokens_file.exists():
            drawn = numpy.random.default_rng(SEED).integers(step.architecture.vocabulary, size=TOKENS)
            drawn.astype("<i4").tofile(self._tokens_file)
        job = Job(
            name=str(step),
            architecture=step.architecture,
            recipe=step.recipe,
            layout=step.layout,
            device=self._device.type,
            compiled=step.compiled,
            seed=SEED,
            steps=WARM_UP_STEPS,
            tokens_file=str(self._tokens_file),
            tokens=TOKENS,
            directory=self._job.directory,
            threads=step.threads,
            collective_timeout_seconds=self._job.collective_timeout_seconds,
        )
        prepare_arithmetic(step.recipe.precision, self._device)
        training = parallelize(job, mesh=mesh, device=self._device)
        torch.manual_seed(dropout_seed(SEED, mesh, step.layout))
        steps = Steps(job, training, mesh, self._device)
        for number in range(WARM_UP_STEPS):
            self._report(Phase(f"{step}: warm-up", time.time()))  # compilation may take long: the rank is alive
            with torch.compiler.set_stance("force_eager") if number == 0 else nullcontext():
                _step_seconds(steps, self._device)
        return steps


def _step_seconds(steps: Steps, device: torch.device) -> float:
    start = clock.now(device)
    steps.update(steps.forward_and_backward())
    return clock.now(device) - start
