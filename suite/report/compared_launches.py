"""Setups, and the launch of each whose step time stands in tables and on the page: the median of comparable ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from reference_runs.run import ProductFormat
from suite.job.events import Status
from suite.job.options import Averaging, KernelChoice
from suite.metrics.difference_words import Direction, difference_in_words
from suite.metrics.figures import Quantity, StepTerm
from suite.records.summary import LaunchSummary

_EXPLAINED = [term.value for term in StepTerm if term is not StepTerm.UNEXPLAINED]
_VERSIONS = ("software", "policy", "hardware")  # hashes


class SetupKey(NamedTuple):
    """The facts that all launches of one setup share, in words.

    Args:
        processor: a hash of its flags: older records have no generation, and two processors may have one name.
    """

    run: str
    machine: str
    ranks: int
    layout: str
    execution: str
    processor: str

    @property
    def id(self) -> str:
        """The setup's address on the page: the same for the same words."""
        return f"s-{hashlib.sha256(repr(tuple(self)).encode()).hexdigest()[:10]}"


def setup_key(launch: LaunchSummary) -> SetupKey:
    """The setup that a launch belongs to."""
    processor = launch.hardware.get("cpu_flags", "")
    return SetupKey(launch.run, launch.machine, launch.ranks, launch.layout, execution(launch), processor)


def execution(launch: LaunchSummary) -> str:
    """The way of execution in words: compiled or not, kernels, GEMMs and averaging if not the usual ones, a rung."""
    averaging = launch.policy.get("averaging", Averaging.EXACT.value)
    words = ["compiled" if launch.compiled else "eager"]
    if launch.kernels != KernelChoice.TORCH.value:
        words.append(f"{launch.kernels} kernels")
    if launch.product_format != ProductFormat.NONE.value:
        words.append(f"{launch.product_format} GEMMs")
    words += launch.optimizations
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


def by_setup(launches: Iterable[LaunchSummary]) -> dict[SetupKey, list[LaunchSummary]]:
    """Launches, which come oldest first, by their setup; setups in the order of run, machine, ranks and layout."""
    groups: dict[SetupKey, list[LaunchSummary]] = {}
    for launch in launches:
        groups.setdefault(setup_key(launch), []).append(launch)
    return {key: groups[key] for key in sorted(groups)}


def is_predicted(launch: LaunchSummary) -> bool:
    """Whether a launch ended well with its step's seconds and a term of them predicted and measured."""
    sides = launch.predicted, launch.measured
    return launch.status == Status.OK and all(
        any(all(side.of(Quantity.STEP_SECONDS, term=name) is not None for side in sides) for name in names)
        for names in ([None], _EXPLAINED)
    )


def comparable_launches(launches: Sequence[LaunchSummary]) -> list[LaunchSummary]:
    """The launches of one setup that are compared, the fastest first.

    Those that ended well; where some of them were predicted, term by term, those alone; and of them those with the
    software, policy and hardware of the last one.
    """
    ended_well = [launch for launch in launches if launch.status == Status.OK]
    candidates = [launch for launch in ended_well if is_predicted(launch)] or ended_well
    if not candidates:
        return []
    newest = max(candidates, key=lambda launch: launch.started)
    alike = [launch for launch in candidates if _versions(launch) == _versions(newest)]
    return sorted(alike, key=lambda launch: (launch.measured.of(Quantity.STEP_SECONDS) or 0.0, launch.started))


def _versions(launch: LaunchSummary) -> tuple[str, ...]:
    return tuple(launch.hashes.get(name, "") for name in _VERSIONS)


def median_launch(comparable: Sequence[LaunchSummary]) -> LaunchSummary | None:
    """The launch of the median step time, of two middle ones the faster; None without any.

    Args:
        comparable: as `comparable_launches` gives them.
    """
    return comparable[(len(comparable) - 1) // 2] if comparable else None


def step_words(seconds: float | None) -> str:
    """A step time as tables and the page show it, in milliseconds; "-" for None."""
    return "-" if seconds is None else f"{1e3 * seconds:,.1f} ms"


def error_words(error: float | None) -> str:
    """How much slower or faster a step was than predicted, from predicted over measured less 1; "-" for None."""
    return "-" if error is None or error != error else difference_in_words(1.0, 1 + error, Direction.TIME)
