"""What the log of a simulated device says of a span of time: launches by kind, products by shape, and waits."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable

import msgspec


class LaunchKind(enum.StrEnum):
    """What a launch is for, as far as the kernel's name says."""

    PRODUCT = "matrix product"
    ATTENTION = "attention"
    COMPILED = "compiled (Triton)"
    TENSOR_LISTS = "lists of tensors (norm, update)"
    CAST = "cast or copy"
    OTHER = "other kernels of PyTorch"
    FILL = "fill"
    TRANSFER = "copy between host and device"


# parts of kernels' names, the first that is found decides
_NAMES = (
    ("cudnn_graph", LaunchKind.ATTENTION),
    ("flash", LaunchKind.ATTENTION),
    ("fmha", LaunchKind.ATTENTION),
    ("triton_", LaunchKind.COMPILED),
    ("multi_tensor_apply", LaunchKind.TENSOR_LISTS),
    ("copy_kernel", LaunchKind.CAST),
    ("", LaunchKind.OTHER),
)


class LoggedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Launches of a step.

    Args:
        launches: by kind.
        products: rows, columns and depth of a product -> how often it was launched.
        waits: of the host for the device: PyTorch waits for the stream after it copied to the host; and copies from
            pageable memory, for which CUDA may wait until the stream is empty.
        launches_after_wait: how many began after the first wait: of work that the device did not have in time.
    """

    launches: dict[str, int]
    products: list[tuple[int, int, int, int]]
    waits: list[str]
    launches_after_wait: int = 0

    @property
    def kernels(self) -> int:
        """Launches other than copies between host and device."""
        return sum(count for kind, count in self.launches.items() if kind != LaunchKind.TRANSFER)


class CountedStep(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted of one step.

    Args:
        micro_batches: of the step.
        layers: of the model.
        host_seconds: processor time of the process that trains, its threads together: the least of some steps.
        graphs, graph_breaks: of the compiler, since the process began.
        compiled_bytes, operator_bytes: moved by compiled kernels, and by PyTorch's other operators without products.
    """

    micro_batches: int
    layers: int
    host_seconds: float
    graphs: int
    graph_breaks: int
    compiled_bytes: int
    operator_bytes: int
    step: LoggedStep


def logged_step(lines: Iterable[str], *, process: int, start: float, end: float) -> LoggedStep:
    """The lines of `process` from `start` to `end`, in seconds of the system's monotonic clock."""
    launches: Counter[str] = Counter()
    products: Counter[tuple[int, int, int]] = Counter()
    waits: list[str] = []
    after_wait = 0
    for line in lines:
        owner, seconds, kind, *details = line.split()
        if int(owner) != process or not start <= float(seconds) <= end:
            continue
        after_wait += bool(waits) and kind in ("launch", "matmul", "fill", "copy")
        if kind == "launch":
            launches[next(found for part, found in _NAMES if part in details[-1])] += 1
        elif kind == "matmul":
            launches[LaunchKind.PRODUCT] += 1
            M, N, K = (int(size) for size in details[1].split("x"))
            products[M, N, K] += int(details[2].removeprefix("count="))
        elif kind in ("fill", "copy"):
            launches[
                LaunchKind.FILL if kind == "fill" else LaunchKind.TRANSFER if "to_" in line else LaunchKind.CAST
            ] += 1
        if kind == "wait" or (kind == "copy" and "to_device pageable" in line):
            waits.append(" ".join([kind, *details[1:]]))
    return LoggedStep(launches=dict(launches), products=_listed(products), waits=waits, launches_after_wait=after_wait)


def _listed(products: Counter[tuple[int, int, int]]) -> list[tuple[int, int, int, int]]:
    return [(*shape, count) for shape, count in sorted(products.items(), key=lambda item: (-item[1], item[0]))]


def words(step: LoggedStep) -> str:
    """The launches by kind, most first, in one line."""
    return ", ".join(f"{count:,} {kind}" for kind, count in sorted(step.launches.items(), key=lambda item: -item[1]))
