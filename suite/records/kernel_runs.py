"""Stored kernel benchmarks (pytest-benchmark's files): each file is one run of every kernel."""

from __future__ import annotations

from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from reference_runs.regular_file import json_file

BASE_FORMS = ("kernel", "plain")  # what the other forms of a case are compared with: a kernel, or what it replaces
STEP_PART = "gpt2_step"  # in place of a kernel: its forms are PyTorch's way, "plain", and those with optimizations
SOFTWARE = ("python_version", "torch", "triton", "cuda", "nccl")  # in the machine's facts; the rest is hardware


class TimedCase(msgspec.Struct, frozen=True):
    """One timed case: a kernel in one form, with its sizes, and the least bytes that it moves."""

    kernel: str = ""
    variant: str = ""
    dtype: str = ""
    form: str = "kernel"
    sizes: dict[str, int] = {}
    least_bytes: float = 0.0
    copy_bytes_per_second: float = 0.0
    direction: str = msgspec.field(name="pass", default="")

    @property
    def is_followed(self) -> bool:
        """Whether its seconds are compared between runs: kernels, plain references, all ways of parts of a step."""
        return self.form in BASE_FORMS or self.kernel == STEP_PART


class _Stats(msgspec.Struct, frozen=True):
    median: float


class Benchmark(msgspec.Struct, frozen=True):
    """One entry of the file; its seconds are the median of its rounds, which share a process and are no replicates."""

    name: str
    stats: _Stats
    extra_info: TimedCase

    @property
    def case(self) -> str:
        """Kernel, dtype, sizes, pass and form, as the benchmark's parameters name them."""
        return self.name.partition("[")[2].rstrip("]") or self.name


class _Commit(msgspec.Struct, frozen=True):
    id: str = ""
    dirty: bool = False


class _File(msgspec.Struct):
    machine_info: dict[str, object]
    commit_info: _Commit = _Commit()
    datetime: str = ""
    benchmarks: list[Benchmark] = []


class KernelRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of `nox -s bench`.

    Args:
        number: before the first underscore of the file's name.
        hardware: the machine's facts but versions of software.
        seconds: of every case that is followed from run to run.
    """

    path: str
    number: str
    time: str
    commit: str
    modified: bool
    hardware: dict[str, str]
    software: dict[str, str]
    benchmarks: list[Benchmark]
    seconds: dict[str, float]


def kernel_run(path: Path) -> KernelRun:
    """The run in one file.

    Raises:
        InputError: it cannot be read, or is no file of pytest-benchmark.
    """
    try:
        file = json_file(path, _File)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"damaged benchmark: {error}", where=str(path)) from error
    facts = {name: str(value) for name, value in file.machine_info.items()}
    return KernelRun(
        path=str(path),
        number=path.name.partition("_")[0],
        time=file.datetime,
        commit=file.commit_info.id,
        modified=file.commit_info.dirty,
        hardware={name: text for name, text in facts.items() if name not in SOFTWARE},
        software={name: text for name, text in facts.items() if name in SOFTWARE},
        benchmarks=file.benchmarks,
        seconds={b.case: b.stats.median for b in file.benchmarks if b.extra_info.is_followed and b.stats.median > 0},
    )


def kernel_runs(storage: Path) -> tuple[list[KernelRun], list[InputError]]:
    """All runs below the storage, oldest first, and why other files are left out."""
    good: list[KernelRun] = []
    bad: list[InputError] = []
    for path in sorted(storage.rglob("*.json")):
        try:
            good.append(kernel_run(path))
        except InputError as error:
            bad.append(error)
    return sorted(good, key=lambda run: run.time), bad
