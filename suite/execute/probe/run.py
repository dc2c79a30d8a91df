"""What a rank does to find wrong bits: replays of a training, exchanges of known contents, and a soak."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from suite.execute.measure.environment import environment
from suite.execute.measure.system_load import SharedProcessors
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.precision import DTYPES, prepare_arithmetic
from suite.execute.probe.soak import differences, pattern, soaked
from suite.job.events import Event, Phase
from suite.job.probe_job import Exchanged, Probed, ProbeJob, Replayed

LEARNING_RATE = 0.01
MODULUS = 1021  # prime, and small enough that sums over 8,192 ranks are exact in fp32


def probe(job: ProbeJob, device: torch.device, report: Callable[[Event], None]) -> Probed:
    """Repeat, exchange and verify what the job names, reporting each; the ranks start each part together.

    Processors are watched while they exchange, which is all that is timed.
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
        pairs = list(itertools.combinations(range(dist.get_world_size()), 2))
        for first, second in pairs:
            report(Phase(f"exchange {first}-{second}", time.time()))
            if dist.get_rank() in (first, second):
                peer = second if dist.get_rank() == first else first
                seconds = job.exchange_seconds / len(pairs)
                report(exchanged(job, peer, device, control, begins=dist.get_rank() == first, seconds=seconds))
            dist.barrier(group=control)
        report(Phase("all-reduce", time.time()))
        report(reduced(job, device, control))
        shared.update()
    if job.soak_seconds:
        report(soaked(job, device, control, report))
    return Probed(environment=environment(device), time=time.time(), shared=shared.since_start)


def run_replay(job: ProbeJob, replay: int, device: torch.device, report: Callable[[Event], None]) -> None:
    """One training from the seed, on this rank alone; every step's hashes are reported."""
    prepare_arithmetic(job.recipe.precision, device)
    torch.manual_seed(job.seed)
    decoder = Decoder(job.architecture, job.recipe)
    initialise(decoder, job.recipe, seed=job.seed)
    decoder.to(device=device, dtype=DTYPES[job.recipe.precision])
    chance = torch.Generator().manual_seed(job.seed)
    shape = (job.samples, job.architecture.sequence + 1)
    for step in range(job.replay_steps):
        tokens = torch.randint(job.architecture.vocabulary, shape, generator=chance).to(device)
        loss = decoder(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        gradients = [parameter.grad for parameter in decoder.parameters() if parameter.grad is not None]
        found = digest(gradients)
        update(decoder)
        report(
            Replayed(
                replay=replay,
                step=step,
                loss=digest([loss]),
                gradients=found,
                parameters=digest(decoder.parameters()),
                time=time.time(),
            )
        )


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
    """Messages to a peer and back, each verified by whom it reaches; none is sent before the peer waits for it.

    Args:
        control: of gloo, by which the two agree.
        seconds: that it goes on at least.
    """
    elements = job.exchange_bytes // 4
    fastest, wrong, first = float("inf"), 0, ""
    received = torch.empty(elements, dtype=torch.int32, device=device)
    word = torch.zeros(1)
    number, count_all, began = 0, job.exchanges, time.perf_counter()
    while number < count_all:
        ours = pattern(0, elements, 2 * number + begins, device)
        theirs = pattern(0, elements, 2 * number + (not begins), device)
        if begins:
            dist.recv(word, peer, group=control)
        else:
            dist.send(word, peer, group=control)
        start = _now(device)
        if begins:
            dist.send(ours, peer)
            dist.recv(received, peer)
        else:
            dist.recv(received, peer)
            dist.send(ours, peer)
        fastest = min(fastest, (_now(device) - start) / 2)
        count, words = differences(received, theirs)
        wrong, first = wrong + count, first or words
        number += 1
        if number == job.exchanges:
            word[0] = _further(number, time.perf_counter() - began, seconds)
            if begins:
                dist.send(word, peer, group=control)
            else:
                dist.recv(word, peer, group=control)
            count_all += int(word[0])
    return Exchanged(peer=peer, bytes=4 * elements, seconds=fastest, wrong=wrong, first=first, time=time.time())


def _further(done: int, took: float, seconds: float) -> int:
    """How many more exchanges fill the seconds, where so many took so long."""
    return max(0, int(done * (seconds - took) / took))


def reduced(job: ProbeJob, device: torch.device, control: dist.ProcessGroup) -> Exchanged:
    """Sums over all ranks of whole numbers, whose result is known: place modulo 1021, plus the rank.

    All ranks begin each together; `control`, of gloo, is what they agree by.
    """
    ranks, elements = dist.get_world_size(), job.exchange_bytes // 4
    base = torch.arange(elements, device=device, dtype=torch.int64) % MODULUS
    expected = (base * ranks + ranks * (ranks - 1) // 2).to(torch.float32)
    fastest, wrong, first = float("inf"), 0, ""
    number, count_all, began = 0, job.exchanges, time.perf_counter()
    while number < count_all:
        buffer = (base + dist.get_rank()).to(torch.float32)
        dist.barrier(group=control)
        start = _now(device)
        dist.all_reduce(buffer)
        fastest = min(fastest, _now(device) - start)
        count, words = differences(buffer, expected)
        wrong, first = wrong + count, first or words
        number += 1
        if number == job.exchanges:
            word = torch.tensor([float(_further(number, time.perf_counter() - began, job.exchange_seconds))])
            dist.broadcast(word, 0, group=control)
            count_all += int(word[0])
    return Exchanged(peer=None, bytes=4 * elements, seconds=fastest, wrong=wrong, first=first, time=time.time())


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
