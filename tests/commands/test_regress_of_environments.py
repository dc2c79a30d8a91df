"""Two environments, launched in turn on paper: the same verdicts and exit codes, and both are named everywhere."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from reference_runs.errors import InputError
from suite.job.events import Status
from suite.machine.environments import Environment
from suite.records.index import launches as all_launches
from tests.support.regress_on_paper import STEP, Machine, in_turn, on_paper

OLD, NEW = "old 11111111", "new 22222222"


def environment(name, version):
    return Environment(
        executable=f"/opt/{name.split()[0]}/bin/python",
        prefix=f"/opt/{name.split()[0]}",
        python="3.12.1",
        packages={"torch": version, "triton": "3.7.0", "nvidia-nccl-cu13": "2.28"},
        torch={"version": version, "commit": "c" * 40},
        identity=name,
    )


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Two environments, of which the new one's PyTorch is newer."""
    here = Machine(tmp_path / "results")
    on_paper(here, monkeypatch)
    here.slower = {OLD: 1.0, NEW: 1.0}
    here.environments = {"old": environment(OLD, "2.13.0"), "new": environment(NEW, "2.14.0")}

    def asked(executable, *, where, foreign=True):
        return here.environments["old" if foreign else "new"]

    monkeypatch.setattr("suite.commands.regress.environment_of", asked)
    return here


def compared(machine, capsys, *arguments):
    """Exit code, the comparison, and its findings by quantity and term."""
    capsys.readouterr()
    code = machine.regress("--python", "/opt/old/bin/python", *arguments, "--json")
    (comparison,) = json.loads(capsys.readouterr().out)["comparisons"]
    return code, comparison, {(one["quantity"], one["term"]): one for one in comparison["findings"]}


def test_environments_are_launched_alternately_and_judged_as_commits_are(machine, capsys):
    code, comparison, found = compared(machine, capsys, "--launches", "10")
    assert (code, found[STEP]["change"]) == (0, "noise")
    assert machine.order == in_turn(10, OLD, NEW)
    assert comparison["floor"] == "20 identical launches on this machine"  # ten of either, never mixed
    machine.order.clear()
    machine.slower[NEW] = 1.2
    code, _, found = compared(machine, capsys)
    assert (code, found[STEP]["change"]) == (1, "regression")
    assert machine.order == 2 * in_turn(7, OLD, NEW)  # with the re-run
    machine.slower[NEW] = 0.8
    assert compared(machine, capsys)[0] == 0


def test_fewer_than_ten_launches_of_each_are_uncalibrated_and_say_how_many_decide(machine, capsys):
    code, comparison, found = compared(machine, capsys)
    assert (code, found[STEP]["change"]) == (3, "uncalibrated")
    assert comparison["remedy"]["launches"] == 10
    words = comparison["remedy"]["words"]
    assert words.startswith("10 launches of each would decide it, if the noise is that of these launches, about 1 min:")
    assert ": --launches 10, or --until-decided 1" in words


def test_both_environments_and_what_differs_are_in_every_output(machine, capsys, tmp_path):
    files = {name: tmp_path / name for name in ("junit", "markdown")}
    options = [text for name, path in files.items() for text in (f"--{name}", str(path))]
    _, comparison, _ = compared(machine, capsys, "--launches", "10", *options)
    assert [one["identity"] for one in comparison["environments"]] == [OLD, NEW]
    assert comparison["differences"] == ["torch 2.13.0 -> 2.14.0"]
    assert comparison["baseline"] == "/opt/old/bin/python, launched in turn"
    suite = ElementTree.parse(files["junit"]).getroot()[0]
    assert suite[0].tag == "properties"
    properties = {one.get("name"): one.get("value") for one in suite[0]}
    assert properties["gpt2-mini baseline torch"] == "2.13.0"
    assert properties["gpt2-mini now torch"] == "2.14.0"
    assert properties["gpt2-mini now interpreter"] == "/opt/new/bin/python"
    assert properties["gpt2-mini now environment"] == NEW
    assert properties["gpt2-mini difference"] == "torch 2.13.0 -> 2.14.0"
    assert "- differs: torch 2.13.0 -&gt; 2.14.0" in files["markdown"].read_text().replace("->", "-&gt;")
    assert machine.regress("--python", "x", "--launches", "10") == 0
    out = " ".join(capsys.readouterr().out.split())
    line = "/opt/old/bin/python: Python 3.12.1, torch 2.13.0 (commit cccccccccccc), triton 3.7.0"
    assert f"baseline: {line}" in out
    assert "differs: torch 2.13.0 -> 2.14.0" in out
    assert "software differs" not in out  # it is said once


