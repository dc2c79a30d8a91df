"""Starts torchrun children, guards them against hangs, collects what their ranks reported."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from suite.job.calibration_job import CalibrationJob
from suite.job.checkpoints import Restart
from suite.job.events import Event, Failed, Finished, Hung, Status, events_path, recording_path, stacks_path
from suite.job.launch_nodes import LaunchNode, node_of, read_nodes
from suite.job.probe_job import ProbeJob
from suite.job.training_job import Job
from suite.launch import slurm
from suite.launch.flight_recorder import Diagnosis, Recording, decoded, diagnosed, named_ranks
from suite.launch.interruption import check_interrupted, held
from suite.launch.multi_host import Hosts
from suite.launch.rank_events import RankEvents
from suite.machine import malloc
from suite.machine.free_memory import KILLED, oom_kills
from suite.machine.gpu import cuda_errors
from suite.machine.interpreter import OWN, Interpreter
from suite.machine.processes import LAUNCH_VARIABLE, die_with_parent, end_all, is_stopped
from suite.paths import ROOT

AnyJob = Job | CalibrationJob | ProbeJob
HERE = Hosts()
LOOPBACK, ANY_PORT = "127.0.0.1", "0"  # where ranks of this machine meet
POLL_SECONDS = 0.1
EXIT_SECONDS = 20.0
ANSWER_SECONDS = 3.0
SCHEDULER_SECONDS = 15.0  # for srun to end its tasks


class LaunchOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a launch ended, every rank's events, the end of torchrun's log, and the nodes that a scheduler gave it.

    Args:
        events: of a launch that was started again those that count: of steps that were done again the last ones.
        began: when the first step began, `start_seconds` after the launch; None without checkpoints.
    """

    status: Status
    message: str
    ranks_at_fault: list[int]
    events: list[list[Event]]
    log_tail: str
    nodes: list[LaunchNode] = []
    restarts: list[Restart] = []
    began: float | None = None
    start_seconds: float = 0.0

    @property
    def finished(self) -> list[Finished]:
        """The final reports, in the order of ranks, of those that came so far."""
        return [event for events in self.events for event in events if isinstance(event, Finished)]


def launch(
    job: AnyJob,
    identity: str,
    on_event: Callable[[int, Event], None],
    *,
    hosts: Hosts = HERE,
    interpreter: Interpreter = OWN,
) -> LaunchOutcome:
    """Run `job`, which lies in its directory as job.json, under torchrun and wait for its end.

    With `hosts`, one rank runs on each. Ranks on other machines cannot be asked for their stacks in a hang.
    `interpreter` runs torchrun and ranks on this machine.
    `on_event` sees every rank's events as they come, and `Hung` while all ranks of a hang are still there. A rank that
    stays silent beyond its patience ends the launch as a hang: stacks are dumped, everything is killed. Ctrl-C
    (KeyboardInterrupt) ends it as interrupted. No process of the launch outlives this call; if this process is killed,
    the kernel kills torchrun and its ranks.
    """
    log_path = Path(job.directory) / "torchrun.log"
    now = time.monotonic()
    ranks = [RankEvents(events_path(job.directory, rank), now, here=not hosts.elsewhere) for rank in range(job.ranks)]
    process: subprocess.Popen[bytes] | None = None
    kills = oom_kills()
    try:
        with log_path.open("wb") as log, held():
            process = subprocess.Popen(
                _command(job, hosts, identity, interpreter),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(job, identity, hosts, interpreter),
                start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the others
                preexec_fn=die_with_parent,
            )
        hung = _watch(process, ranks, job, on_event)
        faulty, message = _who_hangs(ranks) if hung else ([], "")
        if hung:
            on_event(next(iter(faulty), 0), Hung(time.time()))
        stacks, collectives = _asked(ranks, job) if hung else ("", Diagnosis([], []))
    except KeyboardInterrupt:
        return _outcome(_Ending(Status.INTERRUPTED, "interrupted by the user"), ranks, log_path)
    finally:
        if process is not None:
            if hosts.scheduled:
                _end_scheduled(process, identity)
            end_all(process, identity, [rank.pid for rank in ranks if rank.pid is not None])
    if hosts.scheduled:
        return _scheduled_outcome(process, ranks, job, log_path, (faulty, message) if hung else None, on_event)
    if hung:
        if not faulty and collectives.missing:
            faulty, message = collectives.missing, f"{collectives.why}; {message}"
        return _outcome(_Ending(Status.HANG, message, faulty), ranks, log_path, stacks)
    _drain(ranks, on_event)
    if process.returncode == 0 and all(rank.finished for rank in ranks):
        return _outcome(_Ending(Status.OK), ranks, log_path)
    return _outcome(_failure(ranks, log_path, process.returncode, starved=oom_kills() > kills), ranks, log_path)


