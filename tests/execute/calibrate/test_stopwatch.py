"""The stopwatch finds the end of the warm-up, repeats long enough, and keeps what it saw."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from functools import partial
from typing import Any

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
    OPERATORS_BYTES,
    Stopwatch,
    WarmOperandCall,
    after_warm_up,
    is_warm,
)
from suite.execute.measure.clock import Call
from suite.execute.measure.system_load import SharedProcessors, own_seconds, processor_facts
from suite.machine import cpu_caches
from suite.machine.timing_tables import Subject
from suite.machine.timings import Repetitions

CPU = torch.device("cpu")
ROWS = dict.fromkeys(("layer_norm", "rms_norm", "softmax", "cross_entropy", "embedding", "column_sum"), (6, 8))
SIZES = {"attention": (2, 16, 8), **ROWS}


@pytest.mark.parametrize(
    ("seconds", "warm"),
    [
        ([8.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0], False),
        ([8.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0], True),  # medians of the last three and of the three before: 1, 1
        ([1.0] * 5, False),
        ([1.0] * 6, True),
        ([53.0, 50.0, 45.0, 45.0, 41.0, 41.0], False),  # falls slowly, two in a row take as long
        ([53.0, 50.0, 45.0, 41.0, 44.0, 40.0], False),
        ([1.0, 1.0, 9.0, 1.0, 1.0, 1.0], True),  # one slow call alone
        ([1.0, 1.0, 1.0, 9.0, 1.0, 1.0], True),
    ],
)
def test_the_warm_up_ends_where_the_median_stops_falling(seconds: list[float], warm: bool) -> None:
    assert is_warm(seconds) is warm


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


@pytest.mark.parametrize(
    ("taken", "point_seconds", "briefly", "found"),
    [
        ([9.0, 3.0, 2.0, 1.0, 1.5, 7.0], 0.0, True, Repetitions((1.0, 1.5), 3)),  # three calls warm, two count
        # a call that takes all of a point's time is repeated three times, or where there is little time once
        ([5.0, 4.95, 7.0], 0.001, False, Repetitions((5.0, 4.95, 7.0), 0)),
        ([9.0, 5.0, 4.95, 7.0], 0.001, False, Repetitions((5.0, 4.95, 7.0), 1)),
        ([9.0, 5.0], 0.001, True, Repetitions((5.0,), 1)),
    ],
)
def test_few_calls_do_where_there_is_little_time(
    taken: list[float], point_seconds: float, briefly: bool, found: Repetitions
) -> None:
    calls = iter(taken)

    def sample(_: object) -> float:
        time.sleep(2 * point_seconds)
        return next(calls)

    assert Stopwatch(CPU).repetitions(nothing, point_seconds=point_seconds, briefly=briefly, sample=sample) == found


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


@given(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=30), st.data())
def test_what_comes_after_the_warm_up_is_kept_and_no_sample_is_nothing(
    samples: list[float], data: st.DataObject
) -> None:
    warm_up = data.draw(st.integers(0, len(samples) - 1))
    found = after_warm_up(samples, warm_up)
    assert found.warm_up == warm_up
    assert found.seconds == pytest.approx([max(1e-9, sample) for sample in samples[warm_up:]], rel=1e-3)


def called(operation: str, sizes: tuple[int, ...], **subject: Any) -> Any:
    """The result of an operation as a calibration times it."""
    return TIMED[operation](Subject(operation=operation, **subject), sizes, Inputs(CPU))()


def test_products_have_the_shapes_that_their_sizes_name() -> None:
    for variant in ("NN", "NT", "TN"):
        for dtype, kind in DTYPES.items():
            result = called("product", (8, 24, 16), variant=variant, dtype=dtype)
            assert (result.shape, result.dtype) == ((8, 24), kind)
            assert len({tuple(row) for row in result.float().tolist()}) == 8  # random data: no row is like another
        batched = called("batched_product", (3, 24, 8), variant=variant)  # scores, or heads
        assert batched.shape == ((3, 24, 24) if variant == "NT" else (3, 24, 8))
    assert called("square_product", (2 * 24**3,), variant="NT").shape == (24, 24)  # of so many flop


OTHERWISE = {"product", "square_product", "batched_product", "region"}  # have tests of their own
COPIES = {"host_to_device", "device_to_host"}  # between pinned memory and a GPU


@pytest.mark.parametrize("variant", ["forward", "backward"])
def test_every_operation_can_be_called_again_and_again(variant: str) -> None:
    device = torch.device("cuda", 0) if torch.cuda.is_available() else CPU
    watch, inputs = Stopwatch(device), Inputs(device)
    left_out = OTHERWISE | (COPIES if device is CPU else set()) | set(FORWARD_ONLY if variant == "backward" else ())
    for operation in sorted(TIMED.keys() - left_out):
        work = TIMED[operation](Subject(operation=operation, variant=variant), SIZES.get(operation, (96,)), inputs)
        assert min(watch.repetitions(work, point_seconds=0.0, sample=watch.cold_sample).seconds) > 0, operation


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("variant", ["forward", "backward"])
def test_a_compiled_region_is_one_graph_that_can_be_called_again(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))  # the graph, without its code
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
    for variant in ("forward", "backward"):
        assert [each.tolist() for each in called("weight_read", (2,), variant=variant)] == [[1.0] * 64] * 2


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


def test_a_stopwatch_that_reads_reads_as_much_other_memory_after_overwriting(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int, int]] = []
    for name in ("zero_", "sum"):
        real = getattr(torch.Tensor, name)

        def noted(self: torch.Tensor, *, name: str = name, real: Any = real) -> torch.Tensor:
            calls.append((name, self.numel(), self.data_ptr()))
            return real(self)

        monkeypatch.setattr(torch.Tensor, name, noted)
    Stopwatch(CPU).overwrite()
    assert [name for name, *_ in calls] == ["zero_"]
    calls.clear()
    Stopwatch(CPU, reads=True).overwrite()
    (first, written, at), (second, read, elsewhere) = calls
    assert (first, second, written) == ("zero_", "sum", read)
    assert at != elsewhere
