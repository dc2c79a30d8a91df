"""Kills one rank of a launch, or its launcher, at a moment. Python imports this where its directory is on PYTHONPATH.

SUITE_MOMENT is `RANK MODULE NAME before|after CALL`: the process of that rank ("launcher": of none) kills itself before
or after call number CALL, from 1, of `NAME` in `MODULE`. Nothing happens after a restart.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import signal
import sys

MOMENT = os.environ.get("SUITE_MOMENT", "").split()


def killing(call, *, before, number):
    """`call`, around whose call `number` the process ends."""
    calls = 0

    def called(*arguments, **named):
        nonlocal calls
        calls += 1
        if before and calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*arguments, **named)
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return called


class Patching(importlib.abc.MetaPathFinder):
    """Patches one module when it is imported."""

    def find_spec(self, name, path, target=None):  # noqa: ARG002  # of the protocol
        _, module, attribute, when, number = MOMENT
        if name != module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def executed(loaded):
            execute(loaded)
            owner, place = attribute.rpartition(".")[::2]
            holder = getattr(loaded, owner) if owner else loaded
            setattr(holder, place, killing(getattr(holder, place), before=when == "before", number=int(number)))

        spec.loader.exec_module = executed
        return spec


def applies():
    if not MOMENT or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        return False
    if MOMENT[0] == "launcher":
        return "RANK" not in os.environ and "suite" in sys.orig_argv and "reproduce" in sys.orig_argv
    return os.environ.get("RANK") == MOMENT[0]


if applies():
    if MOMENT[1] == "start":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.meta_path.insert(0, Patching())
