"""A choice of layouts: each miniature, variation, and thing that layouts differ in, at least once."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch

from reference_runs.catalog import miniatures
from reference_runs.run import Mask
from suite.machine.half_precision import kernels_for
from suite.metrics.figures import Quantity
from suite.predict.executed_run.figures import memory_figures
from tests.end_to_end.layouts.agreement import disagreements, gradient_bound, loss_bound
from tests.end_to_end.layouts.execution import Executed, Executions
from tests.end_to_end.layouts.table import GLOBAL_BATCH, VARIATIONS, Case, table

pytestmark = pytest.mark.ranks

NAME = operator.attrgetter("name")
PEAK = 0.02  # of one rank: of several, what communication threads free late is several per cent of so small a run


def cases(lines: str) -> list[Case]:
    """Cases of lines with a run, its arithmetic, and layouts."""
    words = [line.split() for line in lines.strip().splitlines()]
    return [Case(run, arithmetic, layout) for run, arithmetic, *layouts in words for layout in layouts]


SEQUENCE_PARALLEL = Case("bloom-mini", "fp32", "tp2,sp")
PIPELINED = Case("codegeex-mini", "fp32", "pp2,1f1b")
COPIED_HEADS = Case("starcoder", "fp32", "tp2")
EACH_AXIS = cases("""
    gpt-neox-mini fp32 cp2
    gpt2-mini 16bit dp2,zero1
    codegeex-mini 16bit dp2,zero2
    opt-mini 16bit dp2,zero3
    bloom-mini fp32 tp2,sp
    codegeex-mini fp32 pp2,1f1b pp2,zero-bubble
    gpt2-mini dropout pp2,1f1b,recompute-full,every2
    llama2-mini 16bit dp2,zero3,fused,recompute-selective
    gpt2-mini fp8 dp1
    capacity fp32 ep2
""")
CHOSEN = cases("""
    opt-mini fp32 dp2,tp2,sp,zero1,reduce-scatter
    llama3-mini fp32 cp2,zero3
    gpt2-mini 16bit dp2,pp2,pipedream
    llama3-mini 16bit dp2,zero1,reduce-scatter
    llama2-mini 16bit dp4,zero3,shard2,micro1
    glm-mini dropout dp2,zero3,recompute-full
    mt-nlg-mini fp32 pp2,gpipe
    mixtral-mini fp32 dp2
    qwen3-moe-mini fp32 pp2,1f1b
    deepseek-v3-mini fp32 dp2,zero1
    gpt2-mini fp32 tp2,sp,fused pp2,dualpipev
    llama2-mini fp8 pp2,1f1b,interleave2
""")
VARIED = cases("""
    mixtral fp32 dp1
    qwen3-moe fp32 dp1,recompute-selective
    shared-experts fp32 tp2,sp,recompute-full,every3 ep2,dp2,zero3
    deepseek fp32 dp1,fused,recompute-selective ep2,cp2,zero1
    deepseek 16bit pp2,1f1b,recompute-full
    capacity fp32 tp2
    few-places fp32 dp2,zero3
    documents 16bit pp2,1f1b,interleave2
    documents-alibi fp32 dp1,recompute-full
    starcoder fp32 tp2
    five-layers fp32 pp2,1f1b,interleave2,layers1-1-2-1
