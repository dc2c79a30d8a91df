"""One launch on paper: fingerprints, samples, counted figures, status; JSON in and out."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import socket
import stat
import subprocess
import time
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.run import Architecture, Recipe
from suite import host_memory
from suite.corpus import Corpus
from suite.figures import Figure
from suite.job import Job, Status, Step
from suite.machine_profile import Fingerprint
from suite.script import SUITE, Script

# 1.1: traces, profiled steps, figures of a step's terms; 1.2: the job's averaging; 1.3: its renewal; 1.4: its script,
# what each rank reserved, and how often it waited
SCHEMA = "1.4"
BEGIN, END = ".begin.json", ".end.json"  # of the names of a record's two files
PRUNED = ".pruned"  # of the hidden name that a first half has while its record is removed
_DISTRIBUTIONS = ("torch", "triton", "numpy", "tokenizers", "msgspec")


class Launcher(msgspec.Struct, frozen=True):
    """The process that wrote a begin record: enough to tell later whether it still runs."""

    pid: int
    started_ticks: int
    boot: str


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """Written before the run starts, so that a hang or a killed node leaves evidence.

    Three fingerprints apart: hardware, software, policy. Node identity is a hash of its own.
    """

    schema: str
    id: str
    run: str
    started: float
    node: str
    launcher: Launcher
    hardware: dict[str, str]
    software: dict[str, str]
    policy: dict[str, str]
    hashes: dict[str, str]
    job: Job
    corpus: Corpus


class RankOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank left behind: its samples, its last phase and step, and its own words where it failed.

    Args:
        resident_bytes, reserved_bytes, synchronisations: as of `suite.job.Finished`.
    """

    rank: int
    steps: list[Step]
    last: str
    environment: dict[str, str]
    failure: str = ""
    arithmetic: str = ""
    resident_bytes: int | None = None
    reserved_bytes: int | None = None
    synchronisations: int | None = None


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Written when the run has ended, however it ended.

    Args:
        predicted: step time, its terms and rates, where a machine profile said what to expect.
        profile: that profile's file, or why there was none.
        others_share, steal_share: of the processors, what other processes, and other guests of the host, took while
            steps were timed; None where the system does not tell.
    """

    schema: str
    id: str
    status: Status
    message: str
    ranks_at_fault: list[int]
    finished: float
    figures: list[Figure]
    ranks: list[RankOutcome]
    log_tail: str = ""
    predicted: list[Figure] = []
    profile: str = ""
    others_share: float | None = None
    steal_share: float | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Both halves of one launch; without an end it is running, or crashed where its launcher is gone."""

    path: str
    begin: Begin
    end: End | None

    @property
    def status(self) -> str:
        """The end's status. Where there is none: "running", "crashed", or "unknown" for another machine's launch."""
        if self.end is not None:
            return self.end.status.value
        return status_without_end(self.begin.node, self.begin.launcher)


Half = TypeVar("Half", Begin, End)


def encode(half: Begin | End) -> bytes:
    """One half of a record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(half), indent=1) + b"\n"


def contents(path: str) -> bytes:
    """The bytes of a file.

    Raises:
        InputError: it is no file, or cannot be read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe that nobody writes would block
        try:
            facts = os.fstat(file)
            if not stat.S_ISREG(facts.st_mode):
                raise OSError(errno.EISDIR if stat.S_ISDIR(facts.st_mode) else errno.EINVAL, "not a regular file")
            parts = [os.read(file, facts.st_size + 1)]
            while parts[-1]:
                parts.append(os.read(file, 1 << 20))
            return b"".join(parts)
        finally:
            os.close(file)
    except OSError as error:
        raise InputError(f"cannot read the record: {error.strerror}", where=path) from error


def own_names(identity: str, run: str, path: str) -> None:
    """Refuse a first half that lies where another launch's would.

    Raises:
        InputError: its id is not the file's name, or its run not the directory's.
    """
    directory, name = os.path.split(path)  # a Path for each of 100,000 costs a second
    if identity + BEGIN != name:
        raise InputError("damaged record: its id is not the file's name", got=repr(identity), where=path)
    if run != os.path.basename(directory or os.getcwd()):  # noqa: PTH109, PTH119
        raise InputError("damaged record: its run is not the directory's name", got=repr(run), where=path)


def own_end(begin: str, end: str, path: str) -> None:
    """Refuse the second half of another launch.

    Raises:
        InputError: the ids of the halves differ.
    """
    if begin != end:
        raise InputError("damaged record: the end of another launch", got=repr(end), where=path)


def known_schema(data: bytes, where: str) -> None:
    """Refuse a record of a major schema version that this suite does not know.

    Raises:
        InputError: of another major version, or no JSON object.
    """
    try:
        schema = msgspec.json.decode(data).get("schema", "")
    except (msgspec.MsgspecError, AttributeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"damaged record: {error}", where=where) from error
    if str(schema).split(".")[0] != SCHEMA.split(".")[0]:
        raise InputError("unknown schema version", got=repr(schema), allowed=f"{SCHEMA.split('.')[0]}.x", where=where)


def decode(data: bytes, kind: type[Half], where: str) -> Half:
    """One half of a record; fields that only a later minor schema has are left out.

    Raises:
        InputError: not JSON, fields missing, or a major schema version that this suite does not know.
    """
    known_schema(data, where)
    try:
        data.decode()
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.ValidationError:
            return msgspec.convert(_without_unknown(msgspec.json.decode(data)), kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"damaged record: {error}", where=where) from error


