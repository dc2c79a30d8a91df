"""The parts of the first hour, the most valuable first."""

from __future__ import annotations

from collections.abc import Iterable

from reference_runs.catalog import miniatures
from reference_runs.errors import InputError
from suite.first_hour.measurements import measurements, reproduce_arguments
from suite.first_hour.part import RESULTS, HourPart, PartKind
from suite.machine.devices import usable_cores
from suite.machine.packages import PACKAGES
from suite.predict.analytic.kernel_cost import FORMULAS
from suite.records.kernel_runs import STEP_PART

NOT_TIMED = {"sign_pack", "sign_unpack"}  # 1-bit compression, which no step on one GPU has
SHARED_LAYOUTS = ("tp2", "pp2", "dp2,zero3")
SHORT_MINIATURE = "gpt2-mini"
SHORT_KERNEL = "layer_norm-bf16-4096x768"
SHORT_STEP_PART = "between_blocks-bf16-16384x768"
FIRST_STEPS = 3  # GPT-2 124M plain, by default, and with all optimizations
BENCHMARKED = ("pytest", "pytest_benchmark", "triton")


def parts(device: str, *, short: bool = False) -> list[HourPart]:
    """All parts for "cuda" or "cpu"; with `short` a few steps or sizes of each, for tests."""
    here = ("--device", device)
    results = ("--results", RESULTS)
    steps = measurements(short=short)
    found = [
        HourPart(
            name="environment",
            kind=PartKind.ENVIRONMENT,
            shows="devices, driver, versions, packages and compilers that are missing",
            arguments=("suite.first_hour.environment", device),
            seconds=120.0,
        ),
        HourPart(
            name="rates",
            kind=PartKind.RATES,
            shows="whether the first device copies and multiplies at its usual rate",
            arguments=("suite.execute.probe.rates", device),
            seconds=120.0,
        ),
        *steps[:FIRST_STEPS],
        _step_parts(short),
        *steps[FIRST_STEPS:],
        _kernel_tests(short),
        *_kernel_table(FORMULAS if not short else (SHORT_KERNEL,), bf16=True),
        HourPart(
            name="calibrate",
            kind=PartKind.CALIBRATE,
            shows="times of all operators and collectives, from which steps are predicted",
            arguments=("suite", "calibrate", *here, *results, "--json", *(["--quick"] if short else [])),
            seconds=480.0,
        ),
        *(_miniature(name, here, short) for name in (miniatures() if not short else (SHORT_MINIATURE,))),
        _accept(here, short),
        *_ladders(here, short),
        *(_shared(layout, short) for layout in (SHARED_LAYOUTS if not short else SHARED_LAYOUTS[:1])),
        *(() if short else _kernel_table(FORMULAS, bf16=False)),
    ]
    return [part for part in found if device == "cuda" or not part.needs_cuda]


def chosen(all_parts: Iterable[HourPart], names: str | None, where: str) -> list[HourPart]:
    """The parts of a list of names, all where there is none.

    Raises:
        InputError: an unknown name.
    """
    known = {part.name: part for part in all_parts}
    if names is None:
        return [*known.values()]
    asked = [name.strip() for name in names.split(",")]
    for name in asked:
        if name not in known:
            raise InputError("unknown part", got=repr(name), allowed=", ".join(known), where=where)
    return [part for name, part in known.items() if name in asked]


def _kernel_tests(short: bool) -> HourPart:
    files = ["tests/kernels/test_sign_pack.py"] if short else ["tests/kernels"]
    options = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", "--maxfail=20"]
    options += ["-o", "filterwarnings=default"]  # of versions that this project's own tests do not see
    if not short:
        options += ["--ignore=tests/kernels/test_compilation.py"]  # compiles for GPUs that are not here
        if PACKAGES["xdist"].is_installed and (processes := min(8, usable_cores() // 2)) > 1:
            options += ["-n", str(processes)]  # they wait for Triton's compiler: 77 s by 8 beside an H100
    return HourPart(
        name="kernel tests",
        kind=PartKind.TESTS,
        shows="whether Triton's kernels compute here what their references do",
        arguments=("pytest", *options, *files),
        seconds=360.0,
        modules=("pytest", "hypothesis", "triton"),
    )


def _step_parts(short: bool) -> HourPart:
    selected = f"[{STEP_PART}-{SHORT_STEP_PART if short else ''}"
    return HourPart(
        name="parts of a step",
        kind=PartKind.KERNELS,
        shows="the time of each part of GPT-2's step by PyTorch's way, and with each optimization",
        arguments=("benchmarks.kernels", "-k", selected, f"--benchmark-storage={RESULTS}/kernels"),
        seconds=300.0,
        modules=BENCHMARKED,
        needs_cuda=True,
    )


def _kernel_table(kernels: Iterable[str], *, bf16: bool) -> list[HourPart]:
    """A part a kernel, so that each is kept: bf16 cases at first, all others at the end."""
    return [
        HourPart(
            name=f"kernel {kernel}" if bf16 else f"kernel {kernel} not bf16",
            kind=PartKind.KERNELS,
            shows="its share of a copy's bandwidth, and its time over PyTorch's",
            arguments=(
                "benchmarks.kernels",
                *("-k", f"[{kernel}- and {'' if bf16 else 'not '}bf16"),  # the bracket: no kernel whose name ends so
                "--without-compiled",
                f"--benchmark-storage={RESULTS}/kernels",
            ),
            seconds=150.0,
            modules=BENCHMARKED,
            needs_cuda=True,
        )
        for kernel in kernels
        if kernel not in NOT_TIMED
    ]


def _miniature(name: str, here: tuple[str, ...], short: bool) -> HourPart:
    options = ("--steps", "6", "--no-calibrate") if short else ()
    return HourPart(
        name=name,
        kind=PartKind.REPRODUCE,
        shows="exact figures, peak memory, step time and loss",
        arguments=reproduce_arguments(name, *here, *options),
        seconds=300.0,
    )


def _shared(layout: str, short: bool) -> HourPart:
    options = ("--device", "cuda", "--layout", layout, "--share-devices", "--no-compile", "--no-calibrate")
    return HourPart(
        name=f"layout {layout.replace(',', '-')}",  # --parts takes a list of names
        kind=PartKind.REPRODUCE,
        shows="exact figures and memory of a layout whose ranks may share a GPU",
        arguments=reproduce_arguments(SHORT_MINIATURE, *options, "--steps", "6" if short else "20"),
        seconds=240.0,
        needs_cuda=True,
    )


def _accept(here: tuple[str, ...], short: bool) -> HourPart:
    what = ("--only", "environment,exact figures", "--miniatures", SHORT_MINIATURE) if short else ("--profile", "quick")
    return HourPart(
        name="accept",
        kind=PartKind.ACCEPT,
        shows="the verdict on this node",
        arguments=("suite", "accept", *what, *here, "--resume-if-any", "--results", RESULTS, "--json"),
        seconds=590.0,
    )


def _ladders(here: tuple[str, ...], short: bool) -> list[HourPart]:
    names = (SHORT_MINIATURE,) if short or "cpu" in here else (SHORT_MINIATURE, "gpt2-124m")
    rungs = "no-sync" if short else "fused-attention,compile,mixed-precision,fused-kernels"
    options = ("--rungs", rungs, "--no-leave-one-out", *(["--no-calibrate"] if short else []))
    return [
        HourPart(
            name=f"ladder {name}",
            kind=PartKind.LADDER,
            shows="what the top rungs gain over those below them",
            arguments=("suite", "ladder", name, *options, *here, "--results", RESULTS, "--json"),
            seconds=480.0,
        )
        for name in names
    ]
