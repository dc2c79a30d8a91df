"""The plots of a stored benchmark: each kernel's share of copy bandwidth over its size, next to the others'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kernels.case import COMPILED, EAGER, FLEX, KERNEL, LIGER, PLAIN, SDPA
from benchmarks.kernels.table import KernelTiming, rows
from suite.records.kernel_runs import STEP_PART

COLOURS = {KERNEL: "C0", PLAIN: "C0", EAGER: "C1", COMPILED: "C2", LIGER: "C3", SDPA: "C4", FLEX: "C5"}
MARKERS = {KERNEL: "o", PLAIN: "o", EAGER: "s", COMPILED: "^", LIGER: "D", SDPA: "v", FLEX: "P"}


def draw(record: Mapping[str, Any], stem: Path) -> list[Path]:
    """Write one picture a kernel, `stem`-KERNEL.svg: a line of panels for each variant, in it each dtype and pass.

    Panels are as high as what is measured; the copy, the roof of what memory allows, is dotted where it is in sight.
    """
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "kernels"  # the same file for the same numbers
    matplotlib.rcParams["svg.fonttype"] = "none"  # text, not its outlines: a third of the bytes
    from matplotlib import pyplot

    every = [row for row in rows(record) if row.kernel != STEP_PART]
    written = []
    for kernel in dict.fromkeys(row.kernel for row in every):
        of_kernel = [row for row in every if row.kernel == kernel]
        variants = list(dict.fromkeys(row.variant for row in of_kernel))
        panels = list(dict.fromkeys((row.dtype, row.which) for row in of_kernel))
        width, height = 0.6 + 3.2 * len(panels), 0.8 + 2.3 * len(variants)
        figure, grid = pyplot.subplots(
            len(variants), len(panels), figsize=(width, height), squeeze=False, sharey="row", layout="constrained"
        )
        for line, variant in enumerate(variants):
            for column, (dtype, which) in enumerate(panels):
                shown = [r for r in of_kernel if (r.variant, r.dtype, r.which) == (variant, dtype, which)]
                _panel(grid[line][column], shown)
                grid[line][column].set_title(" ".join(p for p in (variant, which, dtype) if p), fontsize=9)
            top = 1.08 * max(row.share for row in of_kernel if row.variant == variant)
            if top >= 1:
                for axes in grid[line]:
                    axes.axhline(1, color="0.6", lw=0.8, ls=":")
            grid[line][0].set_ylim(0, top)
            grid[line][0].yaxis.set_major_formatter("{x:.0%}" if top > 0.05 else "{x:.1%}")
            grid[line][0].set_ylabel("of copy bandwidth", fontsize=8)
        lines = {
            line.get_label(): line for axes in grid.flat for line in axes.get_lines() if line.get_label()[0] != "_"
        }
        figure.legend(
            lines.values(), lines.keys(), loc="outside upper right", ncols=len(lines), fontsize=8, frameon=False
        )
        figure.suptitle(kernel, fontsize=10, x=0.01, ha="left")
        path = stem.with_name(f"{stem.name}-{kernel}.svg")
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
        written.append(path)
    return written


def _panel(axes: Any, timings: Sequence[KernelTiming]) -> None:
    for form in dict.fromkeys(row.form for row in timings):
        points = sorted((row.size, row.share) for row in timings if row.form == form)
        sizes, shares = zip(*points, strict=True)
        axes.plot(sizes, shares, color=COLOURS[form], marker=MARKERS[form], ms=4, lw=1.3, label=form)
    ticks = sorted({row.size for row in timings})
    crowded = len(ticks) > 4
    turned = {"rotation": 45, "ha": "right"} if crowded else {}
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=7, **turned)
    axes.minorticks_off()
    axes.margins(x=0.12)
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlabel(timings[0].over if timings else "", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
