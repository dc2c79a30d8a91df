"""Cost of batches to a step: the formula against workers, threads and cores that are stepped through event by event."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from reference_runs.catalog import accumulation
from reference_runs.run import Workload
from suite.job.options import StepOptions, Texts
from suite.ladder.plan import planned, target_of
from suite.ladder.rung import BASE, Track
from suite.machine.half_precision import Kernels
from suite.machine.timing_tables import Subject
from suite.predict.simulation.step_time import StepConditions, loading_seconds, step_seconds
from tests.support.step_machine import Machine

PREFETCHED = 2  # batches of each worker, as torch.utils.data asks for
STEPS = 400
TEXTS = Texts(tokenizer_file="", text_file="", documents_file="")


def _stepped(making: float, training: float, *, workers: int, own: int) -> float:
    """Seconds of a step in the long run, of a rank whose workers have `own` cores besides those of its threads.

    Batches are asked for in turn, one whenever one is taken. A worker without a core of its own shares one with a
    thread, half each, and all threads wait for that one.
    """
    queues: list[list[float]] = [[] for _ in range(workers)]
    numbers: list[list[int]] = [[] for _ in range(workers)]
    asked, ready, now, left, marks = 0, set[int](), 0.0, 0.0, list[float]()

    def ask() -> None:
        nonlocal asked
        queues[asked % workers].append(making)
        numbers[asked % workers].append(asked)
        asked += 1

    for _ in range(PREFETCHED * workers):
        ask()
    while len(marks) < STEPS:
        if left <= 0 and len(marks) in ready:
            ready.remove(len(marks))
            marks.append(now)
            left = training
            ask()
        active = sorted((worker for worker in range(workers) if queues[worker]), key=lambda worker: numbers[worker][0])
        contended = len(active) > own and left > 0
        rates = {worker: 0.5 if left > 0 and place >= own else 1.0 for place, worker in enumerate(active)}
        pace = 0.5 if contended else 1.0
        spans = [queues[worker][0] / rates[worker] for worker in active] + ([left / pace] if left > 0 else [])
        span = min(spans)
        now += span
        left = 0.0 if left / pace <= span + 1e-12 else left - span * pace
        for worker in active:
            queues[worker][0] -= span * rates[worker]
            if queues[worker][0] <= 1e-12:
                queues[worker].pop(0)
                ready.add(numbers[worker].pop(0))
    half = STEPS // 2
    return (marks[-1] - marks[half]) / (STEPS - 1 - half)


def test_workers_cost_what_a_machine_of_shared_cores_takes() -> None:
    """A rank has 3 threads: with 3 workers at most, none of them shares a core with more than one thread."""
    threads, wrong = 3, []
    seconds = (0.1, 0.4, 0.79, 1.0, 1.3, 1.9, 2.5, 4.0, 7.0)
    for making, own, workers in itertools.product(seconds, (0, 1, 2, 3), (1, 2, 3)):
        step = _stepped(making, 1.0, workers=workers, own=own)
        lost = loading_seconds(
            making, training=1.0, workers=workers, cores=threads + own, ranks=1, threads=threads, cuda=False
        )
        if 1.0 + lost != pytest.approx(step, rel=0.01):
            wrong.append((making, own, workers, lost, step))
    assert wrong == []


def _lost(
    making: float, *, workers: int, cores: int = 2, ranks: int = 1, threads: int = 2, cuda: bool = False
) -> float:
    return loading_seconds(making, training=0.2, workers=workers, cores=cores, ranks=ranks, threads=threads, cuda=cuda)


def test_a_step_makes_its_batches_itself_without_workers_that_have_cores_of_their_own() -> None:
    assert _lost(0.157, workers=0) == _lost(0.157, workers=2) == _lost(0.157, workers=2, ranks=2, threads=1) == 0.157
    # a core for one rank of two alone makes no step shorter
    assert _lost(0.1, workers=1, cores=3, ranks=2, threads=1) == 0.1
    assert _lost(0.1, workers=1, cores=4, ranks=2, threads=1) == 0
    # with a GPU a step waits only for workers that are too slow
    assert _lost(0.157, workers=1, cuda=True) == 0
    assert _lost(0.5, workers=2, cuda=True) == pytest.approx(0.5 / 2 - 0.2)


def test_seconds_to_tokenise_a_sample_are_those_of_every_sample_of_the_step() -> None:
    target = target_of("gpt2-mini", device="cpu", seed=1)
    machine = Machine(per_unit=1e-10, host=1e-6)

    def seconds(sample_seconds: float, *, workers: int = 0, tokenises: bool = True) -> tuple[float, float]:
        setting = msgspec.structs.replace(BASE[Track.SPEED], workers=workers, tokenises=tokenises)
        plan = planned(target, setting, "", TEXTS)
        (found,) = step_seconds(
            machine,
            Workload(*(plan.architecture, plan.recipe, plan.layout)),
            StepOptions(training_options=plan.training_options),
            StepConditions(sample_seconds=sample_seconds, cores=2),
        )
        return found.data_loading, found.step

    (slices, least), (made, step) = seconds(0.0), seconds(0.005)
    samples = BASE[Track.SPEED].samples
    assert made - slices == pytest.approx(samples * 0.005)
    assert step - least == pytest.approx(samples * 0.005)
    assert seconds(0.005, tokenises=False) == seconds(0.0, tokenises=False)
    training = least - slices
    assert seconds(training / samples / 2, workers=2)[1] == pytest.approx(1.5 * training + slices)


def test_pageable_batches_are_copied_as_calibrated_and_pinned_ones_while_the_device_computes() -> None:
    class Copies(Machine, frozen=True):
        def seconds(self, subject: Subject, *sizes: float) -> float:
            if subject.operation == "host_to_device":
                assert subject.variant == "pageable"
                return sizes[0]
            return super().seconds(subject, *sizes)

    for pinned in (False, True):
        setting = msgspec.structs.replace(BASE[Track.SPEED], pinned=pinned, tokenises=False, micro_batch=4)
        plan = planned(target_of("gpt2-mini", device="cpu", seed=1), setting, "", TEXTS)
        given = plan.architecture, plan.recipe, plan.layout
        options = StepOptions(kernels=Kernels(cuda=True), training_options=plan.training_options)
        (found,) = step_seconds(Copies(host=1.0), Workload(*given), options)
        tokens = accumulation(plan.recipe, plan.layout) * 4 * plan.architecture.sequence
        assert found.copy == (0 if pinned else 2 * 8 * tokens)  # int64 tokens and targets
        assert (found.data_loading == 0) == pinned
