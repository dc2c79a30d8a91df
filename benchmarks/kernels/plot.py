"""The plots of a stored benchmark: each kernel's share of copy bandwidth over its size, beside the others'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kernels.case import COMPILED, EAGER, LIGER, OURS, PLAIN
from benchmarks.kernels.record import Row, rows

COLOURS = {OURS: "C0", PLAIN: "C0", EAGER: "C1", COMPILED: "C2", LIGER: "C3"}
MARKERS = {OURS: "o", PLAIN: "o", EAGER: "s", COMPILED: "^", LIGER: "D"}


def draw(record: Mapping[str, Any], stem: Path) -> list[Path]:
    """Write one picture a kernel, `stem`-KERNEL.svg: a column for each variant and pass, a row for each dtype."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "kernels"  # the same file for the same numbers
    from matplotlib import pyplot

    every = rows(record)
    written = []
    for kernel in dict.fromkeys(row.kernel for row in every):
        own = [row for row in every if row.kernel == kernel]
        panels = list(dict.fromkeys((row.variant, row.which) for row in own))
        dtypes = list(dict.fromkeys(row.dtype for row in own))
        figure, grid = pyplot.subplots(
            len(dtypes), len(panels), figsize=(0.8 + 3.6 * len(panels), 0.9 + 2.6 * len(dtypes)), squeeze=False
        )
        for line, dtype in enumerate(dtypes):
            for column, (variant, which) in enumerate(panels):
                axes = grid[line][column]
                _panel(axes, [r for r in own if (r.dtype, r.variant, r.which) == (dtype, variant, which)])
                axes.set_title(" ".join(part for part in (kernel, variant, which, dtype) if part), fontsize=9)
                if column == 0:
                    axes.set_ylabel("share of copy bandwidth")
        grid[0][0].legend(fontsize=8, frameon=False)
        figure.tight_layout()
        path = stem.with_name(f"{stem.name}-{kernel}.svg")
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
        written.append(path)
    return written


def _panel(axes: Any, own: Sequence[Row]) -> None:
    """Lines of all functions over the size; 1 is the copy, or the roof of what memory allows."""
    axes.axhline(1, color="0.6", lw=0.8, ls=":")
    for form in dict.fromkeys(row.form for row in own):
        points = sorted((row.size, row.share) for row in own if row.form == form)
        sizes, shares = zip(*points, strict=True)
        axes.plot(sizes, shares, color=COLOURS[form], marker=MARKERS[form], ms=4, lw=1.3, label=form)
    ticks = sorted({row.size for row in own})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=7, rotation=45, ha="right")
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel(own[0].over if own else "")
    axes.spines[["top", "right"]].set_visible(False)