def _without_unknown(record: Any) -> Any:
    """The same without the fields of a job that its types, which are those of run files too, would refuse."""
    job = record.get("job")
    if not isinstance(job, dict):
        return record
    known = {"architecture": Architecture, "recipe": Recipe, "layout": Layout}
    own = {
        name: {key: job[name][key] for key in job[name] if key in kind.__struct_fields__}
        for name, kind in known.items()
        if isinstance(job.get(name), dict)
    }
    return record | {"job": job | own}


def _digest(facts: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()[:16]


@cache
def node_identity() -> str:
    """A hash of this machine's id and host name: 8 hex digits."""
    machine = ""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            machine = Path(path).read_text(encoding="ascii").strip()
            break
        except OSError:
            continue
    return hashlib.sha256(f"{machine} {socket.gethostname()}".encode()).hexdigest()[:8]


def _field(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "unknown")


def cpu_named(path: str = "/proc/cpuinfo") -> str:
    """The processor's name, and its generation: a virtual machine may call one of 2021 and one of 2023 "AMD EPYC"."""
    name = _field(path, "model name")
    family, model = _field(path, "cpu family"), _field(path, "model\t")
    return name if "unknown" in (family, model) else f"{name} (family {family}, model {model})"


def hardware() -> dict[str, str]:
    """Processor, cores that this process may use, and memory, as texts."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": cpu_named(),
        "cpu_flags": _digest(_field("/proc/cpuinfo", "flags")),
        "cores": str(cores),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "gpus": ", ".join(_gpu_models()) or "none",
    }


def _gpu_models() -> list[str]:
    return sorted(_field(str(path), "Model") for path in Path("/proc/driver/nvidia/gpus").glob("*/information"))


def software() -> dict[str, str]:
    """Versions of this suite, Python, the system, the driver and the packages that decide results, as texts; and how
    ranks get memory on their host."""
    facts = {
        "suite": suite_version(),
        "driver": _field("/proc/driver/nvidia/version", "NVRM version"),
        "allocator": host_memory.described(),
    } | {"python": platform.python_version(), "system": f"{platform.system()} {platform.release()}"}
    for name in _DISTRIBUTIONS:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "not installed"
    return facts


def fingerprint(device: str) -> Fingerprint:
    """What a machine profile for "cpu" or "cuda" that is measured here and now holds for.

    The suite's own version is no part of it: a profile is of the machine and of PyTorch. Memory is in GiB: what the
    kernel keeps of it for itself differs from boot to boot.
    """
    versions = {name: version for name, version in software().items() if name != "suite"}
    facts = hardware()
    size, _, unit = facts["memory"].partition(" ")
    if unit == "kB":
        facts["memory"] = f"{round(int(size) / 2**20)} GiB"
    return Fingerprint(node=node_identity(), device=device, hardware=facts, software=versions)


def suite_version() -> str:
    """Version and commit of this suite, with "modified" where the checkout differs from the commit."""
    root = Path(__file__).resolve().parent.parent
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    try:
        git = ["git", "-C", str(root), "describe", "--always", "--abbrev=12", "--dirty=, modified", "--exclude=*"]
        commit = subprocess.run(git, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = "no checkout"
    return f"{version} ({commit})"


def policy(job: Job) -> dict[str, str]:
    """What decides results besides hardware and software: precision, layout, compilation, determinism, batch."""
    recipe = job.recipe
    script = {} if job.script == SUITE else {"script": msgspec.json.encode(_comparable(job.script)).decode()}
    return {
        "device": job.device,
        "precision": recipe.precision.value,
        "layout": msgspec.json.encode(job.layout).decode(),
        "compiled": str(job.compiled),
        "kernels": job.kernels.value,
        "averaging": job.averaging.value,
        "exact_steps": str(job.exact_steps),
        "renewal": str(job.renewal),
        "deterministic": str(job.device == "cpu"),
        "threads": str(job.threads),
        "global_batch": str(recipe.global_batch),
        "micro_batch": str(job.layout.micro_batch),
        "architecture": _digest(job.architecture),
        "recipe": _digest(recipe),
        **script,
        **({} if job.interface is None else {"interface": job.interface}),
    }


def _comparable(script: Script) -> Script:
    """The same without the paths of its texts, whose hash the corpus has."""
    return msgspec.structs.replace(script, texts=None)


def _started_ticks(pid: int) -> int:
    """When process `pid` started, in clock ticks since boot; -1 where it is gone or unknown."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return -1


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def status_without_end(node: str, launcher: Launcher) -> str:
    """Of a launch without an end half: "running" or "crashed" on this machine, "unknown" on another."""
    if node != node_identity():
        return "unknown"
    alive = launcher.boot == _boot() and _started_ticks(launcher.pid) == launcher.started_ticks != -1
    return "running" if alive else Status.CRASHED.value


def begin_record(job: Job, corpus: Corpus, identity: str) -> Begin:
    """The first half for a launch that is about to start in this process."""
    fingerprints = {"hardware": hardware(), "software": software(), "policy": policy(job)}
    return Begin(
        schema=SCHEMA,
        id=identity,
        run=job.name,
        started=time.time(),
        node=node_identity(),
        launcher=Launcher(os.getpid(), _started_ticks(os.getpid()), _boot()),
        hashes={name: _digest(facts) for name, facts in fingerprints.items()},
        job=job,
        corpus=corpus,
        hardware=fingerprints["hardware"],
        software=fingerprints["software"],
        policy=fingerprints["policy"],
    )
