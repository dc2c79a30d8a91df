"""Model-flop utilisation on one GPU next to what is asked of it, as Markdown tables: 16-bit GEMMs, and others apart."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from reference_runs.accelerator import accelerator, dense_peak_flop_per_second, product_peak_flop_per_second
from reference_runs.catalog import reference_run, run_names
from reference_runs.errors import InputError
from reference_runs.run import Precision, ProductFormat
from suite.job.events import Status
from suite.job.options import KernelChoice
from suite.ladder.rung import RUNGS
from suite.machine.half_precision import WORK_DTYPES
from suite.machine.timings import median
from suite.metrics.figures import Quantity
from suite.records.summary import LaunchSummary
from suite.report.tables import MARKDOWN, table


class UtilisationTarget(NamedTuple):
    """The utilisation that one GPU should reach.

    Args:
        run: the recorded run, or a miniature.
        command: that measures it, with default options and the run's own batch.
        least: mfu against the dense peak of the data sheet, of 6 N + 12 L H Q T flop a token, with the run's own batch;
            None: only shown.
    """

    run: str
    command: str
    least: float | None

    @property
    def batch(self) -> int | None:
        """Samples of a step as recorded; None: of a miniature, whose batch is the suite's."""
        return reference_run(self.run).recipe.global_batch if self.run in run_names() else None

    def words(self, batch: int | None) -> str:
        """`least` in percent, of launches with so many samples a step."""
        return "-" if self.least is None or batch != self.batch else f"{self.least:.0%}"


class _RowKey(NamedTuple):
    """The facts that launches of one row share, in words."""

    run: str
    batch: int
    gpu: str
    kernels: str  # with ", eager" where blocks are not compiled
    optimizations: str
    stack: str
    product_format: str


class _Reached(NamedTuple):
    """Model flop a second of one launch, and its share of the GPU's dense peaks: in the launch's dtype, in its format.

    Args:
        of_format: None where GEMMs are in the dtype.
    """

    launch: LaunchSummary
    rate: float
    mfu: float
    of_format: float | None


RUNG_LABELS = frozenset(f"{rung.track}/{rung.name}" for rung in RUNGS)  # neither leave-one-out runs nor ablated ones
EXECUTION = ("run", "batch", "GPU", "kernels", "optimizations", "stack")
TITLES = (*EXECUTION, "launches", "mfu", "asked", "measured", "how")
FORMAT_TITLES = (*EXECUTION, "GEMMs", "launches", "bf16-equivalent", "of the format's peak", "measured", "how")
NO_OPTIMIZATIONS = "none"
_ONE_GPU = "--device cuda --ranks 1"
ASKED = (
    UtilisationTarget("gpt2-mini", f"reproduce gpt2-mini {_ONE_GPU}", None),
    UtilisationTarget("gpt2-124m", f"reproduce gpt2-124m {_ONE_GPU}", 0.50),
    UtilisationTarget("gpt2-1558m", f"reproduce gpt2-1558m {_ONE_GPU}", 0.58),
)


def utilisation_table(recorded: Sequence[LaunchSummary]) -> str:
    """A row for each run and batch on a GPU model, by kernels, optimizations and stack: the median over launches.

    "unmeasured" where a run has none with its own batch. Where the run's ladder was run, one more of the fastest rung
    there. Launches whose GEMMs are in a format of their own are in none of these rows, see `format_table`.
    """
    rows: list[list[object]] = []
    for asked in ASKED:
        found = {how: reached for how, reached in _reached(asked.run, recorded).items() if not _casts(how)}
        own = [_row(asked, how, reached) for how, reached in sorted(found.items())]
        own += _ladder_rows(asked, recorded)
        if not any(asked.batch in (None, row[1]) for row in own):
            nothing = ["-"] * (len(EXECUTION) - 2)
            how = f"`{asked.command}`"
            own.append([asked.run, asked.batch or "-", *nothing, 0, "unmeasured", asked.words(asked.batch), "-", how])
        rows += own
    return table(rows, TITLES, style=MARKDOWN, right=("batch", "launches", "mfu", "asked")) + "\n"


