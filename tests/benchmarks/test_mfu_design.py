"""Counts of a simulated device's log, and the predicted time of a counted step."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks.mfu_design.__main__ import detail, main, on_one_gpu, row
from benchmarks.mfu_design.hopper import predicted_step
from benchmarks.mfu_design.launch_log import CountedStep, LaunchKind, LoggedStep, logged_step
from suite.paths import ROOT

LOG = """\
7 10.000000 launch device=0 grid=1,1,1 block=1,1,1 shared=0 triton_poi_fused_add_0
7 11.000000 launch device=0 grid=1,1,1 block=1,1,1 shared=0 triton_poi_fused_add_0
7 11.100000 launch device=0 grid=1,1,1 block=1,1,1 shared=0 cudnn_graph
7 11.200000 matmul device=0 768x65536x2304 count=2 cublasLtMatmul
7 11.200001 matmul device=0 768x65536x2304 count=1 cublasGemmEx
8 11.300000 matmul device=0 1x1x1 count=1 cublasGemmEx
7 11.400000 launch device=0 grid=1,1,1 block=1,1,1 shared=0 _ZN2at6native25multi_tensor_apply_kernelI
7 11.500000 launch device=0 grid=1,1,1 block=1,1,1 shared=0 _ZN2at6native18elementwise_kernel23direct_copy_kernel_cuda
7 11.600000 launch device=0 grid=1,1,1 block=1,1,1 shared=0 _ZN2at6native13reduce_kernel
7 11.700000 fill device=0 bytes=4
7 11.750000 copy device=0 bytes=524288 to_device pinned
7 11.800000 copy device=0 bytes=8 to_host pageable host waits
7 11.900000 wait device=0 stream
7 13.000000 wait device=0 device
"""


def step_of_log() -> LoggedStep:
    return logged_step(LOG.splitlines(), process=7, start=10.5, end=12.0)


def test_launches_of_the_process_and_the_time_are_counted_by_kind() -> None:
    assert step_of_log() == LoggedStep(
        launches={
            LaunchKind.COMPILED: 1,
            LaunchKind.ATTENTION: 1,
            LaunchKind.PRODUCT: 2,
            LaunchKind.TENSOR_LISTS: 1,
            LaunchKind.CAST: 1,
            LaunchKind.OTHER: 1,
            LaunchKind.FILL: 1,
            LaunchKind.TRANSFER: 2,
        },
        products=[(768, 65536, 2304, 3)],
        waits=["wait stream"],
    )
    assert step_of_log().kernels == 8


def test_a_copy_from_pageable_memory_counts_as_a_wait() -> None:
    step = logged_step(LOG.replace("to_device pinned", "to_device pageable").splitlines(), process=7, start=10, end=12)
    assert step.waits == ["copy bytes=524288 to_device pageable", "wait stream"]


def test_what_is_launched_after_a_wait_is_counted() -> None:
    assert step_of_log().launches_after_wait == 0
    moved = LOG.replace("7 13.000000 wait device=0 device", "7 11.950000 fill device=0 bytes=4")
    assert logged_step(moved.splitlines(), process=7, start=10.5, end=12.0).launches_after_wait == 1


def counted(**changes: object) -> CountedStep:
    usual = CountedStep(
        micro_batches=8,
        layers=12,
        host_seconds=0.05,
        graphs=2,
        graph_breaks=0,
        compiled_bytes=10**12,
        operator_bytes=0,
        step=LoggedStep(
            launches={LaunchKind.PRODUCT: 1000}, products=[(65536, 3072, 768, 1000)], waits=["wait stream"]
        ),
    )
    return msgspec.structs.replace(usual, **changes)


def test_a_step_s_terms_follow_what_was_counted() -> None:
    workload = on_one_gpu("gpt2-124m")
    one, more = (predicted_step(workload, counted(compiled_bytes=size)) for size in (10**12, 2 * 10**12))
    # 3.35 TB/s of the data sheet and no more
    assert more.terms["operators"] - one.terms["operators"] > 10**12 / 3.35e12
    assert {name: more.terms[name] for name in ("products", "attention", "kernels")} == {
        name: one.terms[name] for name in ("products", "attention", "kernels")
    }
    flop = 2 * 65536 * 3072 * 768 * 1000
    assert one.terms["products"] > flop / 989.4e12
    assert one.binding == "products"
    slow, fast = (one.mfu_at_rate[rate] for rate in (650, 770))
    assert slow < fast < 1
    rate = flop / one.terms["products"] / 1e12  # the model's own
    assert (one.mfu - slow) * (rate - 650) >= 0
    assert (one.mfu - fast) * (rate - 770) >= 0
    assert more.mfu < one.mfu


def test_half_of_the_layers_have_half_of_the_attention_and_less_of_the_model_s_flop() -> None:
    workload = on_one_gpu("gpt2-124m")
    whole, half = (predicted_step(workload, counted(layers=layers)) for layers in (12, 6))
    assert whole.terms["attention"] == pytest.approx(2 * half.terms["attention"])
    assert half.mfu * half.seconds < whole.mfu * whole.seconds


def test_the_table_says_where_layers_are_left_out() -> None:
    workload = on_one_gpu("gpt2-124m")
    for layers, said in ((12, "| gpt2-124m |"), (2, "| gpt2-124m, 2 layers |")):
        found = counted(layers=layers)
        line = row("gpt2-124m", "the suite", found, predicted_step(workload, found))
        assert line.startswith(said)
    assert "wait stream" in detail("gpt2-124m", "the suite", found, predicted_step(workload, found))


def test_without_a_simulated_device_one_line_says_how(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SIMULATED_CUDA_DEVICES", raising=False)
    monkeypatch.setattr("sys.argv", ["mfu_design"])
    assert main() == 2
    assert capsys.readouterr().err.count("\n") == 1


DOCUMENT = (ROOT / "docs" / "mfu_design.md").read_text(encoding="utf-8")
COUNTED = {"gpt2-124m": (8, 64), "gpt2-1558m": (64, 16)}  # micro-batches and their samples
CHUNK = 8192  # tokens of the suite's head and loss; the plain script has all at once


def cells(run: str, script: str, table: int) -> list[str]:
    """Of the document's first or second table, the row of a run and a script."""
    rows = [line for line in DOCUMENT.splitlines() if line.startswith(f"| {run} | {script} |")]
    return [cell.strip() for cell in rows[table].strip("|").split("|")]


