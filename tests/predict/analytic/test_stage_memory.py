"""Memory of a pipeline stage: sums of its tensors, what splits them, and what no layout may raise."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.layout import Layout, Offload, Recomputation, Schedule, StageAssignment, usual_virtual_stages
from reference_runs.run import Architecture, Precision, Recipe, Workload
from suite.predict.analytic.activations import activation_bytes, head_activation_bytes, layer_activation_bytes
from suite.predict.analytic.memory import WEIGHT_ELEMENT_BYTES, state_bytes
from suite.predict.analytic.micro_batch import hidden_elements
from suite.predict.analytic.parameters import layer_tensors, outer_tensors, parameter_count
from suite.predict.analytic.pipeline_schedule import NO_FLUSH, micro_batches_in_flight
from suite.predict.analytic.stage_layers import stage_layers
from suite.predict.analytic.stage_memory import StageMemory, buffer_bytes, memory_by_stage, peak_bytes, stage_memory
from tests.support.state_bytes import PRECISE
from tests.support.strategies import BLOOM, described_architectures, recipes


@st.composite
def ranks(draw: st.DrawFn) -> tuple[Architecture, Recipe, Layout, int]:
    """Any described run, laid out in any way, and one of its stages."""
    t = draw(st.sampled_from([1, 2, 4]))
    stages = draw(st.integers(1, 5))
    assignment = draw(st.sampled_from(StageAssignment))
    architecture = draw(described_architectures(tensor_parallel=t))
    schedule = draw(st.sampled_from(Schedule))
    virtual = usual_virtual_stages(schedule, pipeline_stages=stages)
    # at least one slot a stage, of a V one a chunk
    architecture = msgspec.structs.replace(architecture, layers=max(architecture.layers, virtual * stages))
    if schedule is Schedule.ONE_F_ONE_B and stages > 1:
        virtual = draw(st.integers(1, 3))
    layout = Layout(
        micro_batch=draw(st.integers(1, 3)),
        data_parallel=draw(st.integers(1, 9)),
        tensor_parallel=t,
        pipeline_stages=stages,
        context_parallel=draw(st.sampled_from([1, 2])),
        sequence_parallel=draw(st.booleans()),
        zero_stage=draw(st.integers(0, 3)),
        reduce_scatter=draw(st.booleans()),
        virtual_stages=virtual,
        schedule=schedule,
        recomputation=draw(st.sampled_from(Recomputation)),
        bucket_bytes=draw(st.integers(1, 20_000)),
        stage_assignment=assignment,
        reshard_after_forward=draw(st.booleans()),
        checkpoint_layers=draw(st.integers(1, 3)),
        partitioned_checkpoints=draw(st.booleans()),
        fused_attention=draw(st.booleans()),
        offload=draw(st.sampled_from(Offload)),
    )
    recipe = msgspec.structs.replace(draw(recipes()), precision=draw(st.sampled_from(Precision)))
    return architecture, recipe, layout, draw(st.integers(0, stages - 1))


Rank = tuple[Architecture, Recipe, Layout, int]


def with_layout(rank: Rank, **changes: object) -> Rank:
    architecture, recipe, layout, stage = rank
    return architecture, recipe, msgspec.structs.replace(layout, **changes), stage


def memory_of(rank: Rank, micro_batches: int = 3) -> StageMemory:
    architecture, recipe, layout, stage = rank
    return stage_memory(Workload(architecture, recipe, layout), stage=stage, micro_batches=micro_batches)


@given(ranks())
def test_a_ranks_state_is_the_sum_over_its_tensors_padded_and_sharded(rank: Rank) -> None:
    rank = with_layout(rank, offload=Offload.NONE, schedule=Schedule.GPIPE)
    architecture, recipe, layout, stage = rank
    t, last = layout.tensor_parallel, layout.pipeline_stages - 1
    before, after = outer_tensors(architecture, tensor_parallel=t)
    tensors = layer_tensors(architecture, tensor_parallel=t) * stage_layers(architecture, layout, stage=stage)
    tensors += before if stage == 0 else []
    tensors += after if stage == last else []
    if stage == last > 0 and architecture.tied_embeddings:
        tensors.append(before[0])
    groups = [
        sum(tensor.elements for tensor in tensors if (tensor.matrix or recipe.decay_of_vectors) is decays)
        for decays in (True, False)
    ]
    n = layout.data_parallel * layout.context_parallel
    padded = [-(-group // n) * n for group in groups] if layout.zero_stage else groups
    each = PRECISE[recipe.precision]
    memory = memory_of(rank)
    weights = each.weights.itemsize * sum(padded)
    in_padded = layout.zero_stage >= 2 or (layout.zero_stage == 1 and layout.reduce_scatter)
    gradients = each.gradients.itemsize * sum(padded if in_padded else groups)
    shards = n if layout.zero_stage else 1
    assert memory.weights * (n if layout.zero_stage == 3 else 1) == weights
    assert memory.gradients * (n if layout.zero_stage >= 2 else 1) == gradients
    assert memory.moments * shards == 2 * each.moments.itemsize * sum(padded)
    assert memory.master_weights * shards == 4 * sum(padded) * each.master
    assert memory.gradient_copy * shards == 4 * sum(padded) * each.gradient_copy


@given(ranks(), st.integers(1, 9))
def test_the_instants_are_sums_of_the_parts_and_nothing_is_negative(rank: Rank, micro_batches: int) -> None:
    memory = memory_of(rank, micro_batches)
    assert min(memory) >= 0
    own = memory.weights + memory.gradient_copy + memory.master_weights + memory.moments
    assert memory.state == own + memory.gradients
    forward = memory.activations + memory.logits + memory.working + memory.buffers
    assert memory.after_forward == own + (memory.gradients if micro_batches > 1 else 0) + forward
    assert memory.after_backward == memory.state + memory.waiting + memory.unfinished + memory.buffers
    assert memory.at_update == memory.state + memory.waiting + memory.temporary
    assert memory.peak == max(memory.after_forward, memory.after_backward, memory.at_update)
    assert (memory.waiting == 0) or rank[2].schedule in NO_FLUSH


@given(ranks(), st.integers(1, 9))
def test_the_peak_is_that_of_the_fullest_stage(rank: Rank, micro_batches: int) -> None:
    architecture, recipe, layout, _ = rank
    stages = memory_by_stage(Workload(architecture, recipe, layout), micro_batches=micro_batches)
    assert stages == [
        stage_memory(Workload(architecture, recipe, layout), stage=stage, micro_batches=micro_batches)
        for stage in range(layout.pipeline_stages)
    ]
    assert peak_bytes(Workload(architecture, recipe, layout), micro_batches=micro_batches) == max(
        s.peak for s in stages
    )


@given(ranks(), st.integers(1, 3))
def test_zero_and_sequence_parallelism_over_one_rank_change_nothing(rank: Rank, zero_stage: int) -> None:
    alone = with_layout(rank, data_parallel=1, context_parallel=1, offload=Offload.NONE, zero_stage=0)
    assert memory_of(with_layout(alone, zero_stage=zero_stage)) == memory_of(alone)
    whole = with_layout(rank, tensor_parallel=1, sequence_parallel=False)
    assert memory_of(with_layout(whole, sequence_parallel=True)) == memory_of(whole)


@given(ranks(), st.integers(1, 9))
def test_recomputing_more_never_raises_the_peak(rank: Rank, micro_batches: int) -> None:
    # what partitions of checkpoints save, a group that gathers its input again pays back
    rank = with_layout(rank, partitioned_checkpoints=False, virtual_stages=1)
    none, selective, full = (
        memory_of(with_layout(rank, recomputation=recomputation, checkpoint_layers=1), micro_batches).peak
        for recomputation in (Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL)
    )
    # a layer that is computed again puts out its output again
    output = WEIGHT_ELEMENT_BYTES[rank[1].precision] * hidden_elements(Workload(*rank[:3]))
    assert none >= max(selective, full - output)
    # of one micro-batch there are no gradients yet when all layers are kept, but while a group is computed again
    several = max(micro_batches, 2)
    none, full = (
        memory_of(with_layout(rank, recomputation=recomputation), several).peak
        for recomputation in (Recomputation.NONE, Recomputation.FULL)
    )
    assert none >= full - output


@given(ranks(), st.sampled_from(["tensor_parallel", "context_parallel", "sequence_parallel"]))
def test_more_parallelism_inside_a_replica_never_raises_a_part(rank: Rank, what: str) -> None:
    # but for what sequence parallelism gathers while an operator runs
    # a second rank of any kind needs buckets, and ZeRO pads: neither is in question here
    few = with_layout(rank, zero_stage=0, data_parallel=2, partitioned_checkpoints=False, sequence_parallel=False)
    few = with_layout(few, **{what: what != "sequence_parallel"})
    many = with_layout(few, **{what: {"tensor_parallel": 4, "context_parallel": 2}.get(what, True)})
    split = ("kv_heads", "heads", "hidden", "ffn_hidden", "padded_vocabulary")
    architecture = msgspec.structs.replace(rank[0], **{name: 4 * getattr(rank[0], name) for name in split})
    before, after = (memory_of((architecture, *run[1:])) for run in (few, many))
    gathered = 3 * WEIGHT_ELEMENT_BYTES[rank[1].precision] * hidden_elements(Workload(architecture, *few[1:3]))
    more = gathered * (what == "sequence_parallel" and many[2].tensor_parallel > 1)
    for name in set(StageMemory._fields) - {"working"}:
        more_here = more * (name in ("unfinished", "after_forward", "after_backward"))
        assert getattr(after, name) <= getattr(before, name) + more_here


@given(ranks())
def test_offloading_takes_its_parts_off_the_accelerator(rank: Rank) -> None:
    none, optimizer, state, activations = (memory_of(with_layout(rank, offload=offload)) for offload in Offload)
    for memory in (optimizer, state):
        assert memory.moments == memory.master_weights == memory.gradient_copy == memory.temporary == 0
    assert state.state == 0
    assert optimizer.weights == none.weights
    assert optimizer.gradients == (0 if rank[2].zero_stage >= 2 else none.gradients)
    assert state.activations == optimizer.activations == none.activations
    assert (activations[:5], activations.temporary) == (none[:5], none.temporary)
    assert activations.activations <= none.activations
    assert activations.peak <= none.peak


def test_pipedream_keeps_a_version_of_its_weights_for_each_micro_batch_in_flight() -> None:
    def weights(schedule: Schedule, micro_batches: int = 1) -> list[float]:
        layout = Layout(pipeline_stages=4, schedule=schedule)
        architecture = msgspec.structs.replace(BLOOM.architecture, layers=8)
        stages = memory_by_stage(Workload(architecture, BLOOM.recipe, layout), micro_batches=micro_batches)
        flushed = memory_by_stage(Workload(architecture, BLOOM.recipe, Layout(pipeline_stages=4)), micro_batches=4)
        return [a.weights / b.weights for a, b in zip(stages, flushed, strict=True)]

    assert weights(Schedule.PIPEDREAM) == [4, 3, 2, 1]
    assert weights(Schedule.PIPEDREAM_VERTICAL_SYNC) == [4, 4, 4, 4]
    assert weights(Schedule.PIPEDREAM_2BW) == [2, 2, 2, 2]
    assert weights(Schedule.PIPEDREAM, micro_batches=4) == [2, 2, 2, 1]  # of the step before, and this one's
    assert weights(Schedule.GPIPE) == [1, 1, 1, 1]


def test_gathered_weights_are_of_two_layers_or_of_all_and_of_the_tables() -> None:
    layer = sum(tensor.elements for tensor in layer_tensors(BLOOM.architecture))
    tables = parameter_count(BLOOM.architecture) - 70 * layer
    layout = Layout(data_parallel=8, zero_stage=3)
    resharded, kept = (
        stage_memory(
            Workload(BLOOM.architecture, BLOOM.recipe, msgspec.structs.replace(layout, reshard_after_forward=reshard)),
            stage=0,
            micro_batches=1,
        ).buffers
        for reshard in (True, False)
    )
    gradients = 4 * (2 * layer + tables)
    assert resharded == gradients + 2 * (2 * layer + tables)
    assert kept == gradients + 2 * parameter_count(BLOOM.architecture)


@given(
    ranks(),
    st.lists(
        st.tuples(*[st.sampled_from([1, 2, 4])] * 3, st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=4
    ),
)
def test_arrays_of_layouts_give_each_layouts_parts(rank: Rank, rows: list[tuple[int, int, int, int, int]]) -> None:
    architecture, recipe, base, _ = rank
    # shapes that every t divides, and a layer or more for each stage
    architecture = msgspec.structs.replace(
        architecture, hidden=4 * architecture.hidden, ffn_hidden=4 * architecture.ffn_hidden, layers=9
    )

    def parts(columns: list[object]) -> tuple[StageMemory, float]:
        t, d, b, stages, micro_batches = columns
        layout = msgspec.structs.replace(
            base, tensor_parallel=t, data_parallel=d, micro_batch=b, pipeline_stages=stages
        )
        last = stages - 1  # type: ignore[operator]  # a number or an array
        memory = stage_memory(Workload(architecture, recipe, layout), stage=last, micro_batches=micro_batches)  # type: ignore[arg-type]
        return memory, peak_bytes(Workload(architecture, recipe, layout), micro_batches=micro_batches)  # type: ignore[arg-type]

    together, peaks = parts([np.array(column, dtype=np.float64) for column in zip(*rows, strict=True)])
    for place, row in enumerate(rows):
        one, peak = parts(list(row))
        arrays = (*together, together.peak, peaks)
        assert [np.broadcast_to(part, len(rows))[place] for part in arrays] == [*one, one.peak, peak]


@given(ranks(), st.integers(1, 9))
def test_a_stage_keeps_the_activations_in_flight_and_that_with_the_head_logits(rank: Rank, micro_batches: int) -> None:
    schedule, stages = rank[2].schedule, rank[2].pipeline_stages
    usual = usual_virtual_stages(schedule, pipeline_stages=stages)
    architecture, recipe, layout, stage = rank = with_layout(rank, virtual_stages=usual)
    memory = memory_of(rank, micro_batches)
    in_flight = {
        Schedule.GPIPE: micro_batches,
        Schedule.ONE_F_ONE_B: min(micro_batches, stages - stage),
        Schedule.ZERO_BUBBLE: min(micro_batches, stages),
    }.get(schedule, stages - stage)
    if schedule.shape_of_v:
        in_flight = micro_batches_in_flight(layout, micro_batches=micro_batches, stage=stage)
    each = activation_bytes(Workload(architecture, recipe, layout), stage=stage)
    has_head = stage == (0 if schedule.shape_of_v else stages - 1)
    heads = micro_batches if schedule is Schedule.GPIPE else 1
    head = head_activation_bytes(Workload(architecture, recipe, layout))
    of_head = has_head * sum(head.values())
    assert memory.activations + memory.logits == in_flight * (each - of_head) + heads * of_head
    assert memory.logits == has_head * heads * head["logits"]
    flushed = schedule not in NO_FLUSH
    assert memory.waiting == (0 if flushed else (in_flight - 1) * (each - of_head))


@given(ranks(), st.integers(1, 3), st.integers(2, 3), st.integers(1, 4))
def test_a_rank_of_hybrid_sharding_holds_what_it_would_in_its_group_alone(
    rank: Rank, zero_stage: int, groups: int, micro_batches: int
) -> None:
    alone = with_layout(rank, zero_stage=max(zero_stage, 2))
    n = alone[2].state_ranks
    many = with_layout(alone, data_parallel=groups * alone[2].data_parallel)
    assert memory_of(with_layout(many, shard_ranks=many[2].state_ranks)) == memory_of(many)
    if n > 1:
        assert memory_of(with_layout(many, shard_ranks=n), micro_batches) == memory_of(alone, micro_batches)


@given(ranks())
def test_buffers_without_sharding_are_a_bucket_and_what_the_neighbours_send(rank: Rank) -> None:
    rank = with_layout(rank, zero_stage=1, offload=Offload.NONE)
    architecture, recipe, layout, stage = rank
    scatters = layout.reduce_scatter  # in place
    neighbours = [k for k in (stage - 1, stage + 1) if 0 <= k < layout.pipeline_stages]
    tokens = layout.micro_batch * architecture.sequence // layout.context_parallel
    share = layout.tensor_parallel if layout.sequence_parallel else 1
    received = PRECISE[recipe.precision].weights.itemsize * tokens * architecture.hidden // share
    gradients = memory_of(rank).gradients
    several = layout.data_parallel * layout.context_parallel > 1
    bucket = min(layout.bucket_bytes, gradients) if several and not scatters else 0
    assert memory_of(rank).buffers == bucket + len(neighbours) * received


@given(ranks())
def test_the_update_reads_fp32_gradients_of_its_shard_where_no_copy_is_kept(rank: Rank) -> None:
    memory = memory_of(with_layout(rank, offload=Offload.NONE))
    _, recipe, layout, _ = rank
    unwidened = (Precision.FP16_GRADIENT_COPY, Precision.FP16_NO_MASTER, Precision.BF16_PURE)
    widened = recipe.precision not in unwidened
    scattered = layout.zero_stage == 1 and layout.reduce_scatter and layout.data_parallel * layout.context_parallel > 1
    in_place = scattered and recipe.precision in (Precision.FP32, Precision.BF16)
    # 8 bytes of moments a parameter of the shard
    assert memory.temporary == (memory.moments // 2 if widened and not in_place else 0)


# Korthikanti et al. 2022, arXiv 2205.05198, figure 1, as transcribed in calculon (seqsel_fig1): GiB with tensor
# parallelism alone, and with sequence parallelism and selective recomputation. Configurations: table 3; t = 8.
FIGURE_1 = {
    "22B": ((48, 6144, 64), (1, 1, 4), (104.812, 55.125)),
    "175B": ((96, 12288, 96), (8, 3, 1), (112.406, 57.914)),
    "530B": ((105, 20480, 128), (35, 3, 1), (145.664, 54.717)),
    "1T": ((128, 25600, 160), (64, 1, 1), (164.209, 59.521)),
}


SCORES = ("softmax output", "attention dropout mask", "attention dropout output")


def test_figure_1_of_korthikanti() -> None:
    for (layers, hidden, heads), (p, v, b), printed in FIGURE_1.values():
        shape = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": heads, "head_dim": hidden // heads}
        architecture = msgspec.structs.replace(BLOOM.architecture, **shape, ffn_hidden=4 * hidden)
        baseline = Layout(tensor_parallel=8, pipeline_stages=p, virtual_stages=v, micro_batch=b)
        present = msgspec.structs.replace(baseline, sequence_parallel=True, recomputation=Recomputation.SELECTIVE)
        # the figure leaves out embedding and head, and of a layer's parameters its biases and norms
        state = state_bytes(12 * layers * hidden**2 / (8 * p), Precision.BF16).all
        for layout, expected in zip((baseline, present), printed, strict=True):
            kept = layer_activation_bytes(Workload(architecture, BLOOM.recipe, layout))
            layer = sum(size for kind, size in kept.items() if layout is baseline or kind not in SCORES)
            in_flight = micro_batches_in_flight(layout, micro_batches=10**6, stage=0)
            assert round((state + in_flight * layers / p * layer) / 2**30, 3) == expected
            memory = stage_memory(Workload(architecture, BLOOM.recipe, layout), stage=0, micro_batches=10**6)
            # what the first stage keeps beyond: mask and norm input of the embedding, and a last stage of one: the
            # head's
            share = 8 if layout is present else 1
            outer = in_flight * 3 * 2048 * b * hidden / share + (4 * 2048 * b * hidden / share if p == 1 else 0)
            # the micro-batches in flight are a quotient in double precision where stages interleave
            assert memory.activations == pytest.approx(in_flight * layers / p * layer + outer, rel=1e-15)


def test_buffers_are_a_bucket_or_two_layers_of_gradients_and_weights() -> None:
    """1000 parameters a layer and 70 of tables: gradients of 4 bytes, weights of 2, on an inner stage of three."""
    recipe = msgspec.structs.replace(BLOOM.recipe, precision=Precision.BF16)
    wrong = []
    for ranks, layers, offload, zero, reshard, g in itertools.product(
        (1, 4), (1, 2, 5), Offload, range(4), (True, False), (2, 4)
    ):
        layout = Layout(data_parallel=ranks, pipeline_stages=3, zero_stage=zero, offload=offload, bucket_bytes=900)
        parameters, unsharded = 1000 * layers + 70, 1000 * min(layers, 2) + 70
        several, on_host = ranks > 1, offload is Offload.STATE
        gradients_on_host = on_host or (offload is Offload.OPTIMIZER and zero >= 2)
        if zero <= 1 and not on_host:
            expected = min(900, g * parameters) * several
        else:
            expected = g * unsharded * (several or gradients_on_host)
            if zero == 3 or on_host:
                expected += 2 * (unsharded if reshard else parameters) * (several or on_host)
        found = buffer_bytes(
            recipe,
            msgspec.structs.replace(layout, reshard_after_forward=reshard),
            stage=1,
            parameters=parameters,
            layers=[layers],
            layer_parameters=[1000],
            stream=5,
            narrow_gradients=g == 2,
        )
        if found != 2 * 5 + expected:
            wrong.append((layout, layers, reshard, g, found, expected))
    assert wrong == []
    scatters = Layout(data_parallel=4, zero_stage=1, reduce_scatter=True, bucket_bytes=900)  # in place: no bucket
    sizes = {"stage": 0, "parameters": 1000, "layers": [1], "layer_parameters": [1000], "stream": 5}
    assert buffer_bytes(BLOOM.recipe, scatters, **sizes) == 0
    assert buffer_bytes(BLOOM.recipe, msgspec.structs.replace(scatters, zero_stage=0), **sizes) == 900


def test_two_layers_of_the_largest_kind_are_gathered_at_a_time() -> None:
    recipe = msgspec.structs.replace(BLOOM.recipe, precision=Precision.BF16)
    layout = Layout(data_parallel=4, zero_stage=3)
    for small, large in ((3, 5), (3, 1), (1, 0)):
        layers, parameters = [small, large], 100 * small + 1000 * large + 70
        at_work = min(parameters - 70, 2000)
        sizes = {"stage": 0, "parameters": parameters, "layers": layers, "layer_parameters": [100, 1000], "stream": 0}
        assert buffer_bytes(recipe, layout, **sizes) == (4 + 2) * (at_work + 70)
        together = sizes | {"layer_parameters": [np.array([100, 100]), np.array([1000, 1000])]}
        assert buffer_bytes(recipe, layout, **together).tolist() == [(4 + 2) * (at_work + 70)] * 2
