"""Model-flop utilisation of GPT-2 on one GPU beside what is asked of it, as a Markdown table."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from reference_runs.accelerator import Accelerator, accelerator, dense_peak_flop_per_second
from reference_runs.errors import InputError
from reference_runs.run import Precision
from suite.figures import Quantity
from suite.job import Status
from suite.launches import Launch
from suite.machine_model import dtype_of
from suite.timings import median


class Asked(NamedTuple):
    """What one GPU should reach.

    Args:
        how: the command that measures it.
        least: mfu against the dense peak of the data sheet, of 6 N + 12 L H Q T flop a token; None: only shown.
    """

    run: str
    how: str
    least: float | None


ASKED = (
    Asked("gpt2-mini", "`reproduce gpt2-mini --device cuda --ranks 1`", None),
    Asked("gpt2-124m", "`reproduce gpt2-124m --device cuda --ranks 1`", 0.45),
    Asked("gpt2-1558m", "`reproduce gpt2-1558m --device cuda --ranks 1`", 0.52),
)


def utilisation_table(recorded: Sequence[Launch]) -> str:
    """A row for each run on each GPU model that it was recorded on, the median over launches; else "unmeasured"."""
    lines = ["| run | GPU | launches | mfu | asked | measured | how |", "|---|---|---:|---:|---:|---|---|"]
    for asked in ASKED:
        lines += list(_rows(asked, recorded)) or [_line(asked, "-", "0", "unmeasured", "-")]
    return "\n".join(lines) + "\n"


def _line(asked: Asked, gpu: str, launches: str, mfu: str, day: str) -> str:
    least = "-" if asked.least is None else f"{asked.least:.0%}"
    return f"| {asked.run} | {gpu} | {launches} | {mfu} | {least} | {day} | {asked.how} |"


def _rows(asked: Asked, recorded: Iterable[Launch]) -> Iterator[str]:
    found: dict[str, list[tuple[float, float]]] = {}
    for launch in recorded:
        if launch.run != asked.run or launch.device != "cuda" or launch.ranks != 1 or launch.status != Status.OK:
            continue
        device = _known(launch.hardware["gpus"].split(", ")[0])
        rate = launch.measured.of(Quantity.MODEL_FLOP_PER_SECOND)
        if device is None or rate is None:
            continue
        peak = dense_peak_flop_per_second(device, dtype_of(Precision(launch.precision)))
        found.setdefault(device.title, []).append((launch.started, rate / peak))
    for gpu, shares in sorted(found.items()):
        day = time.strftime("%Y-%m-%d", time.gmtime(max(started for started, _ in shares)))
        yield _line(asked, gpu, str(len(shares)), f"{median(share for _, share in shares):.1%}", day)


def _known(model: str) -> Accelerator | None:
    try:
        return accelerator(model)
    except InputError:
        return None
