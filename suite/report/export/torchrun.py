"""A training as a launch of this suite: the run's miniature, or a run file itself, in the planned layout."""

from __future__ import annotations

import shlex

from reference_runs.errors import InputError
from reference_runs.layout import layout_text
from suite.paths import ROOT, program
from suite.report.export.job import ExportedJob
from suite.reproduce.plan import plan
from suite.reproduce.request import Request


def torchrun(job: ExportedJob) -> str:
    """The command that starts torchrun with as many ranks in this layout.

    A recorded run is its miniature, which has a batch of its own: whole micro-batches of all replicas.

    Raises:
        InputError: this version does not execute it; the line says why.
    """
    layout = job.workload.layout
    text, mini = layout_text(layout, complete=True), not job.name.endswith(".toml")
    batch = None if mini else job.global_batch
    request = Request(
        name=job.name, mini=mini, ranks=layout.ranks, layout=text, global_batch=batch, device="cpu", results=ROOT
    )
    try:
        plan(request)
    except InputError as error:
        raise InputError("; ".join(error.lines), where="--export") from None
    words = [*program().split(), "reproduce", job.name, *(["--mini"] if mini else [])]
    words += ["--ranks", str(layout.ranks), "--layout", text]
    return shlex.join([*words, *([] if batch is None else ["--global-batch", str(batch)])]) + "\n"
