"""New tensors of a rank are not filled before they are written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from suite.job.events import Status
from suite.paths import ROOT
from tests.support.launches import launched, small_plan

COUNTED_FILLS = """
import os, sys
if "RANK" in os.environ and any("suite.execute" in word for word in sys.orig_argv):
    import pathlib
    import torch
    from suite.execute.training import step
    original = step.Steps.update
    def patched(self, loss):
        if self.step < 5:
            return original(self, loss)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recording:
            outcome = original(self, self.forward_and_backward())
        parents = [str(event.cpu_parent.name) for event in recording.events()
                   if event.name == "aten::fill_" and event.cpu_parent is not None]
        filled = sum(parent.startswith("aten::empty") for parent in parents)
        made = sum(event.name.startswith("aten::empty") for event in recording.events())
        pathlib.Path(os.environ["FILLS"], os.environ["RANK"]).write_text(f"{filled} {made}")
        return outcome
    step.Steps.update = patched
"""
FILLED = """
import os, sys
if "RANK" in os.environ and any("suite.execute" in word for word in sys.orig_argv):
    from suite.execute.training import loop
    import torch
    original = loop.train
    def patched(*args, **kwargs):
        torch.utils.deterministic.fill_uninitialized_memory = True
        return original(*args, **kwargs)
    loop.train = patched
"""


def patched(patch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(patch)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))


def test_a_step_fills_no_tensor_that_it_is_about_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patched(COUNTED_FILLS, tmp_path, monkeypatch)
    monkeypatch.setenv("FILLS", str(tmp_path))
    result = launched(small_plan(ranks=2), tmp_path / "results")
    assert result.status is Status.OK, result.message
    for rank in range(2):
        filled, made = map(int, (tmp_path / str(rank)).read_text().split())
        assert filled == 0
        assert made > 100


@pytest.mark.rare
def test_losses_are_the_same_where_new_tensors_are_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_plan(ranks=2)
    usual = launched(plan, tmp_path / "usual").losses
    patched(FILLED, tmp_path, monkeypatch)
    assert launched(plan, tmp_path / "filled").losses == usual
