"""The injected cause is the first named in logs after the documented formats; none is named of those without one.

What each framework prints of a step is `reference_runs.training_logs.formats`' to know: here are whole logs of the
frameworks that need GPUs, with 2 % of noise, in which a slow-down was put at a known place.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from suite.__main__ import main

STEPS = 100
Seconds = Callable[[int], float]
Lines = Callable[[int, float, datetime.datetime], str]


def iso(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]


LINES: dict[str, Lines] = {
    "Megatron-LM": lambda number, seconds, now: (
        f" [{iso(now)[:19]}] iteration {number:8d}/     500 | consumed samples: {64 * number:12d} | elapsed time per"
        f" iteration (ms): {1000 * seconds:.1f} | throughput per GPU (TFLOP/s/GPU): {400 / seconds:.1f} | learning"
        f" rate: 1.500000E-04 | global batch size:    64 | lm loss: {9 - number / 50:.6E} | loss scale: 1.0 |"
    ),
    "Megatron-DeepSpeed": lambda number, seconds, _: (
        f" iteration {number:8d}/  317892 | consumed samples: {768 * number} | elapsed time per iteration (ms):"
        f" {1000 * seconds:.1f} | global batch size:   768 | lm loss: {9 - number / 50:.6E} | actual seqlen:  4096 |"
        f" samples per second: {768 / seconds:.3f} | tokens per gpu per second (tgs): {16384 / seconds:.3f} |"
    ),
    "GPT-NeoX": lambda number, seconds, _: (
        f" samples/sec: {32 / seconds:.3f} | iteration {number:8d}/   10000 | elapsed time per iteration (ms):"
        f" {1000 * seconds:.1f} | learning rate: 1.2E-06 | approx flops per GPU: 107.7TFLOPS | lm_loss: 1.1E+01 |"
    ),
    "NeMo": lambda number, seconds, _: (
        f"Training epoch 0, iteration {number}/499 | lr: 6.897e-06 | global_batch_size: 128 | global_step: {number} |"
        f" reduced_train_loss: 11.96 | train_step_timing in s: {seconds:.4g} | consumed_samples: {128 * number}"
    ),
    "Megatron-Bridge": lambda number, seconds, now: (
        f"Step Time : {seconds:.2f}s GPU utilization: {400 / seconds:.1f}MODEL_TFLOP/s/GPU\n"
        f" [{iso(now)[:19]}] iteration {number:8d}/   29881 | global batch size:   256 | lm loss: 6.681113E+00 |"
    ),
    "torchtitan": lambda number, seconds, now: (
        f"[rank0]:[titan] {iso(now)} - root - INFO - \x1b[31mstep: {number:2d}  \x1b[32mloss:  7.62585  grad_norm: 2.62"
        f"  memory: 66.91GiB(37.51%)  tps: {16384 / seconds:,.0f}  tflops: 314.71  mfu: 31.99%\x1b[39m"
    ),
    "nanotron": lambda number, seconds, now: (
        f"{now.strftime('%m/%d/%Y %H:%M:%S')} [INFO|DP=0|PP=0|TP=0]: iteration: {number} / 500 | consumed_tokens: 93.2K"
        f" | elapsed_time_per_iteration_ms: {1000 * seconds:.3g} | tokens_per_sec: {131072 / seconds / 1000:.3g}K |"
        f" tokens_per_sec_per_gpu: {16384 / seconds / 1000:.3g}K | global_batch_size: 32 | lm_loss: 9.2"
    ),
    "OLMo-core": lambda number, seconds, _: (
        f"2026-01-01 00:00:00.000\tINFO\t[step={number}/2384,epoch=1,eta=1h20m]\n    train/CE loss=2.611\n"
        f"    throughput/device/TPS={16384 / seconds:,.0f}\n    throughput/device/BPS={1 / seconds:.4f}"
    ),
    "MaxText": lambda number, seconds, _: (
        f"completed step: {number}, seconds: {seconds:.3f}, TFLOP/s/device: {400 / seconds:.3f}, Tokens/s/device:"
        f" {16384 / seconds:.3f}, total_weights: 196608, loss: 10.374"
    ),
    "llm.c": lambda number, seconds, _: (
        f"step {number:4d}/500 | loss 3.208939 (+nanz)| norm 1.4800 (+nanz)| {1000 * seconds:.2f} ms | 51.3% bf16 MFU |"
        f" {131072 / seconds:.0f} tok/s"
    ),
    "nanoGPT": lambda number, seconds, _: f"iter {number}: loss 5.4983, time {1000 * seconds:.2f}ms, mfu 30.96%",
    "nanochat": lambda number, seconds, _: (
        f"step {number:05d}/21400 (0.02%) | loss: 8.893647 | lrm: 1.00 | dt: {1000 * seconds:.2f}ms | tok/sec:"
        f" {524288 / seconds:,.0f} | mfu: 44.13 | total time: 0.00m"
    ),
    "DeepSpeed": lambda number, seconds, now: (
        f"[{iso(now)}] [INFO] [timer.py:215:stop] epoch=0/micro_step={number}/global_step={number},"
        f" RunningAvgSamplesPerSec=64, CurrSamplesPerSec={64 / seconds:.6f}, MemAllocated=59.65GB"
    ),
    "Composer": lambda number, seconds, _: (
        f"[epoch=1][batch={number}/500]:\n\t Train loss/train/total: 8.4213\n"
        f"\t Train throughput/batches_per_sec: {1 / seconds:.4f}"
    ),
}


def whole_log(  # each is a slow-down of its own
    framework: str,
    seed: int,
    *,
    seconds: Seconds = lambda _: 1.0,
    pause: Seconds = lambda _: 0.0,
    after_each: str = "",
    before: str = "",
    noise: float = 0.02,
) -> Iterator[str]:
    """A log of 100 steps of about a second; the first takes long.

    Args:
        pause: seconds after a step that the framework does not time.
        after_each: lines after the line of each step.
    """
    draw, now = random.Random(f"{framework} {seed}"), datetime.datetime(2026, 5, 6, 7)
    yield before
    for number in range(1, STEPS + 1):
        each = seconds(number) * draw.gauss(1, noise) + (20 if number == 1 else 0)
        now += datetime.timedelta(seconds=each)
        yield LINES[framework](number, each, now)
        yield after_each
        now += datetime.timedelta(seconds=pause(number))


def slower_by_heat(number: int) -> float:
    return 1 + max(0, number - 40) / 200


def saving(number: int) -> float:
    return 6.0 if number % 20 == 0 else 1.0


def hiccups(number: int) -> float:
    return 4.0 if number in (13, 29, 37, 55, 58, 80, 96) else 1.0


def pausing(number: int) -> float:
    return 8.0 if number % 25 == 0 else 0.0


STRAGGLER = (
    "(min, max) time across ranks (ms):\n"
    "    forward-backward ...............................: (600.39, 950.09)\n"
    "    optimizer ......................................: (34.56, 34.92)"
)
PIPELINE = "time (ms) | forward-compute: 300.00 | forward-recv: 200.0 | backward-compute: 400.00 | backward-recv: 100.0"
FLUSHED = "3 pytorch allocator cache flushes since last step. this happens when there is high memory pressure"
INJECTED: dict[str, tuple[str, dict[str, object], str]] = {
    "a slow rank": ("Megatron-LM", {"after_each": STRAGGLER}, "ranks differ: forward-backward"),
    "a slow loader": ("Megatron-LM", {"after_each": "time (ms) | batch-generator: 523.89"}, "waiting for the input"),
    "few micro-batches": ("Megatron-LM", {"after_each": PIPELINE}, "stages wait for each other"),
    "checkpoints": ("Megatron-LM", {"pause": pausing}, "a pause every 25 steps"),
    "heat": ("Megatron-DeepSpeed", {"seconds": slower_by_heat}, "the last third of the steps is"),
    "slow batches": ("GPT-NeoX", {"after_each": "time (ms) | batch generator: 312.1"}, "waiting for the input"),
    "NeMo saves": ("NeMo", {"seconds": saving}, "stalls: every 20 steps"),
    "NeMo hiccups": ("NeMo", {"seconds": hiccups}, "stalls: 7 of 97 steps"),
    "a bridge in heat": ("Megatron-Bridge", {"seconds": slower_by_heat}, "the last third of the steps is"),
    "memory nearly full": ("torchtitan", {"after_each": FLUSHED}, "memory is nearly full"),
    "nanotron saves": ("nanotron", {"pause": pausing}, "a pause every 25 steps"),
    "OLMo's loader": (
        "OLMo-core",
        {"after_each": "    throughput/device/data loading (%)=31.5"},
        "waiting for the input",
    ),
    "MaxText saves": ("MaxText", {"seconds": saving}, "stalls: every 20 steps"),
    "llm.c in heat": ("llm.c", {"seconds": slower_by_heat}, "the last third of the steps is"),
    "nanoGPT evaluates": ("nanoGPT", {"seconds": saving}, "stalls: every 20 steps"),
    "nanochat hiccups": ("nanochat", {"seconds": hiccups}, "stalls: 7 of 97 steps"),
    "offloading": (
        "DeepSpeed",
        {"before": 'zero_config: {"offload_optimizer": {"device": "cpu"}}'},
        "state is offloaded",
    ),
    "untimed loading": ("Megatron-LM", {"pause": lambda _: 0.5}, "between the steps"),
    "Composer in heat": ("Composer", {"seconds": slower_by_heat}, "the last third of the steps is"),
    "unfused attention": ("Megatron-LM", {"before": "  use_flash_attn ........ False"}, "attention without a fused"),
}


def causes(capsys: pytest.CaptureFixture[str], path: Path, lines: Iterator[str]) -> list[str]:
    path.write_text("\n".join(lines), encoding="utf-8")
    main(["diagnose", str(path), "--json"])
    return [cause["words"] for cause in json.loads(capsys.readouterr().out)["diagnosis"]["causes"]]


@pytest.mark.parametrize("injected", INJECTED)
def test_the_injected_cause_is_named_first(injected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    framework, changes, words = INJECTED[injected]
    found = causes(capsys, tmp_path / "train.log", whole_log(framework, 1, **changes))  # type: ignore[arg-type]
    assert found
    assert found[0].startswith(words)


@pytest.mark.parametrize("framework", LINES)
def test_of_an_undisturbed_run_no_cause_is_named(
    framework: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert causes(capsys, tmp_path / "train.log", whole_log(framework, 2)) == []
    assert causes(capsys, tmp_path / "noisy.log", whole_log(framework, 3, noise=0.05)) == []
