"""Finds wrong bits on one rank: by replays of a training, exchanges of known contents, and a soak."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from suite.execute.measure import clock
from suite.execute.measure.system_load import SharedProcessors, environment
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.precision import DTYPES, prepare_arithmetic
from suite.execute.probe.soak import differences, pattern, soaked
from suite.job.events import Event, Phase
from suite.job.probe_job import Exchanged, Probed, ProbeJob, Replayed

LEARNING_RATE = 0.01
MODULUS = 1021  # prime, and small enough that sums over 8,192 ranks are exact in fp32


def probe(job: ProbeJob, device: torch.device, report: Callable[[Event], None]) -> Probed:
    """Run and report the parts of the job. The ranks start each part together.

    Other processes' use of the processors is counted during the exchanges, because only these are timed.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first product is computed
    torch.use_deterministic_algorithms(True)
    control = dist.new_group(backend="gloo")
    shared = SharedProcessors()
    for replay in range(job.replays):
        report(Phase(f"replay {replay}", time.time()))
        run_replay(job, replay, device, report)
    dist.barrier(group=control)
    if job.exchanges and dist.get_world_size() > 1:
        shared.start()
        rank, pairs = dist.get_rank(), list(itertools.combinations(range(dist.get_world_size()), 2))
        for first, second in pairs:
            report(Phase(f"exchange {first}-{second}", time.time()))
            if rank in (first, second):
                peer, seconds = first + second - rank, job.exchange_seconds / len(pairs)
                report(exchanged(job, peer, device, control, begins=rank == first, seconds=seconds))
            dist.barrier(group=control)
        report(Phase("all-reduce", time.time()))
        report(reduced(job, device, control))
        shared.update()
    if job.soak_seconds:
        report(soaked(job, device, control, report))
    return Probed(environment=environment(device), time=time.time(), shared=shared.since_start)


def run_replay(job: ProbeJob, replay: int, device: torch.device, report: Callable[[Event], None]) -> None:
    """One training from the seed, on this rank alone. It reports the hashes of every step."""
    prepare_arithmetic(job.recipe.precision, device)
    torch.manual_seed(job.seed)
    decoder = Decoder(job.architecture, job.recipe)
    initialise(decoder, job.recipe, seed=job.seed)
    decoder.to(device=device, dtype=DTYPES[job.recipe.precision])
    generator = torch.Generator().manual_seed(job.seed)
    shape = (job.samples, job.architecture.sequence + 1)
    for step in range(job.replay_steps):
        tokens = torch.randint(job.architecture.vocabulary, shape, generator=generator).to(device)
        loss = decoder(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        gradients = digest(parameter.grad for parameter in decoder.parameters() if parameter.grad is not None)
        update(decoder)
        hashes = {"loss": digest([loss]), "gradients": gradients, "parameters": digest(decoder.parameters())}
        report(Replayed(replay=replay, step=step, **hashes, time=time.time()))


def update(decoder: Decoder) -> None:
    """Plain gradient descent; clears the gradients."""
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=LEARNING_RATE)
                parameter.grad = None


def digest(tensors: Iterable[Tensor]) -> str:
    """16 hex digits of the tensors' bytes."""
    hashed = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


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

    return _repeated(job, exchange, lambda word: agree(word, sends=begins), peer=peer, seconds=seconds)


def reduced(job: ProbeJob, device: torch.device, control: dist.ProcessGroup) -> Exchanged:
    """All-reduces of whole numbers, whose result is known: index modulo 1021, plus the rank.

    All ranks begin each together. `control` is a gloo group, for decisions.
    """
    ranks, elements = dist.get_world_size(), job.exchange_bytes // 4
    base = torch.arange(elements, device=device, dtype=torch.int64) % MODULUS
    expected = (base * ranks + ranks * (ranks - 1) // 2).to(torch.float32)

    def reduce(_number: int) -> tuple[float, Tensor, Tensor]:
        buffer = (base + dist.get_rank()).to(torch.float32)
        dist.barrier(group=control)
        start = clock.now(device)
        dist.all_reduce(buffer)
        return clock.now(device) - start, buffer, expected

    decide = functools.partial(dist.broadcast, src=0, group=control)
    return _repeated(job, reduce, decide, peer=None, seconds=job.exchange_seconds)


def _repeated(
    job: ProbeJob,
    once: Callable[[int], tuple[float, Tensor, Tensor]],
    decide: Callable[[Tensor], object],
    *,
    peer: int | None,
    seconds: float,
) -> Exchanged:
    """`once`, as often as the job says, and then for the rest of `seconds`.

    Args:
        once: of a number, returns seconds, and what was received and expected.
        decide: replaces the number of further repetitions by that of one of the ranks.
    """
    fastest, wrong, first = float("inf"), 0, ""
    number, repetitions, start = 0, job.exchanges, time.perf_counter()
    while number < repetitions:
        took, received, expected = once(number)
        fastest = min(fastest, took)
        count, words = differences(received, expected)
        wrong, first = wrong + count, first or words
        number += 1
        if number == job.exchanges:
            spent = time.perf_counter() - start
            further = torch.tensor([float(max(0, int(number * (seconds - spent) / spent)))])
            decide(further)
            repetitions += int(further[0])
    size = 4 * (job.exchange_bytes // 4)
    return Exchanged(peer=peer, bytes=size, seconds=fastest, wrong=wrong, first=first, time=time.time())
