"""A whole log: runs, ranks, sizes, timers, warnings, and what is damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from reference_runs.errors import InputError
from reference_runs.training_logs import training_log as module
from reference_runs.training_logs.facts import Sign
from reference_runs.training_logs.training_log import TrainingLog, training_log


def megatron(number: int, milliseconds: float, last: int = 100) -> str:
    return (
        f" iteration {number:8d}/{last:8d} | consumed samples: 1 | elapsed time per iteration (ms): {milliseconds} |"
        f" global batch size:    64 | lm loss: {2 + milliseconds} |"
    )


def read(tmp_path: Path, *lines: str) -> TrainingLog:
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    return training_log(path)


def test_of_several_runs_the_last_is_read_and_ranks_that_repeat_a_line_count_once(tmp_path: Path) -> None:
    lines = [megatron(1, 10), megatron(2, 10), megatron(1, 20), megatron(1, 20), megatron(2, 30)]
    log = read(tmp_path, *lines, megatron(7, 40, last=200), megatron(8, 50, last=200))
    assert [step.seconds for step in log.steps] == [0.04, 0.05]
    assert log.notes == ["3 runs in the file: the last one is read"]


def test_sizes_timers_and_warnings_are_gathered(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "  world_size ...................................... 16",
        "  tensor_model_parallel_size ...................... 2",
        "  seq_length ...................................... 4096",
        megatron(1, 100),
        "(min, max) time across ranks (ms):",
        "    forward-backward ...............................: (26094.39, 27095.09)",
        "time (ms) | forward-compute: 53.79 | batch-generator: 5.2",
        "3 pytorch allocator cache flushes since last step. this happens when there is high memory pressure",
        "Peak flops undefined for: NVIDIA B200, fallback to A100",
    )
    assert log.facts == {"gpus": 16, "tensor_parallel": 2, "sequence": 4096}
    assert log.timers["forward-backward"] == pytest.approx((26.09439, 27.09509))
    assert log.timers["batch-generator"] == pytest.approx((0.0052, 0.0052))
    assert dict(log.signs) == {Sign.CACHE_FLUSHES: 1, Sign.FOREIGN_PEAK: 1}


def test_a_progress_bar_gives_the_time_between_two_of_its_states(tmp_path: Path) -> None:
    log = read(tmp_path, "  1%|x| 41/4870 [04:27<8:45:34,  6.53s/it]\r  1%|x| 42/4870 [08:04<18:14:03, 13.60s/it]")
    assert [step.seconds for step in log.steps] == [217]
    alone = read(tmp_path, "  0%|x| 2/712 [10:58<90:00:48, 447.23s/it]")
    assert [step.seconds for step in alone.steps] == [329, 329]
    assert "from the start on" in alone.notes[0]


def test_a_long_log_is_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STEPS", 100)
    log = read(tmp_path, *(megatron(number, number, last=1000) for number in range(1, 1001)))
    assert len(log.steps) <= 100
    assert log.steps[-1].number is not None
    assert log.steps[-1].number > 950
    assert log.notes == ["every 16th step is read of 1,000"]


def test_the_trainers_state_has_one_mean(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    last = {"step": 100, "train_runtime": 300.0, "train_steps_per_second": 0.334, "train_samples_per_second": 8.0}
    path.write_text(json.dumps({"global_step": 100, "train_batch_size": 4, "log_history": [{"loss": 2.0}, last]}))
    log = training_log(path)
    assert log.steps[0].seconds == pytest.approx(1 / 0.334)
    assert log.facts == {"micro_batch": 4}


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        (
            "a.log",
            "step 3 took long, loss 4\nnothing",
            "no step is understood; got closest: 'step 3 took long, loss 4'",
        ),
        ("a.log", "", "got no line is like one"),
        ("a.json", "{", "no trainer_state.json"),
        ("a.json", "[1]", "no trainer_state.json"),
        ("a.json", '{"log_history": []}', "the training has not ended"),
        ("a.json", '{"log_history": [{"train_steps_per_second": "abc"}]}', "no trainer_state.json"),
        ("a.json", '{"log_history": 5}', "no trainer_state.json"),
    ],
)
def test_what_is_not_understood_is_refused_in_a_line(tmp_path: Path, name: str, text: str, line: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=line.replace("[", r"\[")):
        training_log(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the log"):
        training_log(tmp_path / "none.log")


def test_losses_that_are_not_numbers_are_noticed(tmp_path: Path) -> None:
    log = read(tmp_path, "iter 1: loss nan, time 100.00ms", "iter 2: loss 3.0, time 100.00ms")
    assert log.notes == ["the loss of 1 of 2 steps is not a number"]


def test_lines_of_ranks_that_print_later_are_no_other_run(tmp_path: Path) -> None:
    log = read(tmp_path, *(megatron(number, number) for number in (7, 8, 7, 9, 8, 10)))
    assert [step.number for step in log.steps] == [7, 8, 9, 10]
    assert log.notes == []


def test_bars_of_a_checkpoint_and_of_an_evaluation_are_no_training(tmp_path: Path) -> None:
    bars = [f" {number}/60 [{2 * number // 60:02d}:{2 * number % 60:02d}<01:00, 2.00s/it]" for number in range(1, 61)]
    loss = "{'loss': 2.5, 'epoch': 0.1}"
    evaluation = [f" {number}/500 [00:{number // 25:02d}<00:10, 25.0it/s]" for number in range(100, 501, 100)]
    lines = [" 3/3 [01:30<00:00, 30.00s/it]", *bars[:20], loss, *evaluation, *bars[20:], loss]
    log = read(tmp_path, *lines)
    assert {step.seconds for step in log.steps} == {2.0}
    assert len(log.steps) > 50


@pytest.mark.parametrize(
    "line",
    [
        "[2026-13-99 19:01:17] iteration 1/ 9 | elapsed time per iteration (ms): 10 | lm loss: 1 |",
        "  tensor_model_parallel_size ...... 0",
        f"  world_size ...... {'9' * 5000}",
        " 0/100 [00:05<00:10, 2.00it/s]",
    ],
)
def test_what_cannot_be_is_left_out(tmp_path: Path, line: str) -> None:
    log = read(tmp_path, line, megatron(2, 10), megatron(3, 10))
    assert log.facts == {}
    assert log.steps[-1].seconds == 0.01


def test_a_device_is_refused() -> None:
    with pytest.raises(InputError, match="not a regular file"):
        training_log(Path("/dev/zero"))


def test_deepspeeds_timers_are_steps_where_its_log_has_warnings_alone(tmp_path: Path) -> None:
    line = "[Rank 0] time (ms) | fwd: {} | bwd: 80.00 | bwd_inner: 70.00 | bwd_allreduce: 10.00 | step: 15.00"
    log = read(tmp_path, line.format("40.00"), line.format("45.00"))
    assert log.format.name == "DeepSpeed"
    assert [step.seconds for step in log.steps] == pytest.approx([0.135, 0.14])


def test_lightnings_profiler_says_what_its_bars_do_not(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "Epoch 0:  50%|#####     | 20/40 [00:05<00:05,  3.70it/s]\rEpoch 0: 100%|##| 40/40 [00:11<00:00,  3.60it/s]",
        "|  [_TrainingEpochLoop].train_dataloader_next               \t|  0.0531         \t|  2.124          \t|",
        "|  [Callback]ModelCheckpoint{'monitor': None, 'mode': 'min'}.on_train_batch_end\t|  0.1  \t|  4.0  \t|",
        "|  run_training_batch                                       \t|  0.1501         \t|  6.004          \t|",
    )
    assert log.format.name == "Lightning"
    assert log.steps[-1].seconds == pytest.approx(0.275, abs=0.1)
    means = {name: seconds for name, (seconds, _) in log.timers.items()}
    assert means["train_dataloader_next"] == 0.0531
    assert means["run_training_batch"] == 0.1501
    assert [seconds for name, seconds in means.items() if name.startswith("ModelCheckpoint")] == [0.1]


def test_a_packed_log_with_a_wrong_sum_is_read_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    text = "".join(f"{megatron(number, 100)}\n" for number in range(9)).encode()
    path.write_bytes(gzip.compress(text)[:-8] + b"damaged!")
    log = training_log(path)
    assert len(log.steps) == 9
    assert log.notes == ["the file is damaged or cut off: what comes before was read"]


def test_two_runs_that_write_by_turns_are_distinguished_and_times_that_are_no_numbers_are_counted(
    tmp_path: Path,
) -> None:
    log = read(tmp_path, *(megatron(number, 100, last) for number in range(5) for last in (100, 900)))
    assert [step.last for step in log.steps] == [100] * 5
    assert log.notes == ["5 lines of a run beside it are not read"]
    lost = read(tmp_path, *(megatron(number, float("nan") if number % 3 else 100) for number in range(9)))
    assert lost.notes[-1] == "the time of 6 of 9 steps is not a number, and left out"
