"""Stages without flush: the schedule, and weights equal bit by bit to those of one process that applies the formula."""

from __future__ import annotations

import functools
import itertools
import math
import queue
import threading
from collections import defaultdict
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
from suite.execute.parallel.scattered_gradients import replica_gradients
from suite.execute.parallel.sharded_adamw import whole_adamw
from suite.execute.parallel.weight_versions import VersionRule, WeightVersions
from suite.execute.parallel.without_flush import left_over, turns
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
    """A link of a thread to those of a neighbouring stage, which take micro-batches in turns."""

    def __init__(
        self, outgoing: list[queue.Queue[Tensor]], incoming: list[queue.Queue[Tensor]], left_over: int = 0
    ) -> None:
        self._outgoing, self._incoming = itertools.cycle(outgoing), itertools.cycle(incoming)
        self._left_over = left_over

    def exchange(self, sent: Tensor | None, *, receives: bool) -> Arrival | None:
        if sent is not None:
            next(self._outgoing).put(sent.clone())
        return Waiting(next(self._incoming)) if receives else None

    def finish(self) -> None:
        for _ in range(self._left_over):
            next(self._incoming).get(timeout=60)


class Waiting(Arrival):
    """An arrival that another thread puts into a queue."""

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
    """A pipeline: what it is, micro-batches of an update on each replica, and how many updates it makes.

    Args:
        of_stages: replicas of each stage, where they differ; micro-batches are then those of all replicas.
    """

    schedule: Schedule
    stages: int
    micro_batches: int
    updates: int
    precision: Precision = Precision.FP32
    ramp: tuple[int, ...] = ()
    replicas: int = 1
    of_stages: tuple[int, ...] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """Replicas of each stage."""
        return self.of_stages or (self.replicas,) * self.stages

    @property
    def places(self) -> list[tuple[int, int]]:
        """Stage and replica of each thread."""
        return [(stage, replica) for stage, count in enumerate(self.counts) for replica in range(count)]

    def first(self, update: int) -> int:
        """The first micro-batch of an update, of those of all replicas."""
        return self.replicas * sum((*self.ramp, *[self.micro_batches] * update)[:update])

    def rule(self, stage: int, replica: int) -> VersionRule:
        count = self.counts[stage]
        micro_batches, ramp = self.micro_batches, self.ramp
        if self.of_stages:
            micro_batches, ramp = micro_batches // count, tuple(number // count for number in ramp)
        return VersionRule(self.schedule, self.stages, stage, micro_batches, ramp, count, self.of_stages, replica)

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
    """Results of a stage."""

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
    blocks = [run.blocks() for _ in range(max(run.counts))]
    places = run.places
    between: defaultdict[tuple[int, int], queue.Queue[Tensor]] = defaultdict(queue.Queue)
    sums = [SumOfThreads(count) for count in run.counts]
    results: dict[tuple[int, int], Stage] = {}
    errors: list[BaseException] = []

    def link(number: int, replica: int, other: int) -> Queues:
        own, others = places.index((number, replica)), [places.index((other, replica))] if not run.of_stages else []
        rule = run.rule(number, replica)
        others = others or turns(rule, other)
        more = left_over(rule) if run.of_stages and other < number else 0
        return Queues([between[own, each] for each in others], [between[each, own] for each in others], more)

    def work(number: int, replica: int) -> None:
        try:
            before = link(number, replica, number - 1) if number else None
            after = link(number, replica, number + 1) if number < run.stages - 1 else None
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
    assert not run.of_stages or all(waiting.empty() for waiting in between.values())
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
    rule, count = run.rule(number, replica), run.counts[number]
    names = [name for name, _ in block.named_parameters()]
    groups = store_weights([block], run.recipe, shards=1, device=CPU)
    storages = [group.flat for group in groups]
    optimizer = whole_adamw(groups, run.recipe)
    versions = WeightVersions(groups, [block], optimizer, storages)
    stage = AsynchronousStage(block, [Versioned(versions, rule)], rule, before=before, after=after, phases=Phases(CPU))
    replicas = replica_gradients(groups, sum_up) if count > 1 else None
    losses, staleness, given, begin = [], [], 0, 0
    oldest = rule.oldest(rule.first(STORED))

    def tensors() -> list[Tensor]:
        return [*itertools.chain.from_iterable(versions.kept(oldest).values()), *optimizer.state_tensors]

    if stored:
        begin, given = STORED, rule.first(STORED)
        optimizer.step(0.0)
        versions.have(oldest=oldest, newest=STORED, storages=rule.storages(rule.first(STORED)))
        stage.continue_from(STORED)
        for tensor, value in zip(tensors(), stored, strict=True):
            tensor.copy_(value)
    for update in range(begin, run.updates):
        if update == STORED and not stored:
            stored = [tensor.clone() for tensor in tensors()]
        missing = stage.missing
        batches = [run.batch(count * number + replica) for number in range(given, given + missing)]
        given += missing
        loss = stage.step([x for x, _ in batches], [{"targets": targets} for _, targets in batches])
        staleness.append(stage.staleness)
        if replicas is not None:
            replicas.finish(loss)
        losses.append(loss.item())
        versions.begin_update(oldest=rule.oldest(rule.first(update + 1)))
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

    Micro-batch b is number b / replicas of replica b mod replicas of a stage; sums are those of each one, summed up.
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
        of_replicas: list[list[dict[str, Tensor]]] = [[{} for _ in range(count)] for count in run.counts]
        parts: list[list[Tensor]] = [[] for _ in range(run.counts[-1])]
        averaged = run.first(update + 1) - run.first(update)
        for number in range(run.first(update), run.first(update + 1)):
            x, targets = run.batch(number)
            used = [
                {n: p.clone().requires_grad_() for n, p in history[version(stage, number)][stage].items()}
                for stage in range(run.stages)
            ]
            for block, weights in zip(blocks, used, strict=True):
                x = functional_call(block, weights, (x, targets))
            (x / averaged).backward()
            parts[number % len(parts)].append(x.detach() / averaged)
            for of_stage, weights in zip(of_replicas, used, strict=True):
                sums = of_stage[number % len(of_stage)]
                for name, weight in weights.items():
                    assert weight.grad is not None
                    widened = weight.grad.float()
                    sums[name] = sums[name] + widened if name in sums else widened
        losses.append(functools.reduce(torch.add, [torch.stack(own).sum() for own in parts]).item())
        for stage, (of_stage, optimizer) in enumerate(zip(masters, optimizers, strict=True)):
            for name, weight in of_stage.items():
                weight.grad = functools.reduce(torch.add, [sums[name] for sums in of_replicas[stage]])
            optimizer.step()
        history.append([{name: p.detach().clone().to(dtype) for name, p in of.items()} for of in masters])
    return history[-1], losses


