"""Whatever is on a command line or in the files that it names, it is answered without a traceback: one of each command.

More: `nox -s fuzz`.
"""

from __future__ import annotations

from pathlib import Path

from suite.commands import exit_codes
from tests.end_to_end.fuzz.command_lines import BASES
from tests.end_to_end.fuzz.command_trial import endings_beyond_ranges, endings_of


def test_a_hostile_line_of_each_command_is_answered_or_refused_without_a_traceback(tmp_path: Path) -> None:
    found = endings_of(range(len(BASES)), 0, tmp_path)
    assert {trial.command for trial, _ in found} == set(BASES)
    assert [(ascii(trial), ending.wrong) for trial, ending in found if ending.wrong] == []


def test_every_number_of_every_command_has_a_range(tmp_path: Path) -> None:
    found = endings_beyond_ranges(tmp_path)
    assert len(found) > 70
    wrong = [f"{trial.arguments}: {end.code} {end.wrong}" for trial, end in found if end.code != exit_codes.BAD_INPUT]
    wrong += [f"{trial.arguments}: {end.wrong}" for trial, end in found if end.wrong]
    assert wrong == [], "\n".join(wrong)
