"""The formats that a plan is exported to."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from reference_runs.errors import InputError, nearest
from suite.report.export.deepspeed import deepspeed, deepspeed_note
from suite.report.export.job import ExportedJob
from suite.report.export.megatron import megatron
from suite.report.export.nemo import nemo
from suite.report.export.slurm import slurm
from suite.report.export.torchrun import torchrun
from suite.report.export.torchtitan import torchtitan


class ExportFormat(NamedTuple):
    """A format.

    Args:
        text: of a training.
        stack: whose layouts are searched where no other is asked for, by its name in reference_runs/stacks.toml; None:
            the run's own.
        note: what the format leaves out.
    """

    text: Callable[[ExportedJob], str]
    stack: str | None
    note: Callable[[ExportedJob], str] | None = None


FORMATS = {
    "torchrun": ExportFormat(torchrun, "pytorch"),
    "slurm": ExportFormat(slurm, None),
    "megatron": ExportFormat(megatron, "megatron-core"),
    "nemo": ExportFormat(nemo, "megatron-core"),
    "torchtitan": ExportFormat(torchtitan, "pytorch"),
    "deepspeed": ExportFormat(deepspeed, "megatron-deepspeed", deepspeed_note),
}


def export_format(name: str) -> ExportFormat:
    """The format of that name.

    Raises:
        InputError: there is none.
    """
    if name not in FORMATS:
        meant = nearest(name, FORMATS)
        raise InputError("unknown format", got=repr(name), meant=meant, allowed=", ".join(FORMATS), where="--export")
    return FORMATS[name]
