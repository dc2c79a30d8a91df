"""Floors of the catalog: every accelerator has them or says that there are none, and none exceeds a data sheet."""

from __future__ import annotations

import csv

from reference_runs.accelerator import accelerator, accelerator_names
from reference_runs.floors import Algorithm, FloorKind, FloorQuantity, floors_for, wanted_quantities
from suite.paths import ROOT

DEVICES = {name: accelerator(name) for name in accelerator_names()}


def test_every_accelerator_has_a_floor_of_each_rate_or_says_that_none_is_published() -> None:
    silent = {
        name: missing
        for name, device in DEVICES.items()
        if (
            missing := [
                quantity.value
                for quantity in wanted_quantities(device.peak_flop_per_second)
                if not floors_for_any(name, quantity) and quantity not in device.no_floor
            ]
        )
    }
    assert silent == {}, "add [[floors]] or [no_floor] to its file (docs/writing_a_run.md, Floors)"


def floors_for_any(name: str, quantity: FloorQuantity) -> bool:
    return any(floor.quantity is quantity for floor in DEVICES[name].floors)


def test_no_floor_exceeds_what_its_data_sheet_promises() -> None:
    beyond = []
    for name, device in DEVICES.items():
        peaks = device.peak_flop_per_second
        for floor in device.floors:
            dtype = floor.quantity.value.removesuffix("_gemm").replace("sustained", "bf16")
            limit = {
                FloorQuantity.COPY: device.board.memory_bytes_per_second,
                # one copy goes out and one comes back where the switch sums, in which time bus bandwidth counts
                # 2 (n - 1) / n of the message
                FloorQuantity.ALL_REDUCE: 2 * device.board.link_bytes_per_second,
            }.get(floor.quantity, peaks.get(dtype, 0.0))
            if Algorithm.RING in floor.algorithms:
                limit = device.board.link_bytes_per_second
            beyond += [] if floor.lower <= (floor.upper or floor.lower) < limit else [(name, floor.of, floor.interval)]
    assert beyond == []


def test_the_all_reduce_of_eight_h100_is_the_one_in_the_published_table() -> None:
    """One band, recorded with the accelerator and in the table of collectives."""
    with (ROOT / "reference_runs/published/collectives_measured.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["collective"], row["nodes"]) == ("AllReduce", "1")]
    (floor,) = floors_for(
        DEVICES["h100-sxm"].floors, FloorQuantity.ALL_REDUCE, accelerators=8, algorithm=Algorithm.NVLS
    )
    assert [(float(row["band_low"]) * 1e9, float(row["band_high"]) * 1e9) for row in rows] == [
        (floor.lower, floor.upper)
    ]


def test_what_we_measured_is_in_the_log_of_that_day() -> None:
    log = (ROOT / "results/recorded/LOG.md").read_text(encoding="utf-8")
    days: dict[str, str] = {}
    for entry in log.split("\n- ")[1:]:
        days[entry[:10]] = days.get(entry[:10], "") + entry
    unknown = [
        (name, floor.of, end)
        for name, device in DEVICES.items()
        for floor in device.floors
        if floor.kind is FloorKind.MEASURED
        for end in (floor.lower, floor.upper or floor.lower)
        if f"{end / (1e9 if floor.unit == 'byte/s' else 1e12):,.0f}" not in days.get(floor.date, "")
    ]
    assert unknown == []
    assert sum(floor.kind is FloorKind.MEASURED for device in DEVICES.values() for floor in device.floors) >= 3


def test_of_several_floors_of_a_kind_the_lowest_holds_and_only_as_many_by_the_same_algorithm() -> None:
    h100, gb200 = DEVICES["h100-sxm"].floors, DEVICES["gb200"].floors
    assert [(floor.kind, floor.lower) for floor in floors_for([*h100, *h100], FloorQuantity.BF16_GEMM)] == [
        (FloorKind.MEASURED, 770e12),
        (FloorKind.PUBLISHED, 720e12),
    ]
    assert floors_for(gb200, FloorQuantity.ALL_REDUCE, accelerators=8, algorithm=Algorithm.NVLS) == []
    (four,) = floors_for(gb200, FloorQuantity.ALL_REDUCE, accelerators=4, algorithm=Algorithm.LIBRARY)
    assert (four.lower, four.interval, four.of) == (675e9, "675 GB/s", "all-reduce of 4 (library, ring)")
    (check,) = floors_for(
        DEVICES["mi300x"].floors, FloorQuantity.ALL_REDUCE, accelerators=8, algorithm=Algorithm.LIBRARY
    )
    assert (check.upper, check.interval) == (None, "100 GB/s or more")