def _command(job: AnyJob, hosts: Hosts, identity: str = "", interpreter: Interpreter = OWN) -> list[str]:
    kind = ["--calibrate"] if isinstance(job, CalibrationJob) else ["--probe"] if isinstance(job, ProbeJob) else []
    path = f"{job.directory}/job.json"
    if hosts.scheduled:
        start = slurm.srun(nodes=hosts.nodes, name=_job_name(identity), names=hosts.names, partition=hosts.partition)
        task = [sys.executable, "-m", "suite.launch.node_task", str(hosts.ranks_of_node)]
        return [*start, *task, *kind, path]
    if hosts.names:
        return [sys.executable, "-m", "suite.launch.multi_host", hosts.access.value, *kind, path, *hosts.names]
    torchrun = [interpreter.executable, "-m", "suite.execute.torchrun", LOOPBACK, ANY_PORT]
    checkpoints = job.checkpoints if isinstance(job, Job) else None
    restarts = 0 if checkpoints is None else checkpoints.restarts
    options = [
        f"--nproc-per-node={job.ranks}",
        f"--max-restarts={restarts}",
        f"--monitor-interval={POLL_SECONDS}",
        f"--log-dir={job.directory}/torchrun",
    ]
    return [*torchrun, *options, "-m", "suite.execute", *kind, path]


def _job_name(identity: str) -> str:
    """The name of a launch's job in Slurm."""
    return f"suite-{identity}"


