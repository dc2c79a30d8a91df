"""How long a step takes on a machine whose capabilities were measured, term by term."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from reference_runs.catalog import accumulation
from reference_runs.run import Workload
from suite.job.options import DEFAULT_OPTIONS, TrainingOptions
from suite.machine.half_precision import WORK_DTYPES, Kernels
from suite.machine.operations import HOST_CALLS
from suite.machine.timing_tables import Measured, Subject, engine_seconds, engine_seconds_of_operator
from suite.predict.analytic.memory import WEIGHT_ELEMENT_BYTES
from suite.predict.simulation.autograd_tape import Work, Works
from suite.predict.simulation.operator_calls import batch_tensor_bytes, loading_works, micro_batch_works, update_works
from suite.predict.simulation.pipeline_schedule import Durations, idle_fraction
from suite.predict.simulation.traffic import executed_traffic_of_dtypes

# In a compiled region these are part of a neighbour's pass over memory, or not there at all
FUSED = frozenset({"add", "scale", "to_fp32", "from_fp32", "sum_of_gradients"})
FUSED_DTYPE = "bf16"  # in which compiled operators were timed: they compute in fp32 whatever they read
ACTIVATIONS = frozenset({"gelu_tanh", "gelu", "relu", "fast_gelu", "geglu"})


class StepSeconds(NamedTuple):
    """Seconds of one rank's step by term, in the order of `StepTerm`; they sum to the step."""

    data_loading: float
    copy: float
    forward: float
    backward: float
    communication: float
    bubble: float
    optimizer: float
    overhead: float

    @property
    def step(self) -> float:
        """Seconds of the step."""
        return sum(self)


