"""The scope of a calibration: device, ranks and cores; how many sizes it times, and for how long."""

from __future__ import annotations

from typing import NamedTuple

from suite.calibration.shapes import Shapes, miniature_shapes
from suite.machine.gpu import HEAD_DIM_STEP

DTYPES = ("fp32", "bf16", "fp16")


class Density(NamedTuple):
    """Density of the timed sizes, and the time for each.

    Args:
        ratio: between neighbouring points of a product's axes. `coarse` is the ratio for fp32, in which no miniature
            trains, and for the axes of all other tables.
        sparse: ratio between neighbouring sizes of a line.
        unseen: number of sizes between the points, for each table of products; they measure the interpolation error.
        point_seconds: for the repetitions of a point in a round; MEMORY_SECONDS for copies and triads by all ranks.
        rounds: how often everything is timed, so that a point is not repeated in a single phase of the machine only.
        memory_bytes: moved by the largest copy and triad; more if the caches hold more.
        caches: bytes of all second and later caches of the processors together.
        compiled: dtypes in which compiled operators are timed; each costs seconds of compilation for each of two sizes.
        step: sizes of products and rows are multiples of it: of vectors on a CPU, of tiles on a GPU.
        head_dim_steps: of attention's head sizes, at the points and between them. On a GPU they are all multiples of 8,
            for which PyTorch has one kernel (`sdpa_backend`): it pads others, and in fp32 refuses some.
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
    head_dim_steps: tuple[int, int] = (4, 1)


DENSITIES = {
    "cpu": Density(),
    "cuda": Density(memory_bytes=8_000_000_000, step=64, head_dim_steps=(HEAD_DIM_STEP, HEAD_DIM_STEP)),
}
# For short calibrations (`quick`, the ladder's extra ranks): a wider grid, no fp16, no compiled operators
QUICK_DENSITY = Density(ratio=4.0, coarse=12.0, sparse=64.0, unseen=1, rounds=2, dtypes=("fp32", "bf16"), compiled=())

QUICK_GPU_DENSITY = DENSITIES["cuda"]._replace(
    ratio=QUICK_DENSITY.ratio,
    coarse=QUICK_DENSITY.coarse,
    sparse=QUICK_DENSITY.sparse,
    unseen=QUICK_DENSITY.unseen,
    rounds=QUICK_DENSITY.rounds,
    dtypes=QUICK_DENSITY.dtypes,
    compiled=QUICK_DENSITY.compiled,
)

QUICK_DENSITIES = {"cpu": QUICK_DENSITY, "cuda": QUICK_GPU_DENSITY}


class Scope(NamedTuple):
    """Subject of a calibration: operations of up to `ranks` ranks of a device kind, which share the cores on "cpu"."""

    device: str
    ranks: int
    cores: int
    density: Density

    @property
    def shapes(self) -> Shapes:
        """The miniatures' shapes on so many ranks: their range is covered, and they themselves are not timed."""
        return miniature_shapes(self.device, ranks=self.ranks)
