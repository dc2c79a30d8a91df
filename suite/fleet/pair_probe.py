"""Two nodes measured together: their link in both directions, their clocks, and products of both at the same time.

python -m suite.fleet.pair_probe RESULT.json PROFILE DEVICE HOSTS-AS-JSON
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from reference_runs.catalog import reference_run
from reference_runs.miniature import miniature
from suite.fleet.fleet_record import PairResult, keep
from suite.job.events import Status
from suite.job.launch_nodes import node_of
from suite.job.probe_job import Exchanged, ProbeJob, Soaked
from suite.launch import slurm
from suite.launch.interruption import end_as_interrupted
from suite.launch.launcher import LaunchOutcome, launch
from suite.launch.multi_host import Hosts
from suite.machine.devices import usable_cores
from suite.paths import whole_file
from suite.records.store import new_identity
from suite.reproduce.scheduled import scratch

RUN = "bloom-176b"  # a probe's job has an architecture; no replay trains it here
SEED = 20261126
TIMEOUT_SECONDS = 300.0
MIB = 2**20


class PairEffort(msgspec.Struct, frozen=True, kw_only=True):
    """How much a pair measures: messages of so many bytes, by device, and products."""

    exchanges: int
    exchange_seconds: float
    exchange_bytes: dict[str, int]
    product_seconds: float
    product_size: dict[str, int]
    soak_seconds: float = 0.5
    soak_bytes: int = 64 * MIB


_QUICK = PairEffort(
    exchanges=4,
    exchange_seconds=2.0,
    exchange_bytes={"cpu": 8 * MIB, "cuda": 256 * MIB},
    product_seconds=3.0,
    product_size={"cpu": 512, "cuda": 8192},
)
PAIR_EFFORTS = {
    "quick": _QUICK,
    "accept": msgspec.structs.replace(_QUICK, exchange_seconds=10.0, product_seconds=20.0),
    "soak": msgspec.structs.replace(_QUICK, exchange_seconds=60.0, product_seconds=300.0),
}


def probe_job(profile: str, device: str, ranks: int, directory: str) -> ProbeJob:
    """The job of a pair's ranks."""
    effort = PAIR_EFFORTS[profile]
    small = miniature(reference_run(RUN), "cpu", ranks=1, steps=6)
    return ProbeJob(
        directory=directory,
        device=device,
        ranks=ranks,
        threads=max(1, usable_cores()),
        architecture=small.architecture,
        recipe=small.recipe,
        seed=SEED,
        replays=0,
        replay_steps=0,
        samples=1,
        exchanges=effort.exchanges,
        exchange_seconds=effort.exchange_seconds,
        exchange_bytes=effort.exchange_bytes[device],
        soak_seconds=effort.soak_seconds,
        soak_bytes=effort.soak_bytes,
        product_seconds=effort.product_seconds,
        product_size=effort.product_size[device],
        collective_timeout_seconds=TIMEOUT_SECONDS,
    )


def product_rate(soak: Soaked, size: int) -> float:
    """Flop/s of all products and their comparisons together: bursts say nothing of a processor that is held back."""
    return 2.0 * size**3 * soak.products / soak.product_seconds if soak.product_seconds else 0.0


def result_of(names: tuple[str, str], outcome: LaunchOutcome, lost: list[str], size: int) -> PairResult:
    """The result of a pair from the events of both ranks, in the order of `names`.

    A scheduler has an order of its own: asked for n5 and n1, Slurm gives rank 0 to n1.
    """
    if outcome.status is not Status.OK:
        words = outcome.message[:400]
        return PairResult(first=names[0], second=names[1], status=outcome.status.value, message=words, lost=lost)
    direct = [[e for e in events if isinstance(e, Exchanged) and e.peer is not None] for events in outcome.events]
    soaks = [next(event for event in events if isinstance(event, Soaked)) for events in outcome.events]
    exchanged = [event for own in direct for event in own]
    clock = next(event for event in direct[0])
    turned = bool(outcome.nodes) and node_of(0, outcome.nodes) == names[1]
    if turned:
        soaks.reverse()
    return PairResult(
        first=names[0],
        second=names[1],
        status=outcome.status.value,
        bytes_per_second=min(event.bytes / event.seconds for event in exchanged),
        wrong=sum(event.wrong for event in exchanged),
        clock_offset=-clock.clock_offset if turned and clock.clock_offset is not None else clock.clock_offset,
        clock_uncertainty=clock.clock_uncertainty or 0.0,
        products=[product_rate(soak, size) for soak in soaks],
        product_errors=[soak.wrong for soak in soaks],
    )


def main() -> int:
    """Measure, and keep the result."""
    result, profile, device, text = sys.argv[1:]
    hosts = msgspec.json.decode(text, type=Hosts)
    end_as_interrupted()
    path = Path(result)
    with scratch(path.parent.parent.parent, shared=True) as place:
        job = probe_job(profile, device, len(hosts.names), place)
        with whole_file(Path(place) / "job.json") as file:
            file.write_bytes(msgspec.json.encode(job))
        outcome = launch(job, new_identity(), lambda _rank, _event: None, hosts=hosts)
    if outcome.status is Status.INTERRUPTED:
        return 1
    lost = slurm.not_answering(hosts.names) if hosts.scheduled and outcome.status is not Status.OK else []
    keep(path, result_of((hosts.names[0], hosts.names[1]), outcome, lost, job.product_size))
    return 0


if __name__ == "__main__":
    sys.exit(main())
