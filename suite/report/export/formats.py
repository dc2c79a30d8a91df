"""The formats that a plan is exported to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from reference_runs.errors import InputError, nearest
from suite.report.export.deepspeed import deepspeed
from suite.report.export.job import ExportedJob
from suite.report.export.left_out import remarks
from suite.report.export.megatron import megatron
from suite.report.export.nemo import nemo
from suite.report.export.slurm import slurm, software_of
from suite.report.export.torchrun import torchrun
from suite.report.export.torchtitan import torchtitan


class ExportFormat(NamedTuple):
    """A format.

    Args:
        text: of a training.
        stack: whose layouts are searched where no other is asked for, by its name in reference_runs/stacks.toml; None:
            the run's own.
        remarks: sentences on the file: what of the training it leaves out, where its schedule differs from the record.
        comments: whether the file has them itself.
    """

    text: Callable[[ExportedJob], str]
    stack: str | None
    remarks: Callable[[ExportedJob], list[str]]
    comments: bool = True


def _of_slurm(job: ExportedJob) -> list[str]:
    return remarks(job, software_of(job.stack))


def _of(export: str) -> Callable[[ExportedJob], list[str]]:
    return partial(remarks, export=export)


FORMATS = {
    "torchrun": ExportFormat(torchrun, "this-suite", _of("torchrun"), comments=False),
    "slurm": ExportFormat(slurm, None, _of_slurm),
    "megatron": ExportFormat(megatron, "megatron-core", _of("megatron")),
    "nemo": ExportFormat(nemo, "megatron-core-nemo-2", _of("nemo")),
    "torchtitan": ExportFormat(torchtitan, "llama-3", _of("torchtitan")),
    "deepspeed": ExportFormat(deepspeed, "megatron-deepspeed", _of("deepspeed"), comments=False),
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
