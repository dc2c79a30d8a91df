"""A choice from the table of layouts: each miniature, and each thing that layouts differ in, at least once."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs.catalog import miniatures
from tests.end_to_end.layouts.agreement import disagreements, gradient_bound, loss_bound
from tests.end_to_end.layouts.execution import Executions
from tests.end_to_end.layouts.table import Case, table

pytestmark = pytest.mark.ranks

SEQUENCE_PARALLEL = Case("bloom-mini", "fp32", "tp2,sp")
PIPELINED = Case("codegeex-mini", "fp32", "pp2,1f1b")
RARE = [
    Case("opt-mini", "fp32", "dp1,recompute-full,every3"),
    Case("bloom-mini", "dropout", "tp2,recompute-full"),
    Case("llama2-mini", "16bit", "cp2,tp2"),
    Case("llama2-mini", "16bit", "tp2,sp"),
    Case("llama3-mini", "fp8", "dp1,fused"),
    Case("gpt-neox-mini", "fp8", "cp2"),
    Case("mt-nlg-mini", "fp8", "dp2,zero1"),
    Case("codegeex-mini", "fp8", "dp1,recompute-full,every3"),
    Case("gpt2-mini", "fp32", "dp2,zero1,fused"),
    Case("gpt-neox-mini", "fp32", "dp1,fused,recompute-full"),
    Case("llama3-mini", "16bit", "dp2,zero1"),
    Case("mt-nlg-mini", "fp32", "dp2"),
    Case("llama2-mini", "fp32", "cp2,zero3"),
    Case("bloom-mini", "fp32", "cp2,recompute-selective"),
    Case("gpt2-mini", "16bit", "pp2,zero-bubble,interleave2"),
    Case("gpt2-mini", "fp32", "pp2,zero-bubble,recompute-selective"),
    Case("opt-mini", "16bit", "pp2,zero-bubble,recompute-selective"),
    Case("llama2-mini", "16bit", "tp2,pp2,zero-bubble,sp"),
    Case("gpt-neox-mini", "fp32", "pp4,zero-bubble"),
    Case("llama3-mini", "16bit", "dp2,pp2,zero-bubble,zero1,reduce-scatter"),
    Case("mt-nlg-mini", "dropout", "pp2,zero-bubble"),
    Case("llama3-mini", "16bit", "cp2,pp2,zero-bubble,zero1,reduce-scatter"),
    Case("codegeex-mini", "fp32", "pp2,pipedream-vertical-sync,recompute-full"),
    Case("llama2-mini", "16bit", "pp2,pipedream-2bw,recompute-selective"),
    Case("opt-mini", "fp32", "pp2,pipedream"),
    Case("gpt2-mini", "16bit", "pp2,pipedream"),
    Case("llama2-mini", "fp32", "dp2,pp2,pipedream"),
    Case("bloom-mini", "16bit", "dp2,pp2,pipedream-2bw,recompute-selective"),
    Case("gpt2-mini", "fp32", "dp2,pp2,pipedream-vertical-sync,micro1"),
    Case("mt-nlg-mini", "dropout", "pp2,pipedream-2bw,recompute-selective"),
    Case("bloom-mini", "16bit", "pp4,pipedream,micro8"),
    Case("glm-mini", "fp32", "pp4,pipedream-2bw"),
    Case("llama3-mini", "16bit", "cp2,zero1,recompute-full,every3"),
    Case("gpt-neox-mini", "fp32", "cp4"),
    Case("opt-mini", "16bit", "dp4,zero2,shard2,micro1"),
    Case("llama3-mini", "fp32", "cp2,dp2,zero3,shard2"),
    Case("deepseek-v3-mini", "fp32", "dp4,zero3,shard2"),
    Case("deepseek-v3-mini", "fp32", "dp2,tp2,sp,zero3"),
    Case("gpt2-mini", "16bit", "dp2,pp2,1f1b,zero1,reduce-scatter"),
    Case("glm-mini", "16bit", "dp4,zero1,reduce-scatter"),
    Case("deepseek-v3-mini", "fp32", "dp2,zero1,reduce-scatter"),
    Case("bloom-mini", "16bit", "cp2,dp2,zero1"),
    Case("opt-mini", "16bit", "cp2,tp2,sp,recompute-full,every2"),
    Case("gpt2-mini", "16bit", "cp2,pp2,1f1b,interleave2"),
    Case("gpt-neox-mini", "fp32", "tp2"),
    Case("bloom-mini", "16bit", "dp1,recompute-selective"),
    Case("mt-nlg-mini", "16bit", "dp2"),
    Case("gpt-neox-mini", "16bit", "tp2"),
    Case("glm-mini", "16bit", "pp2,1f1b,interleave2"),
    Case("gpt-neox-mini", "fp32", "dp2,tp2,pp2,1f1b"),
    Case("llama2-mini", "fp32", "dp2,tp2,sp,zero3"),
    Case("llama2-mini", "16bit", "pp2,1f1b,interleave2"),
    Case("llama3-mini", "16bit", "dp2,tp2,pp2,1f1b"),
    Case("bloom-mini", "16bit", "dp2,tp2,pp2,1f1b,interleave2,sp,zero1,recompute-full"),
]
FUSED = [
    Case("gpt2-mini", "16bit", "dp1,fused"),
    Case("codegeex-mini", "fp32", "dp1,fused,recompute-selective"),
    Case("gpt2-mini", "fp32", "tp2,sp,fused"),
    Case("llama2-mini", "16bit", "dp2,zero3,fused,recompute-selective"),
    Case("opt-mini", "16bit", "pp2,1f1b,fused,recompute-selective"),
]
IN_8_BITS = [Case("gpt2-mini", "fp8", "dp1"), Case("llama2-mini", "fp8", "pp2,1f1b,interleave2")]
CHOSEN = [
    Case("opt-mini", "fp32", "cp2"),
    Case("llama3-mini", "fp32", "cp2,dp2,zero3"),
    Case("gpt2-mini", "16bit", "dp2,zero1"),
    Case("llama3-mini", "16bit", "dp2,zero1,reduce-scatter"),
    Case("opt-mini", "fp32", "dp2,tp2,sp,zero1,reduce-scatter"),
    Case("codegeex-mini", "16bit", "dp2,zero2"),
    Case("llama2-mini", "16bit", "dp4,zero3,shard2,micro1"),
    Case("opt-mini", "16bit", "dp2,zero3"),
    Case("glm-mini", "dropout", "dp2,zero3,recompute-full"),
    SEQUENCE_PARALLEL,
    Case("glm-mini", "fp32", "tp2,sp,recompute-full,every2"),
    Case("mt-nlg-mini", "fp32", "pp2,gpipe"),
    PIPELINED,
    Case("codegeex-mini", "fp32", "pp2,zero-bubble"),
    Case("gpt2-mini", "16bit", "dp2,pp2,pipedream"),
    Case("gpt2-mini", "dropout", "pp2,1f1b,recompute-full,every2"),
    Case("mixtral-mini", "fp32", "dp2"),
    Case("qwen3-moe-mini", "fp32", "pp2,1f1b"),
    Case("deepseek-v3-mini", "fp32", "dp2,zero1"),
    *FUSED,
    *IN_8_BITS,
    *RARE,
]


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=pytest.mark.rare if case in RARE else ()) for case in CHOSEN]
)
def test_a_layout_computes_what_one_process_does_at_the_predicted_cost(case: Case, executed: Executions) -> None:
    single = executed(case.single) if case.is_compared else None
    assert disagreements(executed(case), single) == []


def test_the_choice_is_of_the_table_and_has_every_miniature() -> None:
    assert set(CHOSEN) <= set(table())
    assert {case.run for case in CHOSEN} == set(miniatures())


@pytest.mark.parametrize("case", [SEQUENCE_PARALLEL], ids=lambda case: case.name)
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


@pytest.mark.parametrize("case", [SEQUENCE_PARALLEL], ids=lambda case: case.name)
def test_a_figure_that_is_off_by_one_is_told(case: Case, executed: Executions) -> None:
    right = executed(case)
    first, second = right.finished
    wrong = [first, msgspec.structs.replace(second, gradient_bytes=second.gradient_bytes + 1)]
    lines = disagreements(right._replace(finished=wrong), None)
    assert lines == [
        f"gradient_bytes: predicted {first.gradient_bytes}, measured {first.gradient_bytes + 1}",
        f"gradient_bytes rank 1: predicted {first.gradient_bytes}, measured {first.gradient_bytes + 1}",
    ]


@pytest.mark.parametrize("case", [PIPELINED], ids=lambda case: case.name)
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
