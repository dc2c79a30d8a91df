"""Whether printed rates are counted rightly: MFU, Tflop/s and tokens/s beside what the step time gives.

Every convention, peak and number of devices that would give the printed figure is named: a run is often fine, and its
arithmetic is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from reference_runs.accelerator import accelerator
from reference_runs.run import Architecture, FlopConvention, Precision
from reference_runs.training_logs.training_log import TrainingLog
from suite.machine.half_precision import WORK_DTYPES
from suite.predict.analytic.flop_conventions import flop_conventions, model_convention
from suite.predict.analytic.parameters import active_parameter_count

NEAR = 0.03  # relative: a printed figure that is so near is of that formula
_LOOSE = 0.12  # of formulas that leave parameters out, which nobody counts alike
_SPARSE = 2  # vendors' peaks with structured sparsity over the dense ones
_OFTEN_TAKEN = {"a100-sxm-80gb": "an A100", "h100-sxm": "an H100", "b200": "a B200"}


class Printed(NamedTuple):
    """Rates as a log prints them, or as somebody reports them; None where they are not.

    Args:
        flop_per_second: of one accelerator.
        mfu: as a fraction.
        device_tokens_per_second: of one accelerator.
        tokens_per_second: of all.
    """

    flop_per_second: float | None = None
    mfu: float | None = None
    device_tokens_per_second: float | None = None
    tokens_per_second: float | None = None


class CountedRate(msgspec.Struct, frozen=True):
    """A printed figure beside the computed one.

    Args:
        quantity: "MFU", "Tflop/s" or "tokens/s".
        printed: in the unit of the quantity.
        computed: the same, counted as this project does: every product of the model, none twice, by the dense peak.
        explanation: the formula that gives the printed figure; None: none known does.
        wrong: whether that formula is a mistake, and not a convention.
    """

    quantity: str
    printed: float
    computed: float
    explanation: str | None
    wrong: bool


class Formula(NamedTuple):
    """A way to count, and what it gives.

    Args:
        kind: of the mistake; of each kind that gives the printed figure the nearest formula is named.
    """

    words: str
    value: float
    wrong: bool = False
    tolerance: float = NEAR
    kind: str = ""


def counted(
    printed: Printed,
    architecture: Architecture,
    *,
    batch: int,
    gpus: int,
    seconds: float,
    peak: float | None,
    precision: Precision,
) -> list[CountedRate]:
    """Each printed figure beside the computed one, with the formula that gives the printed one.

    Args:
        batch: samples of a step, over all accelerators.
        seconds: of a step.
        peak: dense flop per second of one accelerator; None: not known.
    """
    tokens = batch * architecture.sequence
    rates = {words: flop / seconds / gpus for words, flop in _flop(architecture, batch).items()}
    own = rates[FlopConvention.ALL_PRODUCTS.value]
    found = []
    if printed.flop_per_second is not None:
        formulas = [Formula(f"counted as {words}", rate) for words, rate in rates.items()]
        formulas += list(_mistakes(architecture, batch, gpus, seconds))
        found.append(_judged("Tflop/s", printed.flop_per_second / 1e12, own / 1e12, formulas, 1e-12))
    if printed.mfu is not None and peak is not None:
        formulas = list(_mfu_formulas(rates, architecture, batch, gpus, seconds, peak, precision))
        found.append(_judged("MFU", printed.mfu, own / peak, formulas, 1.0))
    for quantity, given, whole in (
        ("tokens/s of a device", printed.device_tokens_per_second, tokens / seconds / gpus),
        ("tokens/s", printed.tokens_per_second, tokens / seconds),
    ):
        if given is not None:
            formulas = [Formula("batch x sequence over the step time", whole)]
            formulas += [
                Formula("that of all devices, and not of one", whole * gpus, wrong=True),
                Formula(f"that of one of {gpus} processes", whole / gpus, wrong=True),
            ]
            found.append(_judged(quantity, given, whole, formulas if gpus > 1 else formulas[:1], 1.0))
    return found


def _flop(architecture: Architecture, batch: int) -> dict[str, float]:
    return flop_conventions(architecture, samples=batch)


def _judged(quantity: str, printed: float, computed: float, formulas: list[Formula], unit: float) -> CountedRate:
    """The nearest formula explains, a convention before a mistake."""
    near = [each for each in formulas if abs(printed / (each.value * unit) - 1) <= each.tolerance]
    usual = ("", "devices", "shard", "peak")  # an accelerator's own peak is known to most who count
    near.sort(key=lambda each: (each.wrong, usual.index(each.kind), abs(math.log(printed / (each.value * unit)))))
    if not near:
        return CountedRate(quantity, printed, computed, None, wrong=False)
    best, kinds = near[0], {each.kind: each.words for each in reversed(near) if each.wrong}
    words = ", or ".join(kinds[kind] for kind in reversed(kinds)) if best.wrong else best.words
    return CountedRate(quantity, printed, computed, words, best.wrong)


def _mistakes(architecture: Architecture, batch: int, gpus: int, seconds: float) -> Iterator[Formula]:
    """Rates of formulas that are mistakes."""
    conventions = {
        words: flop / seconds / gpus
        for words, flop in _flop(architecture, batch).items()
        if words in (FlopConvention.SIX_N.value, FlopConvention.PALM.value, FlopConvention.ALL_PRODUCTS.value)
    }
    tokens_per_second = batch * architecture.sequence / seconds / gpus
    if gpus == 1:
        return
    for words, rate in conventions.items():
        yield Formula(f"{words}, of all {gpus} devices and not of one", rate * gpus, wrong=True, kind="devices")
        yield Formula(f"{words}, over the number of devices twice", rate / gpus, wrong=True, kind="devices")
    parameters = 6 * active_parameter_count(architecture) * tokens_per_second
    for words in (FlopConvention.SIX_N.value, FlopConvention.PALM.value):
        of_shard = conventions[words] - parameters + parameters / gpus
        name = f"the parameters of one shard of {gpus} in {words}"
        yield Formula(name, of_shard, wrong=True, tolerance=_LOOSE, kind="shard")


def _mfu_formulas(
    rates: dict[str, float],
    architecture: Architecture,
    batch: int,
    gpus: int,
    seconds: float,
    peak: float,
    precision: Precision,
) -> Iterator[Formula]:
    """Each convention by its own peak, mistakes by it, and the usual conventions by the peaks of others."""
    for words, rate in rates.items():
        yield Formula(f"counted as {words}", rate / peak)
    for formula in _mistakes(architecture, batch, gpus, seconds):
        yield formula._replace(value=formula.value / peak)
    for name, other in foreign_peaks(peak, precision).items():
        for words in (FlopConvention.ALL_PRODUCTS, FlopConvention.PALM, FlopConvention.NANOGPT, FlopConvention.SIX_N):
            rate = rates[model_convention(words).value]
            by = f"{words.value} by the peak of {name} ({other / 1e12:,.0f} Tflop/s)"
            yield Formula(by, rate / other, wrong=True, kind="peak")


def counted_by_log(log: TrainingLog) -> list[CountedRate]:
    """Mistakes that a log's own lines show: its last line counts one process, its sizes are those of a shard."""
    found = []
    for step in log.steps:
        rate, seen, runtime = step.printed_tokens_per_second, step.tokens_seen, step.runtime
        if rate and seen and runtime:
            processes = round(seen / runtime / rate)
            if processes > 1 and abs(seen / runtime / rate / processes - 1) <= NEAR:
                words = f"that of one of {processes} processes"
                found.append(CountedRate("tokens/s", rate, seen / runtime, words, wrong=True))
    return found


def dense_share(mfu: float, peak: float, precision: Precision) -> dict[str, float]:
    """The MFU by the dense `peak`, where a printed `mfu` is above 1 because it divides by one of `foreign_peaks`."""
    shares = {name: mfu * other / peak for name, other in foreign_peaks(peak, precision).items()}
    return {name: share for name, share in shares.items() if share < 1 < mfu}


def foreign_peaks(peak: float, precision: Precision) -> dict[str, float]:
    """Peaks that are taken for `peak` by mistake: with sparsity, half an A100's, and those of other parts."""
    found = {"this part with sparsity": _SPARSE * peak}
    for name, words in _OFTEN_TAKEN.items():
        if (other := accelerator(name).peak_flop_per_second.get(WORK_DTYPES[precision])) is not None:
            found[words] = other
    found["half an A100"] = accelerator("a100-sxm-80gb").peak_flop_per_second["bf16"] / 2
    return {name: other for name, other in found.items() if abs(other / peak - 1) > NEAR}
