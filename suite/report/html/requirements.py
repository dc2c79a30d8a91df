"""The packages that the page needs, beyond those of every command."""

from __future__ import annotations

from importlib.util import find_spec

NEEDED = ("plotly", "jinja2", "ruptures", "scipy")
INSTALL = "pip install plotly jinja2 ruptures scipy, or nox -s report, brings it"


def missing() -> str:
    """The package that is not installed; empty where all are."""
    return next((name for name in NEEDED if find_spec(name) is None), "")
