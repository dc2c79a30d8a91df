"""Machines with other numbers or switches, and steps without some of their terms."""

from __future__ import annotations

from typing import Any

import msgspec

from suite.predict.analytic.machine import PLAIN, Machine
from suite.predict.analytic.step_time import StepTime


def having(machine: Machine, **changes: Any) -> Machine:
    """The machine with other numbers, or, by the names of its stack, with other switches."""
    switches = {name: changes.pop(name) for name in list(changes) if name in PLAIN.__struct_fields__}
    stack = msgspec.structs.replace(machine.stack, **switches)
    return msgspec.structs.replace(machine, stack=stack, **changes)


def but(time: StepTime, *names: str) -> dict[str, float]:
    """All terms but these."""
    return {name: seconds for name, seconds in time._asdict().items() if name not in names}
