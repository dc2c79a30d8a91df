"""One launch with a rank on each of several hosts: network namespaces of this machine, or others by ssh.

python -m suite.launch.multi_host netns JOB.json NAMESPACE NAMESPACE, or … ssh JOB.json HOST HOST.
With --calibrate before JOB.json its ranks measure in place of training.
"""

from __future__ import annotations

import enum
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.launch.network_namespaces import address
from suite.machine import malloc
from suite.machine.processes import LAUNCH_VARIABLE, die_with_parent
from suite.paths import ROOT

PORT = 29500
POLL_SECONDS = 0.1
CHECK_SECONDS = 30.0
GONE_WITHIN_SECONDS = 10.0
REMOTE = ("ssh", "-o", "BatchMode=yes")  # never asks for a password
PASSED_ON = (
    *("PYTHONPATH", "PYTHONUNBUFFERED", "OMP_NUM_THREADS", "TORCH_FR_BUFFER_SIZE", LAUNCH_VARIABLE),
    "LD_LIBRARY_PATH",  # where NCCL finds a network's plugin, as that of EFA
)
# of libraries that messages pass through: without FI_, OFI_ and UCX_ NCCL falls back to TCP on EFA, and nothing says so
PASSED_PREFIXES = ("GLOO_", "NCCL_", "FI_", "OFI_", "UCX_", "CUDA_", "SUITE_", malloc.PREFIX)
OWN_INTERFACE = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class HostAccess(enum.StrEnum):
    """How a command gets onto a host."""

    NAMESPACE = "netns"
    SSH = "ssh"
    SLURM = "slurm"


class Hosts(msgspec.Struct, frozen=True):
    """Where a launch has its ranks: one on each of these hosts; all here where there are none.

    Args:
        nodes: of Slurm, how many; it chooses them where `names` is empty.
        ranks_of_node: of Slurm's nodes; other hosts have one.
        partition: of Slurm; None: its default.
    """

    access: HostAccess = HostAccess.NAMESPACE
    names: tuple[str, ...] = ()
    nodes: int = 0
    ranks_of_node: int = 1
    partition: str | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether the ranks' process numbers are those of other machines."""
        return self.scheduled or (bool(self.names) and self.access is HostAccess.SSH)

    @property
    def scheduled(self) -> bool:
        """Whether a scheduler starts the ranks."""
        return self.access is HostAccess.SLURM


def main() -> int:
    """Start torchrun on every host and wait for all; the first that fails ends the others with its exit code.

    torchrun needs the static rendezvous there: the dynamic one does not know its host by a namespace's address.
    """
    access, arguments = HostAccess(sys.argv[1]), sys.argv[2:]
    kind = [arguments.pop(0)] if arguments[0].startswith("--") else []
    job, names = arguments[0], arguments[1:]
    variables = dict(os.environ)
    if interface := msgspec.json.decode(Path(job).read_bytes()).get("interface"):  # a probe names none
        variables |= dict.fromkeys(OWN_INTERFACE, interface)
    master = names[0].rpartition("@")[2] if access is HostAccess.SSH else address(0)
    processes = []
    for number, name in enumerate(names):
        command = torchrun(
            ["suite.execute", *kind, job], number=number, hosts=len(names), master=master, directory=Path(job).parent
        )
        host_command = command_on_host(access, name, command, variables)
        child = subprocess.Popen(host_command, env=variables, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
        processes.append(child)
    try:
        while None in [process.poll() for process in processes]:
            if failed := [process.returncode for process in processes if process.returncode]:
                return int(failed[0])
            time.sleep(POLL_SECONDS)
        return next((int(process.returncode) for process in processes if process.returncode), 0)
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                process.terminate()  # torchrun ends its rank
        for process in processes:
            try:
                process.wait(timeout=GONE_WITHIN_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()  # torchrun that waits for another host hears no signal
                process.wait()


def torchrun(
    module: list[str], *, number: int, hosts: int, master: str, directory: str | Path, ranks: int = 1, port: int = PORT
) -> list[str]:
    """The command that runs a module, with its arguments, as the ranks of host `number`: usually one.

    The first host has the store where all meet, which listens on `master` alone.

    Args:
        directory: of the launch; torchrun's own files, which it never removes, lie in it.
    """
    if number == 0:
        start = ["suite.execute.torchrun", master, str(port)]
    else:
        start = ["torch.distributed.run", f"--master-addr={master}", f"--master-port={port}"]
    return [
        *(sys.executable, "-m", *start),
        *(f"--nnodes={hosts}", f"--node-rank={number}", f"--nproc-per-node={ranks}", "--max-restarts=0"),
        f"--log-dir={directory}/torchrun",
        *("-m", *module),
    ]


def command_on_host(access: HostAccess, name: str, command: Sequence[str], variables: dict[str, str]) -> list[str]:
    """The command on that host; by ssh in this directory, with the suite's variables, ending with its terminal."""
    if access is HostAccess.NAMESPACE:
        return ["ip", "netns", "exec", name, *command]
    exported = [f"{key}={variables[key]}" for key in passed_on(variables)]
    words = shlex.join(["env", *exported, *command])
    # the terminal's end kills it: torchrun that waits for another host hears no signal; its rank dies with it
    watched = f"{words} & child=$!; trap 'kill -KILL $child' HUP INT TERM; wait $child"
    return [*REMOTE, "-tt", name, f"cd {shlex.quote(str(ROOT))} && {{ {watched}; }}"]


def passed_on(variables: Iterable[str]) -> list[str]:
    """Names of the variables that hosts get by ssh."""
    return [name for name in variables if name in PASSED_ON or name.startswith(PASSED_PREFIXES)]


def check_reachable(names: Sequence[str], directory: Path, tokens: Path, interface: str | None = None) -> None:
    """See that every host lets us in, has suite, Python and interface, and sees the scratch directory and the tokens.

    Raises:
        InputError: the first that does not, and what it said.
    """
    marker = directory / f".suite-hosts-{os.getpid()}"
    shared = "set {} to a directory that all share"
    needs = [
        (["true"], "cannot be entered"),
        (["test", "-f", str(marker)], f"does not see {directory}: {shared.format('TMPDIR')}"),
        (["test", "-f", str(tokens)], f"does not see {tokens}: {shared.format('XDG_CACHE_HOME')}"),
        (["test", "-f", str(Path(__file__))], f"has no {ROOT}: the hosts need the suite in the same directory"),
        ([sys.executable, "-c", "import torch, msgspec"], f"has no {sys.executable} with torch"),
    ]
    if interface is not None:
        needs.append((["test", "-d", f"/sys/class/net/{interface}"], f"has no network interface {interface}"))
    marker.write_text("", encoding="utf-8")
    try:
        for name in names:
            for command, lacks in needs:
                _checked([*REMOTE, name, shlex.join(command)], name, lacks)
    finally:
        marker.unlink(missing_ok=True)


def _checked(command: list[str], name: str, lacks: str) -> None:
    where = f"--hosts {name}"
    try:
        said = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CHECK_SECONDS, check=False
        )
    except OSError as error:
        raise InputError("other hosts are entered by ssh, which is not installed", where=where) from error
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{name} gave no answer within {CHECK_SECONDS:.0f} s", where=where) from error
    if said.returncode:
        words = " ".join(said.stderr.split()[-30:])
        raise InputError(f"{name} {lacks}" + (f" ({words})" if words else ""), where=where)


if __name__ == "__main__":
    sys.exit(main())
