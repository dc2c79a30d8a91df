"""A machine whose operations take what a test says, and the miniatures."""

from __future__ import annotations

import msgspec

from reference_runs.catalog import miniatures, reference_run
from reference_runs.miniature import miniature
from suite.machine.timing_tables import Line, Subject
from suite.machine.timings import Timing

MINIS = {name: miniature(reference_run(run), "cpu", ranks=2) for name, run in miniatures().items()}


HOST_LINES = frozenset(
    {"view", "engine", "module", "weight_read", "region", "checkpoint", "sharded_unit", "calls", "adam_tensors"}
)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine on which a call takes `fixed` seconds and `per_unit` for each of the product of its sizes.

    Args:
        host: seconds of each of what the host does.
        start: of autograd's engine.
        latency, per_byte: of messages.
    """

    fixed: float = 0.0
    per_unit: float = 0.0
    host: float = 0.0
    start: float = 0.0
    latency: float = 0.0
    per_byte: float = 0.0

    def seconds(self, subject: Subject, *sizes: float) -> float:
        if subject.operation in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"):
            return self.latency + self.per_byte * sizes[0]
        units = 1.0
        for size in sizes:
            units *= size
        engine = self.start + self.host if subject.variant == "backward" else 0.0
        return engine + self.fixed + self.per_unit * units

    def line(self, subject: Subject) -> Line:
        fused = subject.operation in ("chain", "dropout")
        assert (subject.compiled and fused) or subject.operation in HOST_LINES
        fixed, slope = (self.fixed, self.per_unit) if fused else (0.0, self.host)
        if subject.operation in ("view", "engine") and subject.variant == "backward":
            fixed = self.start
        return Line(
            subject=subject,
            unit="call",
            sizes=(1.0,),
            timings=(Timing(fixed + slope + 1e-300, 1.0, 1.0, 1.0, 1, 0),),
            fixed_seconds=fixed,
            seconds_per_unit=slope,
            residual=0.0,
            worst=0.0,
        )
