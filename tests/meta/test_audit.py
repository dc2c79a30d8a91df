"""The look-up of pinned packages in a database of vulnerabilities says what it could not look up."""

from __future__ import annotations

import runpy
from typing import Any

import pytest

from suite.paths import ROOT

AUDIT = runpy.run_path(str(ROOT / ".ci" / "audit.py"))
FOUND = {"name": "one", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
CLEAN = {"name": "two", "version": "1", "vulns": []}
LEFT_OUT = {"name": "three", "skip_reason": "three (1) was not found"}


@pytest.mark.parametrize(
    ("known", "pinned", "code", "words"),
    [
        ([FOUND], [CLEAN], 0, "1 of 1 packages looked up, 0 vulnerabilities known"),
        ([FOUND], [CLEAN, FOUND], 1, "one 1: CVE-1, repaired in 2"),
        ([FOUND], [CLEAN, FOUND, LEFT_OUT], 1, "three (1) was not found"),
        ([FOUND], [CLEAN, LEFT_OUT], 3, "NOT RUN: three (1) was not found"),
        ([FOUND], [], 3, "0 of 0 packages looked up"),
        ([LEFT_OUT], [CLEAN], 3, "NOT RUN: no database knows of jinja2==3.1.3"),  # it cannot be reached
        ([CLEAN], [CLEAN], 3, "NOT RUN: no database knows of jinja2==3.1.3"),  # it is empty
        ([], [CLEAN], 3, "NOT RUN: no database knows of jinja2==3.1.3"),  # pip-audit failed
    ],
)
def test_pins_pass_where_a_database_that_knows_something_knows_nothing_of_them(
    known: list[dict[str, Any]], pinned: list[dict[str, Any]], code: int, words: str
) -> None:
    answer, text = AUDIT["verdict"](known, pinned)
    assert answer == code
    assert words in text
