"""Rooflines of the machines that were calibrated, with their matrix products and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import NamedTuple

from reference_runs.errors import InputError
from suite.machine.operations import ELEMENT_BYTES
from suite.machine.profile import Profile, machines_directory, read
from suite.paths import stores
from suite.predict.analytic.kernel_cost import kernel_flop
from suite.records.kernel_runs import STEP_PART, Benchmark, kernel_run
from suite.report.html.plot import MUTED, Cell, Plot, Trace, colour, significant, symbol

MOST_MACHINES = 12  # profiles that are drawn: the newest of each machine
_MEMORY = ("copy", "triad")


class Kernel(NamedTuple):
    """One benchmark: what ran, its arithmetic, least bytes, and median seconds."""

    name: str
    form: str
    dtype: str
    flop: float
    least_bytes: float
    seconds: float


class Benchmarks(NamedTuple):
    """One run of the kernel benchmarks."""

    file: str
    machine: Mapping[str, str]
    copy_bytes_per_second: float
    kernels: list[Kernel]


def benchmarks(results: Path) -> tuple[list[Benchmarks], list[InputError]]:
    """The newest file of each directory of kernel benchmarks, and those that cannot be read."""
    good: list[Benchmarks] = []
    bad: list[InputError] = []
    directories = (path for store in stores(results) for path in (store / "kernels").glob("*") if path.is_dir())
    for directory in sorted(directories):
        for path in sorted(directory.glob("*.json"), reverse=True)[:1]:
            try:
                run = kernel_run(path)
            except InputError as error:
                bad.append(error)
                continue
            kernels = [kernel for benchmark in run.benchmarks if (kernel := _kernel(benchmark)) is not None]
            if kernels:
                copies = sorted(benchmark.extra_info.copy_bytes_per_second for benchmark in run.benchmarks)
                file = f"{directory.name}/{path.name}"
                good.append(Benchmarks(file, run.hardware, copies[len(copies) // 2], kernels))
    return good, bad


def _kernel(benchmark: Benchmark) -> Kernel | None:
    """A benchmark's kernel with its flop, bytes and time; None where its arithmetic is not known."""
    about = benchmark.extra_info
    name, variant = about.kernel, about.variant
    if variant.startswith("attention"):
        name = "attention"
    elif (name, variant) == ("sign_pack", "unpack"):
        name = "sign_unpack"
    elif name == STEP_PART:
        name = variant
    try:
        flop = getattr(kernel_flop(name, variant, **about.sizes), about.direction)
    except (ValueError, KeyError, AttributeError):
        return None
    if flop is None or about.least_bytes <= 0 or benchmark.stats.median <= 0:
        return None
    sizes = " x ".join(str(value) for key, value in about.sizes.items() if not key.endswith("bytes"))
    words = " ".join(filter(None, (about.kernel, about.variant, about.direction, about.dtype, sizes)))
    return Kernel(words, about.form, about.dtype, flop, about.least_bytes, benchmark.stats.median)


def profiles(results: Path) -> tuple[list[Profile], list[InputError]]:
    """The newest readable profile of each machine, newest machine first; and why others are left out."""
    good: dict[tuple[str, str], Profile] = {}
    bad: list[InputError] = []
    for path in sorted(path for store in stores(results) for path in machines_directory(store).glob("*.json")):
        try:
            profile = read(path)
        except InputError as error:
            bad.append(error)
            continue
        if profile.partial:  # without copies and triads there is no roof
            continue
        key = profile.fingerprint.node, profile.fingerprint.device
        if key not in good or good[key].measured < profile.measured:
            good[key] = profile
    newest = sorted(good.values(), key=lambda profile: (-profile.measured, profile.fingerprint.node))
    return newest[:MOST_MACHINES], bad


def machine_words(profile: Profile) -> str:
    """The machine as the launches' setups name it."""
    hardware = profile.fingerprint.hardware
    device = profile.fingerprint.device
    return f"{hardware.get('cpu')}, {hardware.get('cores')} cores, GPUs: {hardware.get('gpus')}, {device}"


def rooflines(machine_profiles: list[Profile], measured: list[Benchmarks]) -> list[tuple[str, Plot]]:
    """Machine and picture, of every profile with the kernels timed on such hardware, then of kernels alone.

    The memory roof is the faster one of copy and triad beyond every cache, by one rank alone.
    """
    left = list(measured)
    plots = []
    for index, profile in enumerate(machine_profiles):
        same_machine = [benchmarks for benchmarks in left if _same(benchmarks, profile)]
        left = [benchmarks for benchmarks in left if benchmarks not in same_machine]
        words = machine_words(profile)
        try:
            peaks = {dtype: profile.achievable_flop_per_second(dtype) for dtype in _dtypes(profile)}
            bandwidth = max(profile.memory_bytes_per_second(name) for name in _MEMORY if _was_timed(profile, name))
        except (InputError, ValueError):  # a profile without products or memory has no roof
            continue
        name = f"{profile.fingerprint.node}-{profile.fingerprint.device}-{index}"
        plots.append((words, roofline_plot(name, words, bandwidth, peaks, list(_products(profile)), same_machine)))
    for index, benchmarks in enumerate(left):
        machine = benchmarks.machine
        words = f"{machine.get('cpu') or machine.get('gpu') or 'unknown'}, {machine.get('device', '')}"
        plots.append(
            (words, roofline_plot(f"kernels-{index}", words, benchmarks.copy_bytes_per_second, {}, [], [benchmarks]))
        )
    return plots


