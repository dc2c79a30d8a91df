"""A command imports what its branch needs."""

from __future__ import annotations

import subprocess
import sys

from suite.paths import ROOT

LOADED = """
import sys
from suite.__main__ import main
main("plan gpt2-124m --on a100-sxm-40gb --gpus 8".split())
for name in ("reproduce", "regress", "accept", "ladder", "predict", "fit"):
    main([name, "--help"])
sys.exit(", ".join(name for name in ("torch", "reference_runs.published") if name in sys.modules) or 0)
"""


def test_a_plan_and_what_launches_load_neither_torch_nor_the_readers_of_published_tables():
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
