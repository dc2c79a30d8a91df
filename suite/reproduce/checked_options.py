"""Options of a request, checked one by one: batch, GEMM format, trace, averaging of gradients and synchronisation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import Layout, Offload
from reference_runs.run import ProductFormat, Recipe, Workload
from suite.job.events import memory_snapshot_path, trace_path
from suite.job.options import Averaging
from suite.job.synchronisation import SlowRank, Synchronisation, parse_slow_ranks, parse_synchronisation
from suite.job.training_job import COUNTED_STEPS, LEAST_PROFILED, warm_up_steps
from suite.reproduce.request import COMPRESSIONS, OPTIMIZERS, Request


def of_global_batch(samples: int, recipe: Recipe, layout: Layout) -> tuple[Recipe, Layout]:
    """A recipe of so many samples a step from the first on, and the layout that accumulates what it needs for them.

    Raises:
        InputError: no multiple of the samples that all replicas take at once.
    """
    at_once = layout.dealt_to * layout.expert_parallel * layout.micro_batch
    if samples < 1 or samples % at_once:
        what = "global batch: no multiple of replicas * micro_batch"
        raise InputError(what, got=samples, allowed=f"multiples of {at_once}", where="--global-batch")
    if samples == recipe.global_batch:
        return recipe, layout
    recipe = msgspec.structs.replace(
        recipe, global_batch=samples, batch_rampup_start=None, batch_rampup_increment=None, batch_rampup_samples=None
    )
    return recipe, msgspec.structs.replace(layout, accumulation=None)


def checked_products(words: str) -> ProductFormat:
    """The format of a run's GEMMs that was asked for.

    Raises:
        InputError: an unknown word.
    """
    if words not in list(ProductFormat):
        raise InputError("unknown GEMM format", got=repr(words), allowed=", ".join(ProductFormat), where="--gemm-dtype")
    return ProductFormat(words)


def check_no_slice(request: Request) -> None:
    """Refuse the options of a slice where a whole run is asked for.

    Raises:
        InputError: one of them is given.
    """
    if names := request.given("stage", "layers", "sequence", "micro_batch", "minutes"):
        raise InputError("of a slice alone", allowed="NAME-slice, or --slice", where=", ".join(names))


def checked_trace(
    path: Path, *, ranks: int, device: str, steps: int, force: bool = False, where: str = "--trace"
) -> Path:
    """`path`, absolute, where every rank can write a trace of its profiled steps; `where` is its option.

    Raises:
        InputError: no .json, a directory that is missing or cannot be written, a file of a rank that exists, or too few
            steps to profile any.
    """
    whole = path.absolute()
    if path.suffix != ".json":
        raise InputError("not a trace's name", got=str(path), allowed="a file ending in .json", where=where)
    if steps < LEAST_PROFILED:
        allowed = f"{LEAST_PROFILED} or more"
        raise InputError("too few steps to profile any", got=f"--steps {steps}", allowed=allowed, where=where)
    if not whole.parent.is_dir():
        raise InputError("no such directory", got=str(path.parent), allowed="a directory that exists", where=where)
    if not os.access(whole.parent, os.W_OK | os.X_OK):
        raise InputError("cannot write there", got=str(path.parent), allowed="a writable directory", where=where)
    written = (trace_path, memory_snapshot_path) if device == "cuda" else (trace_path,)
    for name in [path_of(str(whole), rank) for path_of in written for rank in range(ranks)]:
        if Path(name).is_dir() or (os.path.lexists(name) and not force):
            allowed = "a new name, or --force"
            raise InputError("the file exists, and is not overwritten", got=name, allowed=allowed, where=where)
    return whole


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


SYNCHRONISATION = "--synchronisation"


def checked_synchronisation(
    request: Request, workload: Workload, averaging: Averaging, *, shares_devices: bool
) -> tuple[Synchronisation | None, tuple[SlowRank, ...]]:
    """The synchronisation of a request's workers, None where it asks for none, and its slow ranks.

    Raises:
        InputError: an unknown text, slow ranks without synchronisation or beyond the last one, or something that does
            not go together with a parameter store; the line names all of that.
    """
    slow = () if request.slow_rank is None else parse_slow_ranks(request.slow_rank)
    if request.synchronisation is None:
        if slow:
            what = "a rank that is slowed on purpose"
            raise InputError(what, got=request.slow_rank, allowed=f"with {SYNCHRONISATION}", where="--slow-rank")
        return None, ()
    synchronisation = parse_synchronisation(request.synchronisation)
    if names := [*_apart_from_data_parallel(workload), *_other_limits(workload, averaging, shares_devices)]:
        what = "this does not go together with a parameter store"
        raise InputError(what, got=" and ".join(names), allowed="dpN of 2 ranks or more alone", where=SYNCHRONISATION)
    ranks = workload.layout.ranks
    if beyond := [each.rank for each in slow if each.rank >= ranks]:
        raise InputError("no such rank", got=beyond[0], allowed=f"0 to {ranks - 1}", where="--slow-rank")
    return synchronisation, slow


def _apart_from_data_parallel(workload: Workload) -> Iterator[str]:
    """Words of a layout for all that it has besides data-parallel ranks."""
    layout = workload.layout
    if layout.data_parallel == 1:
        yield "dp1, a worker without others"
    sizes = {
        "tp": layout.tensor_parallel,
        "pp": layout.pipeline_stages,
        "ep": layout.expert_parallel,
        "cp": layout.context_parallel,
    }
    yield from (f"{axis}{size}" for axis, size in sizes.items() if size > 1)
    if layout.zero_stage > 0:
        yield f"zero{layout.zero_stage}"
    if layout.offload is not Offload.NONE:
        yield "offload"


def _other_limits(workload: Workload, averaging: Averaging, shares_devices: bool) -> Iterator[str]:
    architecture, recipe, _ = workload
    if averaging is not Averaging.EXACT:
        yield averaging.value
    if recipe.precision.scaled:
        yield f"the loss scale of {recipe.precision.value}"
    if architecture.experts is not None:
        yield "a mixture of experts"
    if shares_devices:
        yield "--share-devices"
