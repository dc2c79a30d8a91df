from __future__ import annotations

from collections import defaultdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout, Offload, Recomputation, Schedule, StageAssignment
from reference_runs.run import Norm, Objective, Workload
from suite.metrics.comparison import Verdict, compare
from suite.metrics.figures import Figure, Quantity
from suite.predict.analytic.flop import rank_executed_flop, rank_model_flop
from suite.predict.analytic.process_groups import ring_sent_bytes
from suite.predict.executed_run.counts import (
    BUBBLE_TOLERANCE,
    SHARED_REASON,
    UNEQUAL_REASON,
    bubble_figure,
    job_figures,
    prediction,
    rank_figures,
)
from suite.predict.executed_run.textbook_gap import TEXTBOOK_TERM
from suite.predict.simulation.state import executed_state
from suite.predict.simulation.supported_layouts import describes_ranks
from suite.predict.simulation.traffic import executed_traffic
from tests.support.examples import examples
from tests.support.executed_runs import MANY, Run, copies, executed_runs, micro_batches, places
from tests.support.strategies import BLOOM

SUMS = (Quantity.MODEL_FLOP, Quantity.HARDWARE_FLOP)
LARGEST = (Quantity.WEIGHT_BYTES, Quantity.GRADIENT_BYTES, Quantity.OPTIMIZER_BYTES, Quantity.SENT_BYTES)


def of_rank(figures: list[Figure], rank: int | None) -> dict[tuple[str, str | None, str | None], Figure]:
    of_rank = [figure for figure in figures if figure.rank == rank and figure.term is None]
    by_key = {(figure.quantity.value, figure.axis, figure.operation): figure for figure in of_rank}
    assert len(by_key) == len(of_rank)
    return by_key


@examples(MANY)
@given(executed_runs())
def test_every_rank_has_its_own_figures(run: Run) -> None:
    figures = prediction(Workload(*run))
    group = {"dp": copies(run.layout), "cp": run.layout.context_parallel}
    group |= {"tp": run.layout.tensor_parallel, "pp": run.layout.pipeline_stages}
    group["embedding"], group["kv"] = 2, run.layout.tensor_parallel  # executed_runs have one key-value head or enough
    group["shard"] = run.layout.shard_ranks or group["dp"]
    group["replicate"] = group["dp"] // group["shard"]
    samples = micro_batches(run) * run.layout.micro_batch
    for rank, place in enumerate(places(run.layout)):
        own = of_rank(figures, rank)
        state = executed_state(Workload(*run), stage=place.pp, replica=place.dp)
        expected: dict[tuple[str, str | None, str | None], float] = {
            (name, None, None): value for name, value in state._asdict().items()
        }
        expected["model_flop", None, None] = rank_model_flop(Workload(*run), stage=place.pp, samples=samples)
        expected["hardware_flop", None, None] = rank_executed_flop(Workload(*run), stage=place.pp, samples=samples)
        sent = 0.0
        for entry in executed_traffic(Workload(*run), stage=place.pp, replica=place.dp):
            expected["payload_bytes", entry.axis, entry.operation] = entry.payload_bytes
            expected["messages", entry.axis, entry.operation] = entry.messages
            n = group[entry.axis]
            ring = ring_sent_bytes(entry.operation, payload_bytes=entry.payload_bytes * n, ranks=n) / n
            # to the nearest byte
            assert abs(own.pop(("sent_bytes", entry.axis, entry.operation)).value - ring) <= 0.5 + 1e-12 * ring
            sent += ring
        if sent:
            # half a byte for each of at most 10 kinds of messages
            assert abs(own.pop(("sent_bytes", None, None)).value - sent) <= 5
        assert {key: figure.value for key, figure in own.items()} == expected
        stage = place.pp if run.layout.pipeline_stages > 1 else None
        assert {figure.stage for figure in own.values()} == {stage}


@given(executed_runs())
def test_the_job_has_the_sum_of_flop_and_the_largest_of_bytes_and_messages(run: Run) -> None:
    figures = prediction(Workload(*run))
    by_key: dict[tuple[str, str | None, str | None], list[float]] = defaultdict(list)
    for rank in range(run.layout.ranks):
        for key, figure in of_rank(figures, rank).items():
            by_key[key].append(figure.value)
    job = of_rank(figures, None)
    for key, values in by_key.items():
        if key[0] in SUMS:
            assert job[key].value == sum(values)
        elif key[0] != Quantity.PARAMETERS:
            assert job[key].value == max(values)
    assert job.keys() - by_key.keys() <= {("first_loss", None, None), ("bubble_fraction", None, None)}


@given(executed_runs())
def test_keys_are_unique_and_a_measurement_that_agrees_passes(run: Run) -> None:
    figures = prediction(Workload(*run))
    assert len({figure.key for figure in figures}) == len(figures)
    measured = [figure for figure in figures if figure.term is None]
    rows = compare(figures, measured, left_name="predicted", right_name="measured", judge=True)
    for row in rows:
        expected = Verdict.PASS if row.tolerance is not None else Verdict.SHOWN
        assert row.verdict is expected
    shown = [row.term for row in rows if row.right is None]
    assert set(shown) <= {TEXTBOOK_TERM}


