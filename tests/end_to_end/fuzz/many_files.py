"""Thousands of damaged files of each kind, and all hostile ones, each within 2 s and 500 MB: `nox -s fuzz` names it.

FUZZ_FILES says how many damaged files of each kind (default 2000), FUZZ_SEED which ones. One that is neither read nor
refused is left in the test's directory, which the failure names.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.end_to_end.fuzz.bounded import in_fork, placed, read, timed
from tests.end_to_end.fuzz.damage import HOSTILE, damaged
from tests.end_to_end.fuzz.parsers import PARSERS

FILES = int(os.environ.get("FUZZ_FILES", "2000"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", PARSERS)
def test_damaged_files_are_read_or_refused_in_a_line(name: str, tmp_path: Path) -> None:
    parser, chance = PARSERS[name], random.Random(SEED)
    samples = parser.samples()

    def all_read() -> str:
        for number in range(FILES):
            data = parser.sealed(damaged(chance.choice(samples), chance))
            placed(parser, tmp_path / "x", lambda path, data=data: path.write_bytes(data) and None)
            try:
                timed(lambda: read(parser, tmp_path / "x"))
            except BaseException as error:
                error.add_note(f"file {number}")
                raise
        return ""

    if said := in_fork(all_read):
        pytest.fail(f"{said}\n{tmp_path / 'x' / parser.name}", pytrace=False)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("name", PARSERS)
def test_a_hostile_file_is_read_or_refused_in_a_line(name: str, what: str, tmp_path: Path) -> None:
    parser = PARSERS[name]
    sample = parser.samples()[0]
    placed(parser, tmp_path / "x", lambda path: HOSTILE[what](path, sample))

    def once() -> str:
        timed(lambda: read(parser, tmp_path / "x"))
        return ""

    if said := in_fork(once):
        pytest.fail(said, pytrace=False)
