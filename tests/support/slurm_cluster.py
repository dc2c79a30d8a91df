"""A real Slurm cluster on one machine: slurmctld and one slurmd in each of several network namespaces, until closed.

Every node has its own network interface, host name (UTS namespace) and control group; nothing listens outside these
namespaces. Faults: `slow` (CPU quota), `limit_link` (htb), `shift_clock` (in what the node's jobs start),
`kill` (all that runs on the node).
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from suite.launch import network_namespaces
from suite.launch.network_namespaces import address, hosts, limit
from suite.machine.processes import die_with_parent
from suite.paths import ROOT

PARTITION = "main"
BARE_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
SHIFTED_CLOCK = Path(__file__).with_name("shifted_clock.c")
LINK_BITS_PER_SECOND = 400e6  # of all nodes alike: without a limit, what else this machine does decides
PERIOD_MICROSECONDS = 10_000  # short beside what is timed, so that bursts are slowed too
START_SECONDS = 60.0
WEIGHT = 100  # of a node over that of another process: what is slow must not be the tests beside it
POLL_SECONDS = 0.2
CONTROL_GROUPS = Path("/sys/fs/cgroup")


def why_not() -> str | None:
    """Why no cluster can be made here; None where it can."""
    if (reason := network_namespaces.why_not()) is not None:
        return reason
    for program, package in (("slurmctld", "slurm-wlm"), ("slurmd", "slurm-wlm"), ("munged", "munge"), ("gcc", "gcc")):
        if shutil.which(program) is None:
            return f"needs {program} (Debian: {package})"
    return None if _cpu_groups() is not None else "needs control groups with CPU quotas"


def _cpu_groups() -> Path | None:
    """Where groups with CPU quotas are made: version 1 has a directory a controller, version 2 one for all."""
    if (CONTROL_GROUPS / "cpu" / "cpu.cfs_quota_us").exists() or (CONTROL_GROUPS / "cpu" / "tasks").exists():
        return CONTROL_GROUPS / "cpu"
    controllers = CONTROL_GROUPS / "cgroup.controllers"
    if controllers.exists() and "cpu" in controllers.read_text(encoding="ascii"):
        return CONTROL_GROUPS
    return None


class SlurmCluster:
    """A running cluster. Its nodes are n1, n2, …; commands run on the controller's host, where users would be."""

    def __init__(self, directory: Path, namespaces: Sequence[str], groups: Mapping[str, Path]) -> None:
        self.directory = directory
        self.nodes = [f"n{number}" for number in range(1, len(namespaces))]
        self.environment = os.environ | {"SLURM_CONF": str(directory / "slurm.conf"), "PYTHONPATH": str(ROOT)}
        self._namespaces = dict(zip(["ctl", *self.nodes], namespaces, strict=True))
        self._groups = groups
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, *command: str, timeout: float = 600.0, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command on the controller's host; the exit code is the caller's to judge."""
        process = self.popen(*command, **variables)
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
            process.kill()
            raise
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def popen(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """A command on the controller's host that is not waited for."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self._inside("ctl", *command),
            stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True,
            env=self.environment | variables, preexec_fn=die_with_parent,
        )  # fmt: skip

    def suite(self, *arguments: str, timeout: float = 900.0, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command of the suite on the controller's host."""
        return self.run(sys.executable, "-m", "suite", *arguments, timeout=timeout, **variables)

    def state(self, node: str) -> str:
        """The node's state by the controller: "idle", "drained*", …, as `sinfo` prints it."""
        return self.run("sinfo", "--noheader", "-N", "-n", node, "-o", "%T").stdout.split()[0]

    def reason(self, node: str) -> str:
        """Why a node is drained; empty where none is given."""
        said = self.run("sinfo", "--noheader", "-N", "-n", node, "-o", "%E").stdout.strip()
        return "" if said == "none" else said

    def wait_for(self, node: str, *states: str, seconds: float = START_SECONDS) -> str:
        """The state of a node once it is one of these."""
        until = time.monotonic() + seconds
        while (state := self.state(node)) not in states:
            if time.monotonic() > until:
                raise TimeoutError(f"{node} is {state} after {seconds:.0f} s, wanted: {', '.join(states)}")
            time.sleep(POLL_SECONDS)
        return state

    def on_node(self, node: str, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command on a node, as root would run it there, with its host name, quota and a bare environment."""
        env = {"PATH": BARE_PATH, "SLURM_CONF": self.environment["SLURM_CONF"]} | variables
        return subprocess.run(self._inside(node, *command), env=env, capture_output=True, text=True, check=False)

    def start(self, node: str) -> None:
        """Start a node's slurmd."""
        log = (self.directory / f"{node}.out").open("ab")
        self._daemons[node] = subprocess.Popen(
            self._inside(node, "slurmd", "-D", "-N", node), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env={"PATH": BARE_PATH, "SLURM_CONF": self.environment["SLURM_CONF"]}, preexec_fn=die_with_parent,
        )  # fmt: skip
        log.close()

    def kill(self, node: str) -> None:
        """Let a node die: all its processes, its slurmd too, and its interface first, so that nobody hears of it."""
        name = self._namespaces[node]
        _checked("ip", "-n", name, "link", "set", network_namespaces.INTERFACE, "down")
        network_namespaces.end_all_in(name)
        self._daemons.pop(node).wait(timeout=20)

    def revive(self, node: str) -> None:
        """Switch a dead node on again."""
        _checked("ip", "-n", self._namespaces[node], "link", "set", network_namespaces.INTERFACE, "up")
        self.start(node)

    def slow(self, node: str, cores: float | None) -> None:
        """Let all of a node's processes together use that many cores; None: as many as there are."""
        group = self._groups[node]
        quota = -1 if cores is None else round(cores * PERIOD_MICROSECONDS)
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{'max' if quota < 0 else quota} {PERIOD_MICROSECONDS}", encoding="ascii")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS), encoding="ascii")
            (group / "cpu.cfs_quota_us").write_text(str(quota), encoding="ascii")

    def limit_link(self, node: str, bits_per_second: float | None) -> None:
        """Let a node send at most at that rate; None: as all others."""
        limit([self._namespaces[node]], LINK_BITS_PER_SECOND if bits_per_second is None else bits_per_second)

    def shift_clock(self, node: str, seconds: float | None) -> None:
        """Let the clock of what jobs start on a node be off by so much; None: right again."""
        path = self.directory / f"{node}.clock"
        path.unlink(missing_ok=True)
        if seconds is not None:
            path.write_text(f"{seconds:+.3f}", encoding="ascii")

    def counters(self, node: str) -> tuple[int, int]:
        """Bytes and packets that left a node's interface since it was made."""
        place = f"/sys/class/net/{network_namespaces.INTERFACE}/statistics"
        command = ["ip", "netns", "exec", self._namespaces[node], "cat", f"{place}/tx_bytes", f"{place}/tx_packets"]
        sent, packets = map(int, _checked(*command).split())
        return sent, packets

    def listening(self, node: str) -> list[str]:
        """Addresses on which something listens on a node, slurmd's own among them."""
        said = _checked("ip", "netns", "exec", self._namespaces[node], "ss", "-Hltn")
        return [line.split()[3] for line in said.splitlines()]

    def begin(self, prolog: str = "") -> None:
        """Write the configuration and start the daemons; `prolog`: further lines of slurm.conf."""
        _configure(self.directory, self.nodes, prolog)
        log = (self.directory / "ctl.out").open("ab")
        self._daemons["munge"] = subprocess.Popen(
            _munge(self.directory), stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent
        )
        self._daemons["ctl"] = subprocess.Popen(
            self._inside("ctl", "slurmctld", "-D"), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env=self.environment, preexec_fn=die_with_parent,
        )  # fmt: skip
        log.close()
        for node in self.nodes:
            self.limit_link(node, None)
            self.start(node)
        until = time.monotonic() + START_SECONDS
        while self.run("sinfo", "--noheader", "-o", "%T").stdout.split() != ["idle"]:
            if time.monotonic() > until:
                raise TimeoutError(f"the cluster does not start: {(self.directory / 'ctl.out').read_text()[-2000:]}")
            time.sleep(POLL_SECONDS)

    def end(self) -> None:
        """End the daemons; what they started is ended with the namespaces."""
        for process in self._daemons.values():
            process.terminate()
        for process in self._daemons.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            process.kill()
            process.wait()

    def _inside(self, host: str, *command: str) -> list[str]:
        """A command in a host's namespaces; on a node in its control group too."""
        join = f"echo $$ > {self._groups[host]}/cgroup.procs && " if host in self._groups else ""
        groups = self.directory / "cgroup"  # `ip netns exec` mounts a /sys of its own, without them
        mounts = f"mount --bind {self.directory}/hosts /etc/hosts && mount --rbind {CONTROL_GROUPS} {groups}"
        outside = f'{join}hostname {host} && {mounts} && exec "$@"'
        inside = f'mount --rbind {groups} {CONTROL_GROUPS} && exec "$@"'
        enter = ["ip", "netns", "exec", self._namespaces[host], "sh", "-c", inside, "sh"]
        return ["unshare", "--mount", "--uts", "sh", "-c", outside, "sh", *enter, *command]


@contextmanager
def slurm_cluster(directory: Path, nodes: int = 4, *, configuration: str = "") -> Iterator[SlurmCluster]:
    """A cluster of so many nodes; gone at the end with all that ran there.

    Args:
        directory: for its configuration, state and logs.
        configuration: further lines of slurm.conf, such as "Prolog=/path".
    """
    top = _cpu_groups()
    assert top is not None
    mark = secrets.token_hex(3)
    with ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _interrupt))
        groups = {}
        for number in range(1, nodes + 1):
            group = groups[f"n{number}"] = top / f"suite{mark}n{number}"
            group.mkdir()
            stack.callback(_remove_group, group)
            weight, usual = ("cpu.weight", 100) if (group / "cpu.weight").exists() else ("cpu.shares", 1024)
            (group / weight).write_text(str(WEIGHT * usual), encoding="ascii")
        cluster = SlurmCluster(directory, stack.enter_context(hosts(nodes + 1)), groups)
        stack.callback(cluster.end)
        cluster.begin(configuration)
        yield cluster


