"""The progress line of commands that take their time."""

from __future__ import annotations

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from suite.report.terminal.tables import console


def progress_line(*, quiet: bool) -> Progress:
    """What is under way, a bar, how much of it is done, and the time it took; nothing where it is `quiet`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console(stderr=True), disable=quiet)
