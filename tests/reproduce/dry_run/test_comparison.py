"""Ranks without memory do what arithmetic expects, and a count that is wrong is seen."""

from __future__ import annotations

import itertools
import multiprocessing
import warnings
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from reference_runs.layout import parse_layout
from reference_runs.placement import chunk_layers
from reference_runs.run import Workload
from suite.job.dry_run_job import AskedStep, StepCounts
from suite.metrics.comparison import Row, Verdict
from suite.metrics.figures import Quantity
from suite.reproduce.dry_run import depth_line
from suite.reproduce.dry_run.comparison import CountedClass, DryRun, compared, dry_run, dry_run_job
from suite.reproduce.dry_run.plan import DryPlan, dry_plan
from suite.reproduce.dry_run.rank_classes import RankClass

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("warm_ranks")]

PEAK = 0.005
MINIS = ("bloom-mini", "codegeex-mini", "glm-mini", "gpt-neox-mini", "gpt2-mini", "mt-nlg-mini", "opt-mini")
LAYOUTS = (
    "dp1",
    "dp2,zero0",
    "dp2,zero1",
    "dp2,zero2",
    "dp2,zero3",
    "dp1,tp2,zero0",
    "dp1,tp2,sp,zero0",
    "dp1,pp2,zero0",
    "dp2,pp2,zero1",
    "dp2,tp2,pp2,zero1",
)
# each axis and ZeRO stage once
CHOICE = (
    ("bloom-mini", "dp2,tp2,pp2,zero1"),
    ("opt-mini", "dp2,tp2,zero3"),
    ("llama2-mini", "dp1,cp2,zero0"),
    ("codegeex-mini", "dp2,pp2,interleave2,zero1"),
    ("deepseek-v3-mini", "dp2,ep2,zero1"),
    ("gpt2-mini", "dp1,pp4,zero-bubble,zero0,micro1"),
    ("gpt2-mini", "dp1,pp2,dualpipev,zero0,micro1"),
)
MORE = (
    ("qwen3-moe-mini", "dp2,zero3"),
    ("gpt2-mini", "dp2,pp2,zero1"),
    ("llama3-mini", "dp2,pp2,zero-bubble,zero1,reduce-scatter"),
    ("opt-mini", "dp1,pp2,interleave2,zero-bubble,recompute-none,zero0"),
    ("gpt2-mini", "dp1,pp2,zero-bubble,recompute-selective,zero1,micro1"),
    ("llama2-mini", "dp1,pp2,dualpipev,recompute-selective,zero0,micro1"),
    ("opt-mini", "dp1,pp2,zbv,recompute-selective,zero0,micro1"),
    ("llama3-mini", "dp2,pp2,zbv,zero1,reduce-scatter,micro1"),
    ("opt-mini", "dp1,tp2,pp2,zbv,recompute-none,zero0,micro1"),
    ("glm-mini", "dp2,zero1"),
    ("gpt-neox-mini", "dp1,pp2,zero0,gpipe"),
    ("gpt2-mini", "dp4,zero3,shard2"),
    ("llama2-mini", "dp2,tp4,zero1,reduce-scatter"),
    ("gpt2-mini", "dp1,tp4,pp2,zero0"),
    ("mixtral-mini", "dp1,ep2,tp2,sp,zero0"),
    ("mixtral-mini", "dp2,pp2,zero1"),
    ("mixtral-mini", "dp2,zero2"),
    ("qwen3-moe-mini", "dp1,ep4,zero0,recompute-full"),
    ("deepseek-v3-mini", "dp1,pp2,zero0"),
)


def plan_of(name: str, layout: str) -> DryPlan:
    return dry_plan(name, layout, mini=False, results=Path("results"))


def executed(name: str, layout: str) -> DryRun:
    run = dry_run(plan_of(name, layout), lambda _: None)
    assert run.failure == "", run.traceback
    return run