def test_only_the_first_of_many_differences_are_printed_and_equal_ones_are_said(machine, capsys):
    many = {f"package-{n:02}": "1" for n in range(20)}
    old = machine.environments["old"]
    machine.environments["new"] = Environment(
        executable="/opt/new/bin/python",
        prefix="/opt/new",
        python="3.12.1",
        packages=old.packages | many,
        torch=old.torch,
        identity=NEW,
    )
    machine.regress("--python", "x", "--launches", "1")
    out = " ".join(capsys.readouterr().out.split())
    assert "differs: package-11 not installed -> 1 8 more differences: --json names them" in out
    machine.environments["new"] = Environment(
        executable="/opt/new/bin/python",
        prefix="/opt/new",
        python="3.12.1",
        packages=old.packages,
        torch=old.torch,
        identity=NEW,
    )
    machine.regress("--python", "x", "--launches", "1")
    assert "nothing that is looked at differs" in " ".join(capsys.readouterr().out.split())


def test_records_name_the_environment_of_their_ranks(machine, capsys):
    compared(machine, capsys, "--launches", "1")
    launches, _ = all_launches(machine.results)
    facts = {one.software["environment"]: one.software for one in launches}
    assert {name: one["torch"] for name, one in facts.items()} == {OLD: "2.13.0", NEW: "2.14.0"}
    assert facts[OLD]["nvidia-nccl-cu13"] == "2.28"
    assert len({one.hashes["software"] for one in launches}) == 2


def test_a_launch_that_fails_in_the_old_environment_names_it(machine, capsys):
    machine.status = Status.CRASHED
    assert machine.regress("--python", "x") == 4
    assert "gpt2-mini by /opt/old/bin/python: crashed: rank 1 killed by SIGKILL" in capsys.readouterr().out


REFUSED = [
    ("gpt2-mini --python /no/where", "error: --python: no such file; got '/no/where'"),
    ("gpt2-mini --python x --accept", "error: --python: not together with --accept"),
    ("gpt2-mini --python x --baseline main", "error: --python: the other environment is the baseline: not together"),
    ("kernels --python x", "error: --python: not together with kernels"),
    ("gpt2-mini --until-decided 0", "error: --until-decided: minutes; got 0.0, allowed: more than 0"),
    ("gpt2-mini --until-decided nan", "error: --until-decided: minutes; got nan"),
    ("gpt2-mini --until-decided 1e308", "error: --until-decided: minutes; got 1e+308, allowed: more than 0, up to"),
    ("gpt2-mini --until-decided 5 --accept", "error: --until-decided: not together with --accept"),
    ("kernels --until-decided 5", "error: --until-decided: not together with kernels"),
]


def test_options_that_say_two_things_are_refused_in_a_line(not_refused):
    assert not_refused("regress", REFUSED, "--device cpu --results RESULTS") == []


def test_an_environment_that_lacks_packages_starts_nothing(machine, monkeypatch, capsys):
    def lacking(executable, *, where, foreign=True):
        raise InputError("x lacks torch", where=where)

    monkeypatch.setattr("suite.commands.regress.environment_of", lacking)
    assert machine.regress("--python", "x") == 2
    assert capsys.readouterr().err == "error: --python: x lacks torch\n"
    assert machine.order == []