class Prices:
    """Seconds of works on a machine.

    Args:
        ranks: that work at once, sharing cores, caches and memory.
        dtype: of hidden states.
        cuda: whether operators compute on a GPU, which the host runs ahead of; their timings then have nothing of the
            host in them.
    """

    def __init__(self, measured: Measured, *, ranks: int, dtype: str, element: int, cuda: bool = False) -> None:
        self._measured = measured
        self._ranks = ranks
        self._dtype = dtype
        self._element = element
        self._cuda = cuda
        self._known: dict[Work, float] = {}
        self._engine = engine_seconds(measured, ranks=ranks)
        self._of_operator = 0.0 if cuda else engine_seconds_of_operator(measured, ranks=ranks)
        self._host: dict[tuple[str, str], Callable[[], float]] = {
            ("view", ""): lambda: self._each("view", "forward"),
            ("node", ""): lambda: self._engine.node,
            ("module", ""): lambda: self._each("module", "forward"),
            ("call", ""): lambda: self._slope("calls"),
            ("backward", ""): lambda: self._engine.start,
            ("weight_read", "forward"): lambda: self._each("weight_read", "forward"),
            ("weight_read", "backward"): lambda: self._slope("weight_read", "backward"),
            ("region", "forward"): lambda: self._each("region", "forward", compiled=True),
            ("region", "backward"): self._region_backward,
            ("sharded_unit", ""): lambda: self._slope("sharded_unit"),
            ("checkpoint", ""): lambda: self._slope("checkpoint"),
        }

    def of(self, work: Work) -> float:
        """Seconds of one call."""
        if work not in self._known:
            self._known[work] = self._host_seconds(work) if work.operation in HOST_CALLS else self._seconds(work)
        return self._known[work]

    def overhead(self, works: Works) -> float:
        """Seconds that the host spends on dispatching, views, autograd's graph and reading weights."""
        return sum(times * self.of(work) for (_, work), times in works.items() if work.operation in HOST_CALLS)

    def exposed_overhead(self, works: Works, *, waits: bool = False) -> float:
        """Seconds by which the host makes a micro-batch or an update longer.

        With h seconds of `overhead`, n operators whose call takes c, and d seconds of their arithmetic:
            h                    on a CPU, which computes itself; an operator's timing has its call in it
            max(0, h + n c - d)  on CUDA, where the host runs ahead and waits for nothing but the end
            h + n c              there, where it `waits` for a number behind every operator or two: one after the other
        Assumed: an update that reads the gradients' norm once, in its middle, runs ahead as if it did not.
        """
        host = self.overhead(works)
        if not self._cuda:
            return host
        calls = sum(
            times for (_, work), times in works.items() if work.operation not in HOST_CALLS and _is_called(work)
        )
        device = self.arithmetic(works, backward=False) + self.arithmetic(works, backward=True)
        host += calls * self._slope("calls")
        return host if waits else max(0.0, host - device)

    def arithmetic(self, works: Works, *, backward: bool) -> float:
        """Seconds of the operators of one pass."""
        return sum(
            times * self.of(work)
            for (is_backward, work), times in works.items()
            if is_backward == backward and work.operation not in HOST_CALLS
        )

    def _subject(self, operation: str, variant: str = "", dtype: str = "fp32", *, compiled: bool = False) -> Subject:
        return Subject(operation=operation, variant=variant, dtype=dtype, ranks=self._ranks, compiled=compiled)

    def _slope(self, operation: str, variant: str = "", dtype: str = "fp32", *, compiled: bool = False) -> float:
        return self._measured.line(self._subject(operation, variant, dtype, compiled=compiled)).seconds_per_unit

    def _each(self, operation: str, variant: str = "", *, compiled: bool = False) -> float:
        """Of the fewest calls in a row that were timed: in a step there are few between two operators."""
        line = self._measured.line(self._subject(operation, variant, compiled=compiled))
        return line.seconds(line.sizes[0]) / line.sizes[0]

    def _region_backward(self) -> float:
        """Of one call, whose timing starts autograd's engine, as a step does once for all regions."""
        return max(0.0, self._each("region", "backward", compiled=True) - self._engine.start)

    def _host_seconds(self, work: Work) -> float:
        if work.compiled and work.operation != "region":
            return 0.0
        return self._host[work.operation, work.variant]()

    def _seconds(self, work: Work) -> float:
        if work.compiled and work.operation in FUSED:
            return 0.0
        if work.operation == "sum_of_gradients":
            return self._call("add", "forward", self._dtype, work.sizes[0] // self._element)
        if work.operation == "adam_tensor":
            return self._slope("adam_tensors")
        if work.compiled and work.operation in (*ACTIVATIONS, "dropout"):
            # what a call costs, whatever its size, is the region's: it is called once
            fused = "dropout" if work.operation == "dropout" else "chain"
            return work.sizes[0] * self._slope(fused, work.variant, FUSED_DTYPE, compiled=True)
        return self._call(work.operation, work.variant, work.dtype, *work.sizes)

    def _call(self, operation: str, variant: str, dtype: str, *sizes: int) -> float:
        seconds = self._measured.seconds(self._subject(operation, variant, dtype), *sizes)
        return max(0.0, seconds - self._of_operator) if variant == "backward" else seconds


def _is_called(work: Work) -> bool:
    """Whether an operator is called by itself: not within a compiled region, nor as one of a fused update's tensors."""
    fused = work.compiled and work.operation in (*FUSED, *ACTIVATIONS, "dropout")
    return not fused and work.operation != "adam_tensor"


def step_seconds(
    measured: Measured,
    workload: Workload,
    *,
    kernels: Kernels,
    compiled: bool,
    script: TrainingOptions = DEFAULT_OPTIONS,
    sample_seconds: float = 0.0,
    cores: int = 1,
    in_step_factor: float = 1.0,
) -> list[StepSeconds]:
    """Seconds of a step of every pipeline stage's ranks, by term.

    With m micro-batches, and works w of a micro-batch through the rank's chunks, all of it `in_step_factor` times, but
    for what tokenising takes:
        data loading        m batches made on the host, see `loading_seconds`
        copy                their tensors to the device, on CUDA, from pageable memory; 0 where they are pinned: each is
                            copied while the device computes on the one before it
        forward, backward   sums of w over its operators, each at its own sizes; backward with recomputation
        overhead            what the host does for them: all of it on a CPU, on CUDA what it takes longer than the
                            device, by micro-batch and for the update (`Prices.exposed_overhead`)
        communication       the rank's messages, each as long as the mean of its kind (axis, operation, element type);
                            none hidden where ranks compute on processors, which also carry the messages
        bubble              the time in which the schedule leaves the rank idle, with the mean micro-batch of each
                            chunk: from the first pass of all stages to the last one, less the rank's own passes
        optimizer           the update's works; what the host does for them belongs to the overhead

    Args:
        sample_seconds: to read and tokenise a sample's documents, where the script does so.
        cores: that the ranks and their workers share.
        in_step_factor: how many times as long what is timed alone takes within a step (see step_correction.py).

    Raises:
        InputError: the profile lacks one of the operations.
    """
    recipe, layout = workload.recipe, workload.layout
    dtype, element = WORK_DTYPES[recipe.precision], WEIGHT_ELEMENT_BYTES[recipe.precision]
    prices = Prices(measured, ranks=layout.ranks, dtype=dtype, element=element, cuda=kernels.cuda)
    micro_batches = accumulation(recipe, layout)
    loading = micro_batches * prices.overhead(loading_works(workload))
    copy = 0.0
    if kernels.cuda and not script.pinned:
        sent = Subject(operation="host_to_device", variant="pageable", ranks=layout.ranks)
        copy = micro_batches * sum(measured.seconds(sent, b) for b in batch_tensor_bytes(workload))
    found: list[StepSeconds] = []
    passes: list[float] = []
    forward: dict[int, float] = {}
    backward: dict[int, float] = {}
    for stage in range(layout.pipeline_stages):
        works = micro_batch_works(workload, stage=stage, kernels=kernels, compiled=compiled, script=script)
        ahead = back = overhead = 0.0
        for chunk in works:
            hosts = (micro_batches - 1) * prices.exposed_overhead(chunk.works)
            hosts += prices.exposed_overhead(chunk.last)
            ahead_here = micro_batches * prices.arithmetic(chunk.works, backward=False)
            back_here = (micro_batches - 1) * prices.arithmetic(chunk.works, backward=True)
            back_here += prices.arithmetic(chunk.last, backward=True)
            forward[chunk.number] = ahead_here / micro_batches
            backward[chunk.number] = (back_here + hosts) / micro_batches
            ahead += ahead_here
            back += back_here
            overhead += hosts
        passes.append(ahead + back + overhead)
        update = update_works(workload, stage=stage, replica=0, script=script)
        found.append(
            StepSeconds(
                data_loading=loading,
                copy=copy,
                forward=ahead,
                backward=back,
                communication=_communication(measured, workload, stage=stage, compiled=compiled),
                bubble=0.0,
                optimizer=prices.arithmetic(update, backward=False),
                overhead=overhead + prices.exposed_overhead(update, waits=script.synchronises),
            )
        )
    if layout.pipeline_stages > 1:
        durations = Durations(
            [forward[number] for number in sorted(forward)], [backward[number] for number in sorted(backward)]
        )
        idle = idle_fraction(layout, durations, micro_batches=micro_batches)
        whole = sum(passes) / layout.pipeline_stages / (1 - idle)
        found = [
            one._replace(bubble=max(0.0, whole - own))  # less than 0 by rounding alone
            for one, own in zip(found, passes, strict=True)
        ]
    found = [StepSeconds(*(in_step_factor * seconds for seconds in one)) for one in found]
    if script.tokenises or script.workers:
        making = in_step_factor * loading + micro_batches * layout.micro_batch * sample_seconds * script.tokenises
        found = [
            one._replace(
                data_loading=loading_seconds(
                    making,
                    training=one.step - one.data_loading,
                    workers=script.workers,
                    cores=cores,
                    ranks=layout.ranks,
                    threads=max(1, cores // layout.ranks),
                    cuda=kernels.cuda,
                )
            )
            for one in found
        ]
    longest = max(one.step for one in found)
    return [one._replace(communication=one.communication + longest - one.step) for one in found]


def loading_seconds(
    making: float, *, training: float, workers: int, cores: int, ranks: int, threads: int, cuda: bool
) -> float:
    """Seconds that a step is longer for its batches.

    With M seconds to make a rank's batches on one core, T seconds of training, w workers of each of n ranks of t
    threads each, c cores, f = (c - n t) / n cores of each rank beside its threads, at most w, and x = M - f T:
        M                               without workers: nothing else happens meanwhile
        max(min(x / (f + 1), T), x / w) with them, where x > 0; else 0
    x is what is left to make when the workers on those f cores made what they can while the rank trains. One more
    shares a core with a thread of the rank, half each, and the other threads wait for that one at the next barrier: in
    2 y seconds the worker does y of its work, the rank y of its own, and the f others f y more than x counts. So
    x = (f + 1) y, and y is lost. With every core in use, f = 0, nothing is gained up to M = T: a step is M + T. More
    workers then share the cores of threads that wait anyway: no more than T is lost, until the rank waits for batches,
    x / w. Beside a GPU every worker has a core of its own, f = w: max(0, M / w - T).

    Assumed: a queue that is full until the rank waits, so that each batch that is taken asks for one more, and one
    worker of a rank works at a time as long as M < T; cores shared fairly; w <= f + t; ranks that wait for each other
    at every step, so that f is rounded down: a core for one of them alone gains nothing.
    """
    if not workers:
        return making
    own = workers if cuda else min(workers, max(0, cores - ranks * threads) // ranks)
    left = max(0.0, making - own * training)
    return max(min(left / (own + 1), training), left / workers)


def _communication(measured: Measured, workload: Workload, *, stage: int, compiled: bool) -> float:
    """Seconds of all messages of one rank of `stage`.

    Each takes as long as if it were the mean of its axis, operation and element type. All-reduce and reduce-scatter add
    in that type; what only moves bytes takes as long in every type, and is measured in fp32.
    """
    sizes = {
        "dp": workload.layout.data_parallel,
        "tp": workload.layout.tensor_parallel,
        "pp": workload.layout.pipeline_stages,
        "embedding": 2,
    }
    seconds = 0.0
    typed = executed_traffic_of_dtypes(workload, stage=stage, replica=0, compiled=compiled)
    for element_type, traffic in typed.items():
        for axis, operation, payload, messages in traffic:
            dtype = element_type if operation in ("all_reduce", "reduce_scatter") else "fp32"
            ranks, share = sizes[axis], 1.0
            if operation == "send":
                ranks, share = 2, 0.5  # a call is a message and its answer
            subject = Subject(operation=operation, dtype=dtype, ranks=ranks)
            seconds += share * messages * measured.seconds(subject, payload / messages)
    return seconds
