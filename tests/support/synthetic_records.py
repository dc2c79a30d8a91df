"""Records of launches that never were, many and fast: real halves with other names, times and values."""

from __future__ import annotations

import random
import time
from functools import cache
from pathlib import Path

import msgspec

from suite.job.events import Step, StepKind
from suite.metrics.figures import Figure, Quantity, StepTerm, with_maximum_over_ranks
from suite.records.record import Begin, RankOutcome, begin_record, encode
from suite.reproduce.plan import job_for
from tests.support.launches import CORPUS, small_plan
from tests.support.record_halves import end

RANKS, STEPS = 2, 30  # the default of `reproduce`
IDENTITY = "IDENTITY"
_STARTED, _SECONDS = 1234567890.125, 0.8765432109375  # stand for what differs between launches
_EXACT = {Quantity.PARAMETERS: 4_200_576, Quantity.MODEL_FLOP: 13_004_439_552, Quantity.HARDWARE_FLOP: 13_004_439_552}
_OF_RANKS = {
    Quantity.WEIGHT_BYTES: 8_401_152,
    Quantity.GRADIENT_BYTES: 16_802_304,
    Quantity.OPTIMIZER_BYTES: 25_203_464,
    Quantity.ACTIVATION_BYTES: 21_738_564,
    Quantity.PEAK_BYTES: 97_899_344,
}
_RATES = (Quantity.TOKENS_PER_SECOND, Quantity.MODEL_FLOP_PER_SECOND, Quantity.HARDWARE_FLOP_PER_SECOND)


def measured() -> list[Figure]:
    """As many figures, with as long reasons, as `reproduce` counts on 2 ranks."""
    seconds = Figure(quantity=Quantity.STEP_SECONDS, value=_SECONDS, why="median of 23 steps, 0.6146 to 1.114 s")
    why = "clocks around the phases, and their parts in a profile of the last two steps"
    terms = [
        Figure(quantity=Quantity.STEP_SECONDS, term=term.value, value=_SECONDS / 9, rank=rank, why=why)
        for rank in (None, *range(RANKS))
        for term in StepTerm
    ]
    of_ranks = [Figure(quantity=name, value=value, rank=n) for n in range(RANKS) for name, value in _OF_RANKS.items()]
    traffic = [
        Figure(quantity=quantity, value=value, axis="dp", operation=operation, rank=rank)
        for rank in range(RANKS)
        for operation in ("all_gather", "all_reduce")
        for quantity, value in ((Quantity.PAYLOAD_BYTES, 8_401_152), (Quantity.MESSAGES, 3))
    ]
    return [
        *(Figure(quantity=name, value=value) for name, value in _EXACT.items()),
        Figure(quantity=Quantity.FIRST_LOSS, value=9.546486854553223),
        seconds,
        *terms,
        *(Figure(quantity=name, value=786.0667313664966) for name in _RATES),
        *with_maximum_over_ranks(of_ranks + traffic),
    ]


@cache
def _first_half(compiled: bool) -> Begin:
    return begin_record(job_for(small_plan(ranks=RANKS, compiled=compiled), CORPUS, "/none"), CORPUS, IDENTITY)


def template(run: str, *, compiled: bool = False, suite: str = "0.1.0") -> tuple[bytes, bytes]:
    """Both halves of a launch whose identity, start and step time are to be replaced."""
    begin = _first_half(compiled)
    job = msgspec.structs.replace(begin.job, name=run)
    begin = msgspec.structs.replace(begin, run=run, job=job, started=_STARTED)
    software = begin.software | {"suite": suite}
    begin = msgspec.structs.replace(begin, software=software, hashes=begin.hashes | {"software": suite[-8:]})
    steps = [Step(n, StepKind.TIMED, 9.5 - n / 20, _SECONDS, _STARTED + n, 1.1991526433263031) for n in range(STEPS)]
    where = {"torch": "2.13.0+cpu", "device": "cpu", "threads": "1", "cpu_capability": "AVX2"}
    closed = end(
        IDENTITY,
        finished=_STARTED + 60,
        figures=measured(),
        ranks=[RankOutcome(rank=n, steps=steps, last="finished", environment=where) for n in range(RANKS)],
        predicted=[msgspec.structs.replace(f, value=f.value * 1.05) for f in measured() if f.rank is None][4:17],
        profile="results/machines/node__fingerprint.json",
        others_share=0.01,
        steal_share=0.001,
    )
    return encode(begin), encode(closed)


def write_records(results: Path, count: int, *, runs: int = 7, seed: int = 1) -> None:
    """`count` records of `runs` runs, eager and compiled, under ten versions of the suite, an hour apart."""
    chance = random.Random(seed)
    templates = {
        (run, compiled, version): template(f"synthetic{run}", compiled=compiled, suite=f"0.1.0 ({version:012x})")
        for run in range(runs)
        for compiled in (False, True)
        for version in range(10)
    }
    for run in range(runs):
        (results / "records" / f"synthetic{run}").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        run, started = number % runs, 1.6e9 + 3600 * number
        begin, end = templates[run, chance.random() < 0.5, 10 * number // count]
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(started))
        identity = f"{stamp}__0123abcd__{chance.getrandbits(32):08x}"
        seconds = f"{_SECONDS * chance.lognormvariate(0, 0.02):.13f}".encode()
        directory = results / "records" / f"synthetic{run}"
        for half, data in (("begin", begin), ("end", end)):
            data = data.replace(IDENTITY.encode(), identity.encode()).replace(str(_SECONDS).encode(), seconds)
            data = data.replace(str(_STARTED).encode(), str(started).encode())
            data = data.replace(str(_STARTED + 60).encode(), str(started + 60).encode())
            (directory / f"{identity}.{half}.json").write_bytes(data)
