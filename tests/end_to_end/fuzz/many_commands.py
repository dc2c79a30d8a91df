"""Thousands of hostile command lines of all commands, each answered without a traceback: `nox -s fuzz` names it.

FUZZ_COMMANDS says how many (default 2000), FUZZ_SEED which ones. -s prints how those of each command ended.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.end_to_end.fuzz.command_lines import BASES
from tests.end_to_end.fuzz.command_trial import endings_of

COMMANDS = int(os.environ.get("FUZZ_COMMANDS", "2000"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))


@pytest.mark.timeout(7200)
def test_hostile_command_lines_are_answered_or_refused_without_a_traceback(tmp_path: Path) -> None:
    found = endings_of(range(COMMANDS), SEED, tmp_path)
    for command in BASES:
        codes = Counter(str(ending.code) for trial, ending in found if trial.command == command)
        print(f"{command:18}{sum(codes.values()):5}  {', '.join(f'{code}: {n}' for code, n in sorted(codes.items()))}")
    longest = sorted(found, key=lambda each: -each[1].seconds)[:5]
    print(*(f"{ending.seconds:.1f} s: {trial.arguments!a}" for trial, ending in longest), sep="\n")
    wrong = [f"{trial!a}\n{ending.wrong}" for trial, ending in found if ending.wrong]
    assert len(found) == COMMANDS
    assert wrong == [], "\n\n".join(wrong)
