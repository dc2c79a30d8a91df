"""How densely a calibration times sizes, and for how long."""

from __future__ import annotations

from typing import NamedTuple

DTYPES = ("fp32", "bf16", "fp16")


class Density(NamedTuple):
    """How densely sizes are timed, and for how long.

    Args:
        ratio: of neighbouring points of a product's axes; `coarse` for fp32, in which no miniature trains, and of the
            axes of all else.
        sparse: of neighbouring sizes of a line.
        unseen: sizes between the points that are timed to know the interpolation's error, for each table of products.
        point_seconds: that a point is repeated for in a round; of copies and triads by all ranks MEMORY_SECONDS.
        rounds: how often everything is timed, so that no point has all its repetitions in one phase of the machine.
        memory_bytes: moved by the largest copy and triad, unless the caches hold more: beyond every cache.
        caches: bytes that all second and later caches of the processors hold together.
        compiled: dtypes in which compiled operators are timed; each costs seconds of compilation for each of two sizes.
        step: that sizes of products and rows are multiples of: of vectors on a CPU, of tiles on a GPU.
    """

    ratio: float = 3.0
    coarse: float = 6.0
    sparse: float = 16.0
    unseen: int = 4
    point_seconds: float = 0.002
    rounds: int = 3
    memory_bytes: int = 200_000_000
    caches: int = 0
    dtypes: tuple[str, ...] = DTYPES
    compiled: tuple[str, ...] = ("bf16",)
    step: int = 8


DENSITIES = {"cpu": Density(), "cuda": Density(memory_bytes=8_000_000_000, step=64)}
# Where there is little time, for `quick` on a CPU and for the ladder's extra ranks: on a wider grid, without fp16 and
# compiled operators
QUICK_DENSITY = Density(ratio=4.0, coarse=12.0, sparse=64.0, unseen=1, rounds=2, dtypes=("fp32", "bf16"), compiled=())
