"""Makes files slow to reach the disk. Python imports this module at its start if its directory is on PYTHONPATH."""

from __future__ import annotations

import os
import time
from typing import Any

SECONDS = 2.0
_sync = os.fsync


def _slow(fd: Any) -> None:
    time.sleep(SECONDS)
    _sync(fd)


os.fsync = _slow
