"""The tables of a stored benchmark, in Markdown: median seconds, rates, ratios; of kernels, and of parts of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy

from benchmarks.kernels.case import COMPILED, EAGER, FLEX, KERNEL, LIGER, PLAIN, SDPA
from suite.machine.timings import median
from suite.records.kernel_runs import BASE_FORMS, STEP_PART

OTHERS = (EAGER, COMPILED, LIGER, SDPA, FLEX)
RESAMPLES = 2000
CONFIDENCE = 0.95
SEED = 1


class Ratio(NamedTuple):
    """Seconds of another function over the base's: above 1 the base is faster."""

    ratio: float
    low: float
    high: float


class KernelTiming(msgspec.Struct, frozen=True):
    """One function in one pass of one case.

    Args:
        which: the pass.
        over: name of the size that the plot is over, and `size` its value.
        share: of the copy's bandwidth in the same turns: least bytes / seconds / that.
        host_seconds: until the host has handed the call over; None on a CPU.
        flop: arithmetic of a call, roughly; None in files of before.
        is_base: whether it is the kernel, or on a CPU the plain reference; of a part of a step PyTorch's way.
        ratio: to the base; None where that was not timed, or is this one.
    """

    kernel: str
    variant: str
    which: str = msgspec.field(name="pass")
    dtype: str
    sizes: Mapping[str, int]
    over: str
    form: str
    seconds: float
    rounds: int
    share: float
    least_bytes: float
    copy_bytes_per_second: float
    host_seconds: float | None
    ratio: Ratio | None
    flop: float | None = None

    @property
    def is_base(self) -> bool:
        return self.form in BASE_FORMS

    @property
    def size(self) -> int:
        return self.sizes[self.over]

    @property
    def point(self) -> tuple[object, ...]:
        """Key that the rows of all functions of one pass of one case share."""
        return (self.kernel, self.variant, self.which, self.dtype, *self.sizes.items())


def rows(record: Mapping[str, Any]) -> list[KernelTiming]:
    """All rows of a stored benchmark, in its order."""
    base = {
        stored["group"]: stored["stats"]["data"]
        for stored in record["benchmarks"]
        if stored["extra_info"]["form"] in BASE_FORMS
    }
    return [_row(stored, base.get(stored["group"])) for stored in record["benchmarks"]]


def _row(stored: Mapping[str, Any], ours: Sequence[float] | None) -> KernelTiming:
    facts, samples = stored["extra_info"], stored["stats"]["data"]
    seconds = median(samples)
    computed = {
        "seconds": seconds,
        "rounds": len(samples),
        "share": facts["least_bytes"] / seconds / facts["copy_bytes_per_second"],
        "ratio": None if ours is None or facts["form"] in BASE_FORMS else ratio(samples, ours),
    }
    return msgspec.convert(facts | computed, KernelTiming)


