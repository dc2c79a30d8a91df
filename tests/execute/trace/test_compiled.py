"""A compiled step has fused kernels, the messages of an eager one, and says where its graphs break."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from suite.job.operators import OperatorKind, TracePhase
from suite.job.trace_job import Compiler, ModelSource, NumberFormat, Sharding, StepTrace, TraceJob
from suite.reproduce.traced import traced
from tests.execute.trace import models

pytestmark = pytest.mark.ranks

SEQUENCE, SAMPLES = 128, 2
OWN = ModelSource(module=f"{Path(models.__file__)}:build")


def job(source: ModelSource = OWN, **options: Any) -> TraceJob:
    values = {"micro_batch": SAMPLES, "sequence": SEQUENCE, "number_format": NumberFormat.FP32} | options
    return TraceJob(source=source, **values)


def by_phase(found: StepTrace) -> dict[TracePhase, int]:
    return {phase: sum(o.calls * o.flop for o in found.operators if o.phase is phase) for phase in TracePhase}


def fused(found: StepTrace) -> int:
    """Fused kernels of a step, each as often as it ran."""
    return sum(o.calls for o in found.operators if o.operator.startswith("inductor.fused"))


def test_a_fused_kernel_reads_and_writes_each_tensor_once() -> None:
    (found,) = traced([job(compiler=Compiler.TRITON)])
    hidden = SAMPLES * SEQUENCE * models.HIDDEN * 4
    forward = [o for o in found.operators if o.operator.startswith("inductor.") and o.phase is TracePhase.FORWARD]
    (relu,) = [o for o in forward if "relu" in o.operator]
    mask = 4 * SAMPLES * SEQUENCE * models.HIDDEN  # a byte an element, kept for the backward pass
    assert (relu.calls, relu.read_bytes, relu.written_bytes) == (models.LAYERS, 4 * hidden, 4 * hidden + mask)
    norms = [o for o in forward if "native_layer_norm" in o.operator]
    rows, columns = SAMPLES * SEQUENCE * 4, models.HIDDEN * 4
    assert [(o.kind, o.read_bytes, o.written_bytes) for o in norms] == [
        (OperatorKind.NORM, hidden + 2 * columns, hidden + 2 * rows)
    ]


def test_compiled_units_have_the_messages_of_eager_ones() -> None:
    options = {"ranks": 8, "number_format": NumberFormat.BF16}
    layouts = [{"sharding": sharding, "recompute": again} for sharding in Sharding for again in (False, True)]
    jobs = [job(**options, **layout) for layout in layouts]
    compiled = [job(**options, **layout, compiler=Compiler.TRITON) for layout in layouts]
    found = traced([*jobs, *compiled])
    wrong = {}
    for layout, eager, other in zip(layouts, found, found[len(jobs) :], strict=False):
        if eager.collectives != other.collectives or other.graph_breaks:
            wrong[tuple(layout.items())] = eager.collectives, other.collectives, other.graph_breaks
    assert wrong == {}
    plain, again = found[len(jobs)], found[len(jobs) + 1]
    assert sum(again.kept_bytes.values()) < sum(plain.kept_bytes.values())
    assert by_phase(again)[TracePhase.RECOMPUTATION] > 0
    assert by_phase(plain)[TracePhase.RECOMPUTATION] == 0


def test_a_graph_break_is_told_with_its_line_and_the_parts_are_compiled() -> None:
    source = ModelSource(module=f"{Path(models.__file__)}:build_broken")
    (found,) = traced([job(source, compiler=Compiler.TRITON)])
    (broken,) = found.graph_breaks
    assert Path(broken.place.rpartition(":")[0]).name == "models.py"
    assert "print" in Path(models.__file__).read_text().splitlines()[int(broken.place.rpartition(":")[2]) - 1]
    assert fused(found) > 0
