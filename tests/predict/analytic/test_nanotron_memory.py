from __future__ import annotations

import csv
from itertools import groupby
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import reference_runs
from reference_runs.layout import Layout, Offload, Recomputation, Schedule
from reference_runs.placement import balanced_stages
from reference_runs.run import Activation, Architecture, Norm, Position, Workload
from suite.predict.analytic.nanotron_memory import held_streams, host_is_ahead, nanotron_memory, stage_parameters
from suite.predict.analytic.parameters import layer_tensors, parameter_count, total_elements
from suite.predict.analytic.stage_memory import stage_memory
from tests.support.strategies import BLOOM, described_architectures

GIB = 2**30
H100_BYTES = 79.6 * GIB  # 80 GB H100: 81,559 MiB by nvidia-smi
PUBLISHED = Path(reference_runs.__file__).parent / "published" / "playbook_h100_1b.csv"
LLAMA_1B = msgspec.structs.replace(
    BLOOM.architecture,
    layers=16,
    hidden=2048,
    heads=32,
    head_dim=64,
    kv_heads=32,
    ffn_hidden=8192,
    vocabulary=131072,
    padded_vocabulary=131072,
    sequence=4096,
    position=Position.ROTARY,
    rotary_dim=64,
    rotary_base=10000.0,
    norm=Norm.PRE_RMS_NORM,
    embedding_norm=False,
    activation=Activation.SWIGLU,
    biases=False,
)
NO_DROPOUT = msgspec.structs.replace(BLOOM.recipe, embedding_dropout=0.0, hidden_dropout=0.0, attention_dropout=0.0)


class Row(NamedTuple):
    layout: Layout
    micro_batches: int
    gib: float

    @property
    def signed_error(self) -> float:
        return self.peak(stage=0) / GIB / self.gib - 1

    def peak(self, *, stage: int) -> float:
        workload = Workload(LLAMA_1B, NO_DROPOUT, self.layout)
        return nanotron_memory(workload, stage=stage, micro_batches=self.micro_batches, device_bytes=H100_BYTES).peak

    @property
    def error(self) -> float:
        return abs(self.signed_error)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Rows that ran, less those whose batch sizes contradict each other."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        records = [row for row in csv.DictReader(file) if row["status"] == "ok" and not row["flag"]]
    return [
        Row(
            Layout(
                micro_batch=int(row["micro_batch"]),
                data_parallel=int(row["dp"]),
                tensor_parallel=int(row["tp"]),
                pipeline_stages=int(row["pp"]),
                zero_stage=int(row["zero_stage"]),
                sequence_parallel=True,
                fused_attention=True,
            ),
            int(row["grad_accum"]),
            float(row["measured_mem_gib_per_gpu"]),
        )
        for row in records
    ]


def test_527_published_peaks_of_nanotron_are_7_5_percent_from_the_prediction(rows: list[Row]) -> None:
    errors = [(row.layout, row.signed_error) for row in rows]
    assert len(errors) == 527
    assert mean(abs(error) for _, error in errors) < 0.0751
    assert median(abs(error) for _, error in errors) < 0.044
    assert abs(median(error for _, error in errors)) < 0.002  # 0.7 % too low without the two workspaces of cuBLAS
    inside = {size: [abs(error) for layout, error in errors if layout.tensor_parallel == size] for size in (1, 2, 4, 8)}
    bounds = {1: 0.038, 2: 0.05, 4: 0.062, 8: 0.071}
    assert {size: mean(found) for size, found in inside.items() if mean(found) >= bounds[size]} == {}
    assert len(inside[1]) == 74  # without tensor parallelism no streams are held
    assert max(inside[1]) < 0.17
    # sixteen stages of two layers hold what two to eight longer ones show: 11 % with seven streams a later stage
    assert [abs(error) < 0.01 for layout, error in errors if layout.pipeline_stages == 16] == [True]


def test_two_workspaces_of_cublas_are_needed() -> None:
    memory = nanotron_memory(Workload(LLAMA_1B, NO_DROPOUT, Layout()), stage=0, micro_batches=1)
    assert memory.workspaces == 2 * 32 * 2**20
    assert memory.peak - memory.workspaces == memory._replace(workspaces=0).peak


def test_no_layout_that_ran_is_predicted_not_to_fit(rows: list[Row]) -> None:
    for row in rows:
        peaks = [row.peak(stage=stage) for stage in range(row.layout.pipeline_stages)]
        assert max(peaks) < H100_BYTES, row


