from __future__ import annotations

import os
import signal

from hypothesis import settings

from suite.machine.devices import has_driver

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # what tests start sees it, also where the tests run under nohup
os.environ.pop("COLUMNS", None)  # of the terminal that tests are started from, or set by their workers
os.environ["SUITE_CALIBRATE"] = "0"  # no test's `reproduce` measures the machine unless it says so
if not has_driver():
    os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are imported: theirs run on the CPU

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=60, print_blob=True)
settings.load_profile("ci")
