"""Kernels of a profiled step for people: by what they compute, and each by its name."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from reference_runs.training_traces.trace import Label
from suite.job.device_kernels import OTHERS, DeviceKernel
from suite.predict.diagnosis.trace_terms import operation_of, term_of_kernel
from suite.report.terminal.tables import print_table

COLUMNS = ("kernels of a step", "calls", "milliseconds", "share")
_OTHERS = OTHERS.partition("{")[0]
_COPIES = ("Memcpy", "Memset")


def kernel_kind(name: str) -> str:
    """The kind of a kernel by its name, in the words of `diagnose`; "others" for the sum of the others."""
    if name.startswith(_OTHERS):
        return "others"
    label = Label(name, "copy" if name.startswith(_COPIES) else "kernel")
    return operation_of(label) or term_of_kernel(label).value


def kernel_rows(kernels: Sequence[DeviceKernel], *, each: bool) -> list[list[str]]:
    """Rows of the table, the longest kind first; with `each` below a kind its kernels."""
    whole = sum(kernel.seconds for kernel in kernels)
    kinds: dict[str, list[DeviceKernel]] = {}
    for kernel in kernels:
        kinds.setdefault(kernel_kind(kernel.name), []).append(kernel)
    rows = []
    for kind, own in sorted(kinds.items(), key=lambda item: -sum(kernel.seconds for kernel in item[1])):
        rows.append(_row(kind, own, whole))
        if each:
            rows += [_row(f"  {kernel.name}", [kernel], whole) for kernel in own]
    return rows


def _row(name: str, kernels: Sequence[DeviceKernel], whole: float) -> list[str]:
    seconds = sum(kernel.seconds for kernel in kernels)
    calls = sum(kernel.calls for kernel in kernels)
    return [name, f"{calls:,.0f}", f"{1e3 * seconds:,.3f}", f"{seconds / whole:.1%}" if whole else "-"]


def print_kernels(out: Console, kernels: Sequence[DeviceKernel], *, each: bool) -> None:
    """Print calls, milliseconds and share of all kernels' time in a step, by kind."""
    print_table(out, kernel_rows(kernels, each=each), COLUMNS, right=COLUMNS[1:])
