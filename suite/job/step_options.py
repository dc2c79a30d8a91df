"""How a step is executed, as far as predictions depend on it, apart from the workload."""

from __future__ import annotations

import msgspec

from suite.job.options import DEFAULT_OPTIONS, Averaging, TrainingOptions
from suite.machine.half_precision import Kernels


class StepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The execution options that all ranks of a launch share.

    Args:
        kernels: of the machine that runs it.
        compiled: whether blocks are compiled.
        averaging: over the data-parallel ranks, in the steps after those that average exactly.
    """

    kernels: Kernels = Kernels()
    compiled: bool = False
    training: TrainingOptions = DEFAULT_OPTIONS
    averaging: Averaging = Averaging.EXACT


DEFAULT_STEP = StepOptions()
