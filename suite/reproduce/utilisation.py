"""Shares of a peak rate: mfu and hfu against the data sheet, and against what products reach on the machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from reference_runs.accelerator import dense_peak_flop_per_second
from reference_runs.run import Precision
from suite.machine.half_precision import WORK_DTYPES
from suite.machine.profile import Profile
from suite.metrics.figures import Figure, Quantity
from suite.predict.machine_model.from_profile import known_accelerator

OF_ACHIEVABLE = "of the achievable matrix rate"
OF_DATASHEET = "of the data sheet's peak"
_SHARE_OF = {Quantity.MODEL_FLOP_PER_SECOND: Quantity.MFU, Quantity.HARDWARE_FLOP_PER_SECOND: Quantity.HFU}


class Peak(NamedTuple):
    """A rate of one accelerator that others are shares of.

    Args:
        name: what the share is of: the figure's term.
    """

    name: str
    flop_per_second: float


def peaks(profile: Profile, precision: Precision, *, ranks: int, cores: int) -> list[Peak]:
    """The data sheet's dense peak where the catalog knows the GPU, and the highest rate that products reached.

    The latter with as many ranks at once: see `Profile.achievable_flop_per_second`. Ranks that take turns on fewer
    cores share theirs.

    Raises:
        InputError: no product in that precision was measured.
    """
    at_once = min(ranks, cores) if profile.fingerprint.device == "cpu" else ranks
    rate = profile.achievable_flop_per_second(WORK_DTYPES[precision], ranks=at_once) * at_once / ranks
    achievable = Peak(OF_ACHIEVABLE, rate)
    device = known_accelerator(profile)
    if device is None:
        return [achievable]
    return [Peak(OF_DATASHEET, dense_peak_flop_per_second(device, WORK_DTYPES[precision])), achievable]


def utilisation(figures: Sequence[Figure], of: Iterable[Peak]) -> list[Figure]:
    """mfu and hfu for each flop rate of the job among `figures` and each peak; the peak's name is their term."""
    return [
        Figure(quantity=_SHARE_OF[figure.quantity], term=peak.name, value=figure.value / peak.flop_per_second)
        for figure in figures
        if figure.quantity in _SHARE_OF and figure.rank is None and figure.term is None
        for peak in of
    ]
