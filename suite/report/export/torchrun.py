"""A training as a launch of this suite: the run's miniature, or a run file itself, in the planned layout."""

from __future__ import annotations

import shlex

from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.layout import layout_text
from reference_runs.miniature import miniature
from reference_runs.printable import printable
from suite.job.corpus import distinct_words
from suite.paths import ROOT, program
from suite.report.export.job import ExportedJob
from suite.reproduce.plan import plan
from suite.reproduce.request import Request

CORPUS = "/path/to/text"  # to fill in


def torchrun(job: ExportedJob) -> str:
    """The command that starts torchrun with as many ranks in this layout, on several nodes by Slurm.

    A recorded run is its miniature, which has a batch of its own: whole micro-batches of all replicas.

    Raises:
        InputError: this version does not execute it; the line says why.
    """
    if printable(job.name, lines=False) != job.name:
        allowed = "a file name without control characters"
        raise InputError("no command line can show this name", got=repr(job.name), allowed=allowed, where="--export")
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
    if job.nodes > 1:
        words += ["--engine", "slurm", "--nodes", str(job.nodes), "--ranks-per-node", str(job.ranks_of_node)]
    else:
        words += ["--ranks", str(layout.ranks)]
    words += ["--layout", text]
    words += [] if batch is None else ["--global-batch", str(batch)]
    words += ["--corpus", CORPUS] if lacking_words(job) else []
    return shlex.join(words) + "\n"


def lacking_words(job: ExportedJob) -> tuple[int, int] | None:
    """Vocabulary of what is trained, and the distinct words of the usual corpus where they may not suffice for it.

    A byte-pair encoding of all bytes and of so many words has at least as many tokens.
    """
    vocabulary = job.workload.architecture.vocabulary
    if not job.name.endswith(".toml"):
        vocabulary = miniature(reference_run(job.name), "cuda", ranks=job.workload.layout.ranks).architecture.vocabulary
    words = distinct_words()
    return (vocabulary, words) if words < vocabulary else None
