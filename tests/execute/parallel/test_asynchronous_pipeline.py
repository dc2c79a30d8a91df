"""Stages without flush: the schedule, and weights equal bit by bit to those of one process that applies the formula."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from reference_runs.layout import Schedule
from reference_runs.run import Optimizer, Precision, Recipe
from suite.execute.measure.phases import Phases
from suite.execute.parallel.asynchronous_pipeline import AsynchronousStage, Versioned
from suite.execute.parallel.neighbours import Arrival
from suite.execute.parallel.sharded_adamw import whole_adamw
from suite.execute.parallel.weight_versions import VersionRule, WeightVersions
from suite.execute.precision import DTYPES, store_weights
from tests.support.launches import FP32_WITHOUT_DROPOUT, small_plan

WIDTH, SAMPLES, RATE = 6, 3, 0.05
CPU = torch.device("cpu")


class Block(nn.Module):
    """A stage: a norm, whose weight autograd saves as it is, and a product; the last one returns a loss."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.product = nn.Linear(WIDTH, WIDTH)
        self.last = last

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        x = x + torch.tanh(self.product(self.norm(x)))
        return (x - targets).square().mean() if self.last else x


class Queues:
    """A link between two threads."""

    def __init__(self, outgoing: queue.Queue[Tensor], incoming: queue.Queue[Tensor]) -> None:
        self._outgoing, self._incoming = outgoing, incoming

    def exchange(self, sent: Tensor | None, *, receives: bool) -> Arrival | None:
        if sent is not None:
            self._outgoing.put(sent.clone())
        return Waiting(self._incoming) if receives else None

    def finish(self) -> None:
        pass


class Waiting(Arrival):
    """What another thread puts into a queue."""

    def __new__(cls, incoming: queue.Queue[Tensor]) -> Waiting:
        waiting = super().__new__(cls, torch.empty(0), [])
        waiting.incoming = incoming
        return waiting

    def wait(self) -> Tensor:
        return self.incoming.get(timeout=60)


class Run(NamedTuple):
    """A pipeline: what it is, and how many updates it makes."""

    schedule: Schedule
    stages: int
    micro_batches: int
    updates: int
    precision: Precision = Precision.FP32
    keeps: bool = True
    ramp: tuple[int, ...] = ()

    def first(self, update: int) -> int:
        """The first micro-batch of an update."""
        return sum((*self.ramp, *[self.micro_batches] * update)[:update])

    @property
    def recipe(self) -> Recipe:
        changes = FP32_WITHOUT_DROPOUT | {
            "precision": self.precision,
            "weight_decay": 0.1,
            "optimizer": Optimizer.ADAMW,
        }
        return msgspec.structs.replace(small_plan(ranks=1).recipe, **changes)

    def blocks(self) -> list[Block]:
        torch.manual_seed(1)
        return [Block(last=stage == self.stages - 1) for stage in range(self.stages)]

    def batch(self, micro_batch: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1000 + micro_batch)
        dtype = DTYPES[self.precision]
        x, targets = torch.randn(2, SAMPLES, WIDTH, generator=generator).to(dtype)
        return x, targets


class Stage(NamedTuple):
    """What a stage ends with."""

    weights: dict[str, Tensor]
    losses: list[float]
    versions: int
    storages: int
    staleness: list[list[int]]


def executed(run: Run) -> list[Stage]:
    """Every stage in a thread of its own."""
    blocks = run.blocks()
    down: list[queue.Queue[Tensor]] = [queue.Queue() for _ in blocks[1:]]
    up: list[queue.Queue[Tensor]] = [queue.Queue() for _ in blocks[1:]]
    results: list[Stage | None] = [None] * run.stages
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            before = Queues(up[number - 1], down[number - 1]) if number else None
            after = Queues(down[number], up[number]) if number < run.stages - 1 else None
            results[number] = stage_of(run, blocks[number], number, before, after)
        except BaseException as error:  # a thread's own would be lost
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(run.stages)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if errors:
        raise errors[0]
    return [result for result in results if result is not None]


