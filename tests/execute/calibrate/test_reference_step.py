"""Reference steps are trained in blocks between a calibration's tasks, and leave no trace in what follows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from suite.execute.calibrate.reference_step import STEPS, ReferenceTraining
from suite.execute.calibrate.run import block_positions, calibrate, due_shares
from suite.job.calibration_job import CalibrationJob, ReferenceSteps, Task, TimedTask
from suite.job.events import Event
from suite.machine.reference_step import ReferenceStep, reference_step
from suite.machine.timing_tables import Subject

CPU = torch.device("cpu")


@pytest.fixture
def _alone(alone: object) -> Iterator[None]:
    """One rank; settings of calibrations and of compilation are as before afterwards."""
    donated = torch._functorch.config.donated_buffer
    yield
    torch._functorch.config.donated_buffer = donated
    torch._dynamo.reset()
    gc.enable()


def small(*, compiled: bool) -> ReferenceStep:
    usual = reference_step(1, compiled=compiled, threads=1)
    narrow = msgspec.structs.replace(
        usual.architecture, layers=1, hidden=32, heads=2, kv_heads=2, ffn_hidden=64, vocabulary=64, padded_vocabulary=64
    )
    return msgspec.structs.replace(usual, architecture=narrow)


def job(
    scratch: Path, *, reference_steps: tuple[ReferenceStep, ...] = (), tasks: int = 1, **changes: float
) -> CalibrationJob:
    task = Task(subject=Subject(operation="calls"), threads=1, sizes=((1,),), point_seconds=0.0)
    usual = CalibrationJob(
        directory=str(scratch),
        device="cpu",
        ranks=1,
        threads=1,
        tasks=(task,) * tasks,
        rounds=1,
        budget_seconds=60.0,
        collective_timeout_seconds=60.0,
        reference_steps=reference_steps,
    )
    return msgspec.structs.replace(usual, **changes)


@pytest.mark.usefixtures("_alone")
def test_a_block_reports_every_timed_step_and_continues_where_the_previous_one_ended(tmp_path: Path) -> None:
    events: list[Event] = []
    training = ReferenceTraining(
        job(tmp_path, reference_steps=(small(compiled=False), small(compiled=False))), CPU, events.append
    )
    for block in (1, 2):
        training.train_block()
        reports = [event for event in events if isinstance(event, ReferenceSteps)]
        assert [event.step for event in reports] == [0, 1] * block
        assert all(len(event.seconds) == STEPS for event in reports)
        timed = sum(sum(event.seconds) for event in reports[-2:])
        assert timed < training.next_seconds < training.seconds, "a step is left out of each, and what was built"
    # two to warm up, then one to warm up again and those that are timed, in each block
    assert [steps.step for steps in training._steps.values()] == [2 + 2 * (1 + STEPS)] * 2


@pytest.mark.usefixtures("_alone")
@pytest.mark.filterwarnings("ignore")
def test_what_follows_a_block_finds_all_settings_and_random_numbers_as_they_were(tmp_path: Path) -> None:
    torch._functorch.config.donated_buffer = False  # as a calibration has it
    settings = (torch._dynamo.config.optimize_ddp, torch._dynamo.config.fail_on_recompile_limit_hit)
    gc.disable()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    ReferenceTraining(job(tmp_path, reference_steps=(small(compiled=True),)), CPU, lambda _event: None).train_block()
    assert torch.equal(torch.get_rng_state(), before)
    assert not gc.isenabled()
    assert torch._functorch.config.donated_buffer is False
    assert (torch._dynamo.config.optimize_ddp, torch._dynamo.config.fail_on_recompile_limit_hit) == settings


class Counted:
    """Blocks that report that they take a second each."""

    def __init__(self) -> None:
        self.seconds = self.next_seconds = 0.0
        self.before: list[int] = []
        self.tasks = 0

    def train_block(self) -> None:
        self.seconds += 1.0
        self.next_seconds = 1.0
        self.before.append(self.tasks)

    def __call__(self, event: Event) -> None:
        self.tasks += isinstance(event, TimedTask)


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    ("changes", "before"),
    [
        ({"reference_seconds": 5.0}, [1, 4, 7, 10, 13]),
        ({"reference_seconds": 0.0}, [1, 4, 7]),  # of the first round all
        ({"reference_seconds": 50.0}, [1, 4, 7, 10, 13, 16, 19, 22, 25]),
        ({"reference_seconds": 50.0, "budget_seconds": 0.9}, [1, 4, 7]),  # none that would end after the budget
        ({"reference_seconds": 50.0, "blocks": 0}, []),
    ],
)
def test_blocks_lie_in_the_middles_of_equal_parts_of_a_round_as_long_as_there_is_time(
    tmp_path: Path, changes: dict[str, float], before: list[int]
) -> None:
    counted = Counted()
    calibrate(job(tmp_path, tasks=9, rounds=3, **({"blocks": 3} | changes)), CPU, counted, counted)
    assert counted.before == before


def test_a_round_s_parts_are_equal_in_points() -> None:
    sizes = [1] * 6 + [6]
    tasks = tuple(
        Task(subject=Subject(operation="calls"), threads=1, sizes=((1,),) * count, point_seconds=0.0) for count in sizes
    )
    due = due_shares(msgspec.structs.replace(job(Path()), tasks=tasks))
    assert due == pytest.approx([1 / 12, 2 / 12, 3 / 12, 4 / 12, 5 / 12, 6 / 12, 1])
    assert block_positions(due, 3) == {1, 5, 6}
    assert block_positions(due, 0) == frozenset()
