"""The input of a training launch's ranks."""

from __future__ import annotations

import msgspec

from reference_runs.layout import Layout
from reference_runs.placement import coordinates
from reference_runs.run import Architecture, Recipe, Workload
from suite.job.checkpoints import Checkpoints
from suite.job.options import DEFAULT_OPTIONS, Averaging, KernelChoice, StepOptions, TrainingOptions
from suite.job.slice import Slice
from suite.job.synchronisation import SlowRank, Synchronisation
from suite.job.trace_job import TraceJob
from suite.machine.half_precision import Kernels

WARM_UP_STEPS = 2  # the second step is the first with DistributedDataParallel's final buckets
COUNTED_STEPS = 3  # one under the collective counter, one for the peak of memory, one under the flop counter
LEAST_STEPS = WARM_UP_STEPS + COUNTED_STEPS + 1
PROFILED_STEPS = 2  # the last ones, where there are so many that one is timed before them
LEAST_PROFILED = LEAST_STEPS + PROFILED_STEPS


def warm_up_steps(exact_steps: int) -> int:
    """Steps before those that are counted and timed: all exact ones, and the first that is not."""
    return max(WARM_UP_STEPS, exact_steps + 1)


def layout_in_store(layout: Layout) -> Layout:
    """The layout whose buffers and shards workers at a parameter store have: ZeRO-1's with scattered gradients."""
    return msgspec.structs.replace(layout, zero_stage=1, reduce_scatter=True)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One launch.

    Args:
        device: "cpu" or "cuda".
        tokens_file: little-endian int32 tokens; `tokens` of them.
        directory: where every rank writes its events.
        interface: network interface that only this rank's messages use; None where ranks share one.
        collective_timeout_seconds: of the process group; a fallback for the launcher's hang guard.
        threads: arithmetic threads of a rank, for "cpu".
        kernels: of norms, activations, rotation, softmax and loss.
        trace: the file for the profiled steps of rank 0 (see `trace_path`); None if no trace was requested.
        averaging: over the data-parallel ranks.
        exact_steps: first steps that are averaged exactly, whatever `averaging` is.
        renewal: whether exact steps renew 1-bit Adam's second moment, each time the steps after the first ones doubled.
        training_options: of a rung of the ladder.
        changes: what the suite chose that the request did not say, in words.
        shares_devices: whether several ranks share a GPU; their messages go through gloo, and their times say nothing
            of ranks with a GPU each.
        slice: of which recorded run the job is a slice: one process takes a rank's place. None: it is a whole run.
        synchronisation: of data-parallel workers at a parameter store; None: their gradients are averaged every step.
        slow_ranks: workers that are slowed on purpose.
        checkpoints: where they lie; None: none is stored or loaded.
        model: that takes the place of the suite's decoder, with its step; `architecture` then says its tokens alone,
            and of `recipe` precision and batch count. None: the decoder is trained.
    """

    name: str
    architecture: Architecture
    recipe: Recipe
    layout: Layout
    device: str
    compiled: bool
    seed: int
    steps: int
    tokens_file: str
    tokens: int
    directory: str
    threads: int
    collective_timeout_seconds: float
    interface: str | None = None
    trace: str | None = None
    kernels: KernelChoice = KernelChoice.TORCH
    averaging: Averaging = Averaging.EXACT
    exact_steps: int = 0
    renewal: bool = False
    training_options: TrainingOptions = DEFAULT_OPTIONS
    changes: tuple[str, ...] = ()
    shares_devices: bool = False
    slice: Slice | None = None
    synchronisation: Synchronisation | None = None
    slow_ranks: tuple[SlowRank, ...] = ()
    checkpoints: Checkpoints | None = None
    model: TraceJob | None = None

    @property
    def deterministic(self) -> bool:
        """Whether PyTorch refuses operators whose results may differ from run to run."""
        return self.device == "cpu" and self.model is None

    @property
    def workload(self) -> Workload:
        """Architecture, recipe and layout."""
        return Workload(self.architecture, self.recipe, self.layout)

    @property
    def ranks(self) -> int:
        """Processes of the launch."""
        return self.layout.ranks if self.slice is None else len(self.slice.places)

    def at_rank(self, rank: int) -> Job:
        """The job as a rank sees it: stages of its layout may have different numbers of replicas."""
        if self.layout.stage_replicas is None:
            return self
        stage = coordinates(self.layout, rank)["pp"]
        return msgspec.structs.replace(self, layout=self.layout.at_stage(stage))

    def step_options(self, kernels: Kernels) -> StepOptions:
        """How its steps are executed with the kernels of a machine."""
        return StepOptions(
            kernels=kernels, compiled=self.compiled, training_options=self.training_options, averaging=self.averaging
        )

    @property
    def warm_up_steps(self) -> int:
        """Steps before those that are counted and timed: all exact ones, and the first that is not."""
        return warm_up_steps(self.exact_steps)
