"""Shares of a GPU's data sheet that a launch reached, where no calibration says what the GPU can do."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from reference_runs.accelerator import dense_peak_flop_per_second, known_gpu, product_peak_flop_per_second
from reference_runs.errors import InputError
from reference_runs.run import Recipe, Workload
from suite.job.events import Finished
from suite.job.slice import SlicePart, slowest
from suite.machine.half_precision import WORK_DTYPES
from suite.metrics.figures import OF_DATASHEET, Figure, Quantity
from suite.predict.analytic.flop import rank_model_flop
from suite.reproduce.step_time import Peak

BF16_EQUIVALENT = "16-bit equivalent, of the data sheet's {} peak"  # which such GEMMs may exceed: no MFU
OF_FORMAT = "of the data sheet's {} peak"
LAYERS_ALONE = "layers alone, {}"


def sheet_peaks(gpus: str, recipe: Recipe) -> list[Peak]:
    """The dense peaks of the GPUs' data sheet: that of the precision, and of GEMMs in a format of their own both.

    Empty where the catalog does not know the GPU, or models differ.

    Args:
        gpus: model names with ", " between them.
    """
    device = known_gpu(gpus)
    if device is None:
        return []
    try:
        wide = dense_peak_flop_per_second(device, WORK_DTYPES[recipe.precision])
        narrow = product_peak_flop_per_second(device, recipe.product_format)
    except InputError:  # the data sheet has none
        return []
    if narrow is None:
        return [Peak(OF_DATASHEET, wide)]
    own = OF_FORMAT.format(recipe.product_format.peak_dtype.upper())
    return [Peak(BF16_EQUIVALENT.format(WORK_DTYPES[recipe.precision]), wide), Peak(own, narrow)]


def slice_shares(
    workload: Workload, finished: Sequence[Finished], peaks: Sequence[Peak], *, rank_stage: int
) -> list[Figure]:
    """MFU of a slice's layers: model flop of one, over the median seconds of its passes, over each peak.

    3 F / (forward + backward), F flop of a layer's products on this rank. Passes that compute again what was not kept
    take longer for no more model flop. A whole slice has no MFU: its update follows every micro-batch.
    """
    times = slowest([report.slice_times for report in finished if report.slice_times])
    if times is None:
        return []
    seconds = [times.median(part) for part in (SlicePart.LAYER_FORWARD, SlicePart.LAYER_BACKWARD)]
    if None in seconds or not sum(seconds):  # type: ignore[arg-type]  # none is None here
        return []
    flop = layer_model_flop(workload, stage=rank_stage)
    rate = flop / sum(seconds)  # type: ignore[arg-type]  # as above
    return [
        Figure(quantity=Quantity.MFU, term=LAYERS_ALONE.format(peak.name), value=rate / peak.flop_per_second)
        for peak in peaks
    ]


def layer_model_flop(workload: Workload, *, stage: int) -> int:
    """Model flop of one micro-batch in one more layer of a slice's stage, forward and backward, on one rank."""
    architecture, _, layout = workload
    counts = [*(layout.stage_layer_counts or (architecture.layers,))]
    counts[stage] += 1
    longer = workload._replace(
        architecture=msgspec.structs.replace(architecture, layers=architecture.layers + 1),
        layout=msgspec.structs.replace(layout, stage_layer_counts=tuple(counts)),
    )
    of_both = [rank_model_flop(each, stage=stage, samples=layout.micro_batch) for each in (longer, workload)]
    return of_both[0] - of_both[1]
