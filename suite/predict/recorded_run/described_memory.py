"""The memory of a workload as its stack executes it: walked through, nanotron's, or by the formula of all others.

`predict`, `fit`, `plan`, `explore` and `validate` take it from here, so that all have the same peak.
"""

from __future__ import annotations

from reference_runs.catalog import accumulation
from reference_runs.run import Workload
from reference_runs.stack import Keeping, Modules
from suite.machine.half_precision import Kernels
from suite.predict.analytic.nanotron_memory import NanotronMemory, nanotron_memory
from suite.predict.analytic.stage_memory import StageMemory, memory_by_stage, peak_bytes
from suite.predict.analytic.timed_stages import timed_stages
from suite.predict.simulation.walked_memory import (
    Execution,
    WalkedMemory,
    described_keeping,
    walked_by_stage,
    walked_memory,
)

RankMemory = StageMemory | WalkedMemory | NanotronMemory


def described_by_stage(
    workload: Workload, keeping: Keeping, kernels: Kernels, *, micro_batches: int, device_bytes: float | None
) -> tuple[RankMemory, ...]:
    """Memory of every pipeline stage, in order.

    Args:
        device_bytes: that a rank can fill; None: as many as it needs.

    Raises:
        InputError: as `walked_memory`.
    """
    keeping = described_keeping(workload, keeping)
    if keeping.walked:
        return tuple(walked_by_stage(workload, execution=Execution(kernels, keeping)))
    if keeping.modules is Modules.NANOTRON:
        return tuple(
            nanotron_memory(workload, stage=stage, micro_batches=micro_batches, device_bytes=device_bytes)
            for stage in range(workload.layout.pipeline_stages)
        )
    return tuple(memory_by_stage(workload, micro_batches=micro_batches, keeping=keeping))


def described_peak(
    workload: Workload, keeping: Keeping, kernels: Kernels, *, device_bytes: float | None = None
) -> float:
    """Bytes at the fullest instant of the fullest rank; see `described_by_stage`.

    Raises:
        InputError: as `walked_memory`.
    """
    keeping = described_keeping(workload, keeping)
    micro_batches = accumulation(workload.recipe, workload.layout)
    if keeping.walked:
        stages, execution = timed_stages(workload.architecture, workload.layout), Execution(kernels, keeping)
        return max(walked_memory(workload, stage=stage, execution=execution).peak for stage in stages)
    if keeping.modules is Modules.NANOTRON:
        by_stage = described_by_stage(
            workload, keeping, kernels, micro_batches=micro_batches, device_bytes=device_bytes
        )
        return max(memory.peak for memory in by_stage)
    return peak_bytes(workload, micro_batches=micro_batches, keeping=keeping)
