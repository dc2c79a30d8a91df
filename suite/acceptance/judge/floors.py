"""Floors of a known GPU as expected rates: on whose numbers a node passes, warns or is rejected."""

from __future__ import annotations

from reference_runs.accelerator import Accelerator
from reference_runs.floors import NO_FLOOR, REJECTED_BELOW, Algorithm, FloorKind, FloorQuantity, RateFloor, floors_for
from suite.acceptance.check_table import AcceptanceCheck
from suite.acceptance.judge.expected_rates import SPREAD_UNKNOWN, ExpectedRate


def floor_rates(
    gpu: Accelerator | None,
    check: AcceptanceCheck,
    quantity: FloorQuantity,
    *,
    accelerators: int | None = None,
    algorithm: Algorithm | None = None,
) -> list[ExpectedRate]:
    """The lower ends of the floors of a rate, with the thresholds of their kind; empty where there is none.

    With r = measured / lower end:
        published by others   warns below 1, fails below 0.9
        measured by us        warns below the check's threshold, fails below 0.70: single devices have no spread
        assumed               warns below the check's threshold, never fails

    Args:
        accelerators, algorithm: of an all-reduce.
    """
    if gpu is None:
        return []
    if quantity is FloorQuantity.BF16_GEMM and "bf16" not in gpu.peak_flop_per_second:
        quantity = FloorQuantity.FP16_GEMM
    held_to = floors_for(gpu.floors, quantity, accelerators=accelerators, algorithm=algorithm)
    return [_rate(gpu, floor, check.warn or 1.0) for floor in held_to]


def _rate(gpu: Accelerator, floor: RateFloor, warn: float) -> ExpectedRate:
    warn, fail = {
        FloorKind.PUBLISHED: (1.0, REJECTED_BELOW),
        FloorKind.MEASURED: (warn, SPREAD_UNKNOWN),
        FloorKind.ASSUMED: (warn, None),
    }[floor.kind]
    key, _, place = floor.source.partition(" ")
    document = floor.why or ": ".join(part for part in (gpu.sources[key.rstrip(",:;")], place) if part)
    source = f"{floor.kind} of {gpu.title}: {floor.interval}, {floor.date}, {document}"
    return ExpectedRate(value=floor.lower, source=source, warn=warn, fail=fail)


def without_floor(gpu: Accelerator | None, rate: str) -> str:
    """Words for a rate of a GPU that nothing is expected of, and how to get a floor of one's own."""
    whose = gpu.title if gpu else "a GPU that the catalog does not know"
    return (
        f"{NO_FLOOR}: no {rate} of {whose} is published; this one is kept. Three accepted nodes make a floor: "
        f"`fleet references` prints it, and `accept --fleet DIR` compares with it"
    )
