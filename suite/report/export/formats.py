"""The formats that a plan is exported to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from reference_runs.errors import InputError, nearest
from suite.report.export.deepspeed import deepspeed
from suite.report.export.job import ExportedJob
from suite.report.export.left_out import left_out_words
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
        left_out: of the training, in one sentence; empty: nothing is.
        note: the same of formats whose files have no comments; the others say it themselves.
    """

    text: Callable[[ExportedJob], str]
    stack: str | None
    left_out: Callable[[ExportedJob], str]
    note: Callable[[ExportedJob], str] | None = None


def _words_of_slurm(job: ExportedJob) -> str:
    return left_out_words(job, software_of(job.stack))


def _words_of(export: str) -> Callable[[ExportedJob], str]:
    return partial(left_out_words, export=export)


FORMATS = {
    "torchrun": ExportFormat(torchrun, "pytorch", _words_of("torchrun"), _words_of("torchrun")),
    "slurm": ExportFormat(slurm, None, _words_of_slurm),
    "megatron": ExportFormat(megatron, "megatron-core", _words_of("megatron")),
    "nemo": ExportFormat(nemo, "megatron-core-nemo-2", _words_of("nemo")),
    "torchtitan": ExportFormat(torchtitan, "pytorch", _words_of("torchtitan")),
    "deepspeed": ExportFormat(deepspeed, "megatron-deepspeed", _words_of("deepspeed"), _words_of("deepspeed")),
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