def _end_scheduled(process: subprocess.Popen[bytes], identity: str) -> None:
    """End a scheduler's job: srun ends its tasks when it is asked to, and the controller whatever is left."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=SCHEDULER_SECONDS)
        except subprocess.TimeoutExpired:
            slurm.cancel(_job_name(identity))
    elif process.returncode:
        slurm.cancel(_job_name(identity))


def _scheduled_outcome(
    process: subprocess.Popen[bytes],
    ranks: list[RankEvents],
    job: AnyJob,
    log_path: Path,
    hang: tuple[list[int], str] | None,
    on_event: Callable[[int, Event], None],
) -> LaunchOutcome:
    """The outcome of a launch under Slurm, with its nodes: one that died during it is at fault, with its ranks."""
    _drain(ranks, on_event)
    nodes = read_nodes(job.directory)
    ending = _Ending(Status.OK)
    if hang is not None:
        ending = _Ending(Status.HANG, hang[1], hang[0])
    elif process.returncode or not all(rank.finished for rank in ranks):
        ending = _failure(ranks, log_path, process.returncode)
    if ending.status is not Status.OK and nodes:
        log = log_path.read_text(encoding="utf-8", errors="replace")
        dead = slurm.failed_nodes(log) or slurm.not_answering([node.name for node in nodes])
        lost = [number for number in range(len(ranks)) if node_of(number, nodes) in dead]
        if lost:
            words = f"node {', '.join(dead)} died during the launch, with {named_ranks(lost)}; {ending.message}"
            ending = _Ending(Status.CRASHED, words, lost)
        elif where := list(dict.fromkeys(node_of(number, nodes) for number in ending.ranks_at_fault)):
            ending = ending._replace(message=f"node {', '.join(where)}: {ending.message}")
    return msgspec.structs.replace(_outcome(ending, ranks, log_path), nodes=nodes)


def _environment(job: AnyJob, identity: str, hosts: Hosts, interpreter: Interpreter = OWN) -> dict[str, str]:
    own = interpreter.environment()
    paths = [str(ROOT), own.get("PYTHONPATH", "")]
    # ranks of one host meet on the loopback, also where the host's own name does not resolve
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" and not hosts.elsewhere else {}
    # what each rank of a hang waits in; nccl of PyTorch 2.11 records nothing unless asked to, and with an empty value
    # gloo of 2.13 never gets past its constructor
    recorder = {"TORCH_FR_BUFFER_SIZE": own.get("TORCH_FR_BUFFER_SIZE") or "2000"}
    needed = {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "OMP_NUM_THREADS": str(job.threads),
        "PYTHONUNBUFFERED": "1",
        LAUNCH_VARIABLE: identity,
    }
    return loopback | malloc.settings() | cuda_allocator(job.device) | own | recorder | needed


def cuda_allocator(device: str) -> dict[str, str]:
    """Settings of PyTorch's allocator for a rank on `device`; this process's own, by either name, override them.

    A segment that grows takes what was freed in any size, so that little is reserved beyond what is allocated.
    """
    if device != "cuda" or {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & os.environ.keys():
        return {}
    return {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def _watch(
    process: subprocess.Popen[bytes], ranks: list[RankEvents], job: AnyJob, on_event: Callable[[int, Event], None]
) -> bool:
    """Wait for the end of the launch; True where it hangs."""
    compiled = isinstance(job, Job) and job.compiled
    restarts = isinstance(job, Job) and job.checkpoints is not None and job.checkpoints.restarts > 0
    patience = partial(RankEvents.patience_seconds, compiled=compiled, restarts=restarts)
    finished_since: float | None = None
    while process.poll() is None:
        check_interrupted()
        _drain(ranks, on_event)
        now = time.monotonic()
        if all(rank.finished for rank in ranks):
            finished_since = finished_since or now
            if now - finished_since > EXIT_SECONDS:
                return True
        elif any(not r.finished and now - r.last_progress > patience(r) for r in ranks):
            return True
        time.sleep(POLL_SECONDS)
    return False


def _drain(ranks: list[RankEvents], on_event: Callable[[int, Event], None]) -> None:
    now = time.monotonic()
    for number, rank in enumerate(ranks):
        for event in rank.new_events(now):
            on_event(number, event)


def _who_hangs(ranks: list[RankEvents]) -> tuple[list[int], str]:
    """The ranks that hold the others up: stopped ones; otherwise those that got least far; with a sentence."""
    stopped = [number for number, rank in enumerate(ranks) if is_stopped(rank.pid)]
    actions = ", ".join(f"rank {number}: {rank.last_action}" for number, rank in enumerate(ranks))
    if stopped:
        return stopped, f"{named_ranks(stopped)} stopped (process state T); {actions}"
    fewest = min(len(rank.events) for rank in ranks)
    behind = [number for number, rank in enumerate(ranks) if len(rank.events) == fewest]
    if len(behind) == len(ranks):
        return [], f"no rank made progress and none is behind the others; {actions}"
    return behind, f"{named_ranks(behind)} behind the others; {actions}"


def _asked(ranks: list[RankEvents], job: AnyJob) -> tuple[str, Diagnosis]:
    """Python stacks and collectives of all ranks that can still answer, and what the collectives say."""
    asked = []
    for number, rank in enumerate(ranks):
        if rank.pid is not None and not is_stopped(rank.pid):
            try:
                os.kill(rank.pid, signal.SIGUSR1)
            except ProcessLookupError:
                continue
            asked.append(Path(recording_path(job.directory, number)))
    until = time.monotonic() + ANSWER_SECONDS
    time.sleep(0.5)
    while time.monotonic() < until and not all(path.exists() for path in asked):
        time.sleep(POLL_SECONDS)
    texts = []
    recordings: dict[int, Recording] = {}
    for number in range(len(ranks)):
        path = Path(stacks_path(job.directory, number))
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        texts.append(f"rank {number}:\n{text or 'no answer'}")
        recording = Path(recording_path(job.directory, number))
        if recording.exists() and (entries := decoded(recording.read_bytes())):
            recordings[number] = entries
    diagnosis = diagnosed(recordings, ranks=len(ranks))
    lines = ["collectives:", *diagnosis.lines] if diagnosis.lines else []
    return "\n".join([*lines, *texts]), diagnosis


_TORCHRUN_FAILURE = re.compile(r"rank\s*:\s*(\d+).*\n\s*exitcode\s*:\s*(-?\d+)")


class _Ending(NamedTuple):
    """How a launch ended, why, and which ranks brought it about."""

    status: Status
    message: str = ""
    ranks_at_fault: Sequence[int] = ()


def _failure(ranks: list[RankEvents], log_path: Path, returncode: int, *, starved: bool = False) -> _Ending:
    """Why a launch failed, from the ranks' reports, torchrun's exit codes, and silence.

    Args:
        starved: whether the kernel killed a process of this host meanwhile for want of memory.
    """
    log = log_path.read_text(encoding="utf-8", errors="replace")
    words = {n: e for n, rank in enumerate(ranks) for e in rank.events if isinstance(e, Failed)}
    codes = {int(rank): int(code) for rank, code in _TORCHRUN_FAILURE.findall(log)}
    signalled = [n for n, code in codes.items() if code < 0 and code != -signal.SIGTERM and n not in words]
    at_fault = [n for n, failed in words.items() if failed.at_fault]
    errors = cuda_errors(log)
    if signalled:
        name = signal.Signals(-codes[signalled[0]]).name
        own = [n for n in signalled if n in errors] or signalled
        if starved and name == "SIGKILL":
            return _Ending(Status.OUT_OF_MEMORY, f"{named_ranks(own)} {KILLED}", own)
        return _Ending(Status.CRASHED, f"{named_ranks(own)} killed by {name}{_why(own, errors)}", own)
    if at_fault:
        first = words[min(at_fault, key=lambda n: words[n].time)]
        return _Ending(first.status, f"{named_ranks(at_fault)}: {first.message}", at_fault)
    silent = [n for n, rank in enumerate(ranks) if n not in words and not rank.finished]
    if silent and len(silent) < len(ranks):
        return _Ending(Status.CRASHED, f"{named_ranks(silent)} ended without a word{_why(silent, errors)}", silent)
    faulty = sorted(codes) or sorted(words)
    lines = [line.strip() for line in log.splitlines() if line.strip(" =-")] or ["no output"]
    message = words[faulty[0]].message if faulty and faulty[0] in words else lines[-1][:300]
    return _Ending(Status.CRASHED, f"torchrun ended with code {returncode}: {message}", faulty)


def _why(ranks: Sequence[int], errors: Mapping[int | None, str]) -> str:
    """The CUDA error of the first of these ranks that has one, or one of no named rank."""
    return next((f": {errors[rank]}" for rank in (*ranks, None) if rank in errors), "")


def _outcome(ending: _Ending, ranks: list[RankEvents], log_path: Path, stacks: str = "") -> LaunchOutcome:
    is_ok = ending.status is Status.OK
    log = "" if is_ok else log_path.read_text(encoding="utf-8", errors="replace")[-8000:]
    return LaunchOutcome(
        status=ending.status,
        message=ending.message,
        ranks_at_fault=[*ending.ranks_at_fault],
        events=[rank.events for rank in ranks],
        restarts=max((rank.restarts for rank in ranks), key=len),
        began=(began := ranks[0].began),
        start_seconds=0.0 if began is None else began - ranks[0].launched,
        log_tail="\n".join(part for part in (log, stacks) if part),
    )
