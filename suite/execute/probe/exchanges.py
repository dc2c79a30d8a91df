"""Exchanges of known contents: between two ranks, of all with all, and all-reduces by each algorithm of the library."""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from suite.execute.measure import clock
from suite.execute.probe.soak import differences, pattern
from suite.job.events import Event, Phase
from suite.job.probe_job import Exchanged, ProbeJob

MODULUS = 1021  # prime, and small enough that sums over 8,192 ranks are exact in fp32
ALGORITHMS = {"ring": "Ring", "nvls": "NVLS"}  # of NCCL's all-reduce: our names, and those of NCCL_ALGO
CLOCK_QUESTIONS = 20
SUMMING_SWITCH = (9, 0)  # compute capability from which a GPU's switch can add (NVLS)
Attempt = Callable[[int], tuple[float, Tensor, Tensor]]  # of a number: seconds, what was received, what was expected


def exchange_all(
    job: ProbeJob, device: torch.device, control: dist.ProcessGroup, report: Callable[[Event], None]
) -> None:
    """All exchanges of the job, each reported. The ranks start each together; every pair has the node for itself.

    Args:
        control: a gloo group, for decisions.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pairs = list(itertools.combinations(range(ranks), 2))
    for first, second in pairs:
        report(Phase(f"exchange {first}-{second}", time.time()))
        if rank in (first, second):
            peer, seconds = first + second - rank, job.exchange_seconds / len(pairs)
            report(exchanged(job, peer, device, control, begins=rank == first, seconds=seconds))
        dist.barrier(group=control)
    if ranks > 2:  # with two, it is their pair
        report(Phase("all-to-all", time.time()))
        report(exchanged_with_all(job, device, control))
    report(Phase("all-reduce", time.time()))
    report(reduced(job, device, control))
    for algorithm in _algorithms(device):
        report(Phase(f"all-reduce, {algorithm}", time.time()))
        group = group_with(algorithm, device, control)
        report(refused(algorithm) if group is None else reduced(job, device, control, group, algorithm))


def refused(algorithm: str) -> Exchanged:
    """An exchange where no all-reduce by this algorithm could be made: nothing was received."""
    words = f"not available: NCCL refused NCCL_ALGO={ALGORITHMS[algorithm]} to some rank"
    return Exchanged(peer=None, bytes=0, seconds=1.0, wrong=0, first=words, algorithm=algorithm, time=time.time())


def exchanged(
    job: ProbeJob, peer: int, device: torch.device, control: dist.ProcessGroup, *, begins: bool, seconds: float
) -> Exchanged:
    """Messages to a peer and back; each receiver verifies them. None is sent before the peer waits for it.

    Args:
        control: a gloo group, for decisions.
        seconds: the least time that the exchanges take.
    """
    elements = job.exchange_bytes // 4
    received = torch.empty(elements, dtype=torch.int32, device=device)

    def agree(word: Tensor, *, sends: bool) -> None:
        if sends:
            dist.send(word, peer, group=control)
        else:
            dist.recv(word, peer, group=control)

    def exchange(number: int) -> tuple[float, Tensor, Tensor]:
        ours = pattern(0, elements, 2 * number + begins, device)
        theirs = pattern(0, elements, 2 * number + (not begins), device)
        agree(torch.zeros(1), sends=not begins)
        start = clock.now(device)
        if begins:
            dist.send(ours, peer)
            dist.recv(received, peer)
        else:
            dist.recv(received, peer)
            dist.send(ours, peer)
        return (clock.now(device) - start) / 2, received, theirs

    clocks = clock_offset(peer, control, begins=begins)
    done = _repeated(job.exchanges, exchange, lambda word: agree(word, sends=begins), seconds=seconds)
    return Exchanged(peer=peer, bytes=4 * elements, time=time.time(), **done | clocks)


def clock_offset(peer: int, control: dist.ProcessGroup, *, begins: bool) -> dict[str, Any]:
    """By how much the peer's wall clock is ahead, of the quickest of several questions; nothing to who is asked.

    An answer was read between its question and its arrival: in the middle, give or take half of that time.
    Source: Cristian, Probabilistic clock synchronization, 1989.
    """
    best: dict[str, Any] = {}
    for _ in range(CLOCK_QUESTIONS):
        answer = torch.zeros(1, dtype=torch.float64)
        asked = time.time()
        if not begins:
            dist.recv(answer, peer, group=control)
            answer[0] = time.time()
            dist.send(answer, peer, group=control)
            continue
        dist.send(answer, peer, group=control)
        dist.recv(answer, peer, group=control)
        arrived = time.time()
        half = (arrived - asked) / 2
        if not best or half < best["clock_uncertainty"]:
            best = {"clock_offset": float(answer[0]) - asked - half, "clock_uncertainty": half}
    return best


def exchanged_with_all(job: ProbeJob, device: torch.device, control: dist.ProcessGroup) -> Exchanged:
    """Messages of every rank to every other one, at the same time; each receiver verifies them.

    `control` is a gloo group, for decisions. The bytes are those that a rank sends to all others together.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    elements = job.exchange_bytes // 4 // ranks  # for each
    received = torch.empty(elements * ranks, dtype=torch.int32, device=device)

    def messages(number: int, paths: Iterator[tuple[int, int]]) -> Tensor:
        salts = ((number * ranks + source) * ranks + target for source, target in paths)
        return torch.cat([pattern(0, elements, salt, device) for salt in salts])

    def exchange(number: int) -> tuple[float, Tensor, Tensor]:
        ours = messages(number, ((rank, other) for other in range(ranks)))
        theirs = messages(number, ((other, rank) for other in range(ranks)))
        dist.barrier(group=control)
        start = clock.now(device)
        dist.all_to_all_single(received, ours)
        return clock.now(device) - start, received, theirs

    done = _repeated(job.exchanges, exchange, _decided_by_first(control), seconds=job.exchange_seconds)
    size = 4 * elements * (ranks - 1)
    return Exchanged(peer=None, bytes=size, operation="all-to-all", time=time.time(), **done)