def check(run: DryRun) -> None:
    assert [row for row in run.rows if row.verdict is Verdict.FAIL] == []
    assert {row.quantity for row in run.rows if row.tolerance == 0} >= {
        Quantity.PARAMETERS,
        Quantity.MODEL_FLOP,
        Quantity.HARDWARE_FLOP,
        Quantity.WEIGHT_BYTES,
        Quantity.GRADIENT_BYTES,
        Quantity.OPTIMIZER_BYTES,
    }
    allowed = {Quantity.ACTIVATION_BYTES: 0.0, Quantity.PEAK_BYTES: PEAK}
    near = [row for row in run.rows if row.quantity in allowed]
    assert [row for row in near if row.right != pytest.approx(row.left, rel=allowed[row.quantity])] == []
    for each in run.counted:
        assert each.step.at_peak.total == each.step.counts.peak_bytes


@pytest.mark.parametrize(("name", "layout"), [*CHOICE, *(pytest.param(*more, marks=pytest.mark.rare) for more in MORE)])
def test_every_rank_counts_what_arithmetic_expects(name: str, layout: str) -> None:
    check(executed(name, layout))


@pytest.mark.rare
@pytest.mark.parametrize(("name", "layout"), list(itertools.product(MINIS, LAYOUTS)))
def test_every_miniature_under_every_layout(name: str, layout: str) -> None:
    check(executed(name, layout))


def in_layout(plan: DryPlan, layout: str) -> DryPlan:
    return plan._replace(workload=plan.workload._replace(layout=parse_layout(layout, base=plan.workload.layout)))


def with_more(plan: DryPlan, *, samples: int = 0, layers: int = 0) -> DryPlan:
    architecture, recipe, layout = plan.workload
    recipe = msgspec.structs.replace(recipe, global_batch=samples or recipe.global_batch)
    architecture = msgspec.structs.replace(architecture, layers=layers or architecture.layers)
    return plan._replace(workload=Workload(architecture, recipe, layout))


@pytest.mark.parametrize(
    ("layout", "samples", "by_line"),
    [
        ("dp1,pp4,zero0,micro1", 12, 0),
        pytest.param("dp2,zero3,micro1", 10, 0, marks=pytest.mark.rare),
        pytest.param("dp1,pp2,interleave2,micro1", 8, 0, marks=pytest.mark.rare),
        pytest.param("dp1,pp7,zero0,micro1", 16, 2, marks=pytest.mark.rare),
    ],
)
def test_the_line_through_two_steps_gives_what_the_whole_step_counts(layout: str, samples: int, by_line: int) -> None:
    plan = in_layout(with_more(plan_of("gpt2-mini", "dp1"), samples=samples, layers=7 if by_line else 4), layout)
    line = dry_run(plan, lambda _: None)
    assert [bool(each.executed) for each in line.counted].count(False) == by_line
    whole = dry_run(plan, lambda _: None, every_micro_batch=True)
    assert max(line.executed) < line.micro_batches
    assert whole.executed == [whole.micro_batches]
    assert [row.right for row in line.rows] == [row.right for row in whole.rows]


@pytest.mark.rare
def test_the_line_through_few_layers_gives_what_all_layers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth_line, "WORTH_IT", 6)
    plan = with_more(plan_of("gpt2-mini", "dp5,tp2,zero3,micro1"), samples=5, layers=6)
    line = dry_run(plan, lambda _: None)
    assert line.by_depth
    assert [bool(each.executed) for each in line.counted] == [True, *[False] * (len(line.counted) - 1)]
    others = [each.of.rank for each in line.counted[1:]]
    whole = dry_run(plan, lambda _: None, ranks=others)
    assert whole.failure == ""
    by_line = [row for row in line.rows if row.rank in others]
    assert [row.right for row in by_line] == [row.right for row in whole.rows]
    assert line.verdict is Verdict.PASS


