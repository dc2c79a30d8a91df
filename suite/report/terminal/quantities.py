"""Quantities for people: their names, and values in units of their size."""

from __future__ import annotations

from reference_runs.units import printed
from suite.metrics.figures import Quantity
from suite.report.terminal.columns import fixed, percent

# Units that people read instead of a base unit, the largest first.
_FLOP = tuple((10.0**power, f"{prefix}flop") for power, prefix in zip(range(21, 0, -3), "ZEPTGMk", strict=True))
_READ_IN: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((86400, "days"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")),
    "accelerator s": ((3600, "h"),),
    "J": ((3.6e9, "MWh"), (3.6e6, "kWh"), (1, "J")),
    "byte": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "byte")),
    "flop": (*_FLOP, (1, "flop")),
    "flop/s": (*((factor, f"{unit}/s") for factor, unit in _FLOP), (1, "flop/s")),
    "token/s": ((1, "tokens/s"),),
}
_MEMORY = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "byte"))  # as allocators and plans print it
_OF_MEMORY = frozenset(
    {
        *(Quantity.PEAK_BYTES, Quantity.WEIGHT_BYTES, Quantity.GRADIENT_BYTES, Quantity.OPTIMIZER_BYTES),
        Quantity.ACTIVATION_BYTES,
    }
)
_SHARES = frozenset({Quantity.MFU, Quantity.HFU, Quantity.BUBBLE_FRACTION})
_NAMES = {
    Quantity.PEAK_BYTES: "peak memory",
    Quantity.STEP_SECONDS: "step time",
    Quantity.TOKENS_PER_SECOND: "throughput",
    Quantity.MODEL_FLOP_PER_SECOND: "model flop/s",
    Quantity.HARDWARE_FLOP_PER_SECOND: "hardware flop/s",
    Quantity.MFU: "MFU",
    Quantity.HFU: "HFU",
    Quantity.BUBBLE_FRACTION: "pipeline bubble",
    Quantity.TRAINING_SECONDS: "training time",
    Quantity.ACCELERATOR_SECONDS: "GPU-hours",
    Quantity.ENERGY_JOULES: "energy",
}


def name_of(quantity: str) -> str:
    """A quantity as people call it: "energy", whatever the unit."""
    if quantity in _NAMES:
        return _NAMES[Quantity(quantity)]
    return quantity.removesuffix("_bytes").removesuffix("_seconds").replace("_", " ")


def read(value: float | None, quantity: str) -> str:
    """`value`, in base units, as people read it: in a unit of its size, with four digits; counts in full.

    Step times stay in seconds, as they are published; shares are in percent.
    """
    if value is None:
        return "-"
    if quantity in _SHARES:
        return percent(value)
    factor, unit = _read_in(value, quantity)
    if not unit:
        return printed(value, "1")
    (text,) = fixed([value / factor], 4)
    return text if quantity == Quantity.ACCELERATOR_SECONDS else f"{text} {unit}"


def _read_in(value: float, quantity: str) -> tuple[float, str]:
    """The unit in which people read such a value, and how many base units it is; no name: in full."""
    units = _READ_IN.get(Quantity(quantity).unit, ((1, ""),))
    if quantity == Quantity.STEP_SECONDS:
        units = ((1, "s"),)
    elif quantity in _OF_MEMORY:
        units = _MEMORY
    return next((each for each in units if abs(value) >= each[0]), units[-1])


def within(interval: tuple[float, float], quantity: str) -> str:
    """An interval in the unit of its most, with two digits of its least."""
    factor, unit = _read_in(interval[1], quantity)
    least, most = fixed([end / factor for end in interval], 2)
    return f"{least} to {most} {unit}"
