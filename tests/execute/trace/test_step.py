"""A trace without memory is what the same step does with it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from suite.execute.measure.counters import KeptForBackward, LocalFlopCounter
from suite.execute.measure.peak_memory import AllocatedPeak
from suite.job.operators import OperatorKind, TracePhase
from suite.job.trace_job import ModelSource, NumberFormat, OptimizerKernel, Sharding, TraceJob
from suite.reproduce.traced import traced
from tests.execute.trace import models

pytestmark = pytest.mark.ranks

SEQUENCE, SAMPLES = 256, 4
SOURCE = ModelSource(module=f"{Path(models.__file__)}:build")
LAYER = 2 * models.HIDDEN + 12 * models.HIDDEN**2
PARAMETERS = models.VOCABULARY * models.HIDDEN + models.LAYERS * LAYER
PRODUCTS = 2 * SAMPLES * SEQUENCE * (models.VOCABULARY * models.HIDDEN + models.LAYERS * 12 * models.HIDDEN**2)
SCORES = models.LAYERS * 4 * SAMPLES * SEQUENCE**2 * models.HIDDEN  # both products, over the full square


def job(**options: Any) -> TraceJob:
    values = {
        "source": SOURCE,
        "micro_batch": SAMPLES,
        "sequence": SEQUENCE,
        "number_format": NumberFormat.FP32,
    } | options
    return TraceJob(**{"source": SOURCE} | values)


def executed(*, half: bool) -> tuple[int, int, int]:
    """Flop, kept bytes and peak of the same step with memory."""
    peak = AllocatedPeak(torch.device("cpu"))
    model: nn.Module = models.build()
    model = model.to(torch.bfloat16) if half else model
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    ids_BT = torch.ones(SAMPLES, SEQUENCE, dtype=torch.int64)
    kept = KeptForBackward(lambda: [parameter.detach() for parameter in model.parameters()])
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    with peak.window():
        model(ids_BT).backward()
        optimizer.step()
        optimizer.zero_grad()
    peak.finish()
    with LocalFlopCounter() as flop:
        with kept.hooks():
            loss = model(ids_BT)
        kept_bytes = kept.bytes()
        loss.backward()
    assert peak.bytes is not None
    return int(flop.get_total_flops()), kept_bytes, peak.bytes


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16-pure"])
def test_flop_kept_bytes_and_peak_are_those_of_the_step_with_memory(half: bool) -> None:
    (found,) = traced([job(number_format=NumberFormat.BF16_PURE if half else NumberFormat.FP32)])
    flop, kept, peak = executed(half=half)
    assert found.parameters.total == found.parameters.trainable == PARAMETERS
    assert found.parameters.buffers == 7
    by_phase = {phase: sum(o.calls * o.flop for o in found.operators if o.phase is phase) for phase in TracePhase}
    assert by_phase[TracePhase.FORWARD] == PRODUCTS + SCORES
    assert by_phase[TracePhase.FORWARD] + by_phase[TracePhase.BACKWARD] == flop
    assert sum(found.kept_bytes.values()) == kept
    assert found.peak_bytes == pytest.approx(peak, rel=0.02)
    assert found.at_peak.total == found.peak_bytes


def test_a_module_may_convert_itself_and_keeps_tied_weights() -> None:
    (found,) = traced([job(source=ModelSource(module=f"{models.__file__}:build_half"))])
    assert found.parameters.by_dtype == {"bfloat16": PARAMETERS}
    assert found.at_peak.bytes["weights"] == pytest.approx(2 * PARAMETERS, rel=1e-3)


def test_every_operator_belongs_to_a_module_and_has_a_kind() -> None:
    (found,) = traced([job()])
    gemms = [o for o in found.operators if o.kind is OperatorKind.GEMM]
    by_module: dict[str, int] = {}
    for operator in gemms:
        by_module[operator.module] = by_module.get(operator.module, 0) + operator.calls
    # a product forward and two backward
    linear = {f"layers.*.{name}": 3 * models.LAYERS for name in ("attention", "output", "up", "down")}
    assert by_module == linear | {"head": 3}
    attention = [o for o in found.operators if o.kind is OperatorKind.ATTENTION]
    assert {o.module for o in attention} == {"layers.*"}
    assert sum(o.calls for o in attention) == 2 * models.LAYERS
    assert {o.module for o in found.operators if o.phase is TracePhase.UPDATE} == {""}


def test_layers_that_are_computed_again_keep_their_inputs_alone() -> None:
    plain, again = traced([job(), job(recompute=True)])
    of_layers = sum(size for name, size in again.kept_bytes.items() if name.startswith("layers"))
    hidden = SAMPLES * SEQUENCE * models.HIDDEN * 4
    assert of_layers == models.LAYERS * hidden
    recomputed = sum(o.calls * o.flop for o in again.operators if o.phase is TracePhase.RECOMPUTATION)
    once = sum(o.calls * o.flop for o in plain.operators if o.phase is TracePhase.FORWARD)
    head = 2 * SAMPLES * SEQUENCE * models.VOCABULARY * models.HIDDEN
    last = 2 * SAMPLES * SEQUENCE * 4 * models.HIDDEN**2  # recomputation stops when the last kept tensor is there
    assert once - head - models.LAYERS * last <= recomputed <= once - head
    assert again.peak_bytes < plain.peak_bytes


def test_sharded_ranks_gather_and_reduce_what_fsdp_says() -> None:
    half = job(ranks=8, sharding=Sharding.RESHARDED, number_format=NumberFormat.BF16)
    sharded, replicated = traced([half, job(ranks=8)])
    sums = {each.operation: each.payload_bytes for each in sharded.collectives}
    layers, root = models.LAYERS * LAYER, PARAMETERS - models.LAYERS * LAYER
    assert sums == {"all_gather": 2 * (2 * layers + root), "reduce_scatter": 4 * PARAMETERS}
    assert {each.operation: each.payload_bytes for each in replicated.collectives} == {"all_reduce": 4 * PARAMETERS}
    state = {"weights": 4 * PARAMETERS, "optimizer state": 8 * PARAMETERS}
    for category, size in state.items():
        assert replicated.at_peak.bytes[category] == pytest.approx(size, rel=0.01)
        assert sharded.at_peak.bytes[category] == pytest.approx(size / 8, rel=0.01)


@pytest.mark.parametrize("sharding", [Sharding.REPLICATED, Sharding.RESHARDED])
def test_gradients_that_wait_for_the_last_micro_batch_are_reduced_once(sharding: Sharding) -> None:
    options = {"ranks": 8, "sharding": sharding, "micro_batches": 4}
    each, once = traced([job(**options), job(**options, synchronises_once=True)])
    reduction = "all_reduce" if sharding is Sharding.REPLICATED else "reduce_scatter"
    of_each, of_once = (
        next(c.payload_bytes for c in found.collectives if c.operation == reduction) for found in (each, once)
    )
    assert of_each == 4 * of_once
    shares = [1, 1] if sharding is Sharding.REPLICATED else [8, 1]  # a shard of each gradient, or all of it
    for found, share in zip((each, once), shares, strict=True):
        most = max(moment.bytes.get("gradients", 0) for moment in found.fullest)
        assert most == pytest.approx(4 * PARAMETERS / share, rel=0.01)


def test_selective_recomputation_keeps_attention_and_every_other_product() -> None:
    plain, by_operator, whole = traced([job(), job(recompute=True, saves_products=True), job(recompute=True)])
    elements = SAMPLES * SEQUENCE * models.HIDDEN
    kept = 1 + 3 + 1 + 4  # input, queries with keys and values, what attention returns, the wider of the two layers
    sums = SAMPLES * SEQUENCE * models.HEADS  # log-sum-exp of attention
    of_layers = sum(size for name, size in by_operator.kept_bytes.items() if name.startswith("layers"))
    assert of_layers == models.LAYERS * 4 * (kept * elements + sums)
    again = [o for o in by_operator.operators if o.phase is TracePhase.RECOMPUTATION]
    assert {o.module for o in again if o.kind is OperatorKind.GEMM} == {"layers.*.output"}
    assert sum(o.calls * o.flop for o in again) == models.LAYERS * 2 * elements * models.HIDDEN
    assert whole.peak_bytes < by_operator.peak_bytes < plain.peak_bytes


def test_every_second_layer_is_computed_again() -> None:
    plain, second = traced([job(), job(recompute=True, recompute_every=2)])
    products = [o for o in second.operators if o.phase is TracePhase.RECOMPUTATION and o.kind is OperatorKind.GEMM]
    assert sum(o.calls for o in products) == 3  # of one of three layers, without the last product
    of_layers = [sum(n for name, n in t.kept_bytes.items() if name.startswith("layers")) for t in (plain, second)]
    hidden = SAMPLES * SEQUENCE * models.HIDDEN * 4
    assert of_layers[1] == of_layers[0] * 2 // 3 + hidden


def test_the_peak_is_told_by_module_too() -> None:
    (found,) = traced([job(ranks=8, sharding=Sharding.RESHARDED)])
    categories: dict[str, int] = {}
    for each in found.peak_modules.values():
        for category, size in each.items():
            categories[category] = categories.get(category, 0) + size
    assert categories == found.at_peak.bytes
    up = found.peak_modules["layers.*.up"]
    assert up["weights"] == models.LAYERS * 4 * 4 * models.HIDDEN**2 // 8
    assert up["optimizer state"] == pytest.approx(2 * up["weights"], rel=1e-3)


def states(*, sharded: bool) -> dict[OptimizerKernel, int]:
    """Bytes of optimizer state over all ranks."""
    ranks, sharding = (8, Sharding.RESHARDED) if sharded else (1, Sharding.REPLICATED)
    kinds = [kind for kind in OptimizerKernel if kind is not OptimizerKernel.ADAMW_8BIT or find_spec("bitsandbytes")]
    found = traced([job(optimizer=kind, ranks=ranks, sharding=sharding) for kind in kinds])
    return {k: ranks * t.at_peak.bytes.get("optimizer state", 0) for k, t in zip(kinds, found, strict=True)}


@pytest.mark.parametrize("sharded", [False, True], ids=["one", "fsdp"])
def test_state_bytes_of_every_optimizer(sharded: bool) -> None:
    matrices = models.LAYERS * 12 * models.HIDDEN**2
    norms = models.LAYERS * 2 * models.HIDDEN
    large = PARAMETERS - norms
    wanted = {
        OptimizerKernel.ADAMW: 8 * PARAMETERS,
        OptimizerKernel.ADAMW_FUSED: 8 * PARAMETERS,
        OptimizerKernel.MUON: 4 * matrices + 8 * (PARAMETERS - matrices),
        OptimizerKernel.SGD: 0,
        OptimizerKernel.SGD_MOMENTUM: 4 * PARAMETERS,
        # two bytes an element, two scales for every 256, and two tables a rank; small tensors stay in fp32
        OptimizerKernel.ADAMW_8BIT: (2 + 8 / 256) * large + 8 * norms + 2048 * (8 if sharded else 1),
    }
    found = states(sharded=sharded)
    wrong = {kind: (size, wanted[kind]) for kind, size in found.items() if abs(size - wanted[kind]) > 1000}
    assert wrong == {}


def test_a_fused_update_has_no_temporaries() -> None:
    adamw, fused = traced([job(optimizer=kind) for kind in (OptimizerKernel.ADAMW, OptimizerKernel.ADAMW_FUSED)])
    largest = [max((m.total for m in each.fullest if m.phase == "update"), default=0) for each in (adamw, fused)]
    assert largest[0] - largest[1] >= 4 * PARAMETERS  # roots of all second moments, a list at a time