""")
RARE = cases("""
    gpt2-mini 16bit dp1,fused
    opt-mini 16bit pp2,1f1b,fused,recompute-selective
    glm-mini fp32 tp2,sp,recompute-full,every2
    codegeex-mini fp32 dp1,fused,recompute-selective
    shared-experts fp32 dp2,zero3
    deepseek fp32 ep2,dp2,zero1
    capacity fp32 dp1
    documents fp32 dp1 dp2,zero3
    documents 16bit dp1,recompute-selective
    documents-alibi 16bit tp2,sp
    five-layers fp32 pp2,1f1b,interleave2
    llama3-mini fp32 cp2,dp2,zero3
    starcoder fp32 tp2,pp2,1f1b,recompute-selective
    shared-experts fp32 ep2,pp2,1f1b,interleave2
    opt-mini fp32 dp1,recompute-full,every3 pp2,pipedream
    bloom-mini dropout tp2,recompute-full
    llama2-mini 16bit cp2,tp2 tp2,sp tp2,pp2,zero-bubble,sp pp2,pipedream-2bw,recompute-selective pp2,1f1b,interleave2
    llama2-mini 16bit tp4,sp dp2,pp2,dualpipev,zero1,reduce-scatter,micro1
    llama3-mini fp8 dp1,fused
    gpt-neox-mini fp8 cp2
    mt-nlg-mini fp8 dp2,zero1
    codegeex-mini fp8 dp1,recompute-full,every3
    gpt2-mini fp32 dp2,zero1,fused pp2,zero-bubble,recompute-selective dp2,pp2,pipedream-vertical-sync,micro1
    gpt2-mini fp32 tp2,pp2,dualpipev dp2,pp2,zbv,zero1,reduce-scatter,micro1
    gpt-neox-mini fp32 dp1,fused,recompute-full pp4,zero-bubble cp4 tp2 dp2,tp2,pp2,1f1b
    llama3-mini 16bit dp2,zero1 dp2,pp2,zero-bubble,zero1,reduce-scatter cp2,pp2,zero-bubble,zero1,reduce-scatter
    llama3-mini 16bit cp2,zero1,recompute-full,every3 dp2,tp2,pp2,1f1b tp2,pp2,zbv,sp
    llama3-mini 16bit cp2,pp2,dualpipev,zero1,reduce-scatter
    mt-nlg-mini fp32 dp2
    llama2-mini fp32 cp2,zero3 dp2,pp2,pipedream dp2,tp2,sp,zero3 tp4
    bloom-mini fp32 cp2,recompute-selective
    gpt2-mini 16bit pp2,zero-bubble,interleave2 pp2,pipedream dp2,pp2,1f1b,zero1,reduce-scatter
    gpt2-mini 16bit cp2,pp2,1f1b,interleave2
    opt-mini 16bit pp2,zero-bubble,recompute-selective dp4,zero2,shard2,micro1 cp2,tp2,sp,recompute-full,every2
    mt-nlg-mini dropout pp2,zero-bubble pp2,pipedream-2bw,recompute-selective
    codegeex-mini fp32 pp2,pipedream-vertical-sync,recompute-full pp2,zbv
    bloom-mini 16bit dp2,pp2,pipedream-2bw,recompute-selective pp4,pipedream,micro8 cp2,dp2,zero1
    bloom-mini 16bit dp1,recompute-selective dp2,tp2,pp2,1f1b,interleave2,sp,zero1,recompute-full
    glm-mini fp32 pp4,pipedream-2bw
    llama3-mini fp32 cp2,dp2,zero3,shard2
    deepseek-v3-mini fp32 dp4,zero3,shard2 dp2,tp2,sp,zero3 dp2,zero1,reduce-scatter
    glm-mini 16bit dp4,zero1,reduce-scatter pp2,1f1b,interleave2
    mt-nlg-mini 16bit dp2 pp2,zbv
    gpt-neox-mini 16bit tp2
    mixtral 16bit dp1,recompute-full ep2,dp2 ep2,zero1 ep2,dp2,zero1 ep2,zero1,reduce-scatter,recompute-full tp2,sp
    mixtral 16bit ep2,tp2,sp ep2,pp2,1f1b,interleave2,recompute-full ep2,zero2,recompute-full
    mixtral 16bit ep2,dp2,zero3,noreshard,recompute-full,every2 cp2,zero1,recompute-full ep2,cp2,recompute-full
    deepseek fp32 dp1 tp2,sp dp2,zero3,fused dp2,zero1 ep2 ep2,dp2,zero1,reduce-scatter tp2,fused,recompute-selective
    deepseek fp32 tp2,sp,recompute-full,every3 ep2,tp2 ep2,tp2,sp,recompute-full ep2,dp2,pp2,1f1b,zero1,micro1
    deepseek fp32 cp2,zero3 cp2,tp2,sp ep2,cp2 ep2,cp2,zero3 ep2,cp2,dp2,zero1 cp2,fused
    shared-experts fp32 ep2,dp2 cp2 ep2,recompute-full,every3 ep2,zero1,reduce-scatter ep2,zero3
    shared-experts fp32 ep2,dp2,zero3,recompute-full ep2,cp2,zero1,reduce-scatter ep2,tp2
    mixtral fp32 ep2 tp2 dp2 ep2,tp2,pp2,1f1b,zero1,reduce-scatter ep2,tp2,pp2,1f1b,sp ep2,dp2,zero2 cp2 ep2,cp2,zero1
    mixtral fp32 ep2,cp2,tp2,sp ep2,cp2,pp2,1f1b ep2,cp2,fused,recompute-selective
    qwen3-moe fp32 ep2,tp2,sp,recompute-full pp2,1f1b tp2,recompute-full ep2,pp2,gpipe,zero1,recompute-full,every2
    qwen3-moe fp32 ep2,dp2,tp2,sp,zero3 cp2,pp2,1f1b,interleave2,recompute-full ep2,cp2,dp2,zero3
    shared-experts 16bit pp2,1f1b,interleave2,recompute-full dp1,recompute-full,every3 cp2,zero1,recompute-full
    qwen3-moe 16bit dp2,zero1 ep2,recompute-full
    deepseek 16bit dp1,recompute-selective tp2,recompute-full ep2,dp2,zero3,offload
    capacity 16bit dp1,recompute-full pp2,1f1b,interleave2,recompute-full ep2,tp2,sp
    few-places 16bit dp1 ep2,recompute-full
    capacity fp32 dp2,zero1 ep2,pp2,1f1b cp2,recompute-full ep2,cp2,zero1
    few-places fp32 ep2,dp2,zero3 cp2
    latent fp32 cp2 cp2,tp2,sp tp2 tp2,sp,pp2,1f1b
    latent 16bit cp2,zero3,recompute-full
    gated-shared-experts fp32 ep2,tp2 dp2,recompute-full,every2 tp2
    gated-shared-experts 16bit dp1 dp2,zero3 ep2,tp2,sp
    normed-heads fp32 tp4
    starcoder fp32 dp2,tp2,sp,zero3 dp2,tp2,zero1 dp2,tp2,sp,zero1,reduce-scatter cp2,tp2
    starcoder 16bit tp4,sp,recompute-full tp2,sp,fused
    eight-layers fp32 pp4,zbv,micro1
    eight-tied-layers 16bit pp4,dualpipev,micro1
