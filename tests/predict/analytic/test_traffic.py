"""A step's messages: one after the other, and what layouts share out, add and save."""

from __future__ import annotations

import itertools

import msgspec
import numpy
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import accumulation, reference_run, run_names
from reference_runs.layout import Layout, Recomputation, Schedule
from reference_runs.placement import stage_chunks
from reference_runs.run import Architecture, Precision, Recipe, Workload
from suite.predict.analytic.parameters import parameter_count
from suite.predict.analytic.process_groups import Traffic, node_crossing_share, sent_bytes
from suite.predict.analytic.traffic import pipeline_messages, step_traffic
from tests.support.gradient_buckets import walked_buckets
from tests.support.listed_traffic import listed, messages_of_step
from tests.support.strategies import BLOOM, described_architectures, recipes, shard_groups

CAPS = st.integers(1, 20_000)


@st.composite
def runs(draw: st.DrawFn, *, stages: int = 4) -> tuple[Architecture, Recipe, Layout]:
    """A described shape on all axes, each count dividing what it splits; small enough to list every message."""
    tensor_parallel, context_parallel = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    architecture = draw(described_architectures(tensor_parallel=tensor_parallel * context_parallel))
    replicas, zero_stage = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    groups = shard_groups(replicas, context_parallel)
    layout = Layout(
        micro_batch=draw(st.integers(1, 2)),
        data_parallel=replicas,
        tensor_parallel=tensor_parallel,
        context_parallel=context_parallel,
        pipeline_stages=draw(st.integers(1, stages)),
        virtual_stages=draw(st.integers(1, 3)),
        sequence_parallel=draw(st.booleans()),
        zero_stage=zero_stage,
        shard_ranks=draw(st.sampled_from([None, *groups])) if zero_stage >= 2 else None,
        reduce_scatter=draw(st.booleans()),
        recomputation=draw(st.sampled_from(Recomputation)),
        reshard_after_forward=draw(st.booleans()),
        checkpoint_layers=draw(st.integers(1, 3)),
        partitioned_checkpoints=draw(st.booleans()),
        scatter_gather=draw(st.booleans()),
        bucket_bytes=draw(CAPS),
    )
    return architecture, draw(recipes()), layout


@given(runs(), st.integers(1, 3))
def test_a_step_equals_the_list_of_its_messages(run: tuple[Architecture, Recipe, Layout], micro_batches: int) -> None:
    architecture, recipe, layout = run
    for stage in range(layout.pipeline_stages):
        payload, messages = listed(messages_of_step(architecture, recipe, layout, stage, micro_batches), layout)
        whole = step_traffic(Workload(architecture, recipe, layout), stage=stage, micro_batches=micro_batches)
        traffic = [entry for entry in whole if entry.payload_bytes]
        assert len({(entry.axis, entry.operation) for entry in traffic}) == len(traffic)
        assert {(t.axis, t.operation): t.payload_bytes for t in traffic} == payload
        for entry in traffic:
            if entry.axis not in ("dp", "shard", "replicate") or layout.zero_stage <= 1:
                assert entry.messages == messages[entry.axis, entry.operation]


