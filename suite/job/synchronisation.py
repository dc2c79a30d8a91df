"""How data-parallel workers wait for each other, and which of them is slowed on purpose."""

from __future__ import annotations

import enum
import re
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from reference_runs.errors import InputError


class Waiting(enum.StrEnum):
    """Bulk-synchronous, stale-synchronous and asynchronous parallel."""

    BSP = "bsp"
    SSP = "ssp"
    ASP = "asp"


class Synchronisation(msgspec.Struct, frozen=True):
    """When a worker may begin its next step.

    Args:
        bound: steps that it may be ahead of the slowest worker then; None: any number.
    """

    waiting: Waiting
    bound: int | None

    def __str__(self) -> str:
        return f"{self.waiting}:{self.bound}" if self.waiting is Waiting.SSP else self.waiting.value


class SlowRank(msgspec.Struct, frozen=True):
    """A rank that sleeps in some of its steps, so that what it computes takes `factor` times as long.

    Args:
        every: it is slow in one step of so many.
    """

    rank: int
    factor: float
    every: int = 1

    def __str__(self) -> str:
        return f"{self.rank}:{self.factor:g}:{self.every}"

    def factor_of(self, rank: int, step: int, *, ranks: int) -> float:
        """Factor of a step of a rank, counted from 0. Ranks that are slow equally seldom take turns."""
        offset = self.rank * self.every // ranks
        return self.factor if rank == self.rank and step % self.every == offset else 1.0


def slowing_factor(slow: Sequence[SlowRank], rank: int, step: int, *, ranks: int) -> float:
    """How many times as long a step of a rank takes, 1 where nothing slows it."""
    return max((each.factor_of(rank, step, ranks=ranks) for each in slow), default=1.0)


SYNCHRONISATIONS = "bsp, ssp:S with S of 0 or more, asp"
SLOW_RANKS = "RANK:FACTOR or RANK:FACTOR:EVERY, with factors of 1 or more; several with commas between them"


def parse_synchronisation(text: str) -> Synchronisation:
    """The synchronisation of a command line: bsp, ssp:3, asp.

    Raises:
        InputError: another text.
    """
    if text == Waiting.BSP:
        return Synchronisation(Waiting.BSP, 0)
    if text == Waiting.ASP:
        return Synchronisation(Waiting.ASP, None)
    if found := re.fullmatch(r"ssp:(\d{1,6})", text, re.ASCII):
        return Synchronisation(Waiting.SSP, int(found[1]))
    raise InputError("unknown synchronisation", got=repr(text), allowed=SYNCHRONISATIONS, where="--synchronisation")


def parse_slow_ranks(text: str) -> tuple[SlowRank, ...]:
    """The slow ranks of a command line, such as 1:2:10.

    Raises:
        InputError: another text, a factor below 1 or above 1,000, or a rank that is named twice.
    """
    slow = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,6}):(\d{1,4}(?:\.\d{1,6})?)(?::([1-9]\d{0,5}))?", part, re.ASCII)
        if found is None or not 1 <= float(found[2]) <= 1000:
            raise InputError("no slow rank", got=repr(part), allowed=SLOW_RANKS, where="--slow-rank")
        slow.append(SlowRank(int(found[1]), float(found[2]), int(found[3] or 1)))
    if len({each.rank for each in slow}) < len(slow):
        raise InputError("a rank is named twice", got=repr(text), allowed=SLOW_RANKS, where="--slow-rank")
    return tuple(slow)


class Contribution(NamedTuple):
    """The gradient that one worker computed in one of its steps."""

    step: int
    worker: int


class StoreUpdate(NamedTuple):
    """One update of the parameters.

    Args:
        members: whose gradients it takes, in the order in which they are summed.
        readers: workers that then read the parameters and begin their next steps.
    """

    members: tuple[Contribution, ...]
    readers: tuple[int, ...]


class WorkerClocks:
    """The clocks of all workers at the parameter store: the steps of each whose gradients have come.

    A worker whose clock is c may begin its step c if c is at most `bound` ahead of the slowest clock. When gradients
    have come and a worker may begin, one update takes all of them, and then every worker that may begin reads.

    With bound 0 that is when the last worker's gradient of a step comes: one update of every worker's gradient, bulk-
    synchronous training. Without bound every gradient is an update of its own.

    Source: Ho et al. 2013 (NIPS), section 3: a worker at clock c sees all updates of clocks up to c - bound - 1, and
    its own. Nothing here depends on anything but the order in which gradients come, so that every shard of a store
    that follows one order makes the same updates.
    """

    def __init__(self, workers: int, bound: int | None) -> None:
        self.clocks = [0] * workers
        self._bound = bound
        self._waiting: deque[int] = deque()
        self._come: list[Contribution] = []

    def push(self, worker: int) -> StoreUpdate | None:
        """The gradient of a worker's current step has come; what is done then, None where nothing is."""
        self._come.append(Contribution(self.clocks[worker], worker))
        self.clocks[worker] += 1
        self._waiting.append(worker)
        readers = tuple(sorted(each for each in self._waiting if self.may_begin(each)))
        if not readers:
            return None
        members, self._come = tuple(sorted(self._come)), []
        self._waiting = deque(each for each in self._waiting if each not in readers)
        return StoreUpdate(members, readers)

    def may_begin(self, worker: int) -> bool:
        """Whether a worker may begin its next step."""
        return self._bound is None or self.ahead(worker) <= self._bound

    def ahead(self, worker: int) -> int:
        """Steps that a worker is ahead of the slowest."""
        return self.clocks[worker] - min(self.clocks)


class Staleness(NamedTuple):
    """How old the parameters were with which a gradient was computed.

    Args:
        ahead: steps that the worker was ahead of the slowest when it read them: whose gradients they may have lacked.
        delay: gradients of any worker that updates took between this read and the update that took this gradient.
    """

    ahead: int
    delay: int


class Updates(NamedTuple):
    """Updates that a store made of the order in which gradients came.

    Args:
        updates: in order.
        staleness: of each worker's gradients, by step.
        versions: of each worker, by step: how many updates the parameters had that it read.
    """

    updates: list[StoreUpdate]
    staleness: list[list[Staleness]]
    versions: list[list[int]]


def updates_of(arrivals: Iterable[int], *, workers: int, bound: int | None) -> Updates:
    """Updates that a store with this bound makes of gradients; `arrivals`: the worker of each, in order."""
    clocks = WorkerClocks(workers, bound)
    updates: list[StoreUpdate] = []
    staleness: list[list[Staleness]] = [[] for _ in range(workers)]
    versions = [[0] for _ in range(workers)]
    reads = [[(0, 0)] for _ in range(workers)]  # of each step: steps ahead, and gradients in the parameters
    taken = 0
    for worker in arrivals:
        update = clocks.push(worker)
        if update is None:
            continue
        updates.append(update)
        for step, member in update.members:
            ahead, gradients = reads[member][step]
            staleness[member].append(Staleness(ahead, taken - gradients))
        taken += len(update.members)
        for reader in update.readers:
            reads[reader].append((clocks.ahead(reader), taken))
            versions[reader].append(len(updates))
    return Updates(updates, staleness, versions)
