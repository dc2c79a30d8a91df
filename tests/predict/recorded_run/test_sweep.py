from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy
import pytest

from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout, Offload, Recomputation, Schedule
from reference_runs.run import ProductFormat, ReferenceRun, Workload
from suite.predict.machine_model.model import run_machine
from suite.predict.recorded_run.prediction import run_prediction
from suite.predict.recorded_run.sweep import layout_figures
from tests.support.layouts import AXES, as_arrays, machine_of, many_layouts
from tests.support.strategies import BLOOM


def variants() -> Iterator[dict[str, object]]:
    yield {}
    for stage in (0, 2, 3):
        yield {"zero_stage": stage, "sequence_parallel": stage > 0, "reshard_after_forward": stage != 3}
    for recomputation in Recomputation:
        yield {"recomputation": recomputation, "fused_attention": recomputation is Recomputation.NONE}
    for schedule in Schedule:
        yield {"schedule": schedule, "scatter_gather": True}
    yield {"context_parallel": 2, "rank_order": "dp-tp-cp-pp"}


@pytest.mark.parametrize("variant", list(variants()), ids=str)
def test_a_sweep_gives_every_layout_what_it_gets_alone(variant: dict[str, object]) -> None:
    base = msgspec.structs.replace(BLOOM.layout, **variant)
    cases = many_layouts()
    machine = machine_of(BLOOM)
    together = layout_figures(Workload(BLOOM.architecture, BLOOM.recipe, as_arrays(base, cases)), machine)
    columns = [numpy.broadcast_to(column, len(cases)) for column in together]
    for place, case in list(enumerate(cases))[::7]:
        alone = layout_figures(
            Workload(
                BLOOM.architecture,
                BLOOM.recipe,
                msgspec.structs.replace(base, accumulation=None, **dict(zip(AXES, case, strict=True))),
            ),
            machine,
        )
        # integers are exact up to 2^53 in float64 and rounded beyond; a few hundred roundings of 2^-53 at most
        assert [column[place] for column in columns] == pytest.approx(list(alone), rel=500 * 2**-53)


@pytest.mark.parametrize("stack", ["megatron-core", "megatron-core-nemo-2", "megatron-core-bridge"])
@pytest.mark.parametrize("products", [ProductFormat.FP8_DELAYED, ProductFormat.FP8_CURRENT])
@pytest.mark.parametrize(
    "run", [reference_run(name) for name in ("llama3.1-8b", "mixtral-8x7b")], ids=lambda run: run.name
)
def test_a_sweep_of_narrow_products_gives_every_layout_what_it_gets_alone(
    run: ReferenceRun, products: ProductFormat, stack: str
) -> None:
    """Some of the layouts are tensor-parallel and some are not, so that some gather what others hold."""
    recipe = msgspec.structs.replace(run.recipe, product_format=products, global_batch=64)
    found = run_machine(None, recipe.precision, products, ranks=16, accelerator_name="h100-sxm", stack_name=stack)
    assert found is not None
    assert found.machine is not None
    cases = [(data, tensor, 16 // data // tensor, 1, 1) for data in (1, 2, 8) for tensor in (1, 2)]
    for zero_stage, sequence_parallel in ((1, True), (1, False), (3, False)):
        base = Layout(zero_stage=zero_stage, sequence_parallel=sequence_parallel, fused_attention=True)
        together = layout_figures(Workload(run.architecture, recipe, as_arrays(base, cases)), found.machine)
        for place, case in enumerate(cases):
            layout = msgspec.structs.replace(base, **dict(zip(AXES, case, strict=True)))
            alone = layout_figures(Workload(run.architecture, recipe, layout), found.machine)
            columns = [numpy.broadcast_to(column, len(cases))[place] for column in together]
            assert columns == pytest.approx(list(alone), rel=500 * 2**-53)


def test_offloaded_weights_have_memory_but_no_time() -> None:
    layout = msgspec.structs.replace(BLOOM.layout, offload=Offload.STATE)
    prediction = run_prediction(Workload(BLOOM.architecture, BLOOM.recipe, layout), machine_of(BLOOM))
    assert prediction.memory[0].moments == 0
    assert prediction.step is None
    with pytest.raises(InputError, match="no time is predicted"):
        layout_figures(Workload(BLOOM.architecture, BLOOM.recipe, layout), machine_of(BLOOM))