""")
# where no table is read twice, every pass adds to a gradient in the order of the micro-batches
BIT_BY_BIT = cases("llama2-mini fp32 pp2,zero-bubble pp2,zbv pp2,dualpipev")


def marked(cases: list[Case], mark: pytest.MarkDecorator) -> list[Any]:
    return [pytest.param(case, marks=mark) for case in cases]


@pytest.mark.parametrize(
    "case", [*marked(EACH_AXIS, pytest.mark.always), *CHOSEN, *VARIED, *marked(RARE, pytest.mark.rare)], ids=NAME
)
def test_a_layout_computes_what_one_process_does_at_the_predicted_cost(case: Case, executed: Executions) -> None:
    done, single = executed(case), executed(case.single) if case.is_compared else None
    found = [*disagreements(done, single), *strange_routes(done), *strange_packing(done)]
    if case.run in VARIATIONS:
        found += differing_peak(done)
    assert found == [], "\n".join(found)


def strange_routes(done: Executed) -> Iterator[str]:
    """Routers that do not report a row for each choice of the counted step, or whose auxiliary loss cannot be."""
    shape, layout = done.job.architecture, done.job.layout
    routing = layout.replicas * layout.context_parallel  # ranks that have tokens of their own
    tokens = GLOBAL_BATCH * shape.sequence // routing
    routed = [layer for report in done.finished for layer in report.routed]
    mixtures = range(shape.dense_layers, shape.layers) if shape.experts else ()
    if sorted(layer.layer for layer in routed) != sorted([*mixtures] * routing):
        yield f"layers with routers: {[layer.layer for layer in routed]}"
    for layer in routed:
        experts, choices = shape.experts or 0, shape.experts_per_token or 0
        if len(layer.rows) != experts or sum(layer.rows) + layer.dropped != tokens * choices:
            yield f"layer {layer.layer}: rows {layer.rows}, {layer.dropped} dropped"
        if (layer.dropped > 0) != (shape.capacity_factor is not None):
            yield f"layer {layer.layer}: {layer.dropped} dropped"
        # k where experts or probabilities are equal, and E k where one expert has all
        if not 0 < layer.auxiliary_loss <= experts * choices:
            yield f"layer {layer.layer}: auxiliary loss {layer.auxiliary_loss}"


def strange_packing(done: Executed) -> Iterator[str]:
    """Documents that a mask keeps apart: several a sequence, which together attend to less than all of it.

    But for what a sequence has of its first document, lengths are those of the texts, 10 to 60 bytes.
    """
    if done.job.architecture.mask is not Mask.DOCUMENTS:
        return
    packed = done.finished[0].packed
    whole = packed and packed.sequences * packed.tokens * (packed.tokens + 1) // 2
    if not packed or packed.documents <= 1.5 * packed.sequences or packed.attended >= whole:
        yield f"packed documents: {packed}"


def differing_peak(done: Executed) -> Iterator[str]:
    """The peak of a single rank that is not within `PEAK` of its prediction."""
    job, measured = done.job, done.finished[0].peak_bytes
    if job.layout.ranks > 1:
        return
    memory = memory_figures(job.workload, job.step_options(kernels_for(job.recipe.precision, job.device)))
    predicted = next(figure.value for figure in memory if figure.quantity == Quantity.PEAK_BYTES)
    if measured != pytest.approx(predicted, rel=PEAK):
        yield f"peak_bytes: predicted {predicted}, measured {measured}"


@pytest.mark.rare
@pytest.mark.parametrize("case", BIT_BY_BIT, ids=NAME)
def test_gradients_are_those_of_one_process_to_the_last_bit(case: Case, executed: Executions) -> None:
    wanted = executed(case.single).gradients[0]
    found = {name: part for own in executed(case).gradients for name, (part, _) in own.items()}
    assert found.keys() == wanted.keys()
    assert [name for name, part in found.items() if not torch.equal(part, wanted[name][0])] == []


def test_the_choice_is_of_the_table_and_has_every_miniature() -> None:
    assert {*EACH_AXIS, *CHOSEN} - {Case("capacity", "fp32", "ep2")} <= set(table())
    assert {case.run for case in (*EACH_AXIS, *CHOSEN)} >= set(miniatures())
    assert {case.run for case in (*EACH_AXIS, *VARIED, *RARE)} >= set(VARIATIONS)


@pytest.mark.parametrize("case", [SEQUENCE_PARALLEL], ids=NAME)
def test_what_differs_by_more_than_its_bound_is_told(case: Case, executed: Executions) -> None:
    right, single = executed(case), executed(case.single)
    name, rank = "blocks.1.attention_norm.weight", 1
    gradient, dim = right.gradients[rank][name]
    step = right.steps[rank][3]
    reported = {}
    for share in (0.9, 1.1):
        steps = [list(own) for own in right.steps]
        steps[rank][3] = msgspec.structs.replace(step, loss=single.steps[0][3].loss * (1 + share * loss_bound(right)))
        gradients = [dict(own) for own in right.gradients]
        gradients[rank][name] = single.gradients[0][name][0] * (1 + share * gradient_bound(right)), dim
        first = steps[rank][0]
        assert first.gradient_norm is not None
        norm = single.steps[0][0].gradient_norm * (1 + share * gradient_bound(right))
        steps[rank][0] = msgspec.structs.replace(first, gradient_norm=norm)
        reported[share] = disagreements(right._replace(steps=steps, gradients=gradients), single)
    assert gradient.shape == (64,)
    copies = f"gradient of {name} on rank 1"  # bit by bit
    assert [line.split(":")[0] for line in reported[0.9]] == [copies]
    assert [line.split(":")[0] for line in reported[1.1]] == [
        copies,
        "loss of step 3 on rank 1",
        "gradient norm of rank 1",
        f"gradient of {name} on dp 0, ep 0, tp 1 ({name})",
    ]


@pytest.mark.parametrize("case", [SEQUENCE_PARALLEL], ids=NAME)
def test_a_figure_that_is_off_by_one_is_told(case: Case, executed: Executions) -> None:
    right = executed(case)
    first, second = right.finished
    wrong = [first, msgspec.structs.replace(second, gradient_bytes=second.gradient_bytes + 1)]
    lines = disagreements(right._replace(finished=wrong), None)
    assert lines == [
        f"gradient_bytes: predicted {first.gradient_bytes}, measured {first.gradient_bytes + 1}",
        f"gradient_bytes rank 1: predicted {first.gradient_bytes}, measured {first.gradient_bytes + 1}",
    ]


@pytest.mark.parametrize("case", [PIPELINED], ids=NAME)
def test_passes_out_of_their_order_or_before_what_they_need_are_told(case: Case, executed: Executions) -> None:
    right = executed(case)
    first, second = right.finished
    assert first.pipeline_times is not None
    assert second.pipeline_times is not None
    own = second.pipeline_times.passes
    early = [msgspec.structs.replace(each, start_us=each.start_us - own[0].start_us - 1) for each in own[:1]]
    for passes, told in (
        ([own[1], own[0], *own[2:]], "passes of rank 1: "),
        ([*early, *own[1:]], "Pass(kind=<PassKind.FORWARD: 'F'>, chunk=1, micro_batch=0) began before "),
    ):
        times = msgspec.structs.replace(second.pipeline_times, passes=passes)
        wrong = [first, msgspec.structs.replace(second, pipeline_times=times)]
        assert disagreements(right._replace(finished=wrong), None)[0].startswith(told)


@pytest.mark.parametrize("case", [COPIED_HEADS], ids=NAME)
def test_a_copy_whose_gradient_is_its_ranks_own_is_told(case: Case, executed: Executions) -> None:
    right = executed(case)
    name, rows = "blocks.1.attention.query_key_value.weight", 2 * right.job.architecture.head_dim
    gradients = [dict(own) for own in right.gradients]
    part, dim = gradients[1][name]
    other = part.clone()
    other[-rows:] /= 2
    gradients[1][name] = other, dim
    assert torch.equal(part[-rows:], right.gradients[0][name][0][-rows:])
    lines = disagreements(right._replace(gradients=gradients), None)
    assert lines == [f"gradient of {name} on rank 1: not that of the other ranks of its replica"]