def test_every_rank_is_executed_where_that_is_asked_for() -> None:
    plan = plan_of("gpt2-mini", "dp1,tp2,pp2,zero0")
    run = dry_run(plan, lambda _: None, every_rank=True)
    assert [each.of.rank for each in run.counted] == [0, 1, 2, 3]
    assert run.verdict is Verdict.PASS
    assert run.rows[0].quantity == Quantity.PARAMETERS
    assert run.rows[0].rank is None  # of the model: what several ranks store counts once
    one = dry_run(plan, lambda _: None, ranks=[3])
    assert [each.of.rank for each in one.counted] == [3]


def in_child(work: Callable[[], list[StepCounts]]) -> list[StepCounts]:
    """The result of `work`, in a child that is forked: PyTorch remembers a mesh."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=lambda: there.send_bytes(msgspec.json.encode(work())))
    process.start()
    there.close()
    counted = msgspec.json.decode(here.recv_bytes(), type=list[StepCounts])  # EOFError where the child fails
    process.join()
    here.close()
    return counted


def rows_with(plan: DryPlan, rank: int, tmp_path: Path, plant: Callable[[pytest.MonkeyPatch], None]) -> list[Row]:
    """The rows that fail for one rank, with a fault in what is executed."""

    def work() -> list[StepCounts]:
        from suite.execute.dry_run.rank import count

        warnings.simplefilter("ignore", FutureWarning)
        plant(pytest.MonkeyPatch())
        return count(dry_run_job(plan, str(tmp_path)), rank, (AskedStep(2),))

    (step,) = in_child(work)
    stage = step.counts.coordinates["pp"]
    counted = CountedClass(of=RankClass(rank, stage, 1, rank), seconds=0.0, executed=(2,), step=step)
    rows = compared(plan.workload, [counted], whole_job=False)
    return [row for row in rows if row.verdict is Verdict.FAIL]


def no_fault(_: pytest.MonkeyPatch) -> None:
    pass


def smaller_buckets(patch: pytest.MonkeyPatch) -> None:
    from suite.execute.parallel import parallelize

    class Smaller(parallelize.DistributedDataParallel):
        def __init__(self, module: object, **options: object) -> None:
            super().__init__(module, **options | {"bucket_cap_mb": 1})

    patch.setattr(parallelize, "DistributedDataParallel", Smaller)


def kept_activations(patch: pytest.MonkeyPatch) -> None:
    from suite.execute.model.torch_operations import TorchOperations

    original, kept = TorchOperations.activated, []

    def activated(self: TorchOperations, x: object) -> object:
        kept.append(original(self, x))
        return kept[-1]

    patch.setattr(TorchOperations, "activated", activated)


def layer_on_the_wrong_stage(patch: pytest.MonkeyPatch) -> None:
    from suite.execute.parallel import chunks

    def shifted(layers: int, layout: object) -> list[range]:
        first, second = chunk_layers(layers, layout)
        return [range(first.start, first.stop + 1), range(second.start + 1, second.stop)]

    patch.setattr(chunks, "chunk_layers", shifted)


@pytest.mark.parametrize(
    ("layout", "plant", "seen"),
    [
        ("dp2,pp2,zero1", no_fault, set()),
        ("dp2,zero1", smaller_buckets, {Quantity.MESSAGES}),
        ("dp1,pp2,zero0", kept_activations, {Quantity.PEAK_BYTES}),
        (
            "dp1,pp2,zero0",
            layer_on_the_wrong_stage,
            {Quantity.PARAMETERS, Quantity.MODEL_FLOP, Quantity.HARDWARE_FLOP, Quantity.OPTIMIZER_BYTES},
        ),
    ],
)
def test_a_fault_in_what_is_executed_is_seen(
    layout: str, plant: Callable[[pytest.MonkeyPatch], None], seen: set[Quantity], tmp_path: Path
) -> None:
    failed = {row.quantity for row in rows_with(plan_of("gpt2-mini", layout), 0, tmp_path, plant)}
    assert failed >= seen
    assert bool(failed) == bool(seen)
