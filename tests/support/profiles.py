"""A small machine profile for tests, of this machine or of another."""

from __future__ import annotations

from typing import Any

from suite.calibration.density import Density
from suite.machine.fingerprint import Fingerprint
from suite.machine.profile import UNSEEN, Check, Conditions, Profile
from suite.machine.timing_tables import Axis, Subject, Table, fitted
from suite.machine.timings import Timing

HERE = Fingerprint(node="0123abcd", device="cpu", hardware={"cpu": "A", "cores": "2"}, software={"torch": "2.13.0"})
SPARSE = Density(  # a few points of everything, without compilation
    ratio=100.0,
    coarse=100.0,
    sparse=300.0,
    unseen=1,
    point_seconds=0.001,
    rounds=2,
    memory_bytes=4_000_000,
    dtypes=("fp32",),
    compiled=(),
)


def timing(seconds: float) -> Timing:
    return Timing(seconds, seconds, seconds * 0.9, seconds * 1.1, 5, 2)


def product(variant: str, ranks: int) -> Table:
    """Products at 1 Gflop/s a rank that shares nothing, half of it with two at once."""
    points = (8.0, 64.0)
    cells = [timing(2e-9 * ranks * m * n * k) for m in points for n in points for k in points]
    axes = tuple(Axis(name, points) for name in "MNK")
    return Table(subject=Subject(operation="product", variant=variant, ranks=ranks), axes=axes, timings=tuple(cells))


def triad() -> Table:
    """20 GB/s from a cache, 5 GB/s beyond."""
    axes = (Axis("byte", (1e6, 1e8)),)
    return Table(subject=Subject(operation="triad"), axes=axes, timings=(timing(1e6 / 2e10), timing(1e8 / 5e9)))


def profile(
    *,
    measured: float = 1000.0,
    ranks: int = 2,
    fingerprint: Fingerprint = HERE,
    others_share: float = 0.02,
    steal_share: float = 0.0,
    partial: bool = False,
) -> Profile:
    """Products of 1 and 2 ranks at once, an all-reduce of 1 ms and 1 GB/s, one check that is 10 % off."""
    sizes = [256.0, 1e6]
    all_reduce = Subject(operation="all_reduce", ranks=2)
    reported: dict[str, Any] = {"governor": "performance"}
    return Profile(
        measured=measured,
        fingerprint=fingerprint,
        conditions=Conditions(
            ranks=ranks,
            threads={1: 2, 2: 1},
            seconds=60.0,
            load_before=0.5,
            load_after=1.5,
            steal_share=steal_share,
            others_share=others_share,
            facts=reported,
            gpus=[],
        ),
        tables=[*(product(variant, count) for variant in ("NT", "NN", "TN") for count in (1, 2)), triad()],
        lines=[fitted(all_reduce, "byte", sizes, [timing(1e-3 + 1e-9 * size) for size in sizes])],
        checks=[
            Check(
                kind=UNSEEN,
                subject=Subject(operation="product", variant="NT"),
                sizes=(16.0, 16.0, 16.0),
                predicted_seconds=1.1e-5,
                timing=timing(1e-5),
            )
        ],
        reference_steps=[],
        partial=partial,
    )
