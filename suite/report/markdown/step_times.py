"""Predicted and measured step times of recorded launches, as a Markdown table for each machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from suite.metrics.difference_words import Direction, direction
from suite.metrics.figures import Quantity, StepTerm
from suite.records import frame
from suite.records.summary import LaunchSummary
from suite.report.compared_launches import (
    SetupKey,
    by_setup,
    comparable_launches,
    error_words,
    is_predicted,
    median_launch,
    step_words,
)
from suite.report.tables import MARKDOWN, table

if TYPE_CHECKING:
    import pandas

ASKED = {"cpu": (0.15, 0.30), "gpu": (0.08, 0.15)}  # of absolute errors, in the median and at most
ASKED_UNEXPLAINED = 0.10  # of a step
WHOLE = "whole step"
_EXPLAINED = [term.value for term in StepTerm if term is not StepTerm.UNEXPLAINED]
SHARED = "shares_devices"  # in the policy of launches whose ranks shared GPUs
_BY_SETUP = ["machine", "processor", "run", "ranks", "layout", "execution"]


def step_times(recorded: Iterable[LaunchSummary]) -> pandas.DataFrame:
    """A row a launch that ended well and was predicted: facts, both times, `error`, and the term furthest off.

    `error` is predicted over measured, less 1; `residual_share` the term's predicted less measured seconds, over the
    measured step; `error_at_speed` that of the prediction corrected for the CPU's speed. `launches`: those that are
    compared in the setup; `is_median`: whether it is their median one (`suite.report.compared_launches`). Launches of
    the ladder are left out: its own tables tell their rungs apart. So are those of ranks that shared a GPU.
    """
    import pandas

    candidates = [launch for launch in recorded if is_predicted(launch)]
    candidates = [launch for launch in candidates if not launch.rung and SHARED not in launch.policy]
    columns = [*SetupKey._fields, "id", "launches", "is_median", "others_share", "started"]
    facts, chosen = [], []
    for key, own in by_setup(candidates).items():
        compared = comparable_launches(own)
        middle = median_launch(compared)
        chosen += compared
        facts += [
            (*key, launch.id, len(compared), launch is middle, launch.others_share, launch.started)
            for launch in compared
        ]
    rows = pandas.DataFrame(facts, columns=columns)
    rows["others_share"] = rows.others_share.astype(float)
    rows["started_utc"] = pandas.to_datetime(rows.pop("started"), unit="s", utc=True)
    figures = frame.figures(chosen, quantities=[Quantity.STEP_SECONDS, Quantity.STEP_SECONDS_AT_CPU_SPEED])
    rows = rows.join(_differences(figures), on="id", how="inner")
    at_speed = figures[(figures.quantity == Quantity.STEP_SECONDS_AT_CPU_SPEED) & figures.term.isna()].set_index(
        "launch"
    )
    rows["slowdown"] = rows.id.map(at_speed.predicted.to_dict()).astype(float) / rows.predicted_seconds
    rows["error_at_speed"] = rows.slowdown * (1 + rows.error) - 1
    return rows.sort_values([*_BY_SETUP, "measured_seconds"], kind="stable", ignore_index=True)


def _differences(figures: pandas.DataFrame) -> pandas.DataFrame:
    """Seconds of the step by launch, and the term whose prediction is furthest off."""
    import numpy
    import pandas

    steps = figures[figures.quantity == Quantity.STEP_SECONDS]
    steps = steps.assign(launch=steps.launch.astype(str), term=steps.term.astype(object).fillna(WHOLE))
    wide: Any = steps.pivot(index="launch", columns="term", values=["predicted", "measured"])
    terms = [WHOLE, *_EXPLAINED, StepTerm.UNEXPLAINED.value]
    sides: list[Any] = [
        wide[side].reindex(columns=terms) if len(wide) else pandas.DataFrame(columns=terms, dtype=float)
        for side in ("predicted", "measured")
    ]
    predicted, measured = sides
    apart = predicted[_EXPLAINED] - measured[_EXPLAINED]
    furthest = numpy.argmax(apart.abs().fillna(-1.0).to_numpy(), axis=1) if len(apart) else numpy.empty(0, int)
    step = measured[WHOLE]
    return pandas.DataFrame(
        {
            "predicted_seconds": predicted[WHOLE],
            "measured_seconds": step,
            "error": predicted[WHOLE] / step - 1,
            "term": numpy.array(_EXPLAINED, dtype=object)[furthest],
            "residual_share": apart.to_numpy()[range(len(apart)), furthest] / step,
            "unexplained_share": measured[StepTerm.UNEXPLAINED.value].fillna(0.0).abs() / step,
        }
    )


def median_launches(rows: pandas.DataFrame) -> pandas.DataFrame:
    """The median launch of each setup."""
    return rows[rows.is_median.astype(bool)].reset_index(drop=True)


def step_tables(rows: pandas.DataFrame) -> str:
    """Markdown: for each machine its launches' step times, their errors, and what these come from; "" without any.

    Where machines differ by their processors' flags alone, these are in the heading.
    """
    parts: list[str] = []
    medians = median_launches(rows)
    names = medians[["machine", "processor"]].drop_duplicates()
    for machine, processor in names.itertuples(index=False):
        all_rows, shown = (f[(f.machine == machine) & (f.processor == processor)] for f in (rows, medians))
        heading = f"{machine} (processor flags {processor})" if (names.machine == machine).sum() > 1 else machine
        days = dict.fromkeys(f"{when:%Y-%m-%d}" for when in (all_rows.started_utc.min(), all_rows.started_utc.max()))
        parts += [f"### {heading}", "", f"Measured {' to '.join(days)}.", ""]
        parts += [table(_cells(shown), style=MARKDOWN), "", *_summary(all_rows, shown), ""]
    return "\n".join(parts)


def _cells(shown: pandas.DataFrame) -> pandas.DataFrame:
    """The table as texts."""
    import pandas

    return pandas.DataFrame(
        {
            **{name: shown[name] for name in ("run", "ranks", "layout", "execution", "launches")},
            "predicted": [*map(step_words, shown.predicted_seconds)],
            "measured": [*map(step_words, shown.measured_seconds)],
            "measured is": [*map(error_words, shown.error)],
            "CPU slowdown": _texts(shown.slowdown, "{:.2f}"),
            "at that speed": [*map(error_words, shown.error_at_speed)],
            "largest residual": shown.term,
            "of the step": [*map(_share_words, shown.residual_share)],
            "unexplained": _texts(shown.unexplained_share, "{:.1%}"),
            "others": _texts(shown.others_share, "{:.0%}"),
        }
    )


def _share_words(share: float) -> str:
    """How much slower or faster a term was than predicted, from predicted less measured seconds over the step."""
    return f"{100 * abs(share):.1f} % {direction(0.0, share, Direction.TIME)}"


def _texts(values: Any, form: str) -> list[str]:
    return ["-" if value != value else form.format(value) for value in values]  # NaN


def _summary(launches: pandas.DataFrame, shown: pandas.DataFrame) -> Iterator[str]:
    errors, unexplained = shown.error.abs(), shown.unexplained_share
    yield (
        f"{len(shown)} setups: absolute error of step_seconds {errors.median():.1%} in the median, "
        f"{errors.max():.1%} at most; unexplained share of the step {unexplained.median():.1%} in the median, "
        f"{unexplained.max():.1%} at most."
    )
    in_median, at_most = ASKED["cpu" if shown.machine.iloc[0].endswith(", cpu") else "gpu"]
    beyond, others = (errors > at_most).sum(), (unexplained > ASKED_UNEXPLAINED).sum()
    yield ""
    yield (
        f"Asked: {in_median:.0%} in the median ({'met' if errors.median() <= in_median else 'missed'}), "
        f"{at_most:.0%} at most ({f'missed by {beyond}' if beyond else 'met'}), "
        f"{ASKED_UNEXPLAINED:.0%} unexplained at most ({f'missed by {others}' if others else 'met'})."
    )
    single = launches.error.abs()
    if len(single) > len(shown):
        yield ""
        yield (
            f"Of their {len(single)} launches, one by one: {single.median():.1%} in the median, {single.max():.1%} at "
            f"most; {(single > at_most).sum()} beyond {at_most:.0%}."
        )
    at_speed = shown.error_at_speed.dropna().abs()
    if len(at_speed):
        yield ""
        yield (
            f"Corrected for the CPU's speed ({len(at_speed)} setups): {at_speed.median():.1%} in the median, "
            f"{at_speed.max():.1%} at most."
        )


def accuracy(rows: pandas.DataFrame) -> dict[str, float]:
    """Errors over all comparable launches of all machines; empty without any."""
    if not len(rows):
        return {}
    shown = median_launches(rows)
    return {
        "setups": len(shown),
        "median_error": float(shown.error.abs().median()),
        "largest_error": float(shown.error.abs().max()),
        "largest_unexplained_share": float(shown.unexplained_share.max()),
    }
