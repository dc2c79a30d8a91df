"""Launches by setup: what is compared on the page, run by run and machine by machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from suite.job.events import Status
from suite.job.options import Averaging, KernelChoice
from suite.records.summary import LaunchSummary


class SetupKey(NamedTuple):
    """What the launches of one setup share, in words."""

    run: str
    machine: str
    ranks: int
    layout: str
    execution: str

    @property
    def id(self) -> str:
        """The setup's address on the page: the same for the same words."""
        return f"s-{hashlib.sha256(repr(tuple(self)).encode()).hexdigest()[:10]}"


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The launches of one setup, oldest first."""

    key: SetupKey
    launches: list[LaunchSummary]

    @property
    def latest(self) -> LaunchSummary:
        """The last one that was started."""
        return self.launches[-1]

    @property
    def latest_ok(self) -> LaunchSummary | None:
        """The last one that ended well."""
        return next((launch for launch in reversed(self.launches) if launch.status == Status.OK), None)


def execution(launch: LaunchSummary) -> str:
    """How it was executed, in words: eager or compiled, kernels and averaging where they are not PyTorch's, a rung."""
    kernels = launch.policy.get("kernels", KernelChoice.TORCH.value)
    averaging = launch.policy.get("averaging", Averaging.EXACT.value)
    words = ["compiled" if launch.compiled else "eager"]
    if kernels != KernelChoice.TORCH.value:
        words.append(f"{kernels} kernels")
    if averaging != Averaging.EXACT.value:
        words.append(averaging)
    if "synchronisation" in launch.policy:
        words.append(f"{launch.policy['synchronisation']} at a parameter store")
    if "slow_ranks" in launch.policy:
        words.append(f"slow {launch.policy['slow_ranks']}")
    if "shares_devices" in launch.policy:
        words.append("GPUs shared by ranks")
    if launch.rung:
        words.append(launch.rung)
    return ", ".join(words)


def setups(launches: Iterable[LaunchSummary]) -> list[Setup]:
    """The setups of launches that come oldest first, in the order of run, machine, ranks and layout."""
    by_key: dict[SetupKey, list[LaunchSummary]] = {}
    for launch in launches:
        key = SetupKey(launch.run, launch.machine, launch.ranks, launch.layout, execution(launch))
        by_key.setdefault(key, []).append(launch)
    return [Setup(key=key, launches=by_key[key]) for key in sorted(by_key)]


def newest(candidates: list[Setup], most: int) -> tuple[list[Setup], list[Setup]]:
    """The `most` setups that were launched last, and the others; both in the order given."""
    ordered = sorted(candidates, key=lambda setup: (setup.latest.started, setup.key), reverse=True)
    kept = {setup.key for setup in ordered[:most]}
    others = [setup for setup in candidates if setup.key not in kept]
    return [setup for setup in candidates if setup.key in kept], others
