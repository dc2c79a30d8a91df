from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import accumulation
from reference_runs.layout import Layout, Recomputation
from reference_runs.placement import chunk_layers
from reference_runs.run import Architecture, Precision, Recipe, Workload
from suite.job.events import ComputedRows
from suite.job.options import StepOptions
from suite.metrics.figures import Figure, Quantity
from suite.predict.executed_run.counts import prediction
from suite.predict.executed_run.figures import memory_figures
from suite.predict.executed_run.routing import given_routing
from suite.predict.simulation.state import rank_position
from tests.support.examples import examples
from tests.support.strategies import recipes, routed_architectures

OPTIONS = StepOptions()
PASSES = ("payload_bytes", "hardware_flop", "model_flop", "activation_bytes", "peak_bytes")


def routed(workload: Workload, more: int, *, stage: int = 0) -> dict[str, ComputedRows]:
    """Rows of a rank whose experts of each layer compute so many more, in each micro-batch, than equally busy ones."""
    architecture, recipe, layout = workload
    numbers = [n for chunk in chunk_layers(architecture.layers, layout)[stage :: layout.pipeline_stages] for n in chunk]
    layers = sum(n >= architecture.dense_layers for n in numbers)
    sample = architecture.sequence * (architecture.experts_per_token or 0)
    rows = layout.micro_batch * sample + more
    micro_batches = accumulation(recipe, layout)
    passes = 2 if layout.recomputation is Recomputation.FULL else 1
    step = layers * micro_batches * rows
    each = {name: ComputedRows(passes * step, step) for name in PASSES}
    each["peak_bytes"] = ComputedRows(passes * step, step, [[rows] * layers] * micro_batches)
    each["activation_bytes"] = ComputedRows(layers * rows, 0)
    each["model_flop"] = ComputedRows(layers * (sample + more), layers * (sample + more))
    return each


@examples(20)
@given(
    routed_architectures(expert_parallel=2),
    recipes(),
    st.sampled_from([Recomputation.NONE, Recomputation.FULL]),
    st.integers(1, 40),
)
def test_the_rows_that_came_are_what_figures_depend_on(
    architecture: Architecture, recipe: Recipe, recomputation: Recomputation, more: int
) -> None:
    layout = Layout(micro_batch=1, expert_parallel=2, recomputation=recomputation)
    recipe = msgspec.structs.replace(recipe, precision=Precision.FP32, global_batch=4)
    workload = Workload(architecture, recipe, layout)
    figures = [*prediction(workload), *memory_figures(workload, OPTIONS)]
    equal, unequal = routed(workload, 0), routed(workload, more)
    assert given_routing(workload, OPTIONS, figures, []) == figures
    assert given_routing(workload, OPTIONS, figures, [equal, equal]) == figures
    changed = given_routing(workload, OPTIONS, figures, [equal, unequal])

    def of(figures: list[Figure], quantity: Quantity, rank: int | None) -> float:
        return next(
            figure.value
            for figure in figures
            if (figure.quantity, figure.rank) == (quantity, rank)
            and (quantity is not Quantity.PAYLOAD_BYTES or (figure.axis, figure.operation) == ("ep", "all_to_all"))
        )

    for quantity in (Quantity.PAYLOAD_BYTES, Quantity.HARDWARE_FLOP, Quantity.ACTIVATION_BYTES, Quantity.PEAK_BYTES):
        assert of(changed, quantity, 0) == of(figures, quantity, 0)
        # a peak may be elsewhere, in the update or where logits are; what is recomputed is not kept
        kept = recomputation is Recomputation.NONE or quantity is not Quantity.ACTIVATION_BYTES
        if kept and quantity is not Quantity.PEAK_BYTES:
            assert of(changed, quantity, 1) > of(figures, quantity, 1)
        assert of(changed, quantity, 1) >= of(figures, quantity, 1)
        if quantity is not Quantity.HARDWARE_FLOP:
            assert of(changed, quantity, None) == of(changed, quantity, 1)


@examples(20)
@given(
    routed_architectures(expert_parallel=2),
    recipes(),
    st.sampled_from([Recomputation.NONE, Recomputation.FULL]),
    st.integers(1, 40),
    st.booleans(),
)
def test_the_rows_of_a_stage_are_those_of_its_own_layers(
    architecture: Architecture, recipe: Recipe, recomputation: Recomputation, more: int, interleaved: bool
) -> None:
    layers = 4 if interleaved else architecture.layers
    architecture = msgspec.structs.replace(architecture, layers=layers, tied_embeddings=False)
    layout = Layout(
        micro_batch=1,
        expert_parallel=2,
        pipeline_stages=2,
        virtual_stages=2 if interleaved else 1,
        recomputation=recomputation,
    )
    recipe = msgspec.structs.replace(recipe, precision=Precision.FP32, global_batch=8)
    workload = Workload(architecture, recipe, layout)
    figures = [*prediction(workload), *memory_figures(workload, OPTIONS)]
    stages = [rank_position(layout, rank).stage for rank in range(layout.ranks)]
    equal, busier = ([routed(workload, rows, stage=stage) for stage in stages] for rows in (0, more))
    assert given_routing(workload, OPTIONS, figures, equal) == figures
    changed = given_routing(workload, OPTIONS, figures, busier)
    assert [figure.quantity for figure in changed] == [figure.quantity for figure in figures]
    element = 4 * architecture.hidden
    for before, after in zip(figures, changed, strict=True):
        if before.rank is not None and (before.axis, before.quantity) == ("ep", Quantity.PAYLOAD_BYTES):
            step = busier[before.rank]["payload_bytes"], equal[before.rank]["payload_bytes"]
            (first, last), (one, other) = ((rows.forward, rows.backward) for rows in step)
            of_scalar = before.operation == "all_reduce"
            assert after.value - before.value == (0 if of_scalar else element * (first + last - one - other))
