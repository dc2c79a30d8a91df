"""Whether the suite's step and the bare loop's train the same: to the bit, or within a bound where bits may differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from benchmarks.bare_loop import BareLoop
from benchmarks.turns import SuiteLoop, Turn
from reference_runs.run import Precision
from suite.job.training_job import Job

EQUAL_STEPS = 3  # that are compared bit by bit: Adam's settings show in the second


class UnequalWorkError(Exception):
    """Two things whose times are compared did not compute the same."""


def is_exact(job: Job, device: torch.device) -> bool:
    """Whether both loops give the same bits once they clip by the same norm.

    On CUDA gradients are added up in any order. Of a tied bf16 table the suite adds up the gradients of its two uses in
    fp32, PyTorch in bf16.
    """
    return device.type == "cpu" and not (job.recipe.precision is Precision.BF16 and job.architecture.tied_embeddings)


def untied(job: Job) -> Job:
    """The same with a head of its own."""
    architecture = msgspec.structs.replace(job.architecture, tied_embeddings=False)
    return msgspec.structs.replace(job, architecture=architecture)


def check_equal_work(ours: Turn, bare: Turn) -> None:
    """Take the first steps of both loops and compare losses, gradients' norms and updated weights.

    The losses are means of the same numbers, added up in another order: m micro-batches, m 2^-24 relative.

    The gradients are the same, and their norms fp32 sums of up to n elements in another order: n 2^-24 relative. Where
    both clip by one norm, nothing else differs: after `EQUAL_STEPS` steps all weights are the same bits. So it was with
    all miniatures, tied bf16 ones untied (CPU, 2026-11-23).

    Where bits may differ (`is_exact`), one step is compared. The clipped gradients may differ by as much as the norms.
    Adam's first update is at most the learning rate l, and changes in proportion by no more than that, and by 16
    roundings of its own. So masters differ by at most
        l (n + 16) 2^-24
    and what is stored of them by a unit in the last place more: eps times the larger, or the least normal number. Of a
    tied bf16 table own updates differ by at most 2 l, and the clipped gradients of all others by 2^-8 relative.

    Raises:
        UnequalWorkError: one of them differs by more.
    """
    assert isinstance(ours.loop, SuiteLoop)
    assert isinstance(bare.loop, BareLoop)
    job, exact = bare.loop.job, is_exact(bare.loop.job, bare.device)
    elements = sum(parameter.numel() for parameter in bare.loop.parameters)
    for step in range(EQUAL_STEPS if exact else 1):
        (_, our_loss), (_, bare_loss) = ours.step(), bare.step(*[ours.norm] if exact else [])
        if not abs(our_loss - bare_loss) <= _micro_batches(job) * 2**-24 * abs(bare_loss):
            raise UnequalWorkError(f"losses of step {step}: {our_loss} under the suite, {bare_loss} in the bare loop")
        overflowed = not math.isfinite(ours.norm) and not math.isfinite(bare.norm)
        if exact and not (overflowed or abs(ours.norm - bare.norm) <= elements * 2**-24 * bare.norm):
            raise UnequalWorkError(f"norms of step {step}: {ours.norm} under the suite, {bare.norm} in the bare loop")
    for name, weight in ours.loop.weights().items():
        other = bare.loop.model.get_parameter(name).detach()
        if exact and not torch.equal(weight, other):
            raise UnequalWorkError(f"weights of {name} are not the same bits after {EQUAL_STEPS} updates")
        if not exact and not _is_close(name, weight, other, bare.loop):
            raise UnequalWorkError(f"weights of {name} differ by more than rounding after the first update")


def _micro_batches(job: Job) -> int:
    return job.recipe.global_batch // job.layout.micro_batch


def _is_close(name: str, weight: Tensor, other: Tensor, bare: BareLoop) -> bool:
    recipe = bare.job.recipe
    rate = bare.optimizer.param_groups[0]["lr"]
    rounded = (max(parameter.numel() for parameter in bare.parameters) + 16) * 2**-24
    tied = recipe.precision is Precision.BF16 and bare.job.architecture.tied_embeddings
    info = torch.finfo(other.dtype)
    ours_wide, other_wide = weight.float(), other.float()
    unit = info.eps * torch.maximum(ours_wide.abs(), other_wide.abs()).clamp(min=info.tiny)
    update = rounded + (2.0 if name == "embedding.weight" else 2**-8) * tied
    return bool(((ours_wide - other_wide).abs() <= unit + rate * update).all())


def check_losses(our_loss: float, bare_loss: float, bare: Turn, rates: Sequence[float]) -> None:
    """Refuse a pair whose losses differ by more than roundings allow after equal updates at these learning rates.

    From then on each loop clips by its own norm, so that roundings differ, and Adam makes as much of a rounding as of a
    gradient: an update l differs by up to 2 l. As roundings, these have signs that do not follow the gradient g of the
    loss: they add up as a random walk over updates and weights, of which w is stored to a relative eps.
        |g| (2 sqrt(sum of l^2) + eps max |w|)    of weights that differ
        m 2^-24 |loss|                            of the mean over m micro-batches

    Raises:
        UnequalWorkError: they do.
    """
    assert isinstance(bare.loop, BareLoop)
    stored = max(torch.finfo(weight.dtype).eps * float(weight.detach().abs().max()) for weight in bare.loop.parameters)
    norm = bare.norm if math.isfinite(bare.norm) else math.inf  # of a step that an overflow skips, nothing is known
    bound = norm * (2 * math.hypot(*rates) + stored) + _micro_batches(bare.loop.job) * 2**-24 * abs(bare_loss)
    if not abs(our_loss - bare_loss) <= bound:
        differ = f"{our_loss} under the suite, {bare_loss} in the bare loop"
        raise UnequalWorkError(f"losses after {len(rates)} updates: {differ}, more than {bound:.1e} apart")
