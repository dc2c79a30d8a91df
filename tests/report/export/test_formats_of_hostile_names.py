"""No name of a run file can become a line, a command or a statement of what is exported."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.run import Workload
from suite.report.export.formats import FORMATS
from suite.report.export.job import ExportedJob
from suite.report.export.torchrun import torchrun

RUN = reference_run("llama3.1-8b")
HOSTILE = st.sampled_from(
    ['"""', "'''", "\n", "$(id)", "`id`", ";", "\r", "\x1b]0;x\x07", "\x9b", "\u202e", "END\n", "\\"]
)
NAMES = st.lists(st.one_of(HOSTILE, st.text(max_size=4)), max_size=6).map("".join).map(lambda name: f"{name}.toml")
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
EXPORTS = [*(export for export in FORMATS if export != "torchrun")]


def job_of(name: str, export: str) -> ExportedJob:
    zero = 3 if export == "torchtitan" else 0
    layout = Layout(data_parallel=8, zero_stage=zero, fused_attention=True)
    recipe = msgspec.structs.replace(RUN.recipe, global_batch=64)
    return ExportedJob(name, Workload(RUN.architecture, recipe, layout), 8, "megatron-core", tokens=10**12)


def usual(export: str) -> str:
    return FORMATS[export].text(job_of("usual.toml", export))


@pytest.mark.parametrize("export", EXPORTS)
@given(name=NAMES)
def test_a_name_changes_comments_and_texts_alone(export: str, name: str) -> None:
    text, plain = FORMATS[export].text(job_of(name, export)), usual(export)
    assert not CONTROLS.search(text)
    changed = [
        (line, before) for line, before in zip(text.split("\n"), plain.split("\n"), strict=True) if line != before
    ]
    assert all(
        line.startswith(("# ", "#SBATCH --job-name=", "description = ")) and line[:2] == before[:2]
        for line, before in changed
    )
    if export == "nemo":
        assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(plain))
    if export == "torchtitan":
        read = tomllib.loads(text)
        assert read["job"].pop("description") == name
        assert read == {**tomllib.loads(plain), "job": {}}


@given(name=NAMES)
def test_a_command_has_the_name_as_one_word(name: str, monkeypatch_plan: None) -> None:
    job = job_of(name, "torchrun")
    if CONTROLS.search(name) or any(letter in name for letter in "\n\t\u2028\u2029\ufeff\u200e\u200f\u061c"):
        with pytest.raises(InputError, match="no command line can show this name"):
            torchrun(job)
        return
    words = shlex.split(torchrun(job))
    assert words[:5] == ["python", "-m", "suite", "reproduce", name]
    assert words[5:7] == ["--ranks", "8"]


@pytest.fixture(scope="module")
def monkeypatch_plan() -> object:
    """The command alone: the run file is not read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("suite.report.export.torchrun.plan", lambda _: None)
        yield
