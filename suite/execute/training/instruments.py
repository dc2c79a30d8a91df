"""The instruments of the training loop: what each does before, around and after a step of its purpose."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from suite.execute.measure import clock
from suite.execute.measure.counters import (
    CollectiveCounter,
    LocalFlopCounter,
    SynchronisationCounter,
    eagerly,
    storage_bytes,
)
from suite.execute.measure.cpu_speed import SAMPLES_AROUND, SpeedSampler
from suite.execute.measure.peak_memory import AllocatedPeak, resident_bytes
from suite.execute.measure.phases import Part
from suite.execute.measure.profiler import ProfiledSteps
from suite.execute.measure.system_load import SharedProcessors
from suite.execute.measure.timeline import term_seconds
from suite.execute.parallel.mesh import TENSOR, slowest
from suite.execute.training.pipeline_times import StepPasses
from suite.execute.training.step import Steps
from suite.execute.training.step_plan import StepPurpose
from suite.job.events import ComputedRows, RoutedLayer, StepKind
from suite.job.launch_nodes import INTERFACE_VARIABLE
from suite.job.slice import SlicePart


class StepCounters:
    """Counts over one step each: collectives and synchronisations, the peak of memory, flop.

    Attributes:
        gradient_bytes: storages of the gradients of the last counted step, before its update.
        routed: what routers did in the step whose collectives were counted; of tensor-parallel ranks on the first.
        computed_rows: of this rank's experts in the steps whose payload, peak and flop were counted.
    """

    def __init__(self, steps: Steps, mesh: DeviceMesh, peak: AllocatedPeak) -> None:
        self.collectives = CollectiveCounter(steps.axis_of_group())
        self.synchronisations = SynchronisationCounter(steps.device, steps.phases)
        self.peak = peak
        self.flop = LocalFlopCounter()
        self.gradient_bytes = 0
        self.routed: list[RoutedLayer] = []
        self.computed_rows: dict[str, ComputedRows] = {}
        self._steps, self._rows = steps, steps.training.computed_rows
        self._leaves = steps.training.leaves
        self._holds_messages = steps.job.layout.pipeline_stages > 1  # of a step, until the next one
        first = mesh.get_local_rank(TENSOR) == 0  # tensor-parallel ranks route the same rows
        self._routers = {n: router for chunk in steps.training.chunks if first for n, router in chunk.routers.items()}

    @contextmanager
    def around(self, purpose: StepPurpose) -> Iterator[None]:
        """The step runs within this."""
        with ExitStack() as stack:
            if purpose.eager:
                stack.enter_context(eagerly())
            self._rows.clear()
            if purpose is StepPurpose.COLLECTIVES:
                stack.enter_context(self.collectives)
                stack.enter_context(self.synchronisations)
            elif purpose is StepPurpose.PEAK:
                stack.enter_context(self.peak.window())
            elif purpose is StepPurpose.FLOP:
                stack.enter_context(self.flop)
            yield

    def before_update(self, purpose: StepPurpose) -> None:
        if purpose.kind is StepKind.COUNTED:
            self.gradient_bytes = storage_bytes(leaf.gradient for leaf in self._leaves)

    def after(self, purpose: StepPurpose, following: StepPurpose, *, skipped: bool) -> None:
        if purpose is StepPurpose.COLLECTIVES:
            self.routed = [
                RoutedLayer(n, each.loads, each.dropped, each.auxiliary_loss, each.sequence_loss)
                for n, each in sorted((n, router.statistics) for n, router in self._routers.items())
            ]
            self.computed_rows["payload_bytes"] = self._rows.counted
        if purpose is StepPurpose.FLOP:
            self.computed_rows["hardware_flop"] = self._rows.counted
            if self._holds_messages and not skipped:
                self.peak.finish(later=True)
        if purpose is StepPurpose.PEAK:
            self.computed_rows["peak_bytes"] = self._rows.of_layers
            if not skipped and not self._holds_messages:
                self.peak.finish()
        if purpose is StepPurpose.WARM_UP and following is not StepPurpose.WARM_UP:
            self.peak.settle()


class StepClocks:
    """Times steps, and watches processors and network interface meanwhile.

    Attributes:
        phase_seconds: of each phase in each timed step.
        part_seconds: of each part of a slice in each timed step.
        passes: of a pipeline, in each timed step.
        resident_bytes: before the first timed step; None where the system does not report them.
    """

    def __init__(self, steps: Steps) -> None:
        self.step_seconds: list[float] = []
        self.phase_seconds: list[dict[Part, float]] = []
        self.part_seconds: list[dict[SlicePart, float]] = []
        self.passes: list[StepPasses] = []
        self.resident_bytes: int | None = None
        self.processors = SharedProcessors()
        self.speed = SpeedSampler(steps.device)
        self._steps = steps
        self._interface = steps.job.interface or os.environ.get(INTERFACE_VARIABLE)
        self._fastest = math.inf
        self._sent_before: int | None = None
        self._sent: int | None = None
        self._finished = False

    def before(self, purpose: StepPurpose) -> None:
        if purpose is StepPurpose.TIMED and not self.step_seconds:
            self._steps.before_timed()
            self.resident_bytes = resident_bytes()  # speed samples have tensors of their own
            self.processors.start()
            self.speed.take_samples(SAMPLES_AROUND)
        if purpose is StepPurpose.PROFILED:
            self.finish()

    def after(self, purpose: StepPurpose, seconds: float, *, skipped: bool) -> None:
        self._fastest = min(self._fastest, seconds)
        if purpose is StepPurpose.FLOP and not skipped:
            everyone = dist.group.WORLD
            if self.speed.takes_samples and everyone is not None:
                self.speed.expect(*slowest(everyone, self._fastest))
            self._sent_before = clock.interface_sent_bytes(self._interface)
        if purpose is StepPurpose.TIMED:
            self.step_seconds.append(seconds)
            self.phase_seconds.append(self._steps.phases.seconds())
            self.part_seconds.append(self._steps.part_seconds())
            self.passes.append(StepPasses(self._steps.step - 1, self._steps.phases.pass_times()))
            self.processors.update()
            self._sent = clock.interface_sent_bytes(self._interface)
            self.speed.after_step()

    def finish(self) -> None:
        """No timed step follows."""
        if not self._finished:
            self._finished = True
            self.speed.take_samples(SAMPLES_AROUND)

    def interface_sent_bytes(self) -> float | None:
        """Bytes that left the job's interface in a timed step, mean; None where none is named."""
        if self._sent is None or self._sent_before is None:
            return None
        return (self._sent - self._sent_before) / len(self.step_seconds)


class StepProfile:
    """Records the last steps under the profiler.

    Attributes:
        phase_seconds: of each phase in each profiled step.
    """

    def __init__(self, steps: Steps) -> None:
        self.phase_seconds: list[dict[Part, float]] = []
        self._phases = steps.phases
        self.profiler = ProfiledSteps(steps.device, steps.job.trace, dist.get_rank())

    def before(self, purpose: StepPurpose) -> None:
        if purpose is StepPurpose.PROFILED and not self._phases.in_profile:
            self.profiler.start()
            self._phases.in_profile = True

    def after(self, purpose: StepPurpose) -> None:
        if purpose is StepPurpose.PROFILED:
            self.phase_seconds.append(self._phases.seconds())

    def term_seconds(self, clocks: StepClocks) -> dict[str, float]:
        """Stop the profiler; return the terms of the median timed step, none where the profile failed."""
        self._phases.in_profile = False
        profiled = len(self.phase_seconds)
        in_all = {part: sum(seconds[part] for seconds in self.phase_seconds) for part in Part}
        self.profiler.stop(in_all, steps=profiled)
        shares = self.profiler.shares
        if shares is None:
            return {}
        return term_seconds(clocks.step_seconds, clocks.phase_seconds, shares, profiled_steps=profiled)