def test_a_published_peak_with_several_micro_batches_holds_the_fp32_logits_of_one_more(rows: list[Row]) -> None:
    plain = [row for row in rows if row.layout.ranks == row.layout.data_parallel and row.layout.zero_stage == 1]
    for samples, group in groupby(
        sorted(plain, key=lambda row: row.layout.micro_batch), lambda r: r.layout.micro_batch
    ):
        alike = [row for row in group if row.layout.data_parallel >= 64]  # an optimizer's shard is 0.23 GiB or less
        several = [row.gib for row in alike if row.micro_batches > 1]
        (single,) = (row.gib for row in alike if row.micro_batches == 1)
        logits = 4 * samples * LLAMA_1B.sequence * LLAMA_1B.padded_vocabulary / GIB
        # printed to 0.1 GiB, and shards of 12 bytes a parameter
        assert mean(several) - single == pytest.approx(logits, abs=0.1 + 12 * 1.342e9 / GIB / 64)


def test_a_head_that_costs_four_layers_leaves_the_last_stages_fewer() -> None:
    layers = {1: [16], 2: [10, 6], 4: [5, 5, 5, 1], 8: [3, 2, 3, 2, 3, 2, 1, 0]}
    found = {stages: [blocks.layers for blocks in balanced_stages(LLAMA_1B, stages=stages)] for stages in layers}
    assert found == layers


@given(described_architectures(), st.integers(1, 12))
def test_balanced_stages_hold_every_block_once_and_no_stage_more_than_its_share_and_one_block(
    architecture: Architecture, stages: int
) -> None:
    architecture = msgspec.structs.replace(architecture, top_query_layer=False)
    blocks = balanced_stages(architecture, stages=stages)
    assert len(blocks) == stages
    assert sum(own.layers for own in blocks) == architecture.layers
    assert [sum(own[kind] for own in blocks) for kind in (1, 2, 3)] == [1, 1, 1]
    assert blocks[0].embedding
    layer = total_elements(layer_tensors(architecture))  # matrices, and vectors that are not counted: no less
    head = architecture.padded_vocabulary * architecture.hidden
    share = (architecture.layers * layer + head) / stages
    for own in blocks:
        assert own.layers * layer + own.head * head <= share + max(layer, head) + layer


@given(described_architectures(), st.integers(1, 6))
@example(LLAMA_1B, 1)
@example(LLAMA_1B, 2)
@example(msgspec.structs.replace(LLAMA_1B, tied_embeddings=False), 4)
def test_balanced_stages_store_the_model_and_a_second_copy_of_a_tied_embedding(
    architecture: Architecture, stages: int
) -> None:
    architecture = msgspec.structs.replace(architecture, top_query_layer=False)
    layout = Layout(pipeline_stages=stages)
    stored = sum(stage_parameters(architecture, layout, stage=stage) for stage in range(stages))
    (head,) = (own for own in balanced_stages(architecture, stages=stages) if own.head)
    copies = architecture.tied_embeddings and not head.embedding
    assert stored == parameter_count(architecture) + copies * architecture.padded_vocabulary * architecture.hidden


@given(
    described_architectures(tensor_parallel=2),
    st.sampled_from([Layout(tensor_parallel=2), Layout(), Layout(sequence_parallel=True)]),
    st.sampled_from(Recomputation),
    st.integers(1, 5),
)
def test_one_stage_holds_the_state_and_activations_of_the_plain_prediction(
    architecture: Architecture, axes: Layout, recomputation: Recomputation, micro_batches: int
) -> None:
    architecture = msgspec.structs.replace(architecture, top_query_layer=False)
    workload = Workload(architecture, BLOOM.recipe, msgspec.structs.replace(axes, recomputation=recomputation))
    plain = stage_memory(workload, stage=0, micro_batches=micro_batches)
    memory = nanotron_memory(workload, stage=0, micro_batches=micro_batches)
    assert memory.state == plain.state
    assert memory.activations == plain.activations
    # 8 bytes a logit in place of 4, and 4 of the micro-batch before
    assert memory.logits == (3 if micro_batches > 1 else 2) * plain.logits
    assert memory.streams == 0


