"""The progress of a launch: a bar with steps, loss and rate on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import io
import os
import time

import pytest
from rich.console import Console

from suite.job.events import Phase, Step, StepKind
from suite.report.terminal.progress import TRAINING_LINE_SECONDS, seconds_reported, training_progress
from suite.reproduce.plan import Plan, plan
from suite.reproduce.request import Request


@pytest.fixture(scope="module")
def planned() -> Plan:
    return plan(Request(name="gpt2-mini", ranks=1, device="cpu", steps=30))


def step(number: int, **changes: object) -> Step:
    usual = {"kind": StepKind.TIMED, "loss": 6 - number / 100, "seconds": 0.5, "time": 100.0 + number}
    return Step(step=number, **(usual | changes))  # type: ignore[arg-type]


def heard(planned: Plan, out: Console, *, ranks: int = 1) -> None:
    with training_progress(planned, out) as progress:
        for rank in range(ranks):
            progress(rank, Phase(name="loading", time=99.0))
            for number in range(planned.steps):
                progress(rank, step(number))


def test_a_terminal_shows_a_bar_with_steps_loss_and_rate_in_80_columns(planned: Plan) -> None:
    out = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None, legacy_windows=False)
    heard(planned, out)
    last = out.file.getvalue().rstrip().split("\r")[-1]  # type: ignore[attr-defined]
    rate = 2 * planned.architecture.sequence * planned.recipe.global_batch
    assert "━" * 20 in last
    assert f"30/30 loss 5.710, {rate:,.0f} tokens/s" in last
    assert last.index("training") < last.index("━")


def test_elsewhere_there_is_a_line_every_few_seconds_and_one_of_the_last_step(
    planned: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    heard(planned, Console(file=io.StringIO(), width=150), ranks=2)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 30 / TRAINING_LINE_SECONDS + 1
    assert lines[0].startswith("1 of 30 steps, loss 6.000, ")
    assert lines[-1].startswith("30 of 30 steps, loss 5.710, ")
    assert all(line.endswith(" tokens/s") for line in lines)


def test_a_skipped_step_has_a_line_of_its_own(planned: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    with training_progress(planned, Console(file=io.StringIO())) as progress:
        progress(0, step(0))
        progress(0, step(1, skipped=True, loss_scale=4096.0))
    assert capsys.readouterr().err.splitlines()[1].endswith(", skipped: overflow at loss scale 4,096")


def test_work_of_unknown_length_says_how_long_it_has_taken_and_a_short_one_nothing() -> None:
    out, short = (Console(file=io.StringIO(), width=80) for _ in range(2))
    with seconds_reported("searching layouts", out, first=0.01, then=0.01):
        while "so far\nsearching" not in out.file.getvalue():  # type: ignore[attr-defined]
            time.sleep(0.01)
    assert out.file.getvalue().startswith("searching layouts: 0 s so far\n")  # type: ignore[attr-defined]
    said = out.file.getvalue()  # type: ignore[attr-defined]
    with seconds_reported("searching layouts", short):
        pass
    time.sleep(0.05)
    assert (out.file.getvalue(), short.file.getvalue()) == (said, "")  # type: ignore[attr-defined]
    with open(os.devnull) as unwritable, seconds_reported("x", Console(file=unwritable), first=0.001):
        time.sleep(0.02)
