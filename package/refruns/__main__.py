"""The console command `refruns`, and `python -m refruns`: `python -m suite` of the packages that came with this one."""

from __future__ import annotations

import os
import sys

from refruns import HOME


def run() -> int:
    """Run one command; the exit code.

    This process, and every one that it starts, finds the packages in HOME before any other of their names: Hugging
    Face's `kernels` in site-packages, or a directory `kernels` where the user happens to be.
    """
    sys.path.insert(0, HOME)
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in (HOME, os.environ.get("PYTHONPATH")) if path)
    os.environ["PYTHONSAFEPATH"] = "1"
    from suite.__main__ import run as run_suite

    return run_suite()


if __name__ == "__main__":
    sys.exit(run())