def test_a_first_stage_holds_the_passes_that_the_next_has_not_received_until_its_host_is_ahead() -> None:
    """One stage alone holds two gathered streams a layer and one of the backward pass before."""
    expected = {  # stage, micro-batch, tensor-parallel ranks, micro-batches
        (0, 1, 8, 64): 6 + 2 * (2 * 5 + 1),  # four in flight, two of them not received
        (0, 1, 8, 3): 6 + 1 * (2 * 5 + 1),
        (0, 1, 8, 1): 6,
        (1, 1, 8, 64): 6,  # waits for what it receives
        (0, 1, 32, 64): 6,
        (0, 32, 8, 64): (2 * 4 + 1) * 5,
        (1, 32, 8, 64): (2 * 3 + 1) * 5,
        (0, 32, 8, 4): 2 * 4 * 5,  # no backward pass before
    }
    alone = {(8, 1): 2 * 16, (8, 2): 3 * 16, (1, 16): 3 * 16, (1, 15): 6}  # micro-batch, micro-batches
    piped = Layout(pipeline_stages=4, sequence_parallel=True)
    found = {}
    for stage, micro_batch, ranks, micro_batches in expected:
        layout = msgspec.structs.replace(piped, micro_batch=micro_batch, tensor_parallel=ranks)
        key = (stage, micro_batch, ranks, micro_batches)
        found[key] = held_streams(LLAMA_1B, layout, stage=stage, layers=5, micro_batches=micro_batches)
    assert found == expected

    def held(layout: Layout, micro_batches: int) -> float:
        return held_streams(LLAMA_1B, layout, stage=0, layers=16, micro_batches=micro_batches)

    whole = Layout(tensor_parallel=8, sequence_parallel=True)
    assert {(b, m): held(msgspec.structs.replace(whole, micro_batch=b), m) for b, m in alone} == alone
    # nothing is held where nothing is gathered
    ungathered = [Layout(tensor_parallel=4), Layout(sequence_parallel=True), Layout(pipeline_stages=4)]
    assert [held(layout, 8) for layout in ungathered] == [0, 0, 0]


def test_hosts_are_ahead_from_the_micro_batch_on_from_which_published_steps_grow_with_it() -> None:
    def ahead(architecture: Architecture, tensor_parallel: int, stages: int, samples: int) -> bool:
        layout = Layout(micro_batch=samples, tensor_parallel=tensor_parallel, pipeline_stages=stages)
        return host_is_ahead(architecture, layout, micro_batches=8)

    wide = msgspec.structs.replace(LLAMA_1B, hidden=8192, heads=128, kv_heads=128, ffn_hidden=32768)
    least = {(2, 1): 2, (4, 1): 4, (8, 1): 8, (16, 1): 1, (2, 2): 4, (4, 2): 8, (8, 2): 32}
    powers = [2**power for power in range(6)]
    assert {axes: [ahead(LLAMA_1B, *axes, samples) for samples in powers] for axes in least} == {
        axes: [samples >= fewest for samples in powers] for axes, fewest in least.items()
    }
    assert all(ahead(wide, *axes, samples) for axes, fewest in least.items() for samples in (fewest, 4))


def test_streams_are_waited_for_where_they_do_not_fit() -> None:
    layout = Layout(micro_batch=16, tensor_parallel=4, sequence_parallel=True, fused_attention=True)
    workload = Workload(LLAMA_1B, NO_DROPOUT, layout)
    memory = nanotron_memory(workload, stage=0, micro_batches=4)
    assert memory.streams > 0
    assert memory == nanotron_memory(workload, stage=0, micro_batches=4, device_bytes=memory.peak)
    without = nanotron_memory(workload, stage=0, micro_batches=4, device_bytes=memory.peak - 1)
    assert without == memory._replace(streams=0)
    assert without.peak == memory.peak - memory.streams


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 4]), st.sampled_from([1, 2, 16]))
def test_parts_of_the_fullest_instant_add_up_to_the_peak(stages: int, ranks: int, samples: int) -> None:
    layout = Layout(micro_batch=samples, tensor_parallel=ranks, pipeline_stages=stages, sequence_parallel=True)
    for stage in range(stages):
        memory = nanotron_memory(Workload(LLAMA_1B, NO_DROPOUT, layout), stage=stage, micro_batches=4)
        assert sum(memory.fullest_instant()[1].values()) == memory.peak
        assert memory.at_update <= memory.peak
        assert memory.state == memory.weights + memory.gradients + memory.optimizer


def test_what_is_not_described_is_refused() -> None:
    for layout in (
        Layout(zero_stage=2),
        Layout(offload=Offload.STATE),
        Layout(schedule=Schedule.PIPEDREAM),
        Layout(virtual_stages=2, pipeline_stages=2),
    ):
        with pytest.raises(ValueError, match="nanotron_memory does not describe"):
            nanotron_memory(Workload(LLAMA_1B, NO_DROPOUT, layout), stage=0, micro_batches=4)