def test_a_step_of_every_dense_run_equals_the_list_of_its_messages() -> None:
    wrong = []
    for run in map(reference_run, run_names()):
        if not run.recorded_layout or run.architecture.experts is not None or run.recipe.adapter_rank is not None:
            continue
        micro_batches = accumulation(run.recipe, run.layout)
        for stage in {0, run.layout.pipeline_stages // 2, run.layout.pipeline_stages - 1}:
            messages = messages_of_step(run.architecture, run.recipe, run.layout, stage, micro_batches)
            traffic = step_traffic(run.workload, stage=stage, micro_batches=micro_batches)
            if {(t.axis, t.operation): t.payload_bytes for t in traffic} != listed(messages, run.layout)[0]:
                wrong.append((run.name, stage))
    assert wrong == []


@given(runs(), st.integers(1, 3))
def test_sharded_gradients_and_weights_come_in_buckets_and_layers(
    run: tuple[Architecture, Recipe, Layout], micro_batches: int
) -> None:
    architecture, recipe, layout = run
    layout = msgspec.structs.replace(layout, data_parallel=2, pipeline_stages=1, shard_ranks=None)
    second, third = (msgspec.structs.replace(layout, zero_stage=zero) for zero in (2, 3))
    messages = {
        (zero, entry.operation): entry.messages
        for zero, of_stage in ((2, second), (3, third))
        for entry in step_traffic(Workload(architecture, recipe, of_stage), stage=0, micro_batches=micro_batches)
        if entry.axis == "dp"
    }
    buckets = len(walked_buckets(architecture, layout, 0, 4))
    units = architecture.layers + 1
    assert messages == {
        (2, "reduce_scatter"): micro_batches * buckets,
        (2, "all_gather"): 1 if recipe.decay_of_vectors else 2,
        (3, "reduce_scatter"): micro_batches * units,
        (3, "all_gather"): micro_batches * units * (2 if layout.reshard_after_forward else 1),
    }


@given(runs())
def test_one_rank_hands_nothing_to_collectives(run: tuple[Architecture, Recipe, Layout]) -> None:
    architecture, recipe, layout = run
    axes = ("data_parallel", "tensor_parallel", "pipeline_stages", "context_parallel", "virtual_stages")
    alone = msgspec.structs.replace(layout, **dict.fromkeys(axes, 1))
    assert step_traffic(Workload(architecture, recipe, alone), stage=0, micro_batches=3) == []


def test_zero_sends_the_published_multiple_of_the_parameters() -> None:
    passes = {  # ZeRO stage, resharding after the forward pass, micro-batches
        # Rajbhandari et al. 2020, section 7: 2 Psi, 2 Psi, 3 Psi; stage 1 with an all-reduce is a Psi more
        (0, True, 1): 2,
        (1, True, 1): 3,
        (2, True, 1): 2,
        (3, True, 1): 3,
        (3, False, 1): 2,
        # gradients of each micro-batch are reduced on their own from stage 2 on
        (0, True, 4): 2,
        (1, True, 4): 3,
        (2, True, 4): 5,
        (3, True, 4): 12,
        (3, False, 4): 8,
    }
    recipe = msgspec.structs.replace(BLOOM.recipe, precision=Precision.FP32)
    psi, found = 4 * parameter_count(BLOOM.architecture), {}
    for zero_stage, reshard, micro_batches in passes:
        # BLOOM's matrices and vectors divide by 8
        layout = Layout(data_parallel=8, zero_stage=zero_stage, reshard_after_forward=reshard)
        traffic = step_traffic(Workload(BLOOM.architecture, recipe, layout), stage=0, micro_batches=micro_batches)
        sent = 8 * sum(sent_bytes(entry, layout) for entry in traffic)
        found[zero_stage, reshard, micro_batches] = sent / (7 * psi)
    assert found == passes


def test_tensor_parallelism_sends_8_b_s_h_elements_a_layer_less_its_own_share() -> None:
    # Narayanan et al. 2021, section 3.2: 8 b s h (t - 1) / t for each layer and micro-batch, b s h to the next stage
    layout = msgspec.structs.replace(BLOOM.layout, recomputation=Recomputation.NONE)
    traffic = step_traffic(Workload(BLOOM.architecture, BLOOM.recipe, layout), stage=5, micro_batches=1)
    sent = {entry.axis: sent_bytes(entry, layout) for entry in traffic}
    hidden_states = 2 * 2048 * 14336
    assert sent["tp"] == 2 * 6 * 8 * hidden_states * 3 // 4
    assert sent["pp"] == 2 * 2 * hidden_states


def test_gpt_neox_reduces_a_layers_output_once_and_both_its_input_gradients() -> None:
    neox = reference_run("gpt-neox-20b")
    for recomputation, all_reduces, gathers, scatters in (("none", 3, 5, 3), ("selective", 3, 5, 3), ("full", 4, 7, 4)):
        layout = Layout(tensor_parallel=2, pipeline_stages=4, recomputation=Recomputation(recomputation))
        found = []
        for split in (False, True):
            workload = Workload(
                neox.architecture, neox.recipe, msgspec.structs.replace(layout, sequence_parallel=split)
            )
            traffic = step_traffic(workload, stage=1, micro_batches=1)  # 11 layers, no table
            found.append({entry.operation: entry.messages for entry in traffic if entry.axis == "tp"})
        plain = {"all_reduce": 11 * all_reduces}
        assert found == [plain, {"all_reduce": 1, "all_gather": 11 * gathers, "reduce_scatter": 11 * scatters}]


def by_key(traffic: list[Traffic]) -> dict[tuple[str, str], Traffic]:
    return {(entry.axis, entry.operation): entry for entry in traffic}


def test_gradients_are_reduced_in_fp32_except_in_fp16_and_pure_bf16() -> None:
    elements, found = parameter_count(BLOOM.architecture), {}
    for precision in Precision:
        recipe = msgspec.structs.replace(BLOOM.recipe, precision=precision)
        layout = Layout(data_parallel=8, zero_stage=1)
        reduced, gathered = step_traffic(Workload(BLOOM.architecture, recipe, layout), stage=0, micro_batches=1)
        found[precision.value] = (reduced.payload_bytes / elements, gathered.payload_bytes / elements)
    of_16_bit = dict.fromkeys(("fp16", "fp16-gradient-copy", "fp16-no-master", "bf16-pure"), (2, 2))
    assert found == {"fp32": (4, 4), "bf16": (4, 2), **of_16_bit}


@given(st.integers(2, 9), st.integers(1, 5))
def test_every_boundary_of_a_v_between_stages_is_crossed_twice_a_micro_batch(stages: int, micro_batches: int) -> None:
    layout = Layout(pipeline_stages=stages, virtual_stages=2, schedule=Schedule.ZBV)
    stage_of = {chunk: stage for stage in range(stages) for chunk in stage_chunks(layout, stage=stage)}
    crossed = [pair for pair in itertools.pairwise(stage_of[chunk] for chunk in range(2 * stages)) if len({*pair}) > 1]
    for stage in range(stages):
        own = sum(pair.count(stage) for pair in crossed)  # it sends an activation, or a gradient
        assert pipeline_messages(layout, stage=stage, micro_batches=micro_batches) == own * micro_batches


@given(runs(), st.data())
def test_arrays_of_layouts_equal_one_layout_after_the_other(
    run: tuple[Architecture, Recipe, Layout], data: st.DataObject
) -> None:
    architecture, recipe, layout = run
    t, c = layout.tensor_parallel, layout.context_parallel
    counts = st.integers(1, 4)
    rows = [
        {
            "data_parallel": data.draw(counts),
            "tensor_parallel": data.draw(st.sampled_from([1, t])),
            "context_parallel": data.draw(st.sampled_from([1, c])),
            "pipeline_stages": data.draw(counts),
            "virtual_stages": data.draw(counts),
            "micro_batch": data.draw(counts),
            "checkpoint_layers": data.draw(counts),
            "bucket_bytes": data.draw(CAPS),
        }
        for _ in range(3)
    ]
    micro_batches = [data.draw(counts) for _ in rows]
    stages = [data.draw(st.integers(0, row["pipeline_stages"] - 1)) for row in rows]
    columns = {name: numpy.array([row[name] for row in rows], dtype=float) for name in rows[0]}
    layout = msgspec.structs.replace(layout, shard_ranks=None)  # of arrays of layouts none
    swept = msgspec.structs.replace(layout, **columns)
    together = by_key(
        step_traffic(
            Workload(architecture, recipe, swept),
            stage=numpy.array(stages, dtype=float),
            micro_batches=numpy.array(micro_batches, dtype=float),
        )
    )
    for place, row in enumerate(rows):
        one = msgspec.structs.replace(layout, **row)
        alone = by_key(
            step_traffic(Workload(architecture, recipe, one), stage=stages[place], micro_batches=micro_batches[place])
        )
        assert alone.keys() <= together.keys()
        for key, entry in together.items():
            expected = alone.get(key, Traffic(*key, 0, 0))
            sent = numpy.broadcast_to(sent_bytes(entry, swept), len(rows))[place]
            crossing = node_crossing_share(swept, key[0], accelerators_per_node=4)
            assert numpy.broadcast_to(entry.payload_bytes, len(rows))[place] == expected.payload_bytes
            assert numpy.broadcast_to(entry.messages, len(rows))[place] == expected.messages
            assert sent == sent_bytes(expected, one)
            assert numpy.broadcast_to(crossing, len(rows))[place] == node_crossing_share(
                one, key[0], accelerators_per_node=4
            )


@given(runs(), st.integers(1, 3), st.data())
def test_groups_of_hybrid_sharding_send_what_so_many_ranks_alone_do_and_their_shards_once(
    run: tuple[Architecture, Recipe, Layout], micro_batches: int, data: st.DataObject
) -> None:
    architecture, recipe, layout = run
    zero, groups = data.draw(st.sampled_from([2, 3])), data.draw(st.integers(2, 3))
    alone = msgspec.structs.replace(layout, zero_stage=zero, shard_ranks=None)
    n = alone.state_ranks
    if n == 1:
        return
    many = msgspec.structs.replace(alone, data_parallel=groups * layout.data_parallel)
    hybrid = msgspec.structs.replace(many, shard_ranks=n)
    for stage in range(layout.pipeline_stages):
        plain, grouped, all_of_them, as_many = (
            by_key(step_traffic(Workload(architecture, recipe, each), stage=stage, micro_batches=micro_batches))
            for each in (alone, hybrid, msgspec.structs.replace(many, shard_ranks=many.state_ranks), many)
        )
        assert all_of_them == as_many
        if not plain.get(("dp", "reduce_scatter")):
            continue  # a stage without weights
        scattered = plain["dp", "reduce_scatter"]
        assert grouped.pop(("replicate", "all_reduce")) == Traffic(
            "replicate",
            "all_reduce",
            scattered.payload_bytes // (micro_batches * n),
            scattered.messages // micro_batches,
        )
        assert {
            (axis.replace("shard", "dp"), operation): entry[2:] for (axis, operation), entry in grouped.items()
        } == {key: entry[2:] for key, entry in plain.items()}
