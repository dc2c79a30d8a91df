"""What a probe's ranks are told to repeat, exchange and verify, and what they tell back: the data both sides share."""

from __future__ import annotations

import msgspec

from reference_runs.run import Architecture, Recipe
from suite.machine.cpu_contention import Shared


class ProbeJob(msgspec.Struct, frozen=True, kw_only=True):
    """One probe, as its ranks read it; what has a count or time of 0 is left out.

    Args:
        directory: where every rank writes its events.
        threads: of a rank, for "cpu".
        replays: how often each rank alone repeats the same training of `replay_steps` steps.
        samples: of a step.
        exchanges: how often each pair of ranks, and all of them together, exchange `exchange_bytes` at least.
        exchange_seconds: that all pairs in turn, and all ranks together, go on exchanging and comparing what came:
            processors change their speed several times a second.
        soak_seconds: that products and copies of `soak_bytes` are verified for, on every rank; 0 bytes: of what is free
            when the soak begins, 95 % on "cuda", otherwise 90 % divided over the ranks.
        collective_timeout_seconds: the process group's own bound, a fallback behind the launcher's hang guard.
    """

    directory: str
    device: str
    ranks: int
    threads: int
    architecture: Architecture
    recipe: Recipe
    seed: int
    replays: int
    replay_steps: int
    samples: int
    exchanges: int
    exchange_seconds: float
    exchange_bytes: int
    soak_seconds: float
    soak_bytes: int
    collective_timeout_seconds: float


class Replayed(msgspec.Struct, frozen=True, kw_only=True, tag="replayed"):
    """Hashes of one step of one replay, as hex digits: of the loss, of all gradients, of all parameters behind it."""

    replay: int
    step: int
    loss: str
    gradients: str
    parameters: str
    time: float


class Exchanged(msgspec.Struct, frozen=True, kw_only=True, tag="exchanged"):
    """Messages of known contents that arrived.

    Args:
        peer: rank at the other end; None for an all-reduce of all.
        seconds: of the fastest message one way, half a round trip; of the fastest all-reduce.
        wrong: elements that were not what was sent, or not the sum; `first` describes the first one.
    """

    peer: int | None
    bytes: int
    seconds: float
    wrong: int
    first: str
    time: float


class Soaked(msgspec.Struct, frozen=True, kw_only=True, tag="soaked"):
    """Memory and products that were verified on one rank."""

    bytes: int
    passes: int
    wrong: int
    first: str
    time: float


class Probed(msgspec.Struct, frozen=True, kw_only=True, tag="probed"):
    """A rank has done everything.

    Args:
        shared: with whom it shared the processors during the exchanges; None without any, and where the system does not
            tell.
    """

    environment: dict[str, str]
    time: float
    shared: Shared | None = None
