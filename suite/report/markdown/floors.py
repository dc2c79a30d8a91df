"""Floors of all accelerators as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterable

from reference_runs.accelerator import Accelerator
from reference_runs.floors import Algorithm, FloorKind, FloorQuantity, RateFloor
from suite.report.tables import MARKDOWN, table

_COLUMNS: dict[str, tuple[FloorQuantity, ...]] = {
    "16-bit GEMM, Tflop/s": (FloorQuantity.BF16_GEMM, FloorQuantity.FP16_GEMM),
    "10 s or more": (FloorQuantity.SUSTAINED_GEMM,),
    "FP8 GEMM": (FloorQuantity.FP8_GEMM,),
    "copy, GB/s": (FloorQuantity.COPY,),
    "all-reduce, GB/s": (FloorQuantity.ALL_REDUCE,),
}
_LETTERS = {FloorKind.MEASURED: "m", FloorKind.PUBLISHED: "p", FloorKind.ASSUMED: "a"}


def floor_table(devices: Iterable[Accelerator]) -> str:
    """The floors of the devices that have any, a row each, and a sentence that names the others."""
    rows, without = [], []
    for device in devices:
        if not device.floors:
            without.append(device.name)
            continue
        cells = [
            "; ".join(_cell(floor) for floor in device.floors if floor.quantity in quantities)
            for quantities in _COLUMNS.values()
        ]
        rows.append([device.name, *cells])
    text = table(rows, ["", *_COLUMNS], style=MARKDOWN, right=())
    return f"{text}\n\nNo floor of any rate: {', '.join(without)}.\n"


def _cell(floor: RateFloor) -> str:
    """The interval without its unit, with the letter of its kind; of an all-reduce, with number and algorithm."""
    interval = floor.interval.replace(" GB/s", "").replace(" Tflop/s", "")
    of = f"{floor.accelerators}" if floor.accelerators else ""
    if floor.accelerators and Algorithm.LIBRARY not in floor.algorithms:
        of += " by NVLS"
    return f"{of}: {interval} {_LETTERS[floor.kind]}".removeprefix(": ")
