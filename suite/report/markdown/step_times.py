"""Predicted and measured step times of recorded launches, as a Markdown table for each machine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from suite.machine.timings import median
from suite.metrics.figures import Quantity
from suite.records.index import LaunchSummary
from suite.reproduce.residuals import Residuals, launch_residuals

TITLES = (
    "run",
    "ranks",
    "layout",
    "execution",
    "launches",
    "predicted",
    "measured",
    "error",
    "pace",
    "error at it",
    "largest residual",
    "of the step",
    "unexplained",
    "others",
)


ASKED = {"cpu": (0.15, 0.30), "gpu": (0.08, 0.15)}  # of absolute errors, in the median and at most
ASKED_UNEXPLAINED = 0.10  # of a step


class Setup(NamedTuple):
    """What launches must share to be one row.

    Args:
        machine: hardware and device in words, the processor's generation among them.
        processor: a hash of its flags: older records have no generation, and two processors may have one name.
    """

    machine: str
    processor: str
    run: str
    ranks: int
    layout: str
    compiled: bool
    software: str
    policy: str
    hardware: str


class Timed(NamedTuple):
    """One launch: when it started, its residuals, and what other processes took of the processors meanwhile.

    Args:
        at_pace: seconds of the step predicted for the pace that the processors had; None where it is not known.
    """

    started: float
    time: Residuals
    others_share: float | None
    at_pace: float | None

    @property
    def pace_error(self) -> float | None:
        """Of the prediction at that pace: over the measured step, less 1."""
        return None if self.at_pace is None else self.at_pace / self.time.measured_seconds - 1


class StepRow(NamedTuple):
    """One setup and its launches."""

    setup: Setup
    launches: list[Timed]

    @property
    def middle(self) -> Timed:
        """The launch of the median step time; of an even number the faster of the two."""
        ordered = sorted(self.launches, key=lambda one: one.time.measured_seconds)
        return ordered[(len(ordered) - 1) // 2]


def step_rows(recorded: Iterable[LaunchSummary]) -> list[StepRow]:
    """A row for each setup of the launches that ended well and were predicted, in the order of machine, run and ranks.

    Of a setup that was recorded under several versions of software or policy, or with other memory, the latest on each
    processor. Launches of the ladder are left out: its own tables tell their rungs apart.
    """
    latest: dict[tuple[str, str, str, int, str, bool], tuple[float, Setup]] = {}
    found: dict[Setup, list[Timed]] = {}
    for launch in recorded:
        split = launch_residuals(launch)
        if split is None or "script" in launch.policy:
            continue
        setup = _setup(launch)
        at_pace = launch.predicted.of(Quantity.STEP_SECONDS_AT_PACE)
        found.setdefault(setup, []).append(Timed(launch.started, split, launch.others_share, at_pace))
        key = setup[:6]
        if key not in latest or launch.started > latest[key][0]:
            latest[key] = launch.started, setup
    return [StepRow(setup, found[setup]) for _, setup in sorted(latest.values(), key=lambda entry: entry[1])]


def _setup(launch: LaunchSummary) -> Setup:
    hashes = launch.hashes
    return Setup(
        machine=launch.machine,
        processor=launch.hardware.get("cpu_flags", ""),
        run=launch.run,
        ranks=launch.ranks,
        layout=launch.layout,
        compiled=launch.compiled,
        software=hashes["software"],
        policy=hashes["policy"],
        hardware=hashes["hardware"],
    )


def step_tables(rows: Sequence[StepRow]) -> str:
    """Markdown: for each machine its launches' step times, their errors, and what these come from; "" without any.

    Where machines differ by their processors' flags alone, these are in the heading.
    """
    parts: list[str] = []
    places = list(dict.fromkeys((row.setup.machine, row.setup.processor) for row in rows))
    for machine, processor in places:
        own = [row for row in rows if row.setup[:2] == (machine, processor)]
        dates = [launch.started for row in own for launch in row.launches]
        alike = sum(name == machine for name, _ in places) > 1
        heading = f"{machine} (processor flags {processor})" if alike else machine
        parts += [f"### {heading}", "", _when(min(dates), max(dates)), ""]
        parts += [*_table(own), "", *_summary(own), ""]
    return "\n".join(parts)


def _when(first: float, last: float) -> str:
    days = dict.fromkeys(time.strftime("%Y-%m-%d", time.gmtime(when)) for when in (first, last))
    return f"Measured {' to '.join(days)}."


def _table(rows: Sequence[StepRow]) -> Iterator[str]:
    yield f"| {' | '.join(TITLES)} |"
    yield "|" + "---|" * 4 + "---:|" * 6 + "---|" + "---:|" * 3
    for row in rows:
        setup, (_, one, others, at_pace) = row.setup, row.middle
        pace_error = row.middle.pace_error
        cells = (
            setup.run,
            str(setup.ranks),
            setup.layout,
            "compiled" if setup.compiled else "eager",
            str(len(row.launches)),
            f"{one.predicted_seconds * 1e3:,.0f} ms",
            f"{one.measured_seconds * 1e3:,.0f} ms",
            f"{one.error:+.1%}",
            "-" if at_pace is None else f"{at_pace / one.predicted_seconds:.2f}",
            "-" if pace_error is None else f"{pace_error:+.1%}",
            one.term,
            f"{one.residual / one.measured_seconds:+.1%}",
            f"{one.unexplained_share:.1%}",
            "-" if others is None else f"{others:.0%}",
        )
        yield f"| {' | '.join(cells)} |"


def _summary(rows: Sequence[StepRow]) -> Iterator[str]:
    errors = [abs(row.middle.time.error) for row in rows]
    unexplained = [row.middle.time.unexplained_share for row in rows]
    yield (
        f"{len(rows)} setups: absolute error of step_seconds {median(errors):.1%} in the median, "
        f"{max(errors):.1%} at most; unexplained share of the step {median(unexplained):.1%} in the median, "
        f"{max(unexplained):.1%} at most."
    )
    yield ""
    yield _asked(rows, errors, unexplained)
    single = [abs(one.time.error) for row in rows for one in row.launches]
    if len(single) > len(rows):
        _, at_most = _limits(rows)
        yield ""
        yield (
            f"Of their {len(single)} launches, one by one: {median(single):.1%} in the median, {max(single):.1%} at "
            f"most; {sum(error > at_most for error in single)} beyond {at_most:.0%}."
        )
    at_pace = [error for row in rows if (error := row.middle.pace_error) is not None]
    if at_pace:
        magnitudes = [abs(error) for error in at_pace]
        yield ""
        yield (
            f"At the pace that the processors had meanwhile ({len(at_pace)} setups): {median(magnitudes):.1%} in the "
            f"median, {max(magnitudes):.1%} at most."
        )


def _asked(rows: Sequence[StepRow], errors: Sequence[float], unexplained: Sequence[float]) -> str:
    in_median, at_most = _limits(rows)
    beyond = sum(error > at_most for error in errors)
    others = sum(share > ASKED_UNEXPLAINED for share in unexplained)
    return (
        f"Asked: {in_median:.0%} in the median ({'met' if median(errors) <= in_median else 'missed'}), "
        f"{at_most:.0%} at most ({f'missed by {beyond}' if beyond else 'met'}), "
        f"{ASKED_UNEXPLAINED:.0%} unexplained at most ({f'missed by {others}' if others else 'met'})."
    )


def _limits(rows: Sequence[StepRow]) -> tuple[float, float]:
    return ASKED["cpu" if rows[0].setup.machine.endswith(", cpu") else "gpu"]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Errors over all setups of all machines."""

    setups: int
    median_error: float
    largest_error: float
    largest_unexplained_share: float


def summary(rows: Sequence[StepRow]) -> Summary | None:
    """The errors of all rows; None without any."""
    if not rows:
        return None
    errors = [abs(row.middle.time.error) for row in rows]
    return Summary(
        setups=len(rows),
        median_error=median(errors),
        largest_error=max(errors),
        largest_unexplained_share=max(row.middle.time.unexplained_share for row in rows),
    )
