"""Every framework's line is read by its keys, with its units."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.training_logs.formats import FORMATS
from reference_runs.training_logs.training_log import training_log

# Framework -> lines after its documented format, with numbers of our own, and what they say
LINES: dict[str, tuple[str, dict[str, float]]] = {
    "Megatron-DeepSpeed": (
        " iteration      199/  317892 | consumed samples:  152832 | elapsed time per iteration (ms): 14000.5 |"
        " learning rate: 2.407E-04 | global batch size:   768 | lm loss: 5.905366E+00 | actual seqlen:  4096 |"
        " samples per second: 53.753 | tokens per gpu per second (tgs): 1146.733 | TFLOPs: 69.85 |",
        {"seconds": 14.0005, "samples": 768, "sequence": 4096, "flop_per_second": 69.85e12, "number": 199},
    ),
    "Megatron-DeepSpeed of ALCF": (
        " iteration=     199/  317892 | consumed_samples=  152832 | elapsed_time_per_iteration_ms=14000.5 |"
        " global_batch_size=  768 | lm loss=5.905366 | actual_seqlen= 4096 | samples_per_second=25.972 |"
        " tokens_per_gpu_per_second_tgs=4432.597 | [LM]TFLOPs=20.30 | [DS]TFLOPs=26.18 |",
        {"seconds": 14.0005, "samples": 768, "sequence": 4096, "flop_per_second": 20.3e12, "number": 199},
    ),
    "GPT-NeoX": (
        " samples/sec: 7.439 | iteration       20/   10000 | elapsed time per iteration (ms): 4301.7 |"
        " learning rate: 1.242E-06 | approx flops per GPU: 107.7TFLOPS | lm_loss: 1.118885E+01 |",
        {"seconds": 4.3017, "samples_per_second": 7.439, "flop_per_second": 107.7e12, "loss": 11.18885},
    ),
    "Megatron-LM": (
        "[default3]: [2025-11-28 18:48:17.123456] iteration       50/    5000 | consumed samples:  51200 |"
        " elapsed time per iteration (ms): 1674.3 | throughput per GPU (TFLOP/s/GPU): 68.2 | global batch size: 1024 |"
        " lm loss: 2.5E+00 |",
        {"seconds": 1.6743, "samples": 1024, "flop_per_second": 68.2e12, "loss": 2.5, "last": 5000},
    ),
    "nanotron": (
        "08/31/2024 14:37:31 [INFO|DP=0|PP=0|TP=0]: iteration: 91 / 100 | consumed_tokens: 93.2K |"
        " time_per_iteration_ms: 90.4 | tokens_per_sec: 11.3K | tokens_per_sec_per_gpu: 5.66K |"
        " global_batch_size: 1.02K | lm_loss: 9.2 | model_tflops_per_gpu: 0.784",
        {"seconds": 0.0904, "tokens_per_second": 11300, "device_tokens_per_second": 5660, "loss": 9.2},
    ),
    "NeMo": (
        "Training epoch 0, iteration 45/99 | lr: 6.897e-06 | global_batch_size: 128 | global_step: 45 |"
        " reduced_train_loss: 11.96 | train_step_timing in s: 6.08 | TFLOPS_per_GPU: 1.249e+03 |",
        {"seconds": 6.08, "samples": 128, "flop_per_second": 1.249e15, "number": 45},
    ),
    "Megatron-Bridge": (
        "Step Time : 12.78s GPU utilization: 528.1MODEL_TFLOP/s/GPU\n"
        "0:  [2026-09-09 01:38:01] iteration       50/   29881 | consumed samples: 12800 | global batch size: 256 |"
        " lm loss: 6.681113E+00 |",
        {"seconds": 12.78, "flop_per_second": 528.1e12, "samples": 256, "number": 50},
    ),
    "torchtitan": (
        "[rank0]:[titan] 2026-02-24 19:46:17,508 - root - INFO - \x1b[31mstep:  4  \x1b[32mloss:  7.62585  "
        "grad_norm: 26.6250  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%\x1b[39m",
        {"device_tokens_per_second": 10050, "flop_per_second": 314.71e12, "mfu": 0.1399},
    ),
    "DeepSpeed": (
        "[2023-07-25 21:02:19,296] [INFO] [timer.py:215:stop] epoch=0/micro_step=20/global_step=20, "
        "RunningAvgSamplesPerSec=7.80, CurrSamplesPerSec=7.634, MemAllocated=59.65GB, MaxMemAllocated=63.31GB",
        {"samples_per_second": 7.634, "number": 20},
    ),
    "Composer": (
        "[epoch=1][batch=5/5]:\n\t Train trainer/device_train_microbatch_size: 8\n\t Train loss/train/total: 8.4213\n"
        "\t Train throughput/batches_per_sec: 0.0027\n\t Train throughput/tokens_per_sec: 20082.8418\n"
        "\t Train throughput/device/tokens_per_sec: 1255.1776\n\t Train throughput/device/mfu: 0.46",
        {
            "batches_per_second": 0.0027,
            "tokens_per_second": 20082.8418,
            "device_tokens_per_second": 1255.1776,
            "mfu": 0.46,
        },
    ),
    "OLMo-core": (
        "2026-01-01 00:00:00.000\tINFO\t[step=10/2384,epoch=1,eta=1h20m]\n    train/CE loss=2.611\n"
        "    throughput/device/TPS=7,785\n    throughput/device/MFU=41.2\n    throughput/device/data loading (%)=12.5",
        {"device_tokens_per_second": 7785, "mfu": 0.412, "data_share": 0.125, "number": 10},
    ),
    "MaxText": (
        "completed step: 9, seconds: 5.667, TFLOP/s/device: 134.924, Tokens/s/device: 8672.758, total_weights: 196608,"
        " loss: 10.374",
        {"seconds": 5.667, "flop_per_second": 134.924e12, "device_tokens_per_second": 8672.758, "loss": 10.374},
    ),
    "litgpt": (
        "Epoch 1 | iter 4096 step 1024 | loss train: 4.123, val: n/a | iter time: 512.34 ms (step)",
        {"seconds": 0.51234, "number": 1024, "loss": 4.123},
    ),
    "llm.c": (
        "step   61/74 | loss 3.208939 (+nanz)| norm 1.4800 (+nanz)| 44.57 ms | 51.3% bf16 MFU | 91886 tok/s",
        {"seconds": 0.04457, "mfu": 0.513, "tokens_per_second": 91886, "loss": 3.208939},
    ),
    "nanochat": (
        "step 00004/21400 (0.02%) | loss: 8.893647 | lrm: 1.00 | dt: 989.44ms | tok/sec: 529,882 | mfu: 74.13 |",
        {"seconds": 0.98944, "tokens_per_second": 529882, "mfu": 0.7413, "number": 4},
    ),
    "nanoGPT": (
        "iter 340: loss 5.4983, time 785.52ms, mfu 30.96%",
        {"seconds": 0.78552, "mfu": 0.3096, "loss": 5.4983, "number": 340},
    ),
    "Hugging Face Trainer": (
        "{'train_runtime': 299.1983, 'train_samples_per_second': 8.021, 'train_steps_per_second': 0.334}",
        {"runtime": 299.1983, "samples_per_second": 8.021, "steps_per_second": 0.334},
    ),
}


@pytest.mark.parametrize("framework", [each.name for each in FORMATS])
def test_a_line_says_what_it_prints(framework: str, tmp_path: Path) -> None:
    text, expected = LINES[framework]
    path = tmp_path / "train.log"
    path.write_text(f"some other line\n{text}\n", encoding="utf-8")
    log = training_log(path)
    assert log.format.name == framework
    (step,) = log.steps
    assert {name: getattr(step, name) for name in expected} == pytest.approx(expected)


def test_rates_that_are_not_known_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("iter 1: loss 5.0, time 100.00ms, mfu -100.00%\n", encoding="utf-8")
    assert training_log(path).steps[0].mfu is None
