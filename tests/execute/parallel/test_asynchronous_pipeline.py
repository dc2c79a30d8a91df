"""Stages without flush: the schedule, and weights equal bit by bit to those of one process that applies the formula."""

from __future__ import annotations

import functools
import itertools
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
from suite.execute.parallel.replica_gradients import replica_gradients
from suite.execute.parallel.sharded_adamw import whole_adamw
from suite.execute.parallel.weight_versions import VersionRule, WeightVersions
from suite.execute.precision import DTYPES, store_weights
from tests.support.covering import cover
from tests.support.launches import FP32_WITHOUT_DROPOUT, small_plan

WIDTH, SAMPLES, RATE = 6, 3, 0.05
STORED = 7  # updates before a checkpoint
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


class SumOfThreads:
    """Sums a tensor over threads, each of which has its number, in the order of these."""

    def __init__(self, threads: int) -> None:
        self._parts = [torch.empty(0)] * threads
        self._barrier = threading.Barrier(threads, timeout=60)

    def of(self, number: int, tensor: Tensor) -> None:
        self._parts[number] = tensor.clone()
        self._barrier.wait()
        first, *others = self._parts
        tensor.copy_(functools.reduce(torch.add, others, first))
        self._barrier.wait()


class Run(NamedTuple):
    """A pipeline: what it is, micro-batches of an update on each replica, and how many updates it makes."""

    schedule: Schedule
    stages: int
    micro_batches: int
    updates: int
    precision: Precision = Precision.FP32
    keeps: bool = True
    ramp: tuple[int, ...] = ()
    replicas: int = 1

    def first(self, update: int) -> int:
        """The first micro-batch of an update on each replica."""
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
    stored: list[Tensor]