def _same(benchmarks: Benchmarks, profile: Profile) -> bool:
    hardware = profile.fingerprint.hardware
    machine = benchmarks.machine
    same = machine.get("device") == profile.fingerprint.device
    if profile.fingerprint.device == "cuda":
        return same and machine.get("gpu", "?") in hardware.get("gpus", "")
    return same and machine.get("cpu") == hardware.get("cpu") and machine.get("cores") == hardware.get("cores")


def _was_timed(profile: Profile, operation: str) -> bool:
    return any(table.subject.operation == operation for table in profile.tables)


def _dtypes(profile: Profile) -> list[str]:
    timed = {t.subject.dtype for t in profile.tables if t.subject.operation == "product" and t.subject.ranks == 1}
    return [dtype for dtype in ELEMENT_BYTES if dtype in timed]


def _products(profile: Profile) -> Iterator[Kernel]:
    """Every matrix product that one rank timed alone."""
    for table in profile.tables:
        subject = table.subject
        if subject.operation != "product" or subject.ranks != 1 or subject.dtype not in ELEMENT_BYTES:
            continue
        points = product(*(axis.points for axis in table.axes))
        for (m, n, k), timing in zip(points, table.timings, strict=True):
            size = ELEMENT_BYTES[subject.dtype] * (m * k + k * n + m * n)
            name = f"product {subject.variant} {m:.0f} x {n:.0f} x {k:.0f} {subject.dtype}"
            yield Kernel(name, f"products, {subject.dtype}", subject.dtype, 2 * m * n * k, size, timing.seconds)


def roofline_plot(
    name: str, words: str, bandwidth: float, peaks: Mapping[str, float], products: list[Kernel], runs: list[Benchmarks]
) -> Plot:
    """The picture of products, of which there is at least one, and of kernel timings."""
    kernels = [kernel for run in runs for kernel in run.kernels]
    every = [*products, *kernels]
    intensities = [kernel.flop / kernel.least_bytes for kernel in every]
    knees = [peak / bandwidth for peak in peaks.values()]
    least, most = min([*intensities, *knees]) / 2, max([*intensities, *knees]) * 2
    traces = list(_roofs(bandwidth, peaks, least, most))
    rows: list[list[Cell]] = []
    forms = dict.fromkeys(kernel.form for kernel in every)
    for index, form in enumerate(forms):
        points = [kernel for kernel in every if kernel.form == form]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": form if form.startswith("products") else f"kernels, {form}",
                "x": [significant(kernel.flop / kernel.least_bytes, 4) for kernel in points],
                "y": [significant(kernel.flop / kernel.seconds, 4) for kernel in points],
                "text": [kernel.name for kernel in points],
                "marker": {"color": colour(index), "symbol": symbol(index), "size": 7, "opacity": 0.7},
                "hovertemplate": "%{text}<br>%{y:.3s}flop/s at %{x:.3g} flop/byte",
            }
        )
        for kernel in points:
            roof = min(bandwidth * kernel.flop / kernel.least_bytes, peaks.get(kernel.dtype, float("inf")))
            rows.append(
                [
                    form,
                    kernel.name,
                    f"{kernel.flop / kernel.least_bytes:,.3g}",
                    _giga(kernel.flop / kernel.seconds),
                    f"{kernel.least_bytes / kernel.seconds / 1e9:,.4g}",
                    f"{kernel.flop / kernel.seconds / roof:.0%}",
                ]
            )
    best = max((kernel.flop / kernel.seconds for kernel in every), default=0.0)
    highest = ", ".join(f"{dtype} {_giga(peak)} Gflop/s" for dtype, peak in peaks.items())
    return Plot(
        id=f"roofline-{name}",
        title=f"Roofline of {words}",
        says=f"Log-log scatter of {len(products)} matrix products and {len(kernels)} kernel timings below a memory "
        f"roof of {bandwidth / 1e9:,.4g} GB/s{' and peaks of ' + highest if highest else ''}; the fastest reaches "
        f"{_giga(best)} Gflop/s.",
        traces=traces,
        layout={
            "xaxis": {"type": "log", "dtick": 1, "title": {"text": "flop a byte"}},
            "yaxis": {"type": "log", "dtick": 1, "title": {"text": "flop a second"}, "exponentformat": "SI"},
        },
        columns=["", "what", "flop a byte", "Gflop/s", "least GB/s", "of the roof"],
        rows=rows,
        height=560,
    )


def _giga(rate: float) -> str:
    return f"{significant(rate / 1e9, 4):,.10g}"


def _roofs(bandwidth: float, peaks: Mapping[str, float], least: float, most: float) -> Iterator[Trace]:
    """The memory roof alone where no peak is known, else one roof a dtype."""
    dashes = ("solid", "dash", "dot", "dashdot")
    for index, (dtype, peak) in enumerate(peaks.items() or [("memory", bandwidth * most)]):
        knee = min(max(peak / bandwidth, least), most)
        x = sorted({least, knee, most})
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": f"roof, {dtype}",
            "x": [significant(intensity) for intensity in x],
            "y": [significant(min(bandwidth * intensity, peak)) for intensity in x],
            "line": {"color": MUTED, "width": 1.5, "dash": dashes[index % len(dashes)]},
            "hoverinfo": "skip",
        }
