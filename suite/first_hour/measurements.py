"""The first measurements of a GPU: GPT-2 on one GPU, each optimization by itself, FP8, and a slice of Llama 3 8B."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout
from reference_runs.run import Workload
from suite.first_hour.part import RESULTS, HourPart, PartKind, StepOnPaper
from suite.job.options import KernelChoice, Optimization
from suite.predict.simulation.optimizations import RULES, PlannedLaunch

SMALL, LARGE, LAYERS_OF = "gpt2-124m", "gpt2-1558m", "llama3.1-8b"
ASKED = {SMALL: 0.50, LARGE: 0.58}  # of an H100's dense bf16 peak
PLAIN, BY_DEFAULT, ALL = "plain", "", "all"
QUICK = ("--global-batch", "64")  # 4 micro-batches of 1558M, 1.4 s a step on an H100; the recorded 1024 are 64
EXPECTED = Path(__file__).with_name("expected_steps.toml")


def measurements(*, short: bool) -> list[HourPart]:
    """The parts, the most valuable first; with `short` a few steps of fewer micro-batches, of one part of a kind.

    No calibration comes before them: what they are held against is `expected_steps`, and the data sheet's peak.
    """
    all_of_small, all_of_large = (("--optimizations", ",".join(all_together(run))) for run in (SMALL, LARGE))
    found = [
        _launch(SMALL, PLAIN, ("--optimizations", "none"), short),
        _launch(SMALL, BY_DEFAULT, (), short, asked=True),
        _launch(SMALL, ALL, all_of_small, short, asked=True),
        _launch(f"{LARGE}-b64", PLAIN, ("--optimizations", "none"), short),
        _launch(f"{LARGE}-b64", BY_DEFAULT, (), short),
        _launch(f"{LARGE}-b64", ALL, all_of_large, short),
        _whole_batch(BY_DEFAULT, (), short),
        *(_alone(name, short) for name in possible(SMALL)),
        _launch(SMALL, "triton", ("--kernels", KernelChoice.TRITON.value), short),
        _launch(f"{LARGE}-b64", "triton", ("--kernels", KernelChoice.TRITON.value), short),
        _launch(f"{LARGE}-b64", "fp8-current", ("--gemm-dtype", "fp8-current"), short),
        _llama(short),
        _whole_batch(ALL, all_of_large, short),
        _whole_batch(PLAIN, ("--optimizations", "none"), short),
    ]
    quick = f"{LARGE}-b64"
    longer = (f"{quick} {PLAIN}", f"{quick} {ALL}", f"{quick} triton", LARGE, f"{LARGE} {PLAIN}", f"{LARGE} {ALL}")
    return [part for part in found if not (short and part.name in longer)]


def possible(run: str) -> list[Optimization]:
    """The optimizations that are built and that a launch of a recorded run on one H100 can have."""
    of = reference_run(run)
    layout = msgspec.structs.replace(of.recorded_layout or Layout(), data_parallel=1, accumulation=None)
    launch = PlannedLaunch(Workload(of.architecture, of.recipe, layout), "cuda", True, KernelChoice.TORCH)
    return [name for name in Optimization if name in RULES and not RULES[name].why_not(launch)]


def all_together(run: str) -> list[str]:
    """Names of those whose packages are installed; "none" where there are none."""
    return [name.value for name in possible(run) if RULES[name].is_installed] or ["none"]


@cache
def expected_steps() -> dict[str, StepOnPaper]:
    """The expected step of each part on one H100, by the part's name; `benchmarks/expected_steps.py` writes it."""
    return msgspec.convert(tomllib.loads(EXPECTED.read_text(encoding="utf-8")), dict[str, StepOnPaper])


def reproduce_arguments(name: str, *options: str) -> tuple[str, ...]:
    """Arguments of a launch whose report is JSON."""
    return ("suite", "reproduce", name, "--json", *options, "--results", RESULTS)


def _launch(
    run: str,
    how: str,
    options: Sequence[str],
    short: bool,
    *,
    asked: bool = False,
    optimization: Optimization | None = None,
) -> HourPart:
    """A launch of GPT-2 with 7 timed and 2 profiled steps, or 3 and 2 with one optimization alone."""
    name = f"{run} {how}".strip()
    steps = ("--steps", "14" if optimization is None else "10")
    recorded = run.removesuffix("-b64")
    batch = QUICK if recorded != run else ()
    if short:
        steps, batch = ("--steps", "6"), ("--global-batch", "32" if recorded == LARGE else "128")
    package = RULES[optimization].package if optimization is not None else ""
    device = ("--device", "cuda", "--ranks", "1", "--no-calibrate")
    return HourPart(
        name=name,
        kind=PartKind.REPRODUCE,
        shows=_SHOWS.get(how, "what this optimization gains by itself"),
        arguments=reproduce_arguments(recorded, *device, *steps, *batch, *options),
        seconds=300.0 if recorded == LARGE else 240.0,
        modules=tuple({"triton": ("triton",)}.get(how, ())) + ((package,) if package else ()),
        needs_cuda=True,
        asked_mfu=ASKED[recorded] if asked else None,
        expected=expected_steps().get(name),
        may_be_refused=optimization is not None or how == ALL,
    )


_SHOWS = {
    PLAIN: "the share of a GPU's peak that training reaches without optimizations",
    BY_DEFAULT: "the share of a GPU's peak that training reaches",
    ALL: "the share of a GPU's peak that training reaches with all optimizations that can be had here",
    "triton": "the same with Triton's kernels in place of compiled ones",
    "fp8-current": "FP8 GEMMs, counted apart: the 16-bit equivalent, and the share of the FP8 peak",
}


def _alone(name: Optimization, short: bool) -> HourPart:
    return _launch(SMALL, name.value, ("--optimizations", name.value), short, optimization=name)


def _whole_batch(how: str, options: Sequence[str], short: bool) -> HourPart:
    """1558M with its 64 micro-batches: 2 steps warm up, 3 are counted, 2 of them by eager steps, and 2 are timed.

    A step takes 22 s on an H100, an eager one about 1.5 times as long (124M: 1.6 s in place of 1.04). None is profiled:
    the profile of 2 steps would be one of 310,000 kernels, and has the kernels of the quick part.
    """
    part = _launch(LARGE, how, options, short, asked=how != PLAIN)
    steps = ("--steps", "6") if short else ("--steps", "7")
    batch = ("--global-batch", "32") if short else ()
    device = ("--device", "cuda", "--ranks", "1", "--no-calibrate")
    arguments = reproduce_arguments(LARGE, *device, *steps, *batch, *options)
    return msgspec.structs.replace(part, arguments=arguments, seconds=480.0)


def _llama(short: bool) -> HourPart:
    """Few layers of Llama 3 8B with embedding and head, whose share of the peak torchtitan's is held against."""
    options = ("--slice", "--device", "cuda", "--layers", "1" if short else "4", "--steps", "6" if short else "20")
    name = f"{LAYERS_OF} slice"
    return HourPart(
        name=name,
        kind=PartKind.REPRODUCE,
        shows="the share of a GPU's peak that layers of Llama 3 8B reach",
        arguments=reproduce_arguments(LAYERS_OF, *options),
        seconds=240.0,
        needs_cuda=True,
        expected=expected_steps().get(name),
    )
