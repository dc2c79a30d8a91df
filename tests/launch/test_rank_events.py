"""Events of one rank, over restarts."""

from __future__ import annotations

from pathlib import Path

import msgspec

from suite.job.events import Event, Failed, Resumed, Started, Status, Step, StepKind
from suite.launch.rank_events import RankEvents


def heard(path: Path, events: list[Event]) -> RankEvents:
    path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    of_rank = RankEvents(str(path), 0.0)
    of_rank.launched = 100.0
    assert of_rank.new_events(1.0) == events
    return of_rank


def started(time: float) -> Started:
    return Started(pid=1, time=time)


def step(number: int, time: float) -> Step:
    return Step(number, StepKind.TIMED, 1.0, 1.0, time, 1.0, None, False)


def test_steps_before_a_restart_that_are_done_again_count_once(tmp_path):
    first = [started(101.0), Resumed(0, 0.0, 102.0), step(0, 103.0), step(1, 104.0), step(2, 105.0)]
    failed = Failed(Status.CRASHED, "killed", at_fault=True, traceback="", time=105.5)
    second = [started(110.0), Resumed(1, 0.5, 112.0, attempt=1), step(1, 113.0)]
    of_rank = heard(tmp_path / "rank", [*first, failed, *second])
    assert [event.step for event in of_rank.events if isinstance(event, Step)] == [0, 1]
    (restart,) = of_rank.restarts
    assert (restart.after_step, restart.step, restart.seconds, restart.why) == (2, 1, 7.0, "killed")
    assert (restart.lost_steps, of_rank.began) == (2, 102.0)


def test_a_restart_counts_where_no_rank_had_said_a_word(tmp_path):
    of_rank = heard(tmp_path / "rank", [started(130.0), Resumed(0, 0.0, 131.0, attempt=1), step(0, 132.0)])
    (restart,) = of_rank.restarts
    assert (restart.after_step, restart.step, restart.seconds) == (-1, 0, 31.0)
    assert restart.why == "ended without a word"
    assert not heard(tmp_path / "other", [started(101.0), Resumed(0, 0.0, 102.0), step(0, 103.0)]).restarts
