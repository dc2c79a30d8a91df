"""Floors: rates that working accelerators reached, as intervals with source, kind and date."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from reference_runs.errors import InputError, nearest
from reference_runs.quantities import LARGEST, SMALLEST, Count
from reference_runs.units import in_base_unit, units_of

NO_FLOOR = "no floor"  # how the evidence of a rate begins that nothing is expected of
REJECTED_BELOW = 0.90  # of the lower end of a published interval; between the two a check warns
_DATE = re.compile(r"\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?")


class FloorKind(enum.StrEnum):
    """How a floor is known; an assumed one never rejects a node."""

    MEASURED = "measured by us"
    PUBLISHED = "published by others"
    ASSUMED = "assumed"


class FloorQuantity(enum.StrEnum):
    """A rate that `accept` measures.

    GEMMs are large square ones with random factors, all accelerators of a node at once, in bursts of milliseconds;
    sustained ones run for 10 s or more. A copy is of device memory, reading plus writing. An all-reduce counts as bus
    bandwidth, of 1 GiB or more.
    """

    BF16_GEMM = "bf16_gemm"
    FP16_GEMM = "fp16_gemm"
    FP8_GEMM = "fp8_gemm"
    SUSTAINED_GEMM = "sustained_gemm"
    COPY = "copy"
    ALL_REDUCE = "all_reduce"

    @property
    def unit(self) -> str:
        """The base unit of its rates."""
        return "byte/s" if self in (FloorQuantity.COPY, FloorQuantity.ALL_REDUCE) else "flop/s"

    @property
    def words(self) -> str:
        """Name for people."""
        return self.value.replace("_gemm", " GEMM").replace("all_reduce", "all-reduce")


class Algorithm(enum.StrEnum):
    """Algorithm of an all-reduce: the library's own choice, a ring, or sums in the switch."""

    LIBRARY = "library"
    RING = "ring"
    NVLS = "nvls"


