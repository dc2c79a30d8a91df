"""The page in a real browser, which only the session `page` installs the driver of."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("playwright") else ["test_*.py"]
