"""LoRA and QLoRA by peft's own modules, counted to the byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reference_runs.errors import InputError
from suite.job.operators import OperatorKind, TracePhase
from suite.job.trace_job import Adapters, ModelSource, NumberFormat, Sharding, StepTrace, TraceJob
from suite.reproduce.traced import traced
from tests.execute.trace import models

pytestmark = pytest.mark.ranks

H, R = models.HIDDEN, 8
# a layer's products by inputs and outputs: attention, its output, up and down
SIZES = [(H, 3 * H), (H, H), (H, 4 * H), (4 * H, H)]
ADAPTERS = models.LAYERS * R * sum(columns + rows for columns, rows in SIZES)
LINEAR = models.LAYERS * sum(columns * rows for columns, rows in SIZES)
OTHERS = models.VOCABULARY * H + models.LAYERS * 2 * H
OWN = ModelSource(module=f"{Path(models.__file__)}:build")


def job(**options: object) -> TraceJob:
    values = {"source": OWN, "number_format": NumberFormat.BF16_PURE, "micro_batch": 4, "sequence": 256}
    return TraceJob(**(values | options))  # type: ignore[arg-type]


def most(trace: StepTrace, category: str) -> int:
    return max(moment.bytes.get(category, 0) for moment in trace.fullest)


def test_frozen_weights_have_neither_gradients_nor_state() -> None:
    lora, qlora, sharded = traced(
        [
            job(adapters=Adapters(rank=R)),
            job(adapters=Adapters(rank=R, quantised=True)),
            job(adapters=Adapters(rank=R, quantised=True), ranks=8, sharding=Sharding.RESHARDED),
        ]
    )
    for trace, element in ((lora, 4), (qlora, 4), (sharded, 2)):  # bytes of an adapter's
        assert trace.parameters.total == LINEAR + OTHERS + ADAPTERS
        assert trace.parameters.trainable == ADAPTERS
        share = 8 if trace is sharded else 1
        assert most(trace, "gradients") == element * ADAPTERS // share
        assert most(trace, "optimizer state") == pytest.approx(2 * element * ADAPTERS // share, abs=200)
    assert lora.parameters.by_dtype == {"bfloat16": LINEAR + OTHERS, "float32": ADAPTERS}
    assert qlora.parameters.by_dtype == {"nf4": LINEAR, "bfloat16": OTHERS, "float32": ADAPTERS}
    buffers = 2 * 7
    assert most(lora, "weights") == 2 * (LINEAR + OTHERS) + 4 * ADAPTERS + buffers
    # half a byte, a byte for each 64, four for each 64 * 256, and for each matrix a mean and two tables, one of them
    # a copy of a table that bitsandbytes keeps too
    packed = LINEAR // 2 + LINEAR // 64 + 4 * LINEAR // (64 * 256) + models.LAYERS * len(SIZES) * 4 * (1 + 16 + 256)
    packed += 4 * 256
    assert most(qlora, "weights") == packed + 2 * OTHERS + 4 * ADAPTERS + buffers
    # packed weights are multiplied as the unpacked ones are, and have no gradient
    forward = [
        sum(o.calls * o.flop for o in t.operators if o.phase is TracePhase.FORWARD and o.kind is OperatorKind.GEMM)
        for t in (lora, qlora)
    ]
    assert forward[0] == forward[1] == 2 * 4 * 256 * (LINEAR + ADAPTERS + models.VOCABULARY * H)


def test_targets_are_those_that_are_named(tmp_path: Path) -> None:
    values = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values | {"intermediate_size": 512, "vocab_size": 1000}))
    source = ModelSource(configuration=str(path))
    some, every = traced(
        [
            job(source=source, adapters=Adapters(rank=R, targets=("q_proj", "v_proj"))),
            job(source=source, adapters=Adapters(rank=R)),
        ]
    )
    assert some.parameters.trainable == 2 * 2 * R * 512
    assert every.parameters.trainable == 2 * R * (4 * 512 + 3 * (256 + 512))  # not of the head
    with pytest.raises(InputError, match="peft gives it no adapters.*no_such_layer"):
        traced([job(source=source, adapters=Adapters(rank=R, targets=("no_such_layer",)))])
    with pytest.raises(InputError, match="it has no linear layer named v_porj"):
        traced([job(source=source, adapters=Adapters(rank=R, targets=("q_proj", "v_porj")))])
