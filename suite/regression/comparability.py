"""Comparable launches share a setup; identical ones share node and software too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from suite.job.events import Status
from suite.machine.fingerprint import digest
from suite.metrics.figures import Quantity
from suite.metrics.noise_floor import Floor, noise_floor
from suite.records.summary import LaunchSummary

MODIFIED = "modified"  # of a checkout that differs from its commit: see `suite.machine.fingerprint.suite_version`


def setup_of(launch: LaunchSummary) -> str:
    """The fingerprint that comparable launches share (see `setup`)."""
    return _setup(launch.run, tuple(launch.hardware.items()), tuple(launch.policy.items()), launch.steps, launch.seed)


def setup(run: str, hardware: Mapping[str, str], policy: Mapping[str, str], steps: int, seed: int) -> str:
    """The fingerprint of run, hardware, policy, steps and seed: 16 hex digits.

    Software is no part of it: that is what changes. Memory counts in GiB: what the kernel keeps of it for itself
    differs from boot to boot.
    """
    return _setup(run, tuple(hardware.items()), tuple(policy.items()), steps, seed)


FactItems = tuple[tuple[str, str], ...]


@cache
def _setup(run: str, hardware: FactItems, policy: FactItems, steps: int, seed: int) -> str:
    return digest([run, comparable_hardware(dict(hardware)), dict(policy), steps, seed])


def comparable_hardware(hardware: Mapping[str, str]) -> dict[str, str]:
    """The same with memory in GiB."""
    size, _, unit = hardware.get("memory", "").partition(" ")
    rounded = {"memory": f"{round(int(size) / 2**20)} GiB"} if unit == "kB" and size.isdigit() else {}
    return {**hardware, **rounded}


def seconds(launch: LaunchSummary) -> float | None:
    """Seconds of its median step; None where the launch did not end well or its clock stood still."""
    value = launch.measured.of(Quantity.STEP_SECONDS.value) if launch.status == Status.OK.value else None
    return value if value else None


def commit_of(launch: LaunchSummary) -> str:
    """The commit of its suite; empty without a checkout."""
    inside = launch.suite.partition("(")[2].partition(")")[0].partition(",")[0]
    return "" if inside == "no checkout" else inside


def is_modified(launch: LaunchSummary) -> bool:
    """Whether its code is not that of its commit, so that nobody can tell what it was."""
    return MODIFIED in launch.suite


def identical_groups(launches: Iterable[LaunchSummary]) -> list[list[LaunchSummary]]:
    """Launches that ended well, of one setup, node and software; those of a modified checkout are left out."""
    return list(_identical(launches).values())


def _identical(launches: Iterable[LaunchSummary]) -> dict[tuple[str, str, str], list[LaunchSummary]]:
    """The same by setup, node and software."""
    groups: dict[tuple[str, str, str], list[LaunchSummary]] = {}
    for launch in launches:
        if seconds(launch) is not None and not is_modified(launch):
            groups.setdefault((setup_of(launch), launch.node, launch.hashes.get("software", "")), []).append(launch)
    return groups


def floor_of(setup: str, node: str, launches: Sequence[LaunchSummary]) -> tuple[Floor | None, str]:
    """The noise floor of a setup's step seconds on this node, or on others of the same hardware; and whose it is."""
    here: list[list[float]] = []
    elsewhere: list[list[float]] = []
    for (of, at, _), group in _identical(launches).items():
        if of == setup:
            values = [value for launch in group if (value := seconds(launch)) is not None]
            (here if at == node else elsewhere).append(values)
    for where, groups in (("this machine", here), ("other machines of the same hardware", elsewhere)):
        floor = noise_floor(groups)
        if floor is not None:
            return floor, f"{len(floor.deviations)} identical launches on {where}"
    most = max(map(len, [*here, *elsewhere]), default=0)
    return None, f"{most} identical launches are recorded, 10 are needed"