def reduced(
    job: ProbeJob,
    device: torch.device,
    control: dist.ProcessGroup,
    group: dist.ProcessGroup | None = None,
    algorithm: str = "",
) -> Exchanged:
    """All-reduces of whole numbers, whose result is known: index modulo 1021, plus the rank.

    All ranks begin each together.

    Args:
        control: a gloo group, for decisions.
        group: that reduces by `algorithm`; None: by what the library chooses.
    """
    ranks, elements = dist.get_world_size(), job.exchange_bytes // 4
    base = torch.arange(elements, device=device, dtype=torch.int64) % MODULUS
    expected = (base * ranks + ranks * (ranks - 1) // 2).to(torch.float32)

    def reduce(_number: int) -> tuple[float, Tensor, Tensor]:
        buffer = (base + dist.get_rank()).to(torch.float32)
        dist.barrier(group=control)
        start = clock.now(device)
        dist.all_reduce(buffer, group=group)
        return clock.now(device) - start, buffer, expected

    done = _repeated(job.exchanges, reduce, _decided_by_first(control), seconds=job.exchange_seconds)
    return Exchanged(peer=None, bytes=4 * elements, algorithm=algorithm, time=time.time(), **done)


def _algorithms(device: torch.device) -> list[str]:
    """Algorithms that NCCL may be asked for on this device; none where gloo reduces."""
    if device.type != "cuda":
        return []
    adds = torch.cuda.get_device_capability(device) >= SUMMING_SWITCH
    return [name for name in ALGORITHMS if name != "nvls" or adds]


def group_with(algorithm: str, device: torch.device, control: dist.ProcessGroup) -> dist.ProcessGroup | None:
    """A group of all ranks whose all-reduces use this algorithm; None where the library refuses it to some rank.

    PyTorch has no option for it. NCCL reads the variable when a communicator is made, here or by its first collective.
    """
    accepted = torch.ones(1)
    group = None
    with _variable("NCCL_ALGO", ALGORITHMS[algorithm]):
        try:
            group = dist.new_group()
            dist.all_reduce(torch.zeros(1, device=device), group=group)
            clock.now(device)
        except RuntimeError:  # NCCL's errors are such
            accepted.zero_()
    dist.all_reduce(accepted, dist.ReduceOp.MIN, group=control)
    return group if accepted.item() else None


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Within it, the variable of this process's environment has this value."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _decided_by_first(control: dist.ProcessGroup) -> Callable[[Tensor], object]:
    return functools.partial(dist.broadcast, src=0, group=control)


def _repeated(least: int, once: Attempt, decide: Callable[[Tensor], object], *, seconds: float) -> dict[str, Any]:
    """`once`, so often at least, and then for the rest of `seconds`; fields of an `Exchanged`.

    Args:
        decide: replaces the number of further repetitions by that of one of the ranks.
    """
    fastest, wrong, first = float("inf"), 0, ""
    number, repetitions, start = 0, least, time.perf_counter()
    while number < repetitions:
        took, received, expected = once(number)
        fastest = min(fastest, took)
        count, words = differences(received, expected)
        wrong, first = wrong + count, first or words
        number += 1
        if number == least:
            spent = time.perf_counter() - start
            further = torch.tensor([float(max(0, int(number * (seconds - spent) / spent)))])
            decide(further)
            repetitions += int(further[0])
    return {"seconds": fastest, "wrong": wrong, "first": first}