def ratio(others: Sequence[float], ours: Sequence[float]) -> Ratio:
    """Median of others' samples over that of ours, and its 95 % interval by the bootstrap.

    Samples of one round belong together, so rounds are drawn, with replacement and as many as there are; the interval
    is between the 2.5 % and 97.5 % quantiles of the ratios of 2000 such draws.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13 (percentile interval). It is of the
    rounds of one process: another launch may lie outside.
    """
    pairs = numpy.array([others, ours])
    drawn = numpy.random.default_rng(SEED).integers(0, pairs.shape[1], (RESAMPLES, pairs.shape[1]))
    other_medians, our_medians = numpy.median(pairs[:, drawn], axis=2)
    low, high = numpy.quantile(other_medians / our_medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Ratio(median(others) / median(ours), float(low), float(high))


def table(record: Mapping[str, Any]) -> str:
    """The machine and software of the record, then a line for each pass of a kernel's case and each way of a part."""
    every = rows(record)
    kernels, parts = ([row for row in every if (row.kernel == STEP_PART) == is_part] for is_part in (False, True))
    lines = _preface(record, every)
    lines += _kernel_lines(kernels) if kernels or not parts else []
    lines += _part_lines(parts) if parts else []
    return "\n".join([*lines, *_failures(record)]) + "\n"


def _kernel_lines(every: Sequence[KernelTiming]) -> list[str]:
    """Lines of the table of kernels, one for each pass of a case, under what the columns mean."""
    points: dict[tuple[object, ...], list[KernelTiming]] = {}
    for row in every:
        points.setdefault(row.point, []).append(row)
    others = [form for form in OTHERS if any(row.form == form for row in every)]
    ours = next((row.form for row in every if row.is_base), "ours")
    on_gpu = any(row.host_seconds is not None for row in every)
    head = ["kernel", "pass", "dtype", "sizes", ours, "of copy", *(["host"] if on_gpu else []), "rounds"]
    head += [f"{form} / {ours}" for form in others]
    lines = [_line(head), _line(["---"] * 4 + ["---:"] * (len(head) - 4))]
    lines += [_line(_cells(same, others, on_gpu)) for same in points.values()]
    what = "the kernel" if ours == KERNEL else "the plain reference, as no kernel runs on a CPU"
    return [
        "",
        f"`{ours}` is {what}: the median of its rounds. Of copy: least bytes over this time, over the bandwidth of",
        f"a copy. The last columns: median time of the others over that of `{ours}`, above 1 where `{ours}` is faster,",
        "with a 95 % bootstrap interval over the rounds of this one process.",
        "",
        *lines,
    ]


def _part_lines(parts: Sequence[KernelTiming]) -> list[str]:
    """Lines of the table of parts, one for each way of a pass, under what the columns mean."""
    head = ["part", "pass", "dtype", "sizes", "way", "time", "GB/s", "Tflop/s", "host", "rounds", f"over {PLAIN}"]
    lines = [_line(head), _line(["---"] * 5 + ["---:"] * (len(head) - 5))]
    for row in parts:
        rates = (row.least_bytes / row.seconds / 1e9, (row.flop or 0.0) / row.seconds / 1e12)
        cells = [row.variant, row.which, row.dtype, _sizes(row), row.form, microseconds(row.seconds)]
        cells += [*(f"{rate:,.4g}" for rate in rates), microseconds(row.host_seconds), str(row.rounds)]
        lines.append(_line([*cells, _interval(row.ratio)]))
    return [
        "",
        f"Parts of GPT-2's step. `{PLAIN}` is PyTorch's way without optimizations, the others those with them.",
        "Time: the median of the rounds; GB/s, Tflop/s: least bytes and flop over it; host: until a call is launched.",
        f"Over `{PLAIN}`: below 1 where a way is faster, with a 95 % bootstrap interval over this process's rounds.",
        "",
        *lines,
    ]


def _preface(record: Mapping[str, Any], every: Sequence[KernelTiming]) -> list[str]:
    machine, commit = record["machine_info"], record["commit_info"]
    changed = " with uncommitted changes" if commit.get("dirty") else ""
    copies = [row.copy_bytes_per_second for row in every]
    copied = "none"
    if copies:
        copied = f"{min(copies) / 1e9:.4g} to {max(copies) / 1e9:.4g} GB/s, median {median(copies) / 1e9:.4g}"
    facts = [f"{name} {machine[name]}" for name in ("gpu", "cpu", "torch", "triton", "threads") if name in machine]
    return [
        f"# Kernels, {record['datetime'][:10]}",
        "",
        f"Commit {str(commit.get('id'))[:12]}{changed}. {', '.join(facts)}.",
        f"A copy in the same turns: {copied}.",
        *_sharing(record),
    ]


def _sharing(record: Mapping[str, Any]) -> list[str]:
    """How much of the processors others had: a benchmark that shared the processors says less."""
    shared = record.get("processor_seconds")
    if not shared or not shared["whole"]:
        return []
    this_process, busy, steal = (shared[name] / shared["whole"] for name in ("own", "busy", "steal"))
    return [
        "",
        f"Of the processors' time this process had {this_process:.0%}, all processes with its compilers {busy:.0%}, "
        f"other virtual machines {steal:.0%}.",
    ]


def _cells(same: Sequence[KernelTiming], others: Sequence[str], on_gpu: bool) -> list[str]:
    first = same[0]
    ours = next((row for row in same if row.is_base), None)
    cells = [" ".join(part for part in (first.kernel, first.variant) if part), first.which, first.dtype, _sizes(first)]
    if ours is None:
        cells += ["-"] * (4 if on_gpu else 3)
    else:
        host = [microseconds(ours.host_seconds)] if on_gpu else []
        cells += [microseconds(ours.seconds), f"{ours.share:.1%}", *host, str(ours.rounds)]
    ratios = {row.form: row.ratio for row in same}
    for form in others:
        cells.append(_interval(ratios.get(form)))
    return cells


def _sizes(row: KernelTiming) -> str:
    return " ".join(f"{name}={size}" for name, size in row.sizes.items() if not name.endswith("_bytes"))


def _interval(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{ratio.ratio:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def microseconds(seconds: float | None) -> str:
    """Seconds as microseconds, to four digits or to the whole one."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:,.0f} us" if seconds >= 1e-3 else f"{seconds * 1e6:.4g} us"


def _failures(record: Mapping[str, Any]) -> list[str]:
    failures, lacking = record.get("failures", {}), record.get("lacking", [])
    lines = ["", "Not possible here:", ""] * bool(lacking) + [f"- {line}" for line in lacking]
    return lines + ["", "Not timed:", ""] * bool(failures) + [f"- `{name}`: {why}" for name, why in failures.items()]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
