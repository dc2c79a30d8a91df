"""Phases of a step as NVTX ranges: on CUDA in every step, nested as they are, and none on a CPU."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from suite.execute.measure.phases import RANGE, Part, Phases
from suite.job.pipeline_passes import Pass, PassKind


class _Event:
    """In place of a CUDA event, which needs a device."""

    def __init__(self, **_: object) -> None:
        pass

    def record(self) -> None:
        pass


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Reports to torch: names of ranges that begin, and None where one ends."""
    reported: list[Any] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", reported.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: reported.append(None))
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    return reported


def test_on_cuda_each_phase_of_every_step_is_an_nvtx_range_of_its_name(calls: list[Any]) -> None:
    phases = Phases(torch.device("cuda"))
    for _ in range(2):
        phases.clear()
        with phases.phase(Part.PIPELINE), phases.phase(Part.FORWARD):
            pass
        with phases.phase(Part.UPDATE):
            pass
    step = [RANGE + "pipeline", RANGE + "forward", None, None, RANGE + "update", None]
    assert calls == step * 2


def test_an_nvtx_range_ends_where_its_phase_fails(calls: list[Any]) -> None:
    with pytest.raises(ZeroDivisionError), Phases(torch.device("cuda")).phase(Part.BACKWARD):
        raise ZeroDivisionError
    assert calls == [RANGE + "backward", None]


def test_on_a_cpu_no_range_is_asked_for(calls: list[Any]) -> None:
    phases = Phases(torch.device("cpu"))
    with phases.phase(Part.FORWARD):
        pass
    assert calls == []
    assert phases.seconds()[Part.FORWARD] > 0


def test_a_pass_has_the_time_of_its_phase_and_other_phases_are_none() -> None:
    phases = Phases(torch.device("cpu"))
    for micro_batch in range(2):
        phases.clear()
        done = Pass(PassKind.INPUT, 1, micro_batch)
        before = time.perf_counter()
        with phases.phase(Part.PIPELINE):
            with phases.phase(Part.BACKWARD, done):
                time.sleep(0.002)
            with phases.phase(Part.FORWARD):
                pass
        ((timed, start, end),) = phases.pass_times()
        assert timed == done
        assert end - start == pytest.approx(phases.seconds()[Part.BACKWARD], abs=1e-9)
        assert before < start < end < time.perf_counter()
