"""Differences between two records: figures of the job and of ranks, hardware, software, policy, input."""

from __future__ import annotations

import msgspec

from suite.metrics.comparison import Row, compare
from suite.records.record import Record


class DifferingFact(msgspec.Struct, frozen=True):
    """A fact that is not the same on both sides; null where a side lacks it."""

    name: str
    left: str | None
    right: str | None


class RecordDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Two records side by side.

    Args:
        facts: those that differ.
        figures: all, measured ones: exact quantities pass or fail, others are shown.
    """

    left: str
    right: str
    facts: list[DifferingFact]
    figures: list[Row]


def difference(left: Record, right: Record) -> RecordDifference:
    """Differences between two records."""
    ours, theirs = _facts(left), _facts(right)
    names = dict.fromkeys([*ours, *theirs])
    figures = [record.end.figures if record.end else [] for record in (left, right)]
    return RecordDifference(
        left=left.begin.id,
        right=right.begin.id,
        facts=[
            DifferingFact(name, ours.get(name), theirs.get(name))
            for name in names
            if ours.get(name) != theirs.get(name)
        ],
        figures=compare(*figures, left_name="on the left", right_name="on the right", judge=True),
    )


def _facts(record: Record) -> dict[str, str]:
    """Facts of the job, the corpus, the machine and the ranks' environment, as texts."""
    begin, end = record.begin, record.end
    job = begin.job
    facts_by_name = {"run": begin.run, "status": record.status, "node": begin.node}
    for name in ("hardware", "software", "policy"):
        facts_by_name |= {f"{name}.{key}": value for key, value in getattr(begin, name).items() if key != "layout"}
    for name in ("architecture", "recipe", "layout"):
        facts = msgspec.to_builtins(getattr(job, name))
        facts_by_name |= {f"{name}.{key}": str(value) for key, value in facts.items() if value is not None}
    facts_by_name |= {"job.steps": str(job.steps), "job.seed": str(job.seed), "corpus.sha256": begin.corpus.sha256}
    for rank in end.ranks if end else []:
        facts_by_name |= {f"rank {rank.rank}.{key}": value for key, value in rank.environment.items()}
        facts_by_name[f"rank {rank.rank}.arithmetic"] = rank.arithmetic
    return facts_by_name
