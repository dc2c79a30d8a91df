"""Errors of the hardware that end a launch, or that a GPU counts in one: they decide a battery."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from suite.acceptance.check_table import ERRORS
from suite.acceptance.evidence import Evidence, Load, MiniatureLaunch, ProbeResult
from suite.acceptance.findings import rank_names
from suite.acceptance.gpu_evidence import Health
from suite.job.events import Status
from suite.machine.gpu import cuda_errors
from suite.records.battery import CheckFinding, CheckVerdict

# CUDA's words for errors of the hardware itself (CUDA Runtime API, cudaError_t: 214, 220, 714), which no program causes
_HARDWARE_ERRORS = re.compile(
    r"uncorrectable ECC error encountered|uncorrectable NVLink error|hardware stack error", re.IGNORECASE
)
IN_A_LAUNCH = "launch of "  # how the subjects begin of errors that ended a launch: reported whatever is asked for


class HardwareError(NamedTuple):
    """An uncorrectable error that ended a launch: its name, the ranks that met it, and CUDA's words."""

    launch: str
    ranks: Sequence[int]
    words: str

    def __str__(self) -> str:
        return f"{self.words} on {rank_names(self.ranks) or 'an unknown rank'} in the {IN_A_LAUNCH}{self.launch}"


def hardware_errors(evidence: Sequence[Evidence]) -> list[HardwareError]:
    """Launches that an uncorrectable error of a GPU ended.

    The rank that met it is at fault, not those that fell with it.
    """
    found = []
    for load in evidence:
        if not isinstance(load, Load) or load.status is Status.OK:
            continue
        words = _HARDWARE_ERRORS.search(load.message) or _HARDWARE_ERRORS.search(load.stacks)
        if words is None:
            continue
        said = cuda_errors(load.stacks)
        met = [rank for rank, error in said.items() if rank is not None and _HARDWARE_ERRORS.search(error)]
        probe = "the probe" if isinstance(load, ProbeResult) else "micro-measurements"
        name = load.run if isinstance(load, MiniatureLaunch) else probe
        at_fault = load.ranks_at_fault if _HARDWARE_ERRORS.search(load.message) else []
        found.append(HardwareError(name, at_fault or sorted(met) or load.ranks_at_fault, words[0]))
    return found


def uncorrectable(health: Health | None) -> list[str]:
    """GPUs that counted an uncorrectable error in a phase."""
    gpus = health.gpus if health else []
    return [
        f"uncorrectable ECC error of GPU {gpu.index} at {gpu.pci}"
        for gpu in gpus
        if None not in (gpu.before.uncorrected, gpu.after.uncorrected)
        and (gpu.after.uncorrected or 0) > (gpu.before.uncorrected or 0)
    ]


def launch_error_findings(loads: Sequence[Evidence]) -> list[CheckFinding]:
    """Check 13 of errors of the hardware that ended a launch: it fails, whatever the counters say."""
    return [
        CheckFinding(
            check=ERRORS,
            subject=f"{IN_A_LAUNCH}{error.launch}",
            verdict=CheckVerdict.FAIL,
            part=f"memory or board of {rank_names(error.ranks) or 'an unknown GPU'}",
            evidence=str(error),
        )
        for error in hardware_errors(loads)
    ]
