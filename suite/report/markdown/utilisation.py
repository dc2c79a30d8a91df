"""Model-flop utilisation of GPT-2 on one GPU next to what is asked of it, as a Markdown table."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from reference_runs.accelerator import accelerator, dense_peak_flop_per_second
from reference_runs.errors import InputError
from reference_runs.run import Precision
from suite.job.events import Status
from suite.ladder.rung import RUNGS
from suite.machine.half_precision import WORK_DTYPES
from suite.machine.timings import median
from suite.metrics.figures import Quantity
from suite.records.summary import LaunchSummary
from suite.report.tables import MARKDOWN, table


class UtilisationTarget(NamedTuple):
    """The utilisation that one GPU should reach.

    Args:
        how: the command that measures it.
        least: mfu against the dense peak of the data sheet, of 6 N + 12 L H Q T flop a token; None: only shown.
    """

    run: str
    how: str
    least: float | None

    @property
    def words(self) -> str:
        """`least` in percent."""
        return "-" if self.least is None else f"{self.least:.0%}"


class _Reached(NamedTuple):
    """Model flop a second of one launch, and its share of the GPU's dense peak in the launch's dtype."""

    launch: LaunchSummary
    rate: float
    mfu: float


RUNG_LABELS = frozenset(f"{rung.track}/{rung.name}" for rung in RUNGS)  # neither leave-one-out runs nor ablated ones
TITLES = ("run", "GPU", "launches", "mfu", "asked", "measured", "how")
ASKED = (
    UtilisationTarget("gpt2-mini", "`reproduce gpt2-mini --device cuda --ranks 1`", None),
    UtilisationTarget("gpt2-124m", "`reproduce gpt2-124m --device cuda --ranks 1`", 0.50),
    UtilisationTarget("gpt2-1558m", "`reproduce gpt2-1558m --device cuda --ranks 1`", 0.58),
)


def utilisation_table(recorded: Sequence[LaunchSummary]) -> str:
    """A row for each run on each GPU model that it was recorded on, the median over launches; else "unmeasured".

    Where the run's ladder was run, one more of the fastest rung there.
    """
    rows: list[list[object]] = []
    for asked in ASKED:
        asked_rows = [_row(asked, gpu, reached) for gpu, reached in _reached(asked.run, recorded)]
        asked_rows += _ladder_rows(asked, recorded)
        rows += asked_rows or [[asked.run, "-", 0, "unmeasured", asked.words, "-", asked.how]]
    return table(rows, TITLES, style=MARKDOWN, right=TITLES[2:5]) + "\n"


def _row(asked: UtilisationTarget, gpu: str, reached: Sequence[_Reached]) -> list[object]:
    day = time.strftime("%Y-%m-%d", time.gmtime(max(item.launch.started for item in reached)))
    mfu = f"{median(item.mfu for item in reached):.1%}"
    return [asked.run, gpu, len(reached), mfu, asked.words, day, asked.how]


def _ladder_rows(asked: UtilisationTarget, recorded: Iterable[LaunchSummary]) -> Iterator[list[object]]:
    """Rows of the fastest rungs, by model flop a second and not by mfu: fp32's is a share of a smaller peak."""
    for gpu, reached in _reached(f"{asked.run}-ladder", recorded):
        rungs: dict[str, list[_Reached]] = {}
        for item in reached:
            if item.launch.rung in RUNG_LABELS:
                rungs.setdefault(item.launch.rung, []).append(item)
        if rungs:
            best = max(rungs, key=lambda rung: median(item.rate for item in rungs[rung]))
            name = best.partition("/")[2]
            how = f"`ladder {asked.run} --device cuda`: its fastest rung on one GPU, `{name}`"
            yield _row(asked._replace(how=how), gpu, rungs[best])


def _reached(run: str, recorded: Iterable[LaunchSummary]) -> list[tuple[str, list[_Reached]]]:
    """Rates of a run's successful launches on one GPU, by the GPU's model."""
    by_model: dict[str, list[_Reached]] = {}
    for launch in recorded:
        rate = launch.measured.of(Quantity.MODEL_FLOP_PER_SECOND)
        if launch.run != run or launch.device != "cuda" or launch.ranks != 1 or launch.status != Status.OK or not rate:
            continue
        try:
            device = accelerator(launch.hardware["gpus"].split(", ")[0])
        except InputError:  # of a GPU that the catalog lacks
            continue
        peak = dense_peak_flop_per_second(device, WORK_DTYPES[Precision(launch.precision)])
        by_model.setdefault(device.title, []).append(_Reached(launch, rate, rate / peak))
    return sorted(by_model.items())
