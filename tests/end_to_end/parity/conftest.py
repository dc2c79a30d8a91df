"""Comparisons with the implementations in transformers and torchao, which only the session `parity` installs."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("transformers") else ["test_*.py"]
collect_ignore_glob += [] if importlib.util.find_spec("torchao") else ["test_quantised_weights.py"]