def format_table(recorded: Sequence[LaunchSummary]) -> str:
    """The same of launches whose layers multiply in a format of their own; "" without any.

    "bf16-equivalent": model flop a second over the dense bf16 peak, which such GEMMs may exceed: no MFU, and never
    compared with one. "Of the format's peak": over the dense peak of that format, though attention and the head compute
    in 16 bits.
    """
    rows: list[list[object]] = []
    for asked in ASKED:
        for how, reached in sorted(_reached(asked.run, recorded).items()):
            if _casts(how):
                shares = [item.of_format for item in reached if item.of_format is not None]
                rows.append(
                    [
                        *(*how, len(reached)),
                        f"{median(item.mfu for item in reached):.1%}",
                        f"{median(shares):.1%}" if shares else "-",
                        *(_day(reached), _how(asked, how)),
                    ]
                )
    right = ("batch", "launches", "bf16-equivalent", "of the format's peak")
    return table(rows, FORMAT_TITLES, style=MARKDOWN, right=right) + "\n" if rows else ""


def _casts(how: _RowKey) -> bool:
    return ProductFormat(how.product_format).casts


def _row(asked: UtilisationTarget, how: _RowKey, reached: Sequence[_Reached], words: str = "") -> list[object]:
    mfu = f"{median(item.mfu for item in reached):.1%}"
    return [*how[:-1], len(reached), mfu, asked.words(how.batch), _day(reached), words or _how(asked, how)]


def _day(reached: Sequence[_Reached]) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(max(item.launch.started for item in reached)))


def _how(asked: UtilisationTarget, how: _RowKey) -> str:
    """The command whose launches belong to a row, whatever the default optimizations are."""
    name, _, eager = how.kernels.partition(", ")
    kernels = "" if name == KernelChoice.TORCH else f" --kernels {name}"
    kernels += " --no-compile" if eager else ""
    products = f" --gemm-dtype {how.product_format}" if _casts(how) else ""
    batch = "" if asked.batch in (None, how.batch) else f" --global-batch {how.batch}"
    return f"`{asked.command}{batch}{kernels}{products} --optimizations {how.optimizations.replace(', ', ',')}`"


def _ladder_rows(asked: UtilisationTarget, recorded: Iterable[LaunchSummary]) -> Iterator[list[object]]:
    """Rows of the fastest rungs of each GPU, by model flop a second and not by mfu: fp32's peak is smaller."""
    rungs: dict[str, dict[tuple[str, _RowKey], list[_Reached]]] = {}
    for how, reached in _reached(asked.run, recorded, suffix="-ladder").items():
        for item in reached:
            if item.launch.rung in RUNG_LABELS:
                rungs.setdefault(how.gpu, {}).setdefault((item.launch.rung, how), []).append(item)
    for _, of_gpu in sorted(rungs.items()):
        best = max(of_gpu, key=lambda key: median(item.rate for item in of_gpu[key]))
        name = best[0].partition("/")[2]
        words = f"`ladder {asked.run} --device cuda`: its fastest rung on one GPU, `{name}`"
        yield _row(asked, best[1], of_gpu[best], words)


def _reached(run: str, recorded: Iterable[LaunchSummary], *, suffix: str = "") -> dict[_RowKey, list[_Reached]]:
    """Rates of a run's successful launches on one GPU, by how they were executed.

    Launches of 2026-11-25 with another batch have it in their name: gpt2-1558m-b64.
    """
    found: dict[_RowKey, list[_Reached]] = {}
    for launch in recorded:
        rate = launch.measured.of(Quantity.MODEL_FLOP_PER_SECOND)
        if launch.run not in (f"{run}{suffix}", f"{run}-b{launch.global_batch}{suffix}"):
            continue
        if launch.device != "cuda" or launch.ranks != 1 or launch.status != Status.OK or not rate:
            continue
        try:
            device = accelerator(launch.hardware["gpus"].split(", ")[0])
        except InputError:  # of a GPU that the catalog lacks
            continue
        peak = dense_peak_flop_per_second(device, WORK_DTYPES[Precision(launch.precision)])
        try:
            own = product_peak_flop_per_second(device, ProductFormat(launch.product_format))
        except InputError:  # the data sheet has no peak of it
            own = None
        how = _RowKey(
            run,
            launch.global_batch,
            device.title,
            launch.kernels + ("" if launch.compiled else ", eager"),
            ", ".join(launch.optimizations) or NO_OPTIMIZATIONS,
            ", ".join(f"{name} {launch.software.get(name, 'unknown')}" for name in ("torch", "triton")),
            launch.product_format,
        )
        found.setdefault(how, []).append(_Reached(launch, rate, rate / peak, rate / own if own else None))
    return found
