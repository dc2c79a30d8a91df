"""Slurm as people have it: which nodes there are, commands that start something on them, and their end.

Slurm starts everything; nothing here opens a connection. Account, time limit, GPUs and the like are given as Slurm's
own environment variables, such as SBATCH_ACCOUNT or SLURM_GPUS_PER_NODE.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from reference_runs.errors import InputError
from suite.paths import ROOT

ANSWER_SECONDS = 30.0
REASON_CHARACTERS = 200  # of a node's reason
NOT_ANSWERING = "*"  # at the end of a state, as sinfo prints it
_FACT = re.compile(r"(\S+?)=(\S*)")
_FAILED_NODE = re.compile(r"Node failure on (\S+)")


class SlurmNode(NamedTuple):
    """One node, as the controller knows it; `state` as sinfo prints it, "idle" or "down*"."""

    name: str
    state: str
    reason: str = ""


def why_not() -> str | None:
    """Why Slurm cannot be used here; None where it can."""
    if lacking := [program for program in ("srun", "sinfo", "scontrol", "scancel") if shutil.which(program) is None]:
        return f"no {', '.join(lacking)} on the PATH"
    try:
        said = _said("sinfo", "--version")
    except (OSError, subprocess.SubprocessError) as error:
        return f"sinfo gives no answer: {error}"
    return None if said.returncode == 0 else " ".join(said.stderr.split()[-20:])


def check_usable() -> None:
    """Raises InputError where Slurm cannot be used here."""
    if (reason := why_not()) is not None:
        raise InputError(f"Slurm cannot be used here: {reason}", got="slurm", where="--engine")


def cluster_nodes(partition: str | None, names: str | None) -> list[SlurmNode]:
    """The nodes of a partition, or those named as Slurm names them ("n[1-4],n7"), once each.

    Raises:
        InputError: no such partition or node, or no answer from the controller.
    """
    chosen = [*(["-p", partition] if partition else []), *(["-n", names] if names else [])]
    lines = _checked("sinfo", "--noheader", "-N", *chosen, "-o", "%N|%T|%E")
    found = {}
    for line in lines:
        name, state, reason = line.split("|", 2)
        found[name] = SlurmNode(name, state, "" if reason == "none" else reason)
    wanted = expanded(names) if names else []
    if lacking := [name for name in wanted if name not in found]:
        raise InputError("no such node in Slurm", got=", ".join(lacking), where="--nodes")
    if not found:
        raise InputError("Slurm has no such nodes", got=partition or "the default", where="--partition")
    return list(found.values())


def expanded(names: str) -> list[str]:
    """The single names of a list such as "n[1-3],m7"."""
    return _checked("scontrol", "show", "hostnames", names)


def node_address(name: str) -> str:
    """The address under which Slurm itself reaches a node."""
    facts: dict[str, str] = dict(_FACT.findall(" ".join(_checked("scontrol", "--oneliner", "show", "node", name))))
    return facts.get("NodeAddr", name)


def srun(*, nodes: int, name: str, names: Sequence[str] = (), partition: str | None = None) -> list[str]:
    """The beginning of a command that starts one task on each of so many nodes, as a job or a step of this one.

    Where a task fails, the others end; a task whose node dies too.
    """
    options = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    options += [f"--job-name={name}", f"--chdir={ROOT}", "--export=ALL", "--input=none"]
    if "SLURM_JOB_ID" not in os.environ:
        options.append("--exclusive")
        options += [f"--partition={partition}"] if partition else []
    return ["srun", *options, *([f"--nodelist={','.join(names)}"] if names else [])]


def cancel(name: str) -> None:
    """End all jobs of that name; a step of this very job ends with its srun."""
    try:
        _said("scancel", "--quiet", f"--name={name}")
    except (OSError, subprocess.SubprocessError):
        return  # the controller is away: it ends what nobody waits for


def not_answering(names: Iterable[str]) -> list[str]:
    """Nodes that the controller cannot reach, or knows to be down."""
    try:
        found = cluster_nodes(None, ",".join(names))
    except InputError:
        return []
    return [node.name for node in found if node.state.endswith(NOT_ANSWERING) or node.state.startswith("down")]


def failed_nodes(log: str) -> list[str]:
    """The nodes of whose failure srun tells in its output."""
    return list(dict.fromkeys(name.rstrip(".,") for name in _FAILED_NODE.findall(log)))


def drain_reason(words: str) -> str:
    """Words as a reason that Slurm keeps: one line of at most 200 characters of ASCII."""
    plain = "".join(character if " " <= character <= "~" else " " for character in words)
    line = " ".join(plain.replace('"', "'").split())
    return line if len(line) <= REASON_CHARACTERS else f"{line[: REASON_CHARACTERS - 3].rstrip()}..."


def drain(name: str, reason: str) -> None:
    """Let no further job begin on a node, and say why.

    Raises:
        InputError: Slurm refuses it, to users other than its administrators for instance.
    """
    _checked("scontrol", "update", f"nodename={name}", "state=drain", f"reason={drain_reason(reason)}")


def _checked(*command: str) -> list[str]:
    """Lines that the command prints."""
    try:
        said = _said(*command)
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"{command[0]} gives no answer: {error}", where="--engine slurm") from error
    if said.returncode:
        words = " ".join(said.stderr.split()[-30:])
        raise InputError(f"{command[0]} fails: {words}", got=" ".join(command[1:]), where="--engine slurm")
    return said.stdout.splitlines()


def _said(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
    )
