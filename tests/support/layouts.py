"""Many layouts of a run, and their values as arrays."""

from __future__ import annotations

import itertools

import msgspec
import numpy

from reference_runs.layout import Layout
from reference_runs.run import ReferenceRun
from suite.predict.analytic.machine import Machine
from suite.predict.machine_model.model import RunMachine, run_machine

AXES = ("data_parallel", "tensor_parallel", "pipeline_stages", "micro_batch", "virtual_stages")


def run_machine_of(run: ReferenceRun, *, own_software: bool = False) -> RunMachine | None:
    """The run's own accelerators, with the generic stack or its own."""
    return run_machine(
        run.cluster,
        run.recipe.precision,
        run.recipe.product_format,
        ranks=run.recorded_layout.ranks if run.recorded_layout else 1,
        accelerator_name=None,
        software=run.software if own_software else None,
    )


def machine_of(run: ReferenceRun, *, own_software: bool = False) -> Machine:
    found = run_machine_of(run, own_software=own_software)
    assert found is not None
    assert found.machine is not None
    return found.machine


def many_layouts() -> list[tuple[int, ...]]:
    """Data, tensor and pipeline parallel sizes, micro-batch and virtual stages that divide BLOOM and its batch."""
    sizes = itertools.product((1, 2, 8, 64), (1, 2, 7, 8, 16), (1, 2, 5, 12, 35, 70), (1, 2, 4), (1, 2))
    return [case for case in sizes if case[4] == 1 or (case[2] in (5, 35) and 70 % (case[2] * 2) == 0)]


def as_arrays(base: Layout, cases: list[tuple[int, ...]]) -> Layout:
    columns = numpy.array(cases, dtype=float).T
    return msgspec.structs.replace(base, accumulation=None, **dict(zip(AXES, columns, strict=True)))
