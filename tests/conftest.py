from __future__ import annotations

import os

from hypothesis import settings

os.environ["SUITE_CALIBRATE"] = "0"  # no test's `reproduce` measures the machine unless it says so

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=60, print_blob=True)
settings.load_profile("ci")
