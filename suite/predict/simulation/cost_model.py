"""Seconds of operator calls on a machine whose capabilities were measured."""

from __future__ import annotations

from collections.abc import Callable

from reference_runs.run import Workload
from suite.machine.half_precision import WORK_DTYPES
from suite.machine.operations import HOST_CALLS
from suite.machine.timing_tables import MeasuredTimes, Subject, engine_seconds_of_operator
from suite.predict.analytic.memory import WEIGHT_ELEMENT_BYTES
from suite.predict.simulation.autograd_tape import OperatorCall, OperatorCalls

# In a compiled region these are part of a neighbour's pass over memory, or not there at all
FUSED = frozenset({"add", "scale", "to_fp32", "from_fp32", "sum_of_gradients"})
FUSED_DTYPE = "bf16"  # in which compiled operators were timed: they compute in fp32 whatever they read
ACTIVATIONS = frozenset({"gelu_tanh", "gelu", "relu", "fast_gelu", "geglu", "geglu_tanh", "swiglu"})


class CostModel:
    """Seconds of operator calls on a machine.

    Args:
        cuda: whether operators compute on a GPU, which the host runs ahead of; their timings then have nothing of the
            host in them.
    """

    def __init__(self, measured: MeasuredTimes, workload: Workload, *, cuda: bool = False) -> None:
        precision, ranks = workload.recipe.precision, workload.layout.ranks
        self._measured = measured
        self._ranks = ranks
        self._dtype = WORK_DTYPES[precision]
        self._element = WEIGHT_ELEMENT_BYTES[precision]
        self._cuda = cuda
        self._known: dict[OperatorCall, float] = {}
        self._engine = measured.line(self._subject("view", "backward"))
        self._of_operator = 0.0 if cuda else engine_seconds_of_operator(measured, ranks=ranks)
        self._host: dict[tuple[str, str], Callable[[], float]] = {
            ("view", ""): lambda: self._each("view", "forward"),
            ("node", ""): lambda: self._engine.seconds_per_unit,
            ("module", ""): lambda: self._each("module", "forward"),
            ("call", ""): lambda: self._slope("calls"),
            ("backward", ""): lambda: self._engine.fixed_seconds,
            ("weight_read", "forward"): lambda: self._each("weight_read", "forward"),
            ("weight_read", "backward"): lambda: self._slope("weight_read", "backward"),
            ("region", "forward"): lambda: self._each("region", "forward", compiled=True),
            ("region", "backward"): self._region_backward,
            ("sharded_unit", ""): lambda: self._slope("sharded_unit"),
            ("checkpoint", ""): lambda: self._slope("checkpoint"),
        }

    def seconds(self, call: OperatorCall) -> float:
        """Seconds of one call."""
        if call not in self._known:
            self._known[call] = self._host_seconds(call) if call.operation in HOST_CALLS else self._device_seconds(call)
        return self._known[call]

    def overhead(self, calls: OperatorCalls) -> float:
        """Seconds that the host spends on dispatching, views, autograd's graph and reading weights."""
        return sum(times * self.seconds(call) for (_, call), times in calls.items() if call.operation in HOST_CALLS)

    def exposed_overhead(
        self, calls: OperatorCalls, *, waits: bool = False, besides: float = 0.0, captured: bool = False
    ) -> float:
        """Seconds by which the host makes a micro-batch or an update longer.

        With h seconds of `overhead` and of what the host does `besides`, n operators whose call takes c, and d seconds
        of their arithmetic:
            h                    on a CPU, which computes itself; an operator's timing has its call in it
            max(0, h + n c - d)  on CUDA, where the host runs ahead and waits for nothing but the end
            h + n c              there, where it `waits` for a number after every operator or two: one after the other
        A graph that was `captured` of the calls leaves what the host does `besides` alone in h, and no n.
        Assumed: an update that reads the gradients' norm once, in its middle, runs ahead as if it did not.
        """
        host = besides + (0.0 if captured else self.overhead(calls))
        if not self._cuda:
            return host
        called = sum(
            times for (_, call), times in calls.items() if call.operation not in HOST_CALLS and _is_called(call)
        )
        device = self.arithmetic(calls, backward=False) + self.arithmetic(calls, backward=True)
        host += 0.0 if captured else called * self._slope("calls")
        return host if waits else max(0.0, host - device)

    def arithmetic(self, calls: OperatorCalls, *, backward: bool) -> float:
        """Seconds of the operators of one pass."""
        return sum(
            times * self.seconds(call)
            for (is_backward, call), times in calls.items()
            if is_backward == backward and call.operation not in HOST_CALLS
        )

    def _subject(self, operation: str, variant: str = "", dtype: str = "fp32", *, compiled: bool = False) -> Subject:
        return Subject(operation=operation, variant=variant, dtype=dtype, ranks=self._ranks, compiled=compiled)

    def _slope(self, operation: str, variant: str = "", dtype: str = "fp32", *, compiled: bool = False) -> float:
        return self._measured.line(self._subject(operation, variant, dtype, compiled=compiled)).seconds_per_unit

    def _each(self, operation: str, variant: str = "", *, compiled: bool = False) -> float:
        """Seconds of one of the fewest calls in a row that were timed: few stand between two operators of a step."""
        line = self._measured.line(self._subject(operation, variant, compiled=compiled))
        return line.seconds(line.sizes[0]) / line.sizes[0]

    def _region_backward(self) -> float:
        """Seconds of one call, whose timing starts autograd's engine, as a step does once for all regions."""
        return max(0.0, self._each("region", "backward", compiled=True) - self._engine.fixed_seconds)

    def _host_seconds(self, call: OperatorCall) -> float:
        if call.compiled and call.operation != "region":
            return 0.0
        return self._host[call.operation, call.variant]()

    def _device_seconds(self, call: OperatorCall) -> float:
        if call.compiled and call.operation in FUSED:
            return 0.0
        if call.operation == "sum_of_gradients":
            return self._operator_seconds("add", "forward", self._dtype, call.sizes[0] // self._element)
        if call.operation == "adam_tensor":
            return self._slope("adam_tensors")
        if call.operation == "epilogue":
            return self._measured.seconds(self._subject("copy"), self._element * call.sizes[0])
        if call.compiled and call.operation in (*ACTIVATIONS, "dropout"):
            # what a call costs, whatever its size, is the region's: it is called once
            fused = "dropout" if call.operation == "dropout" else "chain"
            return call.sizes[0] * self._slope(fused, call.variant, FUSED_DTYPE, compiled=True)
        return self._operator_seconds(call.operation, call.variant, call.dtype, *call.sizes)

    def _operator_seconds(self, operation: str, variant: str, dtype: str, *sizes: int) -> float:
        seconds = self._measured.seconds(self._subject(operation, variant, dtype), *sizes)
        return max(0.0, seconds - self._of_operator) if variant == "backward" else seconds


def _is_called(call: OperatorCall) -> bool:
    """Whether an operator is called by itself: not in a compiled region, a GEMM or an update of several tensors."""
    fused = call.compiled and call.operation in (*FUSED, *ACTIVATIONS, "dropout")
    return not fused and call.operation not in ("adam_tensor", "epilogue")
