"""Flight recorders of several ranks: who is missing, and whom the others wait for."""

from __future__ import annotations

from pathlib import Path

import typer

from reference_runs.training_traces.trace import rank_of_name
from suite.commands import exit_codes
from suite.commands.options import print_json
from suite.launch.flight_recorder import arrivals, diagnosed, dumped
from suite.predict.diagnosis.causes import SHARE
from suite.predict.diagnosis.trace_causes import slow_rank
from suite.report.terminal.tables import console, print_folded


def print_recordings(files: list[Path], *, as_json: bool) -> None:
    """Print the ranks that did not come to a collective, else the one that comes last, by the recorders' dumps.

    Raises:
        InputError: a damaged dump.
    """
    ranks = [rank_of_name(path) for path in files]
    numbered = [each for each in ranks if each is not None]
    if len(set(numbered)) < len(files):
        numbered = list(range(len(files)))
    recordings = dict(sorted(zip(numbered, map(dumped, files), strict=True)))
    times = [entry.time_created_ns for each in recordings.values() for entry in each.entries]
    hang = diagnosed(recordings, ranks=max(numbered) + 1, now_ns=max(times))
    seconds = (max(times) - min(times)) / 1e9
    found = slow_rank(arrivals(recordings), 1)
    late = None if found is None or found.seconds < SHARE * seconds else found
    rank = None if late is None else list(recordings)[late.place]
    if as_json:
        waited = late.seconds if late else None
        print_json({"missing": hang.missing, "lines": hang.lines, "late_rank": rank, "waited_seconds": waited})
    else:
        if late is not None:
            words = f"slow: rank {rank} comes last to collectives: others wait {late.seconds:.3g} s of {seconds:.3g}"
            print_folded(console(), words, "bold red")
        for line in hang.lines:
            print_folded(console(), line, "")
    raise typer.Exit(exit_codes.FAIL if hang.missing or late else exit_codes.PASS)
