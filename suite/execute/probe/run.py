"""Finds wrong bits on one rank: by replays of a training, exchanges of known contents, and a soak."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from suite.execute.measure.system_load import SharedProcessors, environment
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.precision import DTYPES, prepare_arithmetic
from suite.execute.probe.exchanges import exchange_all
from suite.execute.probe.load import loaded
from suite.execute.probe.products import Products, multiplied
from suite.execute.probe.soak import soaked
from suite.job.events import Event, Phase
from suite.job.probe_job import Probed, ProbeJob, Replayed, Soaked

LEARNING_RATE = 0.01


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
        exchange_all(job, device, control, report)
        shared.update()
    if job.soak_seconds:
        dist.barrier(group=control)  # all load the node at once
        products = None
        if job.product_seconds:
            products = multiplied(job.product_size, job.product_seconds, device, job.seed, report)
        if job.load_seconds:
            dist.barrier(group=control)
            report(loaded(job, device, control, report))
        report(with_products(soaked(job, device, control, report), products))
    return Probed(environment=environment(device), time=time.time(), shared=shared.since_start)


def with_products(soak: Soaked, products: Products | None) -> Soaked:
    """Results of a rank's memory, with those of its products before that."""
    if products is None:
        return soak
    return msgspec.structs.replace(
        soak,
        wrong=soak.wrong + products.wrong,
        first=products.first or soak.first,
        product_flop_per_second=products.flop_per_second,
        burst_flop_per_second=products.burst_flop_per_second,
        undelayed_flop_per_second=products.undelayed_flop_per_second,
        fp8_flop_per_second=products.fp8_flop_per_second,
        product_seconds=products.seconds,
        products=products.products,
    )


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
