"""What is asked of a reproduction, as it was said."""

from __future__ import annotations

from pathlib import Path

import msgspec

from reference_runs.miniature import DEFAULT_STEPS
from suite.job.options import Averaging, KernelChoice

OPTIMIZERS: tuple[str, ...] = ("adam", Averaging.ONE_BIT.value)  # adam: Adam or AdamW, as recorded
COMPRESSIONS: tuple[str, ...] = ("none", Averaging.FP16.value, Averaging.BF16.value, Averaging.POWER_SGD.value)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for; None where an option is absent.

    Args:
        mini: the miniature of the run or run file that is named.
        engine, nodes, ranks_per_node, partition, node_list: of a scheduler, see `suite.reproduce.scheduled`.
        slice, stage, layers, sequence, micro_batch, minutes: of a slice, which NAME-slice asks for too.
    """

    name: str
    mini: bool = False
    slice: bool = False
    stage: str | None = None
    layers: int | None = None
    sequence: int | None = None
    micro_batch: int | None = None
    minutes: float | None = None
    ranks: int | None = None
    layout: str | None = None
    global_batch: int | None = None
    device: str = "auto"
    compiled: bool | None = None
    steps: int = DEFAULT_STEPS
    seed: int = 1
    kernels: str = KernelChoice.TORCH.value
    products: str | None = None
    optimizer: str = OPTIMIZERS[0]
    gradient_compression: str = COMPRESSIONS[0]
    exact_steps: int | None = None
    renewal: bool = False
    share_devices: bool = False
    synchronisation: str | None = None
    slow_rank: str | None = None
    checkpoint_every: int | None = None
    resume: str | None = None
    max_restarts: int = 0
    corpus: Path | None = None
    trace: Path | None = None
    engine: str | None = None
    nodes: int | None = None
    ranks_per_node: int | None = None
    partition: str | None = None
    node_list: str | None = None
    results: Path
