"""The stopwatch finds the end of the warm-up, repeats long enough, and keeps what it saw."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.calibration.grids import FORWARD_ONLY
from suite.execute.calibrate.operators import DTYPES, Inputs
from suite.execute.calibrate.run import TIMED
from suite.execute.calibrate.stopwatch import (
    HOST_BYTES,
    MOST_OVERWRITTEN,
    MOST_PAGED,
    MOST_REPETITIONS,
    OPERATORS_BYTES,
    Stopwatch,
    WarmOperandCall,
    after_warm_up,
    is_warm,
)
from suite.execute.measure.clock import Call
from suite.execute.measure.system_load import SharedProcessors, own_seconds, processor_facts
from suite.job.calibration_job import Task
from suite.machine import cpu_caches
from suite.machine.timing_tables import Subject
from suite.machine.timings import Repetitions, median

CPU = torch.device("cpu")
ROWS = dict.fromkeys(("layer_norm", "rms_norm", "softmax", "cross_entropy", "embedding", "column_sum"), (6, 8))
SIZES = {"attention": (2, 16, 8), **ROWS}


def test_the_warm_up_ends_where_the_median_stops_falling() -> None:
    falling = [8.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    warm = [count for count in range(len(falling) + 1) if is_warm(falling[:count])]
    # medians of the last three and of the three before them: 1 and 4, 1 and 2, 1 and 1
    assert warm[0] == 8
    assert not is_warm([1.0] * 5)
    assert is_warm([1.0] * 6)


def test_calls_that_fall_slowly_are_not_warm_where_two_in_a_row_take_as_long() -> None:
    assert not is_warm([53.0, 50.0, 45.0, 45.0, 41.0, 41.0])
    assert not is_warm([53.0, 50.0, 45.0, 41.0, 44.0, 40.0])


def test_one_slow_call_alone_is_no_warm_up() -> None:
    assert is_warm([1.0, 1.0, 9.0, 1.0, 1.0, 1.0])
    assert is_warm([1.0, 1.0, 1.0, 9.0, 1.0, 1.0])


def test_slow_first_calls_are_left_out_and_counted_as_warm_up() -> None:
    calls = iter([0.02, 0.01, *[0.001] * MOST_REPETITIONS])

    def work() -> None:
        time.sleep(next(calls))

    found = Stopwatch(CPU).repetitions(work, point_seconds=0.05)
    assert found.warm_up >= 2
    assert 0.001 <= min(found.seconds) <= median(found.seconds) < 0.01


@pytest.mark.parametrize("point_seconds", [0.0, 0.02])
def test_a_point_is_repeated_three_times_at_least_and_for_as_long_as_asked(point_seconds: float) -> None:
    start = time.perf_counter()
    found = Stopwatch(CPU).repetitions(lambda: time.sleep(0.002), point_seconds=point_seconds)
    assert time.perf_counter() - start >= point_seconds
    assert len(found.seconds) >= 3


@pytest.mark.parametrize("threads", [1, 2])
def test_before_a_cold_call_each_thread_overwrites_its_share_of_the_caches(threads: int) -> None:
    before, watch = torch.get_num_threads(), Stopwatch(CPU)
    torch.set_num_threads(threads)
    try:
        seen = []
        for sample in (watch.cold_sample, watch.host_sample, watch.sample):
            sample(lambda: seen.append(watch._cache.clone()))
    finally:
        torch.set_num_threads(before)
    share = cpu_caches.share_bytes()
    of_operators, of_host = (
        min(threads * min(share, most), MOST_OVERWRITTEN) // 4 for most in (OPERATORS_BYTES, HOST_BYTES)
    )
    assert [int((cache > 0).sum()) for cache in seen] == [of_operators, of_host, of_host]


def test_before_an_operator_the_operand_that_the_one_before_wrote_is_written_again() -> None:
    values = torch.randn(1000)
    written, changes = values.clone(), []

    class Watched(WarmOperandCall):
        def rewrite(self) -> None:
            changes.append("rewritten")
            super().rewrite()

    work = Watched(lambda: changes.append("called"), written)
    watch = Stopwatch(CPU)
    for sample in (watch.cold_sample, watch.host_sample, watch.sample):
        sample(work)
    assert changes == ["rewritten", "called", "called", "called"]
    assert torch.equal(written, values)


@pytest.mark.parametrize("operation", ["gelu", "layer_norm", "softmax", "dropout"])
def test_the_gradient_that_is_written_again_is_not_what_the_forward_pass_kept(operation: str) -> None:
    inputs = Inputs(CPU)
    work = TIMED[operation](Subject(operation=operation, variant="backward"), SIZES.get(operation, (96,)), inputs)
    assert isinstance(work, WarmOperandCall)
    first = work()
    with torch.no_grad():
        work._written.zero_()
    second = work()
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    assert first[0].abs().sum() > 0
    assert second[0].abs().sum() == 0
    # the operand is where it was: a gradient in its place would have wiped it out
    assert inputs.normal(48, dtype=torch.float32).abs().min() > 0


def nothing() -> None: ...


class OnDevice(Stopwatch):
    """A device that overwrites its cache in 30 us, with a host that hands a call over in 100, at first in 10,000."""

    def __init__(self) -> None:
        self._cuda = True
        self.host_seconds = iter([1e-2, 1.2e-4, 1e-4])
        self.overwritten: list[int] = []

    def overwrite(self) -> None:
        raise AssertionError("no device here")

    def host_sample(self, call: Call) -> float:
        assert call is nothing
        return next(self.host_seconds)

    def sample(self, call: Call, *, overwrites: int = 1) -> float:
        assert call in (nothing, self.overwrite)
        self.overwritten.append(overwrites)
        return 3e-5


def test_a_device_is_kept_busy_for_as_long_as_the_host_hands_a_call_over() -> None:
    watch = OnDevice()
    overwrites = watch.overwrites_for(nothing)
    assert overwrites == 4
    watch.cold_sample(nothing, overwrites=overwrites)
    assert watch.overwritten == [1, 1, 1, 4]


def test_on_a_device_the_operand_that_was_written_last_is_warm_and_all_else_cold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []

    class Event:
        """One that notes when it is recorded."""

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            order.append("event")

        def elapsed_time(self, _end: Event) -> float:
            return 2.0

    class Operator(WarmOperandCall):
        """One that notes when its operand is written."""

        def rewrite(self) -> None:
            order.append("operand")

    class Device(Stopwatch):
        def __init__(self) -> None:
            self._cuda, self._device = True, CPU

        def overwrite(self) -> None:
            order.append("cache")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    assert Device().cold_sample(Operator(lambda: order.append("call"), torch.ones(1)), overwrites=2) == 2e-3
    assert order == ["cache", "cache", "operand", "event", "call", "event"]


def test_on_a_cpu_nothing_is_called_to_know_how_often_to_overwrite() -> None:
    called: list[int] = []
    assert Stopwatch(CPU).overwrites_for(lambda: called.append(1)) == 1
    assert called == []


def test_where_there_is_little_time_three_calls_warm_and_two_count_at_least() -> None:
    seconds = iter([9.0, 3.0, 2.0, 1.0, 1.5, 7.0])
    found = Stopwatch(CPU).repetitions(nothing, point_seconds=0.0, briefly=True, sample=lambda _: next(seconds))
    assert found == Repetitions((1.0, 1.5), 3)


@pytest.mark.parametrize(
    ("taken", "briefly", "found"),
    [
        ([5.0, 4.95, 7.0], False, Repetitions((5.0, 4.95, 7.0), 0)),
        ([9.0, 5.0, 4.95, 7.0], False, Repetitions((5.0, 4.95, 7.0), 1)),
        ([9.0, 5.0], True, Repetitions((5.0,), 1)),
    ],
)
def test_a_call_that_takes_all_of_a_point_s_time_is_repeated_three_times_or_where_there_is_little_time_once(
    taken: list[float], briefly: bool, found: Repetitions
) -> None:
    calls = iter(taken)

    def sample(_: object) -> float:
        time.sleep(0.002)
        return next(calls)

    assert Stopwatch(CPU).repetitions(lambda: None, point_seconds=0.001, briefly=briefly, sample=sample) == found


class Paged(Stopwatch):
    """Calls of 10 ms each, for each of which the kernel makes so many pages."""

    def __init__(self, pages: list[int]) -> None:
        super().__init__(CPU)
        self._made = iter(pages)

    def sample(self, call: Call, *, overwrites: int = 1) -> float:
        assert overwrites == 1
        call()
        self._pages = next(self._made, 0)
        return 0.01


@pytest.mark.parametrize(
    ("pages", "briefly", "left_out"),
    [
        ([1000, 1000, 1000, 0], False, 3),
        ([0, 1000, 0], False, 2),
        ([33, 33, 33], False, 0),  # 198 us of 10 ms
        ([34, 33, 33], False, 1),  # 204 us
        ([0, 0, 1000], False, 0),  # warm before
        ([1000] * 100, False, MOST_PAGED),
        ([0, 1000, 0, 1000], True, 2),
        ([1000, 0, 1000], True, 1),
        ([0, 34, 33], True, 2),
        ([1000] * 100, True, MOST_PAGED - 1),
    ],
)
def test_calls_for_which_the_kernel_makes_memory_are_not_warm(pages: list[int], briefly: bool, left_out: int) -> None:
    """They take as long as the others here: that they are left out is for their pages alone."""
    called: list[int] = []
    found = Paged(pages).repetitions(lambda: called.append(1), point_seconds=0.0001, briefly=briefly)
    assert found.warm_up == left_out
    assert len(found.seconds) == len(called) - left_out
    assert len(found.seconds) >= (1 if briefly else 3)


def test_pages_are_those_that_the_kernel_made_for_a_call() -> None:
    watch = Stopwatch(CPU)
    size = 64 * 2**20

    def fresh() -> None:
        with mmap.mmap(-1, size) as memory:
            memory.write(bytes(size))

    watch.sample(fresh)
    # 4 KiB each, or 2 MiB where the system makes huge ones of itself; as many again for the bytes that are written
    assert watch._pages >= size / 2**21
    before = watch._pages
    watch.host_sample(lambda: None)
    assert watch._pages < before


def test_a_call_that_takes_ever_less_ends_the_warm_up_all_the_same() -> None:
    seconds = iter([0.9**count for count in range(1000)])
    found = Stopwatch(CPU).repetitions(lambda: None, point_seconds=0.0, sample=lambda _: next(seconds))
    assert found.warm_up < 60


@given(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=30), st.data())
def test_what_comes_after_the_warm_up_is_kept_and_no_sample_is_nothing(
    samples: list[float], data: st.DataObject
) -> None:
    warm_up = data.draw(st.integers(0, len(samples) - 1))
    found = after_warm_up(samples, warm_up)
    assert found.warm_up == warm_up
    assert found.seconds == pytest.approx([max(1e-9, sample) for sample in samples[warm_up:]], rel=1e-3)


@pytest.mark.parametrize("variant", ["NN", "NT", "TN"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_has_the_shape_that_its_sizes_name(variant: str, dtype: str) -> None:
    inputs = Inputs(CPU)
    subject = Subject(operation="product", variant=variant, dtype=dtype)
    result = TIMED["product"](subject, (8, 24, 16), inputs)()
    assert isinstance(result, torch.Tensor)
    assert (result.shape, result.dtype) == ((8, 24), DTYPES[dtype])
    # random data: no row is like another
    assert len({tuple(row) for row in result.float().tolist()}) == 8


def test_a_square_product_takes_the_flop_that_it_is_asked_for() -> None:
    result = TIMED["square_product"](Subject(operation="square_product", variant="NT"), (2 * 24**3,), Inputs(CPU))()
    assert isinstance(result, torch.Tensor)
    assert result.shape == (24, 24)


@pytest.mark.parametrize("variant", ["NN", "NT", "TN"])
def test_a_batched_product_has_the_shape_of_scores_or_of_heads(variant: str) -> None:
    subject = Subject(operation="batched_product", variant=variant)
    result = TIMED["batched_product"](subject, (3, 24, 8), Inputs(CPU))()
    assert isinstance(result, torch.Tensor)
    assert result.shape == ((3, 24, 24) if variant == "NT" else (3, 24, 8))


OTHERWISE = {"product", "square_product", "batched_product", "region"}  # have tests of their own


@pytest.mark.parametrize(
    ("operation", "variant"),
    [
        (operation, variant)
        for operation in sorted(TIMED.keys() - OTHERWISE)
        for variant in ("forward", "backward")
        if variant == "forward" or operation not in FORWARD_ONLY
    ],
)
def test_every_operation_can_be_called_again_and_again(operation: str, variant: str) -> None:
    on_gpu = operation in ("host_to_device", "device_to_host")
    if on_gpu and not torch.cuda.is_available():
        pytest.skip("NOT RUN: copies between pinned memory and a GPU need a GPU")
    device = torch.device("cuda", 0) if on_gpu else CPU
    task = Task(
        subject=Subject(operation=operation, variant=variant),
        threads=1,
        sizes=(SIZES.get(operation, (96,)),),
        point_seconds=0.0,
    )
    work = TIMED[operation](task.subject, task.sizes[0], Inputs(device))
    watch = Stopwatch(device)
    assert min(watch.repetitions(work, point_seconds=0.0, sample=watch.cold_sample).seconds) > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("variant", ["forward", "backward"])
def test_a_compiled_region_is_one_graph_that_can_be_called_again(variant: str) -> None:
    torch._dynamo.reset()
    subject = Subject(operation="region", variant=variant, compiled=True)
    with torch._functorch.config.patch(donated_buffer=False):
        work = TIMED["region"](subject, (3,), Inputs(CPU))
        work()
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        assert min(Stopwatch(CPU).repetitions(work, point_seconds=0.0).seconds) > 0
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before > 0
    torch._dynamo.reset()


def test_a_weight_that_is_read_has_the_stored_values_and_hands_its_gradient_on() -> None:
    forward = TIMED["weight_read"](Subject(operation="weight_read", variant="forward"), (2,), Inputs(CPU))
    read = forward()
    assert isinstance(read, list)
    assert [weight.tolist() for weight in read] == [[1.0] * 64] * 2
    backward = TIMED["weight_read"](Subject(operation="weight_read", variant="backward"), (2,), Inputs(CPU))
    handed = backward()
    assert isinstance(handed, tuple)
    assert [gradient.tolist() for gradient in handed] == [[1.0] * 64] * 2


def test_tensors_of_two_indices_do_not_overlap() -> None:
    inputs = Inputs(CPU)
    first = inputs.normal(4, 8, dtype=torch.float32)
    second = inputs.normal(4, 8, dtype=torch.float32, index=1)
    first, second = inputs.normal(4, 8, dtype=torch.float32), second
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert second.data_ptr() - first.data_ptr() == 4 * 32


TICK = 2 / os.sysconf("SC_CLK_TCK")  # user and system time are whole numbers of these
BUSY = "import time; end = time.process_time() + 0.4\nwhile time.process_time() < end: pass\n"


def test_what_a_process_started_is_its_own_whether_it_has_ended_or_not() -> None:
    before = own_seconds()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    ended = own_seconds()
    assert 0.4 - TICK <= ended - before < 2
    nested = (
        f"import subprocess, sys; {BUSY}\nprint('done', flush=True)\nsubprocess.run([sys.executable, '-c', 'input()'])"
    )
    with subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alive = own_seconds()
        child.kill()
    assert 0.4 - TICK <= alive - ended < 2


def test_processor_time_passes_and_no_more_of_it_is_busy_than_there_is() -> None:
    processors = SharedProcessors()
    processors.start()
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        pass
    processors.update()
    if (seen := processors.since_start) is None:
        pytest.skip("NOT RUN: needs /proc/stat")
    assert 0.1 < seen.busy <= seen.whole + 0.1
    assert 0 < seen.own <= 0.3
    assert processor_facts().keys() == {"governor", "processor_mhz"}
