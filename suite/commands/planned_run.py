"""What is planned: a run, its accelerators and its machine, as the options of `plan` and `fit` ask."""

from __future__ import annotations

import math

from reference_runs.catalog import miniatures, reference_run
from reference_runs.errors import InputError
from reference_runs.run import ProductFormat, ReferenceRun
from suite.predict.machine_model.model import RunMachine, run_machine


def check_positive(given: dict[str, float | None]) -> None:
    """Refuse options whose numbers are not finite and above 0.

    Raises:
        InputError: one is.
    """
    for option, value in given.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError("not a usable number", got=value, allowed="a finite one above 0", where=option)


def planned_run(name: str) -> ReferenceRun:
    """The recorded run or the run file of that name.

    Raises:
        InputError: there is none, or it is a miniature.
    """
    minis = miniatures()
    if name in minis:
        raise InputError("is for recorded runs and run files", got=f"the miniature {name}", meant=minis[name])
    return reference_run(name, also=minis)


def own_ranks(run: ReferenceRun) -> int:
    """Accelerators that the run had.

    Raises:
        InputError: it does not say.
    """
    if run.cluster is not None and run.cluster.accelerators is not None:
        return run.cluster.accelerators
    if run.recorded_layout is not None:
        return run.recorded_layout.ranks
    raise InputError("the run does not say on how many accelerators", allowed="--gpus N", where=run.where)


def machine_of(run: ReferenceRun, on: str | None, ranks: int, network: float | None, stack: str | None) -> RunMachine:
    """The machine of `ranks` accelerators: the run's own, or of the accelerator that `on` names.

    Args:
        network: Gbit/s out of a node.

    Raises:
        InputError: no accelerator is known, or none of that name.
    """
    found = run_machine(
        run.cluster,
        run.recipe.precision,
        ProductFormat(run.recipe.product_format),
        ranks=ranks,
        accelerator_name=on,
        network_bytes_per_second=None if network is None else network * 1e9 / 8,
        software=run.software,
        stack_name=stack,
        stages=run.recorded_layout is not None and run.recorded_layout.pipeline_stages > 1,
    )
    if found is None:
        raise InputError("the run names no accelerator", allowed="--on ACCELERATOR", where=run.where)
    return found
