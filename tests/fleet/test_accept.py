"""A fleet of hosts by the real command: who does not answer, what an interrupted fleet has left, what it asks again.

In place of ssh a script runs the command here, and in place of python one that answers as a test says.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reference_runs.errors import InputError
from suite.__main__ import main
from suite.fleet import accept
from suite.fleet.engines.hosts_engine import HostsEngine
from suite.fleet.engines.reframe_engine import ReframeEngine
from suite.fleet.engines.slurm_engine import SlurmEngine
from suite.fleet.fleet_record import SCHEMA, FleetEnd, FleetRow, keep, opened, unfinished
from suite.machine import packages
from suite.paths import ROOT
from suite.records.battery import encode
from tests.support.batteries import ended as battery_that_ended

pytestmark = pytest.mark.timeout(180)
SSH = """#!/bin/sh
for last; do :; done
for word in "$@"; do
    [ "$word" != dead ] || { echo "ssh: No route to host: cannot read $HOME/.ssh/config" >&2; exit 255; }
done
exec sh -c "$last"
"""
PYTHON = """#!{python} -S
import json, os, sys, time
from pathlib import Path

if sys.argv[1] == "-c":  # whether a package imports is asked of the real one
    os.execv("{python}", ["{python}", *sys.argv[1:]])
place, module, rest = Path("{place}"), sys.argv[2], sys.argv[3:]
subject = rest[1] if module.endswith("node_battery") else Path(rest[0]).name
with (place / "asked").open("a") as lines:
    lines.write(module.rpartition(".")[2] + " " + subject + "\\n")
with (place / "devices").open("a") as lines:
    lines.write(subject + " " + rest[rest.index("--device") + 1 if "--device" in rest else 2] + "\\n")
said = place / ("says." + subject)
words = said.read_text() if said.exists() else "0"
while words == "hang":
    time.sleep(0.1)
if module.endswith("node_battery"):
    answer = dict(node=subject, exit_code=int(words), started=0.0, finished=1.0, words="said")
    if (place / ("record." + subject)).exists():
        answer["record"] = (place / ("record." + subject)).read_text()
else:
    first, second = json.loads(rest[3])["names"]
    answer = dict(first=first, second=second, status="ok", bytes_per_second=1e9, clock_offset=0.0, products=[1e9, 1e9])
