"""How the gradients of a request are averaged."""

from __future__ import annotations

from reference_runs.errors import InputError
from suite.job.options import Averaging
from suite.job.training_job import COUNTED_STEPS, warm_up_steps
from suite.reproduce.request import COMPRESSIONS, OPTIMIZERS, Request

EXACT_SHARE = 0.15  # of the steps, as in Tang et al. 2021, arXiv 2102.02888, section 7
LEAST_EXACT_STEPS = 2  # PyTorch's PowerSGD averages the first two exactly, in which buckets are arranged


def checked_averaging(request: Request) -> tuple[Averaging, int]:
    """How gradients are averaged, and the steps that average exactly before: 15 % of all, where nothing is said.

    Raises:
        InputError: an unknown word, both an optimizer and a compression of gradients, or too few or many exact steps.
    """
    for what, got, words, where in (
        ("optimizer", request.optimizer, OPTIMIZERS, "--optimizer"),
        ("gradient compression", request.gradient_compression, COMPRESSIONS, "--gradient-compression"),
    ):
        if got not in words:
            raise InputError(f"unknown {what}", got=repr(got), allowed=", ".join(words), where=where)
    compression = request.gradient_compression
    if request.optimizer == Averaging.ONE_BIT:
        if compression != COMPRESSIONS[0]:
            what, where = "1-bit Adam does not average gradients", "--gradient-compression"
            raise InputError(what, got=compression, allowed="none", where=where)
        averaging = Averaging.ONE_BIT
    else:
        averaging = Averaging.EXACT if compression == COMPRESSIONS[0] else Averaging(compression)
    asked = request.exact_steps
    if not averaging.exact_at_first:
        if asked is not None:
            allowed = "with --optimizer one-bit-adam or --gradient-compression powersgd"
            what = "exact steps before what never changes"
            raise InputError(what, got=asked, allowed=allowed, where="--exact-steps")
        return averaging, 0
    steps = max(LEAST_EXACT_STEPS, round(EXACT_SHARE * request.steps)) if asked is None else asked
    if not LEAST_EXACT_STEPS <= steps < max(request.steps, LEAST_EXACT_STEPS + 1):
        allowed = f"{LEAST_EXACT_STEPS} or more, and fewer than --steps"
        raise InputError("exact steps out of range", got=steps, allowed=allowed, where="--exact-steps")
    return averaging, steps


def checked_renewal(request: Request, averaging: Averaging, exact_steps: int) -> bool:
    """Whether 1-bit Adam's second moment is renewed.

    Raises:
        InputError: it has none, or the first renewal would begin before the counted steps, which are compressed, end.
    """
    if not request.renewal:
        return False
    where = "--renew-second-moment"
    if averaging is not Averaging.ONE_BIT:
        raise InputError("nothing to renew", got=averaging, allowed="--optimizer one-bit-adam", where=where)
    if 2 * exact_steps < (counted := warm_up_steps(exact_steps) + COUNTED_STEPS):
        least = counted - exact_steps
        raise InputError("too few exact steps to renew", got=exact_steps, allowed=f"{least} or more", where=where)
    return True
