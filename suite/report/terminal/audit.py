"""The table of an audit: a row a file, the verdicts in order, and how many there are of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from suite.predict.plan.audit import Audited, AuditVerdict
from suite.report.terminal.tables import coloured, print_folded, print_table

_COLOURS = {AuditVerdict.CANNOT: "bold red", AuditVerdict.NOT_JUDGED: "yellow", AuditVerdict.RUNS: "green"}
_TITLES = ("verdict", "file", "read as", "model", "accelerators", "layout", "why")
_USUAL = frozenset({"dp1", "tp1", "pp1", "zero0", "recompute-none", "fused", "micro1", "reduce-scatter", "1f1b"})
_OF_MODEL = 20  # letters


def in_order(rows: Sequence[Audited]) -> list[Audited]:
    """Rows by verdict, as `AuditVerdict` has them, then by file."""
    verdicts = [*AuditVerdict]
    return sorted(rows, key=lambda row: (verdicts.index(row.verdict), row.file))


def print_audit(out: Console, rows: Sequence[Audited]) -> None:
    """Print the table and the counts; long names are shortened, and what layouts usually have is left out."""
    if rows:
        print_table(out, [_cells(row, out.width // 5) for row in in_order(rows)], _TITLES, right=())
    on = f" on {rows[0].accelerator}" if rows else ""
    print_folded(out, f"{len(rows):,} {'file' if len(rows) == 1 else 'files'}{on}: {counts_words(rows)}", "bold")
    if any(row.accelerators_assumed and row.layout for row in rows):
        words = "from N: neither the file nor --gpus says how many; the fewest, doubled from a node on, that do"
        print_folded(out, words)


def counts_words(rows: Sequence[Audited]) -> str:
    """How many files have which verdict, such as "3 cannot run, 5 run"; verdicts that none has are left out."""
    counts = Counter(row.verdict for row in rows)
    named = [f"{counts[verdict]:,} {_words(verdict, counts[verdict])}" for verdict in AuditVerdict if counts[verdict]]
    return ", ".join(named) or "none that may be a configuration"


def _words(verdict: AuditVerdict, number: int) -> str:
    if number == 1:
        return verdict.value
    plural = {AuditVerdict.RUNS: "run", AuditVerdict.NONE: "not configurations"}
    return plural.get(verdict, verdict.value)


def _cells(row: Audited, letters: int) -> list[object]:
    number = "" if row.accelerators is None else f"{row.accelerators:,}"
    return [
        coloured(row.verdict.value, _COLOURS.get(row.verdict, "dim")),
        _shortened(row.file, letters),
        row.read_as,
        _shortened(row.model.rpartition("/")[2], _OF_MODEL),
        f"from {number}" if row.accelerators_assumed and row.layout else number,
        ", ".join(word.removeprefix("recompute-") for word in row.layout.split(",") if word not in _USUAL),
        row.why,
    ]


def _shortened(text: str, letters: int) -> str:
    """The text, or its beginning and its longer end."""
    if len(text) <= letters:
        return text
    begin = letters // 4
    return f"{text[:begin]}…{text[begin + 1 - letters :]}"