def executed(run: Run, goes_on: list[Stage] | None = None) -> list[Stage]:
    """Every stage, and every replica of it, in a thread of its own; those of a stage in a row.

    Args:
        goes_on: from what these stored after `STORED` updates.
    """
    blocks = [run.blocks() for _ in range(run.replicas)]
    places = list(itertools.product(range(run.stages), range(run.replicas)))
    down: dict[tuple[int, int], queue.Queue[Tensor]] = {place: queue.Queue() for place in places}
    up: dict[tuple[int, int], queue.Queue[Tensor]] = {place: queue.Queue() for place in places}
    sums = [SumOfThreads(run.replicas) for _ in range(run.stages)]
    results: dict[tuple[int, int], Stage] = {}
    errors: list[BaseException] = []

    def work(number: int, replica: int) -> None:
        try:
            before = Queues(up[number - 1, replica], down[number - 1, replica]) if number else None
            after = Queues(down[number, replica], up[number, replica]) if number < run.stages - 1 else None
            sum_up = functools.partial(sums[number].of, replica)
            stored = [] if goes_on is None else goes_on[places.index((number, replica))].stored
            block = blocks[replica][number]
            results[number, replica] = stage_of(run, block, (number, replica), before, after, sum_up, stored)
        except BaseException as error:  # a thread's own would be lost
            errors.append(error)

    threads = [threading.Thread(target=work, args=place) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if errors:
        raise errors[0]
    return [results[place] for place in places]


def stage_of(
    run: Run,
    block: Block,
    place: tuple[int, int],
    before: Queues | None,
    after: Queues | None,
    sum_up: Callable[[Tensor], None],
    stored: list[Tensor],
) -> Stage:
    number, replica = place
    rule = VersionRule(run.schedule, run.stages, number, run.micro_batches, run.ramp, run.replicas)
    names = [name for name, _ in block.named_parameters()]
    groups = store_weights([block], run.recipe, shards=1, device=CPU)
    storages = [group.flat for group in groups]
    optimizer = whole_adamw(groups, run.recipe)
    versions = WeightVersions(groups, [block], optimizer, storages, keeps=run.keeps)
    stage = AsynchronousStage(block, [Versioned(versions, rule)], rule, before=before, after=after, phases=Phases(CPU))
    replicas = replica_gradients(groups, sum_up) if run.replicas > 1 else None
    losses, staleness, given, begin = [], [], 0, 0
    oldest = rule.version(rule.first(STORED))

    def tensors() -> list[Tensor]:
        return [*itertools.chain.from_iterable(versions.kept(oldest).values()), *optimizer.state_tensors]

    if stored:
        begin, given = STORED, rule.first(STORED)
        optimizer.step(0.0)
        versions.have(oldest=oldest, newest=STORED, storages=rule.storages(STORED))
        stage.continue_from(STORED)
        for tensor, value in zip(tensors(), stored, strict=True):
            tensor.copy_(value)
    for update in range(begin, run.updates):
        if update == STORED and not stored:
            stored = [tensor.clone() for tensor in tensors()]
        count = stage.missing
        batches = [run.batch(run.replicas * number + replica) for number in range(given, given + count)]
        given += count
        loss = stage.step([x for x, _ in batches], [{"targets": targets} for _, targets in batches])
        staleness.append(stage.staleness)
        if replicas is not None:
            replicas.finish(loss)
        losses.append(loss.item())
        versions.begin_update(oldest=rule.version(run.first(update + 1)))
        optimizer.step(RATE)
        if replicas is not None:
            replicas.clear()
            continue
        for leaf in (leaf for group in groups for leaf in group.leaves):
            leaf.grad = None
    stage.finish()
    versions.use(versions.newest)
    weights = {name: dict(block.named_parameters())[name].detach().clone() for name in names}
    return Stage(weights, losses, versions.stored, len(storages) // len(groups), staleness, stored)


def serial(run: Run, version: Callable[[int, int], int]) -> tuple[list[dict[str, Tensor]], list[float]]:
    """One process: `version(stage, micro_batch)` updates before its gradient is that of each stage's weights.

    Micro-batch b is number b / replicas of replica b mod replicas; sums are those of each replica, summed up.
    """
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
        of_replicas: list[list[dict[str, Tensor]]] = [[{} for _ in blocks] for _ in range(run.replicas)]
        parts: list[list[Tensor]] = [[] for _ in range(run.replicas)]
        rounds = range(run.first(update), run.first(update + 1))
        averaged = run.replicas * len(rounds)
        for number, replica in itertools.product(rounds, range(run.replicas)):
            x, targets = run.batch(run.replicas * number + replica)
            used = [
                {n: p.clone().requires_grad_() for n, p in history[version(stage, number)][stage].items()}
                for stage in range(run.stages)
            ]
            for block, weights in zip(blocks, used, strict=True):
                x = functional_call(block, weights, (x, targets))
            (x / averaged).backward()
            parts[replica].append(x.detach() / averaged)
            for sums, weights in zip(of_replicas[replica], used, strict=True):
                for name, weight in weights.items():
                    assert weight.grad is not None
                    widened = weight.grad.float()
                    sums[name] = sums[name] + widened if name in sums else widened
        losses.append(functools.reduce(torch.add, [torch.stack(own).sum() for own in parts]).item())
        for stage, (of_stage, optimizer) in enumerate(zip(masters, optimizers, strict=True)):
            for name, weight in of_stage.items():
                weight.grad = functools.reduce(torch.add, [sums[stage][name] for sums in of_replicas])
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


LONG = 60  # updates; the last gradient is 3 updates late at most
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
RUNS += [
    Run(schedule, 2, micro_batches, 20, replicas=replicas)
    for schedule, micro_batches, replicas in (
        (Schedule.PIPEDREAM, 1, 2),
        (Schedule.PIPEDREAM, 4, 2),
        (Schedule.PIPEDREAM_VERTICAL_SYNC, 2, 2),
        (Schedule.PIPEDREAM_2BW, 2, 3),
    )
]
RUNS += [run._replace(precision=Precision.BF16, updates=20) for run in RUNS if run.stages == 4 and not run.ramp]
RUNS += [Run(Schedule.PIPEDREAM, 4, 3, 20, Precision.BF16, ramp=(1, 2), replicas=2)]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def name_of(run: Run) -> str:
    ramp = "-ramp" if run.ramp else ""
    replicas = f"-{run.replicas}-replicas" if run.replicas > 1 else ""
    return f"{run.schedule}-{run.stages}-{run.micro_batches}-{run.precision}{ramp}{replicas}"


# each schedule with every number of stages, of micro-batches and of replicas, long and short, with a ramp, in bf16
USUAL = cover([(*run[:5], run.ramp, run.replicas) for run in RUNS], 2)


@pytest.mark.parametrize(
    "run", [run if n in USUAL else pytest.param(run, marks=pytest.mark.rare) for n, run in enumerate(RUNS)], ids=name_of
)
def test_weights_equal_those_of_one_process_that_applies_the_formula(run: Run) -> None:
    stages = executed(run)
    wanted, losses = serial(run, formula(run))
    assert len(stages) == run.stages * run.replicas
    for number, stage in enumerate(stages):
        for name, weight in wanted[number // run.replicas].items():
            assert torch.equal(stage.weights[name], weight), name
    assert stages[-1].losses == losses
    most = 2 if run.schedule is Schedule.PIPEDREAM_2BW else None
    for number, stage in enumerate(stages):
        bound = run.stages - number // run.replicas if run.schedule is Schedule.PIPEDREAM else run.stages
        assert stage.versions == stage.storages
        assert stage.versions <= (most or bound)


@pytest.mark.parametrize("run", [run._replace(updates=12) for run in RUNS[1::4]], ids=name_of)
def test_what_was_in_flight_at_a_checkpoint_comes_again(run: Run) -> None:
    """So stages that go on from it end with the same weights, and other values in it would be seen."""
    undisturbed = executed(run)
    stages = executed(run, goes_on=undisturbed)
    for before, after in zip(undisturbed, stages, strict=True):
        assert all(torch.equal(after.weights[name], weight) for name, weight in before.weights.items())
        assert (after.losses, after.staleness) == (before.losses[STORED:], before.staleness[STORED:])
        assert after.versions == before.versions
    oldest = undisturbed[0].stored[0]  # the version of the micro-batch that has been in flight longest
    oldest.add_(0.1)
    assert executed(run, goes_on=undisturbed)[-1].losses != stages[-1].losses


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
