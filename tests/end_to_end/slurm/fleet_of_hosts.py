"""`fleet accept --engine hosts` without a scheduler: real batteries and pairs on three network namespaces.

In place of ssh a script enters the namespace of an address, as sshd there would.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.launch import network_namespaces
from suite.launch.network_namespaces import INTERFACE, address, hosts, limit
from suite.paths import ROOT

pytestmark = pytest.mark.timeout(3600)
SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do [ "$1" = -o ] && shift; shift; done
name=$(grep "^$1 " PLACE/names | cut -d' ' -f2); shift
[ -n "$name" ] || { echo "ssh: no route to host" >&2; exit 255; }
exec ip netns exec "$name" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME="$HOME" sh -c "$*"
"""


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """A directory with the script, and the namespaces' addresses; the second host's link is slow."""
    if reason := network_namespaces.why_not():
        pytest.skip(f"NOT RUN: {reason}")
    place = tmp_path_factory.mktemp("hosts")
    (place / "ssh").write_text(SSH.replace("PLACE", str(place)))
    (place / "ssh").chmod(0o755)
    with hosts(3) as made:
        limit(made, 400e6)
        limit([made[1]], 40e6)
        addresses = [address(number) for number in range(3)]
        (place / "names").write_text("".join(f"{where} {name}\n" for where, name in zip(addresses, made, strict=True)))
        yield place, addresses


def test_each_host_is_judged_a_slow_link_is_found_and_who_is_not_there_does_not_answer(
    names: tuple[Path, list[str]],
) -> None:
    place, addresses = names
    absent = "10.77.0.99"
    words = ["fleet", "accept", "--engine", "hosts", "--nodes", ",".join([*addresses, absent]), "--device", "cpu"]
    words += ["--results", f"{place}/r", "--at-once", "2", "--json", "--node-minutes", "15"]
    said = subprocess.run(
        [sys.executable, "-m", "suite", *words, "--", "--only", "14", "--others", "1"],
        cwd=ROOT,
        env=os.environ
        | {"PATH": f"{place}:{os.environ['PATH']}", "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout.startswith("{"), said.stderr
    end = json.loads(said.stdout)
    found = {row["node"]: (row["verdict"], row["part"]) for row in end["rows"]}
    good = ("accepted", "")
    bad = {addresses[1]: ("rejected", "link of the node"), absent: ("no answer", "node")}
    assert found == dict.fromkeys(addresses, good) | bad, said.stderr
    assert (said.returncode, end["groups"]) == (1, [])