def formula(run: Run) -> Callable[[int, int], int]:
    """The published formulas; of several micro-batches an update PipeDream's, counted in micro-batches."""

    def version(stage: int, micro_batch: int) -> int:
        update = sum(run.first(n + 1) <= micro_batch for n in range(run.updates))  # so many came before
        if run.schedule is Schedule.PIPEDREAM_2BW:
            return max(update - 1, 0)  # W(t + 1) = W(t) - v grad f(W(t - 1))
        decides = 0 if run.schedule is Schedule.PIPEDREAM_VERTICAL_SYNC else stage
        replicas = run.counts[decides]
        ago = math.ceil(sum(run.counts[decides:]) / replicas) - 1  # stages after it, where replicas are equal
        if run.micro_batches == 1 and not run.of_stages:
            return max(update - ago, 0)
        ended = replicas * (micro_batch // replicas - ago)  # by all replicas of the stage that decides
        return sum(run.first(n + 1) <= ended for n in range(update))

    return version


LONG = 24  # updates; the last gradient is 3 updates late at most
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
RUNS += [
    Run(schedule, len(counts), micro_batches, 20, of_stages=counts)
    for schedule, counts, micro_batches in (
        (Schedule.PIPEDREAM, (2, 1), 2),
        (Schedule.PIPEDREAM, (3, 1), 6),
        (Schedule.PIPEDREAM, (1, 2), 2),
        (Schedule.PIPEDREAM, (2, 3, 1), 6),
        (Schedule.PIPEDREAM_VERTICAL_SYNC, (2, 1), 4),
        (Schedule.PIPEDREAM_VERTICAL_SYNC, (1, 1, 3), 3),
        (Schedule.PIPEDREAM_2BW, (2, 1), 4),
        (Schedule.PIPEDREAM_2BW, (1, 2, 1), 4),
    )
]
RUNS += [
    Run(Schedule.PIPEDREAM, 2, 6, 20, ramp=(2, 4), of_stages=(2, 1)),
    Run(Schedule.PIPEDREAM, 3, 6, 20, Precision.BF16, of_stages=(2, 3, 1)),
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
    replicas = f"-replicas{'-'.join(map(str, run.of_stages))}" if run.of_stages else replicas
    return f"{run.schedule}-{run.stages}-{run.micro_batches}-{run.precision}{ramp}{replicas}"


# each schedule with every number of stages, of micro-batches and of replicas, long and short, with a ramp, in bf16
USUAL = cover([(*run[:5], run.ramp, run.replicas, bool(run.of_stages)) for run in RUNS], 2)


@pytest.mark.parametrize(
    "run", [run if n in USUAL else pytest.param(run, marks=pytest.mark.rare) for n, run in enumerate(RUNS)], ids=name_of
)
def test_weights_equal_those_of_one_process_that_applies_the_formula(run: Run) -> None:
    stages = executed(run)
    wanted, losses = serial(run, formula(run))
    assert len(stages) == sum(run.counts)
    for (number, _), stage in zip(run.places, stages, strict=True):
        for name, weight in wanted[number].items():
            assert torch.equal(stage.weights[name], weight), name
    assert stages[-1].losses == losses
    most = 2 if run.schedule is Schedule.PIPEDREAM_2BW else None
    for (number, replica), stage in zip(run.places, stages, strict=True):
        bound = run.rule(number if run.schedule is Schedule.PIPEDREAM else 0, replica).waiting
        assert run.of_stages or bound == run.stages - (number if run.schedule is Schedule.PIPEDREAM else 0)
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
    changed = executed(run, goes_on=undisturbed)[-1].weights  # losses in 16 bits may hide it
    assert any(not torch.equal(weight, stages[-1].weights[name]) for name, weight in changed.items())


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