def test_of_a_layout_that_is_not_executed_the_job_alone_is_predicted() -> None:
    recipe = msgspec.structs.replace(BLOOM.recipe, global_batch=4)
    for layout in (
        Layout(context_parallel=2, fused_attention=True),
        Layout(recomputation=Recomputation.FROM_INPUT),
        Layout(fused_attention=True),  # with BLOOM's penalties of distance
        Layout(offload=Offload.OPTIMIZER, zero_stage=2),
        Layout(offload=Offload.STATE, zero_stage=1),
        Layout(pipeline_stages=2, tensor_parallel=2, schedule=Schedule.PIPEDREAM),
        Layout(pipeline_stages=2, zero_stage=2),
        Layout(virtual_stages=2),
        Layout(pipeline_stages=2, tensor_parallel=2, scatter_gather=True),
        Layout(tensor_parallel=2, partitioned_checkpoints=True),
    ):
        workload = Workload(BLOOM.architecture, recipe, layout)
        assert not describes_ranks(workload), layout
        figures = job_figures(workload)
        assert prediction(workload) == figures, layout
        assert {figure.rank for figure in figures} == {None}


def test_a_top_query_layer_is_described_in_the_chunk_of_its_table() -> None:
    run = reference_run("codegeex-13b")
    shape = run.architecture
    assert shape.top_query_layer
    assert describes_ranks(Workload(shape, run.recipe, Layout(data_parallel=2)))
    assert describes_ranks(Workload(shape, run.recipe, Layout(tensor_parallel=2, sequence_parallel=True)))
    assert describes_ranks(Workload(shape, run.recipe, Layout(pipeline_stages=2)))
    # the last of 40 chunks has the head alone, where tables count as layers
    with_tables = Layout(pipeline_stages=40, stage_assignment=StageAssignment.LAYERS_AND_TABLES)
    assert shape.layers == 40
    assert not describes_ranks(Workload(shape, run.recipe, with_tables))


def test_what_needs_several_ranks_does_not_matter_on_one_nor_where_fully_sharded_state_lies() -> None:
    assert describes_ranks(
        Workload(BLOOM.architecture, BLOOM.recipe, Layout(partitioned_checkpoints=True, scatter_gather=True))
    )
    assert describes_ranks(
        Workload(BLOOM.architecture, BLOOM.recipe, Layout(schedule=Schedule.PIPEDREAM, zero_stage=3))
    )
    assert describes_ranks(Workload(BLOOM.architecture, BLOOM.recipe, Layout(offload=Offload.STATE, zero_stage=3)))


@given(st.integers(2, 8), st.integers(1, 3), st.integers(1, 4), st.integers(1, 9))
def test_the_bubble_of_equal_stages_may_be_five_points_off(
    stages: int, virtual_stages: int, layers: int, rounds: int
) -> None:
    layout = Layout(pipeline_stages=stages, virtual_stages=virtual_stages)
    # the head has 8 / (12 * 14336) of a layer's flop
    shape = msgspec.structs.replace(
        BLOOM.architecture, vocabulary=8, padded_vocabulary=8, layers=stages * virtual_stages * layers
    )
    recipe = msgspec.structs.replace(BLOOM.recipe, global_batch=rounds * stages)
    bubble = bubble_figure(Workload(shape, recipe, layout), own_processors=True)
    # m rounds of v chunks busy, p - 1 rounds waiting
    busy = virtual_stages * rounds * stages
    assert bubble.value == pytest.approx((stages - 1) / (busy + stages - 1), rel=1e-3)
    assert bubble.tolerance is not None
    assert bubble.tolerance * bubble.value == pytest.approx(BUBBLE_TOLERANCE, rel=1e-15)


def test_the_bubble_is_not_judged_where_stages_are_unequal_or_share_processors() -> None:
    layout = Layout(pipeline_stages=2)
    recipe = msgspec.structs.replace(BLOOM.recipe, global_batch=8)
    wide = msgspec.structs.replace(BLOOM.architecture, layers=2)
    assert bubble_figure(Workload(wide, recipe, layout), own_processors=True).why == UNEQUAL_REASON
    assert bubble_figure(Workload(wide, recipe, layout), own_processors=True).tolerance is None
    assert bubble_figure(Workload(BLOOM.architecture, recipe, layout), own_processors=True).tolerance is not None
    assert bubble_figure(Workload(BLOOM.architecture, recipe, layout), own_processors=False).why == SHARED_REASON


def test_the_first_loss_is_left_out_where_its_formula_does_not_hold() -> None:
    for norm, objective, described in (
        (Norm.PRE_LAYER_NORM, Objective.CAUSAL_LM, True),
        (Norm.DEEP_NORM, Objective.CAUSAL_LM, False),
        (Norm.OUTPUT_RMS_NORM, Objective.CAUSAL_LM, False),
        (Norm.PRE_LAYER_NORM, Objective.BLANK_INFILLING, False),
    ):
        architecture = msgspec.structs.replace(BLOOM.architecture, norm=norm)
        recipe = msgspec.structs.replace(BLOOM.recipe, objective=objective)
        quantities = {figure.quantity for figure in job_figures(Workload(architecture, recipe, BLOOM.layout))}
        assert (Quantity.FIRST_LOSS in quantities) is described


@given(executed_runs())
def test_rank_figures_come_after_their_largest(run: Run) -> None:
    figures = rank_figures(Workload(*run))
    for quantity in LARGEST:
        ranks = [figure.rank for figure in figures if figure.quantity is quantity and figure.axis is None]
        if ranks:
            assert ranks == [None, *range(run.layout.ranks)]