def _interrupt(_number: int, _frame: object) -> None:
    """Let SIGTERM, which a time limit sends, end the cluster too."""
    raise KeyboardInterrupt


def _remove_group(group: Path) -> None:
    """Remove a control group once its processes, which are being killed, have gone."""
    for _ in range(100):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"{group} still has processes: {(group / 'cgroup.procs').read_text(encoding='ascii').split()}")


def _munge(directory: Path) -> list[str]:
    """The command of the cluster's own munged; its directory and key belong to root alone, as it demands."""
    place = directory / "munge"
    place.mkdir(mode=0o755)
    key = place / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    files = [f"--{name}={place / name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    return ["munged", "--foreground", "--force", f"--key-file={key}", *files]


def _configure(directory: Path, nodes: Sequence[str], further: str) -> None:
    prolog = directory / "task_prolog"  # what it prints as `export …` is set in every task
    library = directory / "shifted_clock.so"
    _checked("gcc", "-shared", "-fPIC", "-o", str(library), str(SHIFTED_CLOCK), "-lm")
    clock = f"{directory}/$SLURMD_NODENAME.clock"
    lines = [f"test -f {clock} || exit 0", f'echo "export LD_PRELOAD={library}"']
    lines.append(f'echo "export SHIFTED_CLOCK=$(cat {clock})"')
    prolog.write_text("\n".join(["#!/bin/sh", *lines]) + "\n", encoding="utf-8")
    prolog.chmod(0o755)
    for name in ("state", "cgroup", *(f"spool.{node}" for node in nodes)):
        (directory / name).mkdir()
    lines = [
        "ClusterName=suite",
        f"SlurmctldHost=ctl({address(0)})",
        "AuthType=auth/munge",
        f"AuthInfo=socket={directory}/munge/socket",
        "CredType=cred/munge",
        "SlurmUser=root",
        "SlurmdUser=root",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "SwitchType=switch/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "JobAcctGatherType=jobacct_gather/none",
        "TopologyPlugin=topology/tree",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "SlurmctldTimeout=30",
        "SlurmdTimeout=10",
        "KillWait=5",
        "InactiveLimit=0",
        "MailProg=/bin/true",
        f"StateSaveLocation={directory}/state",
        f"SlurmdSpoolDir={directory}/spool.%n",
        f"SlurmctldPidFile={directory}/slurmctld.pid",
        f"SlurmdPidFile={directory}/slurmd.%n.pid",
        f"SlurmctldLogFile={directory}/slurmctld.log",
        f"SlurmdLogFile={directory}/slurmd.%n.log",
        f"TaskProlog={prolog}",
        *(f"NodeName={node} NodeAddr={address(number)} CPUs=2" for number, node in enumerate(nodes, start=1)),
        f"PartitionName={PARTITION} Nodes={','.join(nodes)} Default=YES MaxTime=INFINITE State=UP",
        further,
    ]
    (directory / "slurm.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
    named = [f"{address(number)} {name}" for number, name in enumerate(["ctl", *nodes])]
    (directory / "hosts").write_text("\n".join(["127.0.0.1 localhost", *named]) + "\n", encoding="utf-8")
    half = (len(nodes) + 1) // 2
    leaves = [nodes[:half], nodes[half:]]
    switches = [f"SwitchName=s{number} Nodes={','.join(leaf)}" for number, leaf in enumerate(leaves, start=1) if leaf]
    top = f"SwitchName=top Switches={','.join(f's{number}' for number in range(1, len(switches) + 1))}"
    (directory / "topology.conf").write_text("\n".join([*switches, top]) + "\n", encoding="utf-8")


def _checked(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
