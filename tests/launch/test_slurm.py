"""Commands to Slurm and its answers, over programs that stand in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.errors import InputError
from suite.launch import slurm
from suite.launch.node_task import PORTS, interface_of, port


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with what a test puts there alone, beside the shell's."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def answer(programs: Path, name: str, text: str, code: int = 0) -> None:
    path = programs / name
    path.write_text(f"#!/bin/sh\necho \"$@\" >> {programs}/{name}.asked\ncat <<'EOF'\n{text}\nEOF\nexit {code}\n")
    path.chmod(0o755)


def test_nodes_are_read_with_state_and_reason(programs):
    answer(programs, "sinfo", "n1|idle|none\nn2|drained*|suite: link: slow")
    assert slurm.cluster_nodes("main", None) == [
        slurm.SlurmNode("n1", "idle"),
        slurm.SlurmNode("n2", "drained*", "suite: link: slow"),
    ]
    assert "-p main" in (programs / "sinfo.asked").read_text()


def test_a_node_that_slurm_does_not_know_is_refused_by_name(programs):
    answer(programs, "sinfo", "n1|idle|none")
    answer(programs, "scontrol", "n1\nn9")
    with pytest.raises(InputError, match="n9"):
        slurm.cluster_nodes(None, "n[1,9]")


def test_a_controller_that_fails_is_one_line_and_missing_programs_are_named(programs, monkeypatch, tmp_path):
    path = programs / "sinfo"
    path.write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    path.chmod(0o755)
    with pytest.raises(InputError, match="Unable to contact slurm controller"):
        slurm.cluster_nodes(None, None)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert slurm.why_not() == "no srun, sinfo, scontrol, scancel on the PATH"


def test_a_reason_that_is_too_long_or_not_ascii_is_made_to_fit(programs):
    answer(programs, "scontrol", "")
    slurm.drain("n1", "Prüfung:\n" + "x" * 500)
    asked = (programs / "scontrol.asked").read_text()
    words = asked.partition("reason=")[2].strip("\n")
    assert words.startswith("Pr fung: xxx")
    assert len(words) == slurm.REASON_CHARACTERS
    assert words.isascii()


def test_a_step_of_a_job_takes_no_nodes_of_its_own(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert "--exclusive" in slurm.srun(nodes=2, name="j")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert "--exclusive" not in slurm.srun(nodes=2, name="j", partition="main")


def test_jobs_and_their_steps_meet_at_different_ports():
    ports = [port({"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}) for job in range(60) for step in range(20)]
    assert len(set(ports)) == len(ports)
    assert set(ports) <= set(PORTS)


def test_the_interface_of_an_address_is_found():
    assert (interface_of("127.0.0.1"), interface_of("203.0.113.7")) == ("lo", "")


def test_srun_names_the_node_that_failed():
    assert slurm.failed_nodes("srun: error: Node failure on n2\nsrun: error: Node failure on n2") == ["n2"]
