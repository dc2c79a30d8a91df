"""Logs of MLPerf Training give the step time of their parts, in samples or tokens, without evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.errors import InputError
from reference_runs.mlperf_log import is_mlperf_log, logged_run, read_events


def line(seconds: float, key: str, value: Any = None, **metadata: Any) -> str:
    event = {"namespace": "", "time_ms": 1696565000000 + 1000 * seconds, "event_type": "POINT_IN_TIME", "key": key}
    return f":::MLLOG {json.dumps(event | {'value': value, 'metadata': {'file': 'a.py', 'lineno': 1} | metadata})}"


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["INFO: not an event", *lines]) + "\n", encoding="utf-8")
    return path


BATCH = line(0, "global_batch_size", 2688)
SEQUENCE = line(0, "max_sequence_length", 2048)


def test_a_block_of_tokens_takes_the_seconds_of_the_published_line(tmp_path: Path) -> None:
    """Azure and NVIDIA, MLPerf Training 3.1, GPT-3 on 1344 nodes: 1,211,105,280 tokens, 5,154,997 a second."""
    published, tokens = 234.93810319900513, 1211105280
    log = written(
        tmp_path / "result_0.txt",
        *(line(0, "submission_benchmark", "gpt3"), line(0, "seed", 5), BATCH, SEQUENCE),
        line(10, "block_start", first_epoch_num=0),
        f"0: {line(10 + published, 'block_stop', epoch_num=tokens)}",
        line(300, "run_stop", status="success"),
    )
    run = logged_run(log)
    assert (run.benchmark, run.seed, run.counted_in, run.part, run.parts) == ("gpt3", "5", "tokens", "block", 1)
    assert (run.global_batch, run.sequence, run.status) == (2688, 2048, "success")
    # times of the log are whole milliseconds in print, and floats here
    assert run.global_batch * run.sequence / run.step_seconds == pytest.approx(5154997.267404211, rel=1e-6)


@given(
    steps=st.lists(st.integers(1, 400), min_size=1, max_size=5),
    seconds=st.floats(0.01, 100),
    in_tokens=st.booleans(),
    batch=st.integers(1, 10000),
)
def test_blocks_of_equal_steps_give_the_step_whatever_is_evaluated_between_and_within_them(
    steps: list[int], seconds: float, in_tokens: bool, batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    sequence = 1 << 20  # more than the steps of a block: samples are no tokens then
    unit = batch * sequence if in_tokens else batch
    lines, now, done = [line(0, "global_batch_size", batch)], 0.0, 0
    for number in steps:
        lines.append(line(now, "block_start", samples_count=done))
        lines += [line(now + seconds * number / 2, "eval_start"), line(now + seconds * number / 2 + 7, "eval_stop")]
        now, done = now + seconds * number + 7, done + unit * number
        lines.append(line(now, "block_stop", samples_count=done))
        lines += [line(now, "eval_start"), line(now + 11, "eval_stop")]
        now += 11
    run = logged_run(written(tmp_path_factory.getbasetemp() / "log.txt", *lines), sequence=sequence)
    # times are stored as milliseconds since 1970: doubles of 1.7e12 ms resolve 0.25 microseconds, twice in 10 ms
    assert run.step_seconds == pytest.approx(seconds, rel=1e-3)
    assert (run.parts, run.counted_in) == (len(steps), "tokens" if in_tokens else "samples")


def test_without_blocks_the_run_counts_until_its_last_sample_without_evaluations(tmp_path: Path) -> None:
    log = written(
        tmp_path / "log.txt",
        *(line(0, "global_batch_size", 8), line(0, "number_of_nodes", 2), line(0, "accelerators_per_node", 8)),
        *(line(0, "run_start"), line(30, "eval_start", samples_count=800), line(40, "eval_stop")),
        *(line(70, "eval_start", samples_count=1600), line(90, "eval_stop"), line(90, "run_stop", status="aborted")),
    )
    run = logged_run(log)
    assert (run.step_seconds, run.part, run.ranks, run.status) == (pytest.approx(60 / 200), "run", 16, "aborted")
    assert run.accumulation is run.sequence is None


def test_lines_that_several_ranks_wrote_are_one_event(tmp_path: Path) -> None:
    log = written(tmp_path / "log.txt", *(f"{rank}: {BATCH}" for rank in range(3)))
    assert [event.key for event in read_events(log)] == ["global_batch_size"]
    assert is_mlperf_log(log)
    assert not is_mlperf_log(tmp_path)
    assert not is_mlperf_log(tmp_path / "none")


BLOCK = (line(0, "block_start", samples_count=0), line(9, "block_stop", samples_count=2688 * 3))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((), "no event of MLPerf's logger, :::MLLOG"),
        ((":::MLLOG {",), "line 2: no event of MLPerf's logger: "),
        ((':::MLLOG {"key": "seed"}',), "line 2: no event of MLPerf's logger: "),
        ((line(0, "seed", 1),), "no event global_batch_size"),
        ((line(0, "global_batch_size", "many"),), "global_batch_size; got 'many', allowed: a whole number of 1 or"),
        ((line(0, "global_batch_size", 0.5),), "global_batch_size; got '0.5', allowed: a whole number of 1 or more"),
        ((BATCH, line(0, "global_batch_size", 8)), "several values of global_batch_size; got 2688 and 8"),
        ((BATCH,), "no part of the training with its time and work; allowed: block_start and block_stop, "),
        ((BATCH, *BLOCK[::-1]), "no part of the training with its time and work"),
        (
            (BATCH, BLOCK[0], line(9, "block_stop", samples_count=2689)),
            "a part of the training is no whole number of steps of 2688 samples; got 2689, allowed: samples or tokens",
        ),
    ],
)
def test_a_log_that_gives_no_step_is_refused_in_a_line(lines: tuple[str, ...], words: str, tmp_path: Path) -> None:
    log = written(tmp_path / "log.txt", *lines)
    with pytest.raises(InputError) as refusal:
        logged_run(log)
    assert str(refusal.value).startswith(f"{log}: {words}")
    assert len(refusal.value.lines) == 1