def stage_of(run: Run, block: Block, number: int, before: Queues | None, after: Queues | None) -> Stage:
    rule = VersionRule(run.schedule, run.stages, number, run.micro_batches, run.ramp)
    names = [name for name, _ in block.named_parameters()]
    groups = store_weights([block], run.recipe, shards=1, device=CPU)
    storages = [group.flat for group in groups]
    optimizer = whole_adamw(groups, run.recipe)
    versions = WeightVersions(groups, [block], optimizer, storages, keeps=run.keeps)
    stage = AsynchronousStage(block, [Versioned(versions, rule)], rule, before=before, after=after, phases=Phases(CPU))
    losses, staleness, given = [], [], 0
    for update in range(run.updates):
        count = stage.missing
        batches = [run.batch(micro_batch) for micro_batch in range(given, given + count)]
        given += count
        losses.append(stage.step([x for x, _ in batches], [{"targets": targets} for _, targets in batches]).item())
        staleness.append(stage.staleness)
        versions.begin_update(oldest=rule.version(run.first(update + 1)))
        optimizer.step(RATE)
        for leaf in (leaf for group in groups for leaf in group.leaves):
            leaf.grad = None
    stage.finish()
    versions.use(versions.newest)
    weights = {name: dict(block.named_parameters())[name].detach().clone() for name in names}
    return Stage(weights, losses, versions.stored, len(storages) // len(groups), staleness)


def serial(run: Run, version: Callable[[int, int], int]) -> tuple[list[dict[str, Tensor]], list[float]]:
    """One process: `version(stage, micro_batch)` updates before its gradient is that of each stage's weights."""
    blocks = run.blocks()
    dtype = DTYPES[run.precision]
    masters = [{name: p.detach().clone().to(dtype).float() for name, p in b.named_parameters()} for b in blocks]
    optimizers = []
    for of_stage in masters:
        decaying = [p for p in of_stage.values() if p.dim() > 1]
        others = [p for p in of_stage.values() if p.dim() == 1]
        recipe = run.recipe
        groups: list[dict[str, Any]] = [
            {"params": decaying, "weight_decay": recipe.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        settings: dict[str, Any] = {"betas": (recipe.beta1, recipe.beta2), "eps": recipe.epsilon, "fused": True}
        optimizers.append(torch.optim.AdamW(groups, lr=RATE, **settings))
    history = [[{name: p.detach().clone().to(dtype) for name, p in of.items()} for of in masters]]
    losses = []
    for update in range(run.updates):
        gradients: list[dict[str, Tensor]] = [{} for _ in blocks]
        parts = []
        micro_batches = range(run.first(update), run.first(update + 1))
        for micro_batch in micro_batches:
            x, targets = run.batch(micro_batch)
            used = [
                {n: p.clone().requires_grad_() for n, p in history[version(stage, micro_batch)][stage].items()}
                for stage in range(run.stages)
            ]
            for block, weights in zip(blocks, used, strict=True):
                x = functional_call(block, weights, (x, targets))
            (x / len(micro_batches)).backward()
            parts.append(x.detach() / len(micro_batches))
            for sums, weights in zip(gradients, used, strict=True):
                for name, weight in weights.items():
                    assert weight.grad is not None
                    widened = weight.grad.float()
                    sums[name] = sums[name] + widened if name in sums else widened
        losses.append(torch.stack(parts).sum().item())
        for of_stage, sums, optimizer in zip(masters, gradients, optimizers, strict=True):
            for name, weight in of_stage.items():
                weight.grad = sums[name]
            optimizer.step()
        history.append([{name: p.detach().clone().to(dtype) for name, p in of.items()} for of in masters])
    return history[-1], losses


def formula(run: Run) -> Callable[[int, int], int]:
    """The published formulas; of several micro-batches an update PipeDream's, counted in micro-batches."""
    m = run.micro_batches

    def version(stage: int, micro_batch: int) -> int:
        update = sum(run.first(n + 1) <= micro_batch for n in range(run.updates))  # so many came before
        if run.schedule is Schedule.PIPEDREAM_2BW:
            return max(update - 1, 0)  # W(t + 1) = W(t) - v grad f(W(t - 1))
        ago = run.stages - 1 if run.schedule is Schedule.PIPEDREAM_VERTICAL_SYNC else run.stages - 1 - stage
        if m == 1:
            return max(update - ago, 0)
        return sum(run.first(n + 1) <= micro_batch - ago for n in range(update))

    return version


LONG = 200
RUNS = [
    Run(schedule, stages, micro_batches, LONG)
    for schedule in (Schedule.PIPEDREAM, Schedule.PIPEDREAM_VERTICAL_SYNC, Schedule.PIPEDREAM_2BW)
    for stages in (2, 4)
    for micro_batches in (1, 4)
]
RUNS += [
    Run(schedule, 4, 6, 20, ramp=(3, 4, 5))
    for schedule in (Schedule.PIPEDREAM, Schedule.PIPEDREAM_VERTICAL_SYNC, Schedule.PIPEDREAM_2BW)
]
RUNS += [run._replace(precision=Precision.BF16, updates=20) for run in RUNS if run.stages == 4 and not run.ramp]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def name_of(run: Run) -> str:
    ramp = "-ramp" if run.ramp else ""
    return f"{run.schedule}-{run.stages}-{run.micro_batches}-{run.precision}{ramp}"


@pytest.mark.parametrize("run", RUNS, ids=name_of)
def test_weights_equal_those_of_one_process_that_applies_the_formula(run: Run) -> None:
    stages = executed(run)
    wanted, losses = serial(run, formula(run))
    assert len(stages) == run.stages
    for stage, weights in zip(stages, wanted, strict=True):
        for name, weight in weights.items():
            assert torch.equal(stage.weights[name], weight), name
    assert stages[-1].losses == losses
    most = 2 if run.schedule is Schedule.PIPEDREAM_2BW else None
    for number, stage in enumerate(stages):
        bound = run.stages - number if run.schedule is Schedule.PIPEDREAM else run.stages
        assert stage.versions == stage.storages
        assert stage.versions <= (most or bound)


@pytest.mark.parametrize("stages", [2, 4])
def test_a_stage_keeps_a_version_for_each_update_that_its_gradients_are_late(stages: int) -> None:
    late = executed(Run(Schedule.PIPEDREAM, stages, 1, 20))
    assert [stage.versions for stage in late] == [stages - number for number in range(stages)]
    assert [stage.staleness[-1] for stage in late] == [[stages - 1 - number] for number in range(stages)]
    synchronised = executed(Run(Schedule.PIPEDREAM_VERTICAL_SYNC, stages, 1, 20))
    assert [stage.versions for stage in synchronised] == [stages] * stages
    assert [stage.staleness[-1] for stage in synchronised] == [[stages - 1]] * stages
    buffered = executed(Run(Schedule.PIPEDREAM_2BW, stages, 4, 20))
    assert [stage.versions for stage in buffered] == [2] * stages
    assert [stage.staleness[-1] for stage in buffered] == [[1] * 4] * stages


def test_without_stashing_other_losses_come_out() -> None:
    run = Run(Schedule.PIPEDREAM, 2, 1, 20)
    kept, overwritten = executed(run), executed(run._replace(keeps=False))
    _, wanted = serial(run, formula(run))
    assert kept[-1].losses == wanted
    differing = [a != b for a, b in zip(overwritten[-1].losses, wanted, strict=True)]
    assert any(differing[2:])
    assert not any(differing[:2])  # the first two micro-batches begin before any update
    assert [stage.versions for stage in overwritten] == [1, 1]
