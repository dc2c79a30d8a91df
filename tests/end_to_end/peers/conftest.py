"""Comparisons with other implementations, which only the session `peers` installs."""

from __future__ import annotations

import importlib.util

from tests.execute.parallel.one_bit.conftest import pool

__all__ = ["pool"]

collect_ignore_glob = [] if importlib.util.find_spec("deepspeed") else ["test_*.py"]