class RateFloor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An interval of one rate of one model.

    Args:
        lower, upper: in `unit`; the base unit once it is read. Without `upper` the interval is open.
        date: when it was measured or published, or else collected: YYYY, YYYY-MM or YYYY-MM-DD.
        source: document, and the place in it; its first word is a key of the file's `[sources]`.
        accelerators, algorithms: of an all-reduce, how many took part, and which measurements it is a floor of.
        why: the reason for an assumption.
    """

    quantity: FloorQuantity
    lower: float
    unit: str
    kind: FloorKind
    date: str
    source: str
    upper: float | None = None
    accelerators: Count | None = None
    algorithms: tuple[Algorithm, ...] = ()
    why: str = ""
    note: str = ""

    @property
    def interval(self) -> str:
        """Both ends with their unit: "720 to 794.5 Tflop/s", "100 GB/s or more"."""
        scale, unit = (1e9, "GB/s") if self.unit == "byte/s" else (1e12, "Tflop/s")
        ends = [f"{end / scale:,.4g}" for end in (self.lower, self.upper) if end is not None]
        return f"{' to '.join(dict.fromkeys(ends))} {unit}" + (" or more" if self.upper is None else "")

    @property
    def of(self) -> str:
        """Name of its rate for people: "bf16 GEMM", "all-reduce of 8 (library, ring)"."""
        if self.quantity is not FloorQuantity.ALL_REDUCE:
            return self.quantity.words
        return f"{self.quantity.words} of {self.accelerators} ({', '.join(self.algorithms)})"


def wanted_quantities(dtypes: Collection[str]) -> list[FloorQuantity]:
    """The quantities of which an accelerator with peaks of these dtypes has a floor, or says that none is known."""
    sixteen = FloorQuantity.BF16_GEMM if "bf16" in dtypes else FloorQuantity.FP16_GEMM
    eight = [FloorQuantity.FP8_GEMM] if "fp8" in dtypes else []
    return [sixteen, *eight, FloorQuantity.COPY, FloorQuantity.ALL_REDUCE]


def floors_for(
    floors: Iterable[RateFloor],
    quantity: FloorQuantity,
    *,
    accelerators: int | None = None,
    algorithm: Algorithm | None = None,
) -> list[RateFloor]:
    """Floors that a measurement is held to.

    Of each kind it is the one with the lowest lower end: somebody's working part reached no more.
    """
    chosen: dict[FloorKind, RateFloor] = {}
    for floor in floors:
        of_all_reduce = (floor.accelerators, algorithm in floor.algorithms) == (accelerators, True)
        if floor.quantity is not quantity or (quantity is FloorQuantity.ALL_REDUCE and not of_all_reduce):
            continue
        if floor.kind not in chosen or floor.lower < chosen[floor.kind].lower:
            chosen[floor.kind] = floor
    return list(chosen.values())


def read_floors(raw: dict[str, Any], sources: dict[str, str], where: str) -> tuple[RateFloor, ...]:
    """The floors of an accelerator's file, `[[floors]]`, in base units.

    Raises:
        InputError: no list of tables, an unknown, missing or wrongly typed key, a wrong unit, ends in the wrong order,
            a date or source of another form, or an all-reduce without `accelerators` and `algorithms`.
    """
    tables = raw.get("floors", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError("floors: expected tables [[floors]]", got=repr(tables), where=where)
    return tuple(_floor(table, f"floors[{number}]", sources, where) for number, table in enumerate(tables))


def _floor(table: dict[str, Any], label: str, sources: dict[str, str], where: str) -> RateFloor:
    fields = RateFloor.__struct_fields__
    for key in table:
        if key not in fields:
            what = f"unknown key '{label}.{key}'"
            raise InputError(what, meant=nearest(key, fields), allowed=", ".join(fields), where=where)
    try:
        floor = msgspec.convert(table, RateFloor)
    except msgspec.ValidationError as error:
        raise InputError(f"{label}: {error}".replace("Object", "the floor"), where=where) from error
    ends = [end for end in (floor.lower, floor.upper) if end is not None]
    if not all(SMALLEST <= end <= LARGEST for end in ends) or ends != sorted(ends):  # nor NaN
        raise InputError(f"{label}: expected 0 < lower <= upper", got=" and ".join(map(repr, ends)), where=where)
    try:
        lower, *upper = (in_base_unit(end, floor.unit, floor.quantity.unit) for end in ends)
    except ValueError as error:
        allowed = ", ".join(units_of(floor.quantity.unit))
        raise InputError(f"{label}.unit", got=repr(floor.unit), allowed=allowed, where=where) from error
    if not _DATE.fullmatch(floor.date):
        allowed = "YYYY, YYYY-MM or YYYY-MM-DD"
        raise InputError(f"{label}.date", got=repr(floor.date), allowed=allowed, where=where)
    if not floor.source.split() or floor.source.split()[0].rstrip(",:;") not in sources:
        what = f"{label}: source does not begin with a key of [sources]"
        raise InputError(what, got=repr(floor.source), allowed=", ".join(sorted(sources)) or "none", where=where)
    if floor.kind is FloorKind.ASSUMED and not floor.why:
        raise InputError(f"{label}: an assumed floor needs `why`", where=where)
    of_all_reduce = floor.quantity is FloorQuantity.ALL_REDUCE
    if of_all_reduce != bool(floor.accelerators) or of_all_reduce != bool(floor.algorithms):
        what = f"{label}: `accelerators` and `algorithms` belong to {FloorQuantity.ALL_REDUCE}, and to nothing else"
        raise InputError(what, where=where)
    return msgspec.structs.replace(
        floor, lower=float(lower), upper=float(upper[0]) if upper else None, unit=floor.quantity.unit
    )


def read_no_floor(raw: dict[str, Any], floors: Iterable[RateFloor], where: str) -> dict[str, str]:
    """The quantities without a floor, `[no_floor]`, and why there is none.

    Raises:
        InputError: no table of texts, or a quantity that is unknown or has a floor.
    """
    table = raw.get("no_floor", {})
    if not isinstance(table, dict) or not all(isinstance(why, str) and why for why in table.values()):
        raise InputError("no_floor: expected a table of texts", got=repr(table), where=where)
    for key in table:
        if key not in list(FloorQuantity):
            allowed = ", ".join(FloorQuantity)
            raise InputError(
                f"unknown key 'no_floor.{key}'", meant=nearest(key, FloorQuantity), allowed=allowed, where=where
            )
        if any(floor.quantity == key for floor in floors):
            raise InputError(f"no_floor.{key}: there is one under [[floors]]", where=where)
    return dict(table)
