"""Whether workers of a request wait for each other, and what does not go together with that."""

from __future__ import annotations

from collections.abc import Iterator

from reference_runs.errors import InputError
from reference_runs.layout import Offload
from reference_runs.run import Workload
from suite.job.options import Averaging
from suite.job.synchronisation import SlowRank, Synchronisation, parse_slow_ranks, parse_synchronisation
from suite.reproduce.request import Request

WHERE = "--synchronisation"


def checked_synchronisation(
    request: Request, workload: Workload, averaging: Averaging, *, shares_devices: bool
) -> tuple[Synchronisation | None, tuple[SlowRank, ...]]:
    """The synchronisation of a request's workers, None where it asks for none, and its slow ranks.

    Raises:
        InputError: an unknown text, slow ranks without synchronisation or beyond the last one, or something that does
            not go together with a parameter store; the line names all of that.
    """
    slow = () if request.slow_rank is None else parse_slow_ranks(request.slow_rank)
    if request.synchronisation is None:
        if slow:
            what = "a rank that is slowed on purpose"
            raise InputError(what, got=request.slow_rank, allowed=f"with {WHERE}", where="--slow-rank")
        return None, ()
    synchronisation = parse_synchronisation(request.synchronisation)
    if names := [*_apart_from_data_parallel(workload), *_other_limits(workload, averaging, shares_devices)]:
        what = "this does not go together with a parameter store"
        raise InputError(what, got=" and ".join(names), allowed="dpN of 2 ranks or more alone", where=WHERE)
    ranks = workload.layout.ranks
    if beyond := [each.rank for each in slow if each.rank >= ranks]:
        raise InputError("no such rank", got=beyond[0], allowed=f"0 to {ranks - 1}", where="--slow-rank")
    return synchronisation, slow


def _apart_from_data_parallel(workload: Workload) -> Iterator[str]:
    """Words of a layout for all that it has besides data-parallel ranks."""
    layout = workload.layout
    if layout.data_parallel == 1:
        yield "dp1, a worker without others"
    sizes = {
        "tp": layout.tensor_parallel,
        "pp": layout.pipeline_stages,
        "ep": layout.expert_parallel,
        "cp": layout.context_parallel,
    }
    yield from (f"{axis}{size}" for axis, size in sizes.items() if size > 1)
    if layout.zero_stage > 0:
        yield f"zero{layout.zero_stage}"
    if layout.offload is not Offload.NONE:
        yield "offload"


def _other_limits(workload: Workload, averaging: Averaging, shares_devices: bool) -> Iterator[str]:
    architecture, recipe, _ = workload
    if averaging is not Averaging.EXACT:
        yield averaging.value
    if recipe.precision.scaled:
        yield f"the loss scale of {recipe.precision.value}"
    if architecture.experts is not None:
        yield "a mixture of experts"
    if shares_devices:
        yield "--share-devices"
