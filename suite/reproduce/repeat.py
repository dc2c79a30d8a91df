"""The command that launches a recorded job again."""

from __future__ import annotations

import shlex
from functools import cache

from reference_runs.catalog import miniatures, run_names
from reference_runs.layout import layout_text
from suite.job.corpus import STANDARD_LIBRARY
from suite.job.options import Averaging, KernelChoice
from suite.job.slice import Slice
from suite.job.training_job import Job
from suite.paths import program
from suite.records.record import Begin


@cache
def _names() -> frozenset[str]:
    return frozenset([*miniatures(), *run_names()])


def repeating_command(begin: Begin) -> str | None:
    """Command that launches the job again; None for rungs of the ladder, run files, and several hosts."""
    job = begin.job
    if job.slice is not None:
        return _repeating_slice(begin, job.slice)
    if begin.run not in _names() or job.training_options.rung or job.interface is not None:
        return None
    options = {
        "device": job.device,
        "ranks": job.ranks,
        "layout": layout_text(job.layout, complete=True),
        "global-batch": job.recipe.global_batch,
        "kernels": None if job.kernels is KernelChoice.TORCH else job.kernels.value,
        "optimizations": _optimizations(job),
        "gemm-dtype": job.recipe.product_format.value if job.recipe.product_format.casts else None,
        **_averaging(job.averaging),
        "exact-steps": job.exact_steps or None,
        "synchronisation": job.synchronisation,
        "slow-rank": ",".join(map(str, job.slow_ranks)) or None,
        "steps": job.steps,
        "seed": job.seed,
        "corpus": None if begin.corpus.source == STANDARD_LIBRARY else begin.corpus.source,
    }
    words = [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
    words.append("--compile" if job.compiled else "--no-compile")
    if job.renewal:
        words.append("--renew-second-moment")
    if job.shares_devices:
        words.append("--share-devices")
    return shlex.join([*program().split(), "reproduce", begin.run, *words])


def _repeating_slice(begin: Begin, of: Slice) -> str | None:
    """Command that launches a slice again; None for a run file's."""
    job = begin.job
    if of.run not in _names():
        return None
    options = {
        "stage": of.stage.value if of.layout.pipeline_stages > 1 else None,
        "layers": of.layers,
        "sequence": job.architecture.sequence,
        "micro-batch": job.layout.micro_batch,
        "minutes": of.minutes,
        "ranks": len(of.group) or None,
        "layout": layout_text(of.layout, complete=True),
        "device": job.device,
        "kernels": None if job.kernels is KernelChoice.TORCH else job.kernels.value,
        "optimizations": _optimizations(job),
        "steps": job.steps,
        "seed": job.seed,
    }
    words = [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
    words.append("--compile" if job.compiled else "--no-compile")
    return shlex.join([*program().split(), "reproduce", begin.run, *words])


def _optimizations(job: Job) -> str | None:
    """Value of --optimizations; None on a CPU without any, where none are the default."""
    names = job.training_options.optimizations
    return None if job.device == "cpu" and not names else ",".join(names) or "none"


def _averaging(averaging: Averaging) -> dict[str, str]:
    if averaging is Averaging.EXACT:
        return {}
    return {"optimizer" if averaging is Averaging.ONE_BIT else "gradient-compression": averaging.value}
