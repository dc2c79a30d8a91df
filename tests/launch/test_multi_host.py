"""Launches on several hosts: the commands that enter them, and what is said of a host that cannot take part."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

import msgspec
import pytest

from reference_runs.errors import InputError
from suite.commands.ladder import checked_hosts
from suite.job.corpus import Corpus
from suite.job.events import Status
from suite.ladder.plan import refusal, target_of
from suite.ladder.rung import RUNGS
from suite.launch.multi_host import HostAccess, check_reachable, command_on_host, passed_on, torchrun
from suite.launch.rank_events import START_SECONDS
from suite.machine.processes import LAUNCH_VARIABLE
from suite.metrics.figures import Quantity
from suite.paths import ROOT
from suite.reproduce.plan import corpus_for
from suite.reproduce.reproduce import reproduce
from tests.support.launches import TEXT, small_plan

# as ssh does: options, host, one line for a shell there; three hosts lack something
SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do [ "$1" = -o ] && shift; shift; done
host=$1; shift
[ "$host" = nobody ] && { echo "Permission denied (publickey)." >&2; exit 255; }
[ "$host" = apart ] && case "$*" in *.suite-hosts-*) exit 1;; esac
[ "$host" = bare ] && case "$*" in *"import torch"*) echo "No module named 'torch'" >&2; exit 1;; esac
exec env -i PATH="$PATH" HOME="$HOME" sh -c "$*"
"""


COUNTED = {
    *(Quantity.PARAMETERS, Quantity.MODEL_FLOP, Quantity.HARDWARE_FLOP, Quantity.PAYLOAD_BYTES, Quantity.MESSAGES),
    *(Quantity.WEIGHT_BYTES, Quantity.GRADIENT_BYTES, Quantity.OPTIMIZER_BYTES, Quantity.ACTIVATION_BYTES),
}


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of ssh that stays on this machine, in an empty environment."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_a_namespace_is_entered_with_the_command_as_it_is():
    command = torchrun(["suite.execute", "job.json"], number=1, hosts=2, master="10.0.0.1", directory="/shared")
    assert command_on_host(HostAccess.NAMESPACE, "host1", command, {}) == ["ip", "netns", "exec", "host1", *command]
    options = {"--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1", "--nproc-per-node=1"}
    assert options | {"--log-dir=/shared/torchrun"} <= set(command)


def test_another_host_gets_the_suites_variables_and_no_others():
    variables = {LAUNCH_VARIABLE: "x y", "OMP_NUM_THREADS": "4", "NCCL_DEBUG": "INFO", "HOME": "/root", "PATH": "/bin"}
    *access, name, line = command_on_host(HostAccess.SSH, "node2", ["python", "-c", "print('a b')"], variables)
    assert (access[0], access[-1], name) == ("ssh", "-tt", "node2")
    words = shlex.split(line)
    assert words[:5] == ["cd", str(ROOT), "&&", "{", "env"]
    assert set(words[5:8]) == {f"{LAUNCH_VARIABLE}=x y", "OMP_NUM_THREADS=4", "NCCL_DEBUG=INFO"}
    assert words[8:12] == ["python", "-c", "print('a b')", "&"]


def test_a_host_gets_what_finds_and_sets_up_its_network():
    """On EFA NCCL needs its plugin's directory and FI_*; without them it falls back to TCP."""
    wanted = {"LD_LIBRARY_PATH", "FI_PROVIDER", "OFI_NCCL_PROTOCOL", "UCX_TLS", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG"}
    others = {"HOME", "PATH", "AWS_SECRET_ACCESS_KEY", "CUDAX", "LD_PRELOAD"}
    assert set(passed_on(wanted | others)) == wanted
    *_, line = command_on_host(HostAccess.SSH, "node2", ["true"], dict.fromkeys(wanted | others, "/a b"))
    assert {word.partition("=")[0] for word in shlex.split(line) if word.endswith("=/a b")} == wanted


def test_a_host_that_cannot_take_part_is_named_with_what_it_lacks(ssh):
    tokens = ssh / "tokens"
    tokens.touch()
    before = set(ssh.iterdir())
    for name, says in (
        ("nobody", "nobody cannot be entered (Permission denied (publickey).)"),
        ("apart", "set TMPDIR to a directory that all share"),
        ("bare", "with torch (No module named 'torch')"),
    ):
        with pytest.raises(InputError, match=f"--hosts {name}") as error:
            check_reachable([name], ssh, tokens)
        assert says in str(error.value)
        assert set(ssh.iterdir()) == before


def test_a_host_that_lacks_nothing_passes_and_one_without_the_tokens_does_not(ssh):
    (ssh / "tokens").touch()
    check_reachable(["good"], ssh, ssh / "tokens")
    check_reachable(["good"], ssh, ssh / "tokens", "lo")
    with pytest.raises(InputError, match="good has no network interface nowhere0"):
        check_reachable(["good"], ssh, ssh / "tokens", "nowhere0")
    with pytest.raises(InputError, match="set XDG_CACHE_HOME"):
        check_reachable(["good"], ssh, ssh / "elsewhere")


def test_without_ssh_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="ssh, which is not installed"):
        check_reachable(["good"], tmp_path, tmp_path)


def test_the_rung_over_hosts_needs_two_and_an_interface_belongs_to_hosts():
    for names in ("one", "a,b,c", "a,a", ",", "a,-oProxyCommand=x"):
        with pytest.raises(InputError, match="two names"):
            checked_hosts(names, None)
    assert checked_hosts(None, None) == ()
    assert checked_hosts("a, b", "eth0") == ("a", "b")
    with pytest.raises(InputError, match="--interface"):
        checked_hosts(None, "eth0")


def test_named_hosts_take_the_place_of_namespaces(monkeypatch):
    monkeypatch.setattr("suite.launch.network_namespaces.why_not", lambda: "needs root")
    (rung,) = (one for one in RUNGS if one.name == "ddp-hosts")
    here = target_of("gpt2-mini", device="cpu", seed=1)
    assert refusal(rung, here).startswith("no network namespaces")
    assert refusal(rung, msgspec.structs.replace(here, host_names=("a", "b"))) == ""


@pytest.fixture
def corpus() -> Corpus:
    return corpus_for(small_plan(ranks=2), TEXT)


@pytest.mark.rare
def test_a_launch_over_hosts_counts_what_one_on_this_machine_counts(ssh, corpus, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr("suite.reproduce.plan.usable_cores", lambda: 1)  # as many threads on a host of its own
    plan = small_plan(ranks=2)
    over = msgspec.structs.replace(plan, hosts=2, host_names=("localhost", "localhost"))
    alone, apart = (reproduce(one, corpus, ssh, lambda *_: None) for one in (plan, over))
    assert apart.status is Status.OK, apart.message
    assert apart.losses == alone.losses
    ours, theirs = ([one for one in found.figures if one.quantity in COUNTED] for found in (alone, apart))
    assert ours == theirs
    assert {figure.quantity for figure in ours} == COUNTED


@pytest.mark.rare
def test_a_host_that_cannot_be_entered_ends_the_launch_and_no_process_is_left(ssh, corpus):
    over = msgspec.structs.replace(small_plan(ranks=2), hosts=2, host_names=("localhost", "nobody"))
    started = time.monotonic()
    result = reproduce(over, corpus, ssh, lambda *_: None)
    assert time.monotonic() - started < START_SECONDS
    assert result.status is Status.CRASHED
    assert "Permission denied" in result.message
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if str(ssh).encode() in _environment(pid)]


def _environment(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
