"""Reasons for which a request is refused."""

from __future__ import annotations

import pytest

from reference_runs.errors import InputError


@pytest.fixture
def not_refused():
    """A function that lists the entries of a table that `planned` does not refuse with the words of the entry."""

    def run(planned, table):
        wrong = []
        for options, words in table:
            try:
                planned(**options)
                line = "accepted"
            except InputError as error:
                line = str(error)
            if words not in line:
                wrong.append((options, words, line))
        return wrong

    return run