def counted_in_the_document(run: str, script: str) -> CountedStep:
    """The launches and bytes that it prints, and the products that a GPT-2 has: three for each matrix."""
    architecture = on_one_gpu(run).architecture
    micro_batches, samples = COUNTED[run]
    hidden, tokens = architecture.hidden, samples * architecture.sequence
    chunk = CHUNK if script == "the suite" else tokens
    products = []
    for rows, width, depth, times in (
        *((tokens, *sizes, architecture.layers) for sizes in ((3 * hidden, hidden), (hidden, hidden))),
        *((tokens, *sizes, architecture.layers) for sizes in ((4 * hidden, hidden), (hidden, 4 * hidden))),
        (chunk, architecture.padded_vocabulary, hidden, tokens // chunk),
    ):
        shapes = ((rows, width, depth), (rows, depth, width), (depth, width, rows))
        products += [(*shape, times * micro_batches) for shape in shapes]
    first, second = cells(run, script, 0), cells(run, script, 1)
    moved = float(second[-1].removesuffix(" GB")) * 1e9 * micro_batches
    step = LoggedStep(launches={LaunchKind.OTHER: int(first[2].replace(",", ""))}, products=products, waits=[])
    return counted(micro_batches=micro_batches, layers=architecture.layers, compiled_bytes=int(moved), step=step)


@pytest.mark.parametrize("run", COUNTED)
@pytest.mark.parametrize("script", ["the suite", "plain script"])
def test_the_document_s_predicted_terms_are_the_model_s(run: str, script: str) -> None:
    found = counted_in_the_document(run, script)
    predicted = predicted_step(on_one_gpu(run), found)
    terms = [f"{1e3 * seconds / found.micro_batches:.1f} ms" for seconds in predicted.terms.values()]
    assert cells(run, script, 1)[2:6] == terms
    first = cells(run, script, 0)
    assert float(first[7]) == pytest.approx(predicted.seconds, rel=1e-3)  # bytes are printed to 0.1 GB
    assert first[9] == f"{NAMES[predicted.binding]} {predicted.terms[predicted.binding] / predicted.seconds:.0%}"
    shares = [predicted.mfu, *predicted.mfu_at_rate.values()]
    assert [float(share.strip("%")) / 100 for share in first[10:]] == pytest.approx(shares, abs=6e-4)
    assert float(first[8].strip("%")) == pytest.approx(100 * float(first[6]) / predicted.seconds, abs=0.06)


NAMES = {"products": "products", "operators": "other kernels"}
