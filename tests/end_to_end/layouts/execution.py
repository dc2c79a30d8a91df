"""Launches the cases of one mesh together, one after the other on the same ranks, and collects what they reported.

Starting the ranks costs 8 s on 2 cores, a case 2 s. A mesh has its own launch because PyTorch's caches of placements
do not tell two meshes apart whose axes have equal names and ranks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from reference_runs.run import Mask
from suite.job.corpus import Corpus
from suite.job.events import Event, Finished, Step
from suite.job.training_job import Job
from suite.machine.processes import LAUNCH_VARIABLE, die_with_parent, end_all
from suite.paths import ROOT
from suite.records import store
from suite.reproduce.plan import Plan, corpus_for, job_for
from tests.end_to_end.layouts.table import Case, mesh_of, small_run
from tests.support.launches import TEXT
from tests.support.warm_ranks import warm

START_SECONDS = 120
CASE_SECONDS = 180
SIMULATED = "SIMULATED_CUDA_DEVICES"  # a GPU's own library, once begun, is of no use in a fork


class Executed(NamedTuple):
    """Reports of one case by all ranks, in their order.

    Args:
        gradients: of the first step, of each rank: name -> its part, and the dim in which ranks split it.
    """

    job: Job
    finished: list[Finished]
    steps: list[list[Step]]
    gradients: list[dict[str, tuple[Tensor, int | None]]]


class FailedCaseError(AssertionError):
    """A case that did not end well, with the ranks' last words."""


class Executions:
    """Executes cases when one of them is asked for: all of its mesh, and the single-process ones.

    Args:
        device: "cpu" or "cuda".
        shares_devices: whether ranks share GPUs.
        environment: of the ranks.
    """

    def __init__(
        self,
        cases: list[Case],
        directory: Path,
        *,
        device: str = "cpu",
        shares_devices: bool = False,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._where = {"device": device, "shares_devices": shares_devices}
        self._environment = environment
        singles = [case.single for case in cases if case.is_compared]
        self._cases = list(dict.fromkeys([*singles, *cases]))
        self._directory = directory
        self._places: dict[Case, tuple[Path, int, Job]] = {}
        self._failures: dict[Case, str] = {}
        self._corpora: dict[bool, Corpus] = {}

    def __call__(self, case: Case) -> Executed:
        """Reports of `case` by all ranks.

        Raises:
            FailedCaseError: it failed or hung.
        """
        if case not in self._places:
            self._launch([other for other in self._cases if mesh_of(other) == mesh_of(case)])
        if case in self._failures:
            raise FailedCaseError(f"{case.name}: {self._failures[case]}")
        directory, number, job = self._places[case]
        finished, steps, gradients = [], [], []
        for rank in range(job.layout.ranks):
            answer = torch.load(directory / f"{number}.rank{rank}.pt", weights_only=True)
            events = msgspec.json.decode(answer["events"], type=list[Event])
            finished += [event for event in events if isinstance(event, Finished)]
            steps.append([event for event in events if isinstance(event, Step)])
            gradients.append(answer["gradients"])
        return Executed(job, finished, steps, gradients)

    def _launch(self, cases: list[Case]) -> None:
        directory = self._directory / mesh_of(cases[0])
        directory.mkdir()
        plans = [msgspec.structs.replace(small_run(case), **self._where) for case in cases]
        jobs = [job_for(plan, self._corpus(plan), str(directory)) for plan in plans]
        jobs = [msgspec.structs.replace(job, threads=1) for job in jobs]  # products are too small to be shared
        (directory / "jobs.json").write_bytes(msgspec.json.encode(jobs))
        (directory / "parts.json").write_bytes(msgspec.json.encode([case.parts for case in cases]))
        self._places |= {case: (directory, number, jobs[number]) for number, case in enumerate(cases)}
        first = 0
        while first < len(cases):
            log = _launched(directory, first, jobs, self._environment)
            first = self._first_unfinished(cases, directory, jobs, first, log)

    def _corpus(self, plan: Plan) -> Corpus:
        """One text; for a mask of documents many short ones. The vocabulary and the batch are the same in all plans."""
        packed = plan.architecture.mask is Mask.DOCUMENTS
        if packed not in self._corpora:
            self._corpora[packed] = corpus_for(plan, short_texts(self._directory / "texts") if packed else TEXT)
        return self._corpora[packed]

    def _first_unfinished(self, cases: list[Case], directory: Path, jobs: list[Job], first: int, log: str) -> int:
        """The first case that a new launch must execute; the one before it, if it ended this launch, has failed."""
        ranks = range(jobs[0].layout.ranks)
        for number in range(first, len(cases)):
            if all((directory / f"{number}.rank{rank}.pt").exists() for rank in ranks):
                continue
            words = [path.read_text() for rank in ranks if (path := directory / f"{number}.rank{rank}.failed").exists()]
            if words or (directory / f"{number}.begun").exists():
                # a rank without words was killed, or hung: what it left, its stacks, is in the log
                self._failures[cases[number]] = "\n".join([*words, log])
                return number + 1
            self._failures |= dict.fromkeys(cases[number:], f"the launch failed: {log}")
            break
        return len(cases)


def short_texts(directory: Path) -> Path:
    """Makes `directory` one of a thousand texts of 10 to 60 bytes, several of which lie in a sequence of 32 tokens."""
    directory.mkdir()
    text, first = TEXT.read_bytes().decode("ascii", errors="ignore"), 0
    for number in range(1000):
        size = 10 + 17 * number % 51
        (directory / f"{number:04}").write_text(text[first : first + size])
        first += size
    return directory


def _launched(directory: Path, first: int, jobs: list[Job], base: Mapping[str, str]) -> str:
    """Execute the jobs from number `first` on; returns the end of the log."""
    identity = store.new_identity()
    command = [sys.executable, "-m", "suite.execute.torchrun", "127.0.0.1", "0", "--max-restarts=0"]
    command += [f"--nproc-per-node={jobs[0].layout.ranks}", "--monitor-interval=0.1", f"--log-dir={directory}/torchrun"]
    environment = {
        "GLOO_SOCKET_IFNAME": "lo",
        **base,
        "PYTHONPATH": os.pathsep.join([str(ROOT), base.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "OMP_NUM_THREADS": str(jobs[0].threads),
        LAUNCH_VARIABLE: identity,
    }
    command += ["-m", "tests.end_to_end.layouts.worker", str(directory), str(first), str(CASE_SECONDS)]
    log_path = directory / f"{first}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            warm(command, environment) if jobs[0].device == "cpu" or SIMULATED in environment else command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        process.wait(START_SECONDS + CASE_SECONDS * (len(jobs) - first))
    except subprocess.TimeoutExpired:
        pass  # ranks end a case that takes too long by themselves; this one did not even
    finally:
        end_all(process, identity, [])
    return log_path.read_text(encoding="utf-8", errors="replace")[-8000:]
