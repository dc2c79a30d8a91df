"""Predictions compared with published measurements: errors by table, and those of one constant MFU on the same rows."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from reference_runs.accelerator import dense_peak_flop_per_second, product_peak_flop_per_second
from reference_runs.errors import InputError
from reference_runs.layout import Layout, layout_text
from reference_runs.machine_model import machine_model
from reference_runs.published import PublishedRow, PublishedTable, SkippedRow
from suite.machine.half_precision import WORK_DTYPES
from suite.predict.analytic.flop import model_flop
from suite.predict.analytic.flop_conventions import causal_half_flop, frozen_flop
from suite.predict.analytic.training_cost import implausible_share
from suite.predict.analytic.usable_memory import usable_memory
from suite.predict.machine_model.model import catalogued, prepared_row, row_step_seconds
from suite.predict.validation.measured_peaks import inside, measured_peak, row_memory
from suite.predict.validation.software import FrameworkReading, framework_readings


class WorstRow(msgspec.Struct, frozen=True, kw_only=True):
    """One of the rows that are farthest from their prediction; the error is signed, in percent of what was measured."""

    line: int
    model: str
    accelerators: int
    layout: str
    measured_seconds: float
    predicted_seconds: float
    error_percent: float


class WorstMemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """The same of a row's memory."""

    line: int
    model: str
    accelerators: int
    layout: str
    measured_bytes: float
    predicted_bytes: float
    error_percent: float


class SkippedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A row that does not count, and why."""

    line: int
    reason: str


class Fits(msgspec.Struct, frozen=True, kw_only=True):
    """Whether rows ran, next to whether their predicted peak fits into the accelerator's memory."""

    fits_and_ran: int
    fits_and_failed: int
    exceeds_and_ran: int
    exceeds_and_failed: int


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How near predictions come to one table. Errors are (predicted - measured) / measured, in percent.

    Args:
        used: rows whose step time or peak memory was measured and predicted; with `skipped` all `rows`.
        step_seconds_mape: mean absolute error; None: no step time was measured.
        step_seconds_bias: mean signed error.
        step_seconds_max: the signed error that is largest in size.
        constant_mfu_mape: mean absolute error of the best constant MFU, `constant_mfu`, on the same rows.
        peak_bytes_rows: rows whose memory was measured, those whose time alone does not count included.
        peak_bytes_inside: of those, rows inside the 80 % interval of a peak that `predict` prints.
        assumed: what was assumed, and in how many used rows.
        fits: None where no row failed.
        implausible_rows: that count, but whose measured time no machine can reach.
        skipped_reasons: rows by reason, texts and numbers in it left out, the most frequent first.
        frameworks: as they were read; empty where that was not asked for.
        columns_not_read: of a table that is not among the published ones.
    """

    table: str
    rows: int
    used: int
    skipped: int
    step_seconds_mape: float | None
    constant_mfu_mape: float | None
    peak_bytes_mape: float | None
    worst: list[WorstRow]
    step_seconds_bias: float | None
    step_seconds_max: float | None
    constant_mfu: float | None
    peak_bytes_rows: int
    peak_bytes_bias: float | None
    peak_bytes_inside: int
    fits: Fits | None
    assumed: dict[str, int]
    skipped_rows: list[SkippedLine]
    implausible_rows: list[SkippedLine]
    worst_memory: list[WorstMemoryRow]
    skipped_reasons: dict[str, int]
    frameworks: list[FrameworkReading]
    columns_not_read: list[str] | msgspec.UnsetType = msgspec.UNSET
    edition: str = msgspec.field(default_factory=lambda: machine_model().edition)


class RowPrediction(NamedTuple):
    """A published row and its prediction.

    Args:
        peak_bytes: as its framework's log prints it.
        fullest_bytes: of the accelerator that needs most, which decides whether the layout fits.
    """

    row: PublishedRow
    step_seconds: float
    peak_bytes: float
    fullest_bytes: float


def row_prediction(row: PublishedRow) -> RowPrediction:
    """Seconds of a step, and bytes at the fullest instant.

    Raises:
        InputError: the accelerator has no peak in the row's dtype.
    """
    model = machine_model()
    seconds = row_step_seconds(model, model.values(), prepared_row(row))
    memory = row_memory(row)
    if memory.unlike:
        words = f"memory by formula: that of {row.stack} is not described with {'; '.join(memory.unlike)}"
        row = msgspec.structs.replace(row, assumed=(*row.assumed, words))
    return RowPrediction(row, seconds, memory.logged_bytes, memory.fullest_bytes)


def table_score(table: PublishedTable, *, worst: int, frameworks: bool = False) -> Score:
    """The errors of a table, its `worst` rows, and how its `frameworks` were read where that is asked for."""
    predicted, refused = _predictions(table.rows)
    skipped = sorted((*table.skipped, *refused), key=lambda each: each.line)
    timed = [each for each in predicted if each.row.step_seconds is not None]
    measured = [each.row.step_seconds or 0.0 for each in timed]
    errors = relative_errors([each.step_seconds for each in timed], measured)
    others, _ = _predictions([each.row for each in table.skipped if each.row is not None])
    weighed = _weighed(table, predicted, others)
    of_peaks = relative_errors([each.peak_bytes for each in weighed], [each.row.peak_bytes or 0.0 for each in weighed])
    mfu, mfu_error = constant_mfu([each.row for each in timed])
    by_distance = sorted(zip(timed, errors, strict=True), key=lambda pair: -distance(pair[1]))
    return Score(
        table=table.name,
        rows=len(table.rows) + len(table.skipped),
        used=len(predicted),
        skipped=len(skipped),
        step_seconds_mape=_percent(_mean([abs(error) for error in errors])),
        constant_mfu_mape=_percent(mfu_error),
        peak_bytes_mape=_percent(_mean([abs(error) for error in of_peaks])),
        worst=[_worst(each, error) for each, error in by_distance[:worst]],
        step_seconds_bias=_percent(_mean(errors)),
        step_seconds_max=100 * max(errors, key=abs) if errors else None,
        constant_mfu=mfu,
        peak_bytes_rows=len(weighed),
        peak_bytes_bias=_percent(_mean(of_peaks)),
        peak_bytes_inside=inside([measured_peak(each.row) for each in weighed]),
        fits=_fits(predicted, others),
        assumed=dict(Counter(words for each in predicted for words in each.row.assumed)),
        skipped_rows=[SkippedLine(line=each.line, reason=each.reason) for each in skipped],
        implausible_rows=list(_implausible([each.row for each in timed])),
        worst_memory=[
            _worst_memory(each, error)
            for each, error in sorted(zip(weighed, of_peaks, strict=True), key=lambda pair: -distance(pair[1]))[:worst]
        ],
        skipped_reasons=dict(Counter(reason_kind(each.reason) for each in skipped).most_common()),
        columns_not_read=msgspec.UNSET if table.facts.source else list(table.unread),
        frameworks=framework_readings([each.row for each in predicted]) if frameworks else [],
    )


def distance(error: float) -> float:
    """How far a prediction is from what was measured: the same for twice as much and for half of it."""
    return abs(math.log1p(error)) if error > -1 else math.inf


def reason_kind(reason: str) -> str:
    """A reason without the texts and numbers of its row, so that rows skipped for the same one count together.

    The numbers of a range, "from 0 to 1e+18", are those of the column and stay.
    """
    short = re.sub(r"; (?:did you mean|allowed:|got ).*", "", reason)
    return re.sub(r"(?<![\w.+-])(?<!from )\d(?:[\d.,]*\d)?(?![\w-])", "N", re.sub(r"'[^']*'", "...", short))


def _weighed(
    table: PublishedTable, predicted: Sequence[RowPrediction], others: Sequence[RowPrediction]
) -> list[RowPrediction]:
    """Rows whose memory was measured, of those that count and of the `others` whose memory counts."""
    of_memory = {each.line for each in table.skipped if each.memory_counts}
    weighed = [*predicted, *(each for each in others if each.row.line in of_memory)]
    return [each for each in weighed if each.row.peak_bytes is not None]


def _implausible(rows: Sequence[PublishedRow]) -> Iterator[SkippedLine]:
    """Rows whose measured step time implies more of the peak than any training reaches."""
    for row in rows:
        words = implausible_share(
            flop=causal_half_flop(row.architecture, samples=row.recipe.global_batch),
            step_seconds=row.step_seconds or 0.0,
            accelerators=row.layout.ranks,
            peak=product_peak_flop_per_second(catalogued(row.accelerator), row.recipe.product_format) or _peak(row),
        )
        if words is not None:
            yield SkippedLine(line=row.line, reason=words)


def _peak(row: PublishedRow) -> float:
    return dense_peak_flop_per_second(catalogued(row.accelerator), WORK_DTYPES[row.recipe.precision])


def all_predictions(table: PublishedTable) -> tuple[dict[int, RowPrediction], dict[int, str]]:
    """By line, the prediction of each complete row, counted or not, and of the others why there is none."""
    complete = [*table.rows, *(each.row for each in table.skipped if each.row is not None)]
    predicted, refused = _predictions(complete)
    reasons = {each.line: each.reason for each in (*table.skipped, *refused)}
    return {each.row.line: each for each in predicted}, reasons


def _predictions(rows: Sequence[PublishedRow]) -> tuple[list[RowPrediction], list[SkippedRow]]:
    predicted: list[RowPrediction] = []
    refused: list[SkippedRow] = []
    for row in rows:
        try:
            predicted.append(row_prediction(row))
        except InputError as error:
            refused.append(SkippedRow(row.line, str(error)))
    return predicted, refused


class TimedRow(NamedTuple):
    """A used row whose step time was measured, with its prediction, and nothing of its memory."""

    row: PublishedRow
    measured: float
    predicted: float


def timed_rows(table: PublishedTable) -> list[TimedRow]:
    """The rows whose step time was measured and is predicted."""
    model = machine_model()
    timed: list[TimedRow] = []
    for row in table.rows:
        if row.step_seconds is not None:
            with suppress(InputError):
                predicted = row_step_seconds(model, model.values(), prepared_row(row))
                timed.append(TimedRow(row, row.step_seconds, predicted))
    return timed


def relative_errors(predicted: Sequence[float], measured: Sequence[float]) -> list[float]:
    """(predicted - measured) / measured of each pair."""
    return [left / right - 1 for left, right in zip(predicted, measured, strict=True)]


def best_constant(ratios: Sequence[float]) -> float:
    """The factor c that minimises the mean of |c r - 1| over the ratios r.

    The sum is convex and piecewise linear in c with corners at 1 / r, where its slope grows by 2 r: the best c is the
    first corner, from the smallest on, by which the slopes have grown by half of all.

    Raises:
        ValueError: no ratio.
    """
    if not ratios:
        raise ValueError("expected one ratio at least")
    half, passed = sum(ratios) / 2, 0.0
    for ratio in sorted(ratios, reverse=True):
        passed += ratio
        if passed >= half:
            return 1 / ratio
    return 1 / min(ratios)


def constant_mfu(rows: Sequence[PublishedRow]) -> tuple[float | None, float | None]:
    """The MFU whose step times model_flop / (accelerators * peak * MFU) are nearest on these rows, and their error."""
    if not rows:
        return None, None
    ratios = []
    for row in rows:
        flop = model_flop(row.architecture, samples=row.recipe.global_batch)
        flop -= frozen_flop(row.architecture, row.recipe, samples=row.recipe.global_batch)
        ratios.append(flop / (row.layout.ranks * _peak(row)) / (row.step_seconds or 0.0))
    constant = best_constant(ratios)
    return 1 / constant, _mean([abs(constant * ratio - 1) for ratio in ratios])


def _fits(predicted: Sequence[RowPrediction], others: Sequence[RowPrediction]) -> Fits | None:
    """Over every complete row, those that do not count included; None where none failed."""
    if all(each.row.ran for each in others):
        return None
    counts = Counter(
        (each.fullest_bytes <= usable_memory(catalogued(each.row.accelerator).board).usable, each.row.ran)
        for each in (*predicted, *others)
    )
    return Fits(
        fits_and_ran=counts[True, True],
        fits_and_failed=counts[True, False],
        exceeds_and_ran=counts[False, True],
        exceeds_and_failed=counts[False, False],
    )


def _layout_words(layout: Layout) -> str:
    """The layout without what no table states and the stack decides: how ZeRO-1 reduces, in which buckets."""
    return layout_text(msgspec.structs.replace(layout, bucket_bytes=Layout().bucket_bytes, reduce_scatter=False))


def _worst(each: RowPrediction, error: float) -> WorstRow:
    row = each.row
    return WorstRow(
        line=row.line,
        model=row.model,
        accelerators=row.layout.ranks,
        layout=_layout_words(row.layout),
        measured_seconds=row.step_seconds or 0.0,
        predicted_seconds=each.step_seconds,
        error_percent=100 * error,
    )


def _worst_memory(each: RowPrediction, error: float) -> WorstMemoryRow:
    row = each.row
    return WorstMemoryRow(
        line=row.line,
        model=row.model,
        accelerators=row.layout.ranks,
        layout=_layout_words(row.layout),
        measured_bytes=row.peak_bytes or 0.0,
        predicted_bytes=each.peak_bytes,
        error_percent=100 * error,
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
