"""The table of a stored benchmark, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.kernels.case import COMPILED, EAGER, FLEX, LIGER, OURS, SDPA
from benchmarks.kernels.record import KernelTiming, rows
from suite.machine.timings import median

OTHERS = (EAGER, COMPILED, LIGER, SDPA, FLEX)


def table(record: Mapping[str, Any]) -> str:
    """One line a pass of a case, under what the columns mean and what it was measured on."""
    every = rows(record)
    points: dict[tuple[object, ...], list[KernelTiming]] = {}
    for row in every:
        points.setdefault(row.point, []).append(row)
    others = [form for form in OTHERS if any(row.form == form for row in every)]
    ours = next((row.form for row in every if row.ours), "ours")
    on_gpu = any(row.host_seconds is not None for row in every)
    head = ["kernel", "pass", "dtype", "sizes", ours, "of copy", *(["host"] if on_gpu else []), "rounds"]
    head += [f"{form} / {ours}" for form in others]
    lines = [_line(head), _line(["---"] * 4 + ["---:"] * (len(head) - 4))]
    lines += [_line(_cells(same, others, on_gpu)) for same in points.values()]
    return "\n".join([*_preface(record, every, ours), "", *lines, *_failures(record)]) + "\n"


def _preface(record: Mapping[str, Any], every: Sequence[KernelTiming], ours: str) -> list[str]:
    machine, commit = record["machine_info"], record["commit_info"]
    changed = " with uncommitted changes" if commit.get("dirty") else ""
    copies = [row.copy_bytes_per_second for row in every]
    copied = "none"
    if copies:
        copied = f"{min(copies) / 1e9:.4g} to {max(copies) / 1e9:.4g} GB/s, median {median(copies) / 1e9:.4g}"
    told = [f"{name} {machine[name]}" for name in ("gpu", "cpu", "torch", "triton", "threads") if name in machine]
    what = "the kernel" if ours == OURS else "the plain reference, as no kernel runs on a CPU"
    return [
        f"# Kernels, {record['datetime'][:10]}",
        "",
        f"Commit {str(commit.get('id'))[:12]}{changed}. {', '.join(told)}.",
        "",
        f"`{ours}` is {what}: the median of its rounds. Of copy: least bytes over this time, over the bandwidth of",
        f"a copy in the same turns ({copied}). The last columns: median time of the others over that of `{ours}`,",
        f"above 1 where `{ours}` is faster, with a 95 % bootstrap interval over the rounds of this one process.",
        *_sharing(record),
    ]


def _sharing(record: Mapping[str, Any]) -> list[str]:
    """How much of the processors others had: a benchmark that shared the processors says less."""
    shared = record.get("processor_seconds")
    if not shared or not shared["whole"]:
        return []
    own, busy, steal = (shared[name] / shared["whole"] for name in ("own", "busy", "steal"))
    return [
        "",
        f"Of the processors' time this process had {own:.0%}, all processes with its compilers {busy:.0%}, "
        f"other virtual machines {steal:.0%}.",
    ]


def _cells(same: Sequence[KernelTiming], others: Sequence[str], on_gpu: bool) -> list[str]:
    first = same[0]
    own = next((row for row in same if row.ours), None)
    sizes = " ".join(f"{name}={size}" for name, size in first.sizes.items() if not name.endswith("_bytes"))
    cells = [" ".join(part for part in (first.kernel, first.variant) if part), first.which, first.dtype, sizes]
    if own is None:
        cells += ["-"] * (4 if on_gpu else 3)
    else:
        host = [microseconds(own.host_seconds)] if on_gpu else []
        cells += [microseconds(own.seconds), f"{own.share:.1%}", *host, str(own.rounds)]
    ratios = {row.form: row.ratio for row in same}
    for form in others:
        found = ratios.get(form)
        cells.append("-" if found is None else f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}]")
    return cells


def microseconds(seconds: float | None) -> str:
    """Seconds as microseconds, to four digits or to the whole one."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:,.0f} us" if seconds >= 1e-3 else f"{seconds * 1e6:.4g} us"


def _failures(record: Mapping[str, Any]) -> list[str]:
    failures = record.get("failures", {})
    return ["", "Not timed:", ""] * bool(failures) + [f"- `{name}`: {why}" for name, why in failures.items()]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
