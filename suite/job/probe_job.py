"""The input of a probe's ranks, which repeat, exchange and verify, and the events that they report."""

from __future__ import annotations

import msgspec

from reference_runs.run import Architecture, Recipe
from suite.machine.cpu_contention import Shared


class ProbeJob(msgspec.Struct, frozen=True, kw_only=True):
    """One probe, as its ranks read it. Checks with a count or time of 0 are skipped.

    Args:
        directory: where every rank writes its events.
        threads: of a rank, for "cpu".
        replays: how often each rank alone repeats the same training of `replay_steps` steps.
        samples: of a step.
        exchanges: how often each pair of ranks, and all of them together, exchange `exchange_bytes` at least.
        exchange_seconds: how long all pairs in turn, and all ranks together, exchange messages and compare them. It is
            this long because processors change their speed several times a second.
        soak_seconds: how long every rank verifies products and copies of `soak_bytes`. 0 bytes: of the memory that is
            free when the soak begins, 95 % on "cuda", otherwise 90 % divided over the ranks.
        product_seconds: before that, how long every rank verifies bf16 products of matrices [product_size,
            product_size], one after another.
        load_seconds: between these, how long every rank multiplies matrices [load_size, load_size] in every format that
            the device has while all ranks sum messages of `load_bytes`, in pulses: half of `pulse_seconds` loaded,
            half idle.
        collective_timeout_seconds: of the process group; a fallback for the launcher's hang guard.
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
    product_seconds: float
    product_size: int
    collective_timeout_seconds: float
    load_seconds: float = 0.0
    load_size: int = 0
    load_bytes: int = 0
    pulse_seconds: float = 0.0


class Replayed(msgspec.Struct, frozen=True, kw_only=True, tag="replayed"):
    """Hashes of one step of one replay, as hex digits: loss, gradients, and parameters after the step."""

    replay: int
    step: int
    loss: str
    gradients: str
    parameters: str
    time: float


class Exchanged(msgspec.Struct, frozen=True, kw_only=True, tag="exchanged"):
    """Received messages of known contents.

    Args:
        peer: the rank at the other end; None for a collective of all ranks.
        bytes: of one message; of an all-to-all, what the rank sends to all others together.
        seconds: of the fastest message one way (half a round trip), or of the fastest collective.
        wrong: elements that differ from what was sent, or from the sum; `first` describes the first one.
        operation: "all-to-all"; empty for a message, and for an all-reduce.
        algorithm: of an all-reduce, "ring" or "nvls" (sums in the switch); empty where the library chose. One that it
            refused has 0 bytes, and `first` says so.
        clock_offset: seconds by which the peer's wall clock is ahead, as the rank that begins sees it, give or take
            `clock_uncertainty`; None to the other, and of a collective.
    """

    peer: int | None
    bytes: int
    seconds: float
    wrong: int
    first: str
    time: float
    operation: str = ""
    algorithm: str = ""
    clock_offset: float | None = None
    clock_uncertainty: float | None = None


class FormatLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Verified products of one format: `wrong` elements; flop/s while loaded, None where one pulse alone had some."""

    format: str
    products: int
    wrong: int
    flop_per_second: float | None


class PulsedCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Products of several formats and all-reduces at once, in pulses, by one rank.

    Args:
        size: rows and columns of the factors; `sum_bytes` of an all-reduce.
        missing: by format that was left out, why.
        sums: all-reduces; `wrong_sums` elements of them that are wrong.
        pulse_seconds: from one pulse to the next; half of it is idle.
        first: describes what was wrong first.
    """

    size: int
    formats: list[FormatLoad]
    missing: dict[str, str]
    sums: int
    wrong_sums: int
    sum_bytes: int
    pulses: int
    pulse_seconds: float
    seconds: float
    first: str


class Loaded(PulsedCounts, frozen=True, kw_only=True, tag="loaded"):
    """Event of a rank that has ended its pulsed load, at `time`."""

    time: float


class Soaked(msgspec.Struct, frozen=True, kw_only=True, tag="soaked"):
    """Verified memory and products of one rank.

    Args:
        products: large ones, in `product_seconds`; `product_flop_per_second` of the median second of their later half,
            `burst_flop_per_second` of the fastest few; `undelayed_flop_per_second` the most that the former would be
            if the host had never waited for a processor; `fp8_flop_per_second` of the fastest few in FP8.
    """

    bytes: int
    passes: int
    wrong: int
    first: str
    time: float
    products: int = 0
    product_seconds: float = 0.0
    product_flop_per_second: float | None = None
    burst_flop_per_second: float | None = None
    undelayed_flop_per_second: float | None = None
    fp8_flop_per_second: float | None = None


class Probed(msgspec.Struct, frozen=True, kw_only=True, tag="probed"):
    """A rank has finished the probe.

    Args:
        shared: how it shared the processors during the exchanges; None without exchanges, or where the system does not
            report it.
    """

    environment: dict[str, str]
    time: float
    shared: Shared | None = None


ProbeEvent = Replayed | Exchanged | Loaded | Soaked | Probed