half = Path(rest[0] + ".half")
half.write_text(json.dumps(answer))
half.rename(rest[0])
"""
COMMAND = "import sys; sys.executable = {!r}; from suite.__main__ import run; sys.exit(run())"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    texts = {"ssh": SSH, "python": PYTHON.format(python=sys.executable, place=tmp_path)}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def fleet(place: Path, nodes: str, *options: str, **variables: str) -> subprocess.Popen[str]:
    words = ["fleet", "accept", "--engine", "hosts", "--nodes", nodes, "--device", "cpu", "--json"]
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND.format(str(place / "python")), *words, "--results", str(place / "r"), *options],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{place}:/usr/bin:/bin"} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, json.loads(out) if out else {}, err


def asked(place: Path) -> Counter[str]:
    return Counter((place / "asked").read_text().splitlines())


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_host_that_cannot_be_entered_has_its_own_verdict_and_the_others_have_theirs(place: Path) -> None:
    (place / "says.b").write_text("1")
    code, end, said = ended(fleet(place, "a,b,dead,c,d", FI_PROVIDER="efa"))
    found = {row["node"]: row["verdict"] for row in end["rows"]}
    assert found == {"a": "accepted", "b": "rejected", "dead": "no answer", "c": "accepted", "d": "accepted"}
    assert "No route to host" in next(row["evidence"] for row in end["rows"] if row["node"] == "dead")
    assert code == 1
    (begin,) = place.glob("r/fleet/*/begin.json")
    assert "FI_PROVIDER" in json.loads(begin.read_bytes())["passed_on"]
    assert re.search(r"variables passed on to the nodes: .*\bFI_PROVIDER\b", said)
    of_pairs = [words for words in asked(place) if words.startswith("pair_probe")]
    assert sorted(of_pairs) == [f"pair_probe pair.{names}.1.json" for names in ("a+c", "c+d", "d+a")]


def test_nodes_find_their_own_gpus_where_the_host_that_asks_has_none(place: Path) -> None:
    """Two of three hosts ran their batteries on GPUs: their pair is measured on these, the others on processors."""
    (place / "r" / "acceptance").mkdir(parents=True)
    for host, device in {"a": "cuda", "b": "cuda", "c": "cpu"}.items():
        end = battery_that_ended([], options={"device": device})
        (place / "r" / "acceptance" / f"{host}.end.json").write_bytes(encode(end))
        (place / f"record.{host}").write_text(f"{host}.end.json")
    code, _, said = ended(fleet(place, "a,b,c", "--device", "auto"))
    assert code == 0, said
    assert sorted((place / "devices").read_text().splitlines()) == [
        *("a auto", "b auto", "c auto"),
        *("pair.a+b.1.json cuda", "pair.b+c.1.json cpu", "pair.c+a.1.json cpu"),
    ]
    (place / "devices").unlink()
    code, _, said = ended(fleet(place, "a,b", "--device", "cuda"))
    assert code == 0, said
    assert sorted((place / "devices").read_text().splitlines()) == ["a cuda", "b cuda", "pair.a+b.1.json cuda"]


def test_a_host_without_gpus_starts_no_groups_on_those_of_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    engine: Any = SimpleNamespace(group_options=lambda _names: ())
    running = accept._Running(
        tmp_path, engine, accept.FleetSettings(profile="quick", results=tmp_path, device="cuda"), said.append
    )
    monkeypatch.setattr(accept, "cuda_devices", lambda: 0)
    assert accept._groups(running, ["a", "b"], {}) == []
    assert said == ["no groups: `reproduce` plans for GPUs of its own host, and this one has none"]


def test_a_broken_image_rejects_no_host(place: Path) -> None:
    """Bad usage, no verdict, a signal, no Python: each says nothing about its host. On every host it is bad usage."""
    for host, code in {"b": 2, "c": 3, "d": 130}.items():
        (place / f"says.{host}").write_text(str(code))
    code, end, _ = ended(fleet(place, "a,b,c,d"))
    assert [row["verdict"] for row in end["rows"]] == ["accepted", *["not decidable"] * 3]
    assert code == 3
    assert asked(place)["node_battery b"] == 1
    code, end, words = ended(fleet(place, "b"))
    assert (code, end) == (2, {})
    assert "accept refuses on every node: said" in words


def test_what_commands_said_is_kept_without_the_paths_of_who_ran_them(place: Path) -> None:
    (place / "r").mkdir()
    first = fleet(place, "dead", HOME=f"{place}/home/ann")
    assert ended(first)[1]["rows"][0]["evidence"].endswith("cannot read ~/.ssh/config")
    (log,) = (place / "r" / "fleet").glob("*/node.dead.1.log")
    assert log.read_text() == "ssh: No route to host: cannot read ~/.ssh/config\n"


def test_a_host_that_is_late_does_not_answer(place: Path) -> None:
    (place / "says.c").write_text("hang")
    code, end, _ = ended(fleet(place, "a,b,c", "--node-minutes", "0.1"))
    assert [row["verdict"] for row in end["rows"]] == ["accepted", "accepted", "no answer"]
    assert "within 6 s" in end["rows"][2]["evidence"]
    assert code == 4


def test_an_interrupted_fleet_goes_on_with_what_is_left(place: Path) -> None:
    (place / "says.c").write_text("hang")
    first = fleet(place, "a,b,c")
    (directory,) = wait_for_one(place / "r" / "fleet")
    wait_until(lambda: len(list(directory.glob("node.[ab].1.json"))) == 2 and asked(place)["node_battery c"] == 1)
    first.send_signal(signal.SIGINT)
    code, end, words = ended(first)
    assert (code, end) == (130, {})
    assert "--resume" in words
    (place / "says.c").unlink()
    (place / "says.pair.b+c.1.json").write_text("hang")
    second = fleet(place, "a,b,c", "--resume")
    wait_until(lambda: asked(place)["pair_probe pair.b+c.1.json"] == 1)
    second.send_signal(signal.SIGTERM)
    assert ended(second)[0] == 128 + signal.SIGTERM
    (place / "says.pair.b+c.1.json").unlink()
    code, end, words = ended(fleet(place, "a,b,c", "--resume"))
    assert f"resumed {directory.name}" in words
    assert code == 0
    assert end["id"] == directory.name
    assert {row["verdict"] for row in end["rows"]} == {"accepted"}
    counts = asked(place)
    assert (counts["node_battery a"], counts["node_battery b"], counts["node_battery c"]) == (1, 1, 2)
    assert counts["pair_probe pair.a+b.1.json"] == 1
    assert list((place / "r" / "fleet").iterdir()) == [directory]
    code, end, words = ended(fleet(place, "a,b", "--resume"))
    assert (code, end) == (2, {})
    assert "nothing to resume" in words


def wait_for_one(parent: Path) -> list[Path]:
    wait_until(lambda: parent.is_dir() and len(list(parent.iterdir())) == 1)
    return list(parent.iterdir())


def test_a_node_that_slurm_does_not_give_is_not_run() -> None:
    engine = SlurmEngine()
    assert engine.did_not_get("srun: error: Unable to allocate resources: Requested nodes are busy")
    assert not engine.did_not_get("srun: error: Node failure on n6")


def test_without_reframe_its_engine_is_refused_in_a_line_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(packages, "_try_import", lambda *_arguments: None)  # would start that Python
    assert main(["fleet", "accept", "--engine", "reframe", "--nodes", "a", "--results", str(tmp_path / "r")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: --engine: ReFrame is not installed; got reframe, allowed: pip install reframe-hpc")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_by_reframe_only_batteries_are_started_by_it(tmp_path: Path) -> None:
    engine, hosts = ReframeEngine(tmp_path, HostsEngine(("a", "b"))), HostsEngine(("a", "b"))
    assert engine.command_on("a", ["true"], "label")[1:3] == ["-m", "suite.fleet.reframe_command"]
    assert (engine.nodes(), engine.hosts(["a", "b"])) == (hosts.nodes(), hosts.hosts(["a", "b"]))
    assert engine.drains is False
    assert ReframeEngine(tmp_path, SlurmEngine()).drains is True
    with pytest.raises(InputError, match="nothing drains a"):
        engine.drain("a", "why")


def test_wrong_words_are_refused_before_anything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = {
        ("--nodes", "a,-oProxyCommand=true"): "no host's name",
        ("--nodes", "../../a"): "no host's name",
        ("--nodes", "a", "--groups", "gpt2-mino"): "--groups: unknown run",
        ("--nodes", "a", "--node-minutes", "nan"): "--node-minutes: minutes",
        ("--nodes", "a", "--drain"): "nothing drains hosts",
    }
    for words, said in refused.items():
        assert main(["fleet", "accept", "--engine", "hosts", *words, "--results", str(tmp_path / "r")]) == 2
        assert said in capsys.readouterr().err
        assert not (tmp_path / "r").exists()


def test_a_fleet_is_found_by_the_beginning_of_its_id_and_by_no_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = FleetRow(node="n1", verdict="accepted")
    (tmp_path / "fleet" / "f1").mkdir(parents=True)
    keep(tmp_path / "fleet" / "f1" / "end.json", FleetEnd(schema=SCHEMA, id="f1", finished=0.0, rows=[row]))
    assert main(["fleet", "show", "f", "--results", str(tmp_path)]) == 0
    for wrong in ("/etc", "../fleet/f1", "[", "*"):
        assert main(["fleet", "show", wrong, "--results", str(tmp_path)]) == 2
        assert "no fleet that ended" in capsys.readouterr().err


def test_what_a_fleet_keeps_names_no_home_directory_and_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    options = {"options": "--junit /home/alice/x.xml"}
    directory = opened(tmp_path, options, {"n1": "in /home/alice/x"})
    assert "alice" not in (directory / "begin.json").read_text()
    assert unfinished(tmp_path, options) == directory
