from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from reference_runs.architecture import Architecture, Norm, Position, QueryKeyNorm
from reference_runs.catalog import reference_run, run_names
from reference_runs.hugging_face.families import imported_values
from reference_runs.layout import Layout, StageAssignment
from reference_runs.placement import chunk_layers
from reference_runs.run import Workload
from suite.execute.model.decoder import Decoder
from suite.predict.analytic.parameters import (
    chunk_tensors,
    layer_tensors,
    outer_tensors,
    padding_parameters,
    parameter_count,
    parameter_counts,
    rank_parameters,
)
from suite.predict.analytic.process_groups import Traffic, key_value_copies, sent_bytes
from suite.predict.analytic.stage_layers import stage_layers
from suite.predict.analytic.stage_memory import stage_memory
from suite.predict.analytic.traffic import step_traffic
from tests.support.configurations import PUBLISHED
from tests.support.executed_runs import Run, chunk_parameters, executed_runs
from tests.support.mixture import Experts, Latent
from tests.support.strategies import BLOOM, architectures, parameter_tensors, varied_architectures


def meta_decoder(architecture: Architecture) -> Decoder:
    with torch.device("meta"):
        return Decoder(architecture, BLOOM.recipe)


class FirstUses(TorchFunctionMode):
    """Names of parameters in the order in which operations that compute something receive them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names_of = {id(parameter): name for name, parameter in model.named_parameters()}
        self.order: dict[str, None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if resolve_name(func) is not None:
            for value in [*args, *(kwargs or {}).values()]:
                if id(value) in self.names_of:
                    self.order.setdefault(self.names_of[id(value)])
        return func(*args, **(kwargs or {}))


def names_in_order_of_use(architecture: Architecture) -> list[str]:
    model = Decoder(architecture, BLOOM.recipe)
    with FirstUses(model) as uses:
        model(torch.zeros(1, architecture.sequence, dtype=torch.long))
    return list(uses.order)


@given(architectures())
def test_every_tensor_has_the_name_and_size_of_the_models_and_the_count_is_their_sum(
    architecture: Architecture,
) -> None:
    parameters = dict(meta_decoder(architecture).named_parameters())
    built = {name: (p.numel(), p.dim() > 1, p.shape[0]) for name, p in parameters.items()}
    tensors = parameter_tensors(architecture)
    assert {tensor.name: (tensor.elements, tensor.matrix, tensor.rows) for tensor in tensors} == built
    assert parameter_count(architecture) == sum(p.numel() for p in parameters.values())


@given(executed_runs())
def test_the_tensors_of_every_chunk_equal_its_shapes_one_by_one(run: Run) -> None:
    for chunk in range(run.layout.pipeline_stages * run.layout.virtual_stages):
        tensors = chunk_tensors(run.architecture, run.layout, chunk=chunk)
        expected = chunk_parameters(run, chunk)
        assert [(t.elements, t.matrix, t.rows) for t in tensors] == [
            (math.prod(parameter.shape), len(parameter.shape) > 1, parameter.shape[0]) for parameter in expected
        ]
        for tensor, parameter in zip(tensors, expected, strict=True):
            layer = f"blocks.{parameter.unit}." if parameter.unit >= 0 else ""
            assert tensor.name.startswith(layer)
            assert tensor.name.endswith(parameter.name)


@given(executed_runs())
def test_chunks_together_are_the_model_with_a_tied_table_twice(run: Run) -> None:
    chunks = run.layout.pipeline_stages * run.layout.virtual_stages
    layout = msgspec.structs.replace(run.layout, tensor_parallel=1)
    names = [tensor.name for chunk in range(chunks) for tensor in chunk_tensors(run.architecture, layout, chunk=chunk)]
    whole = [tensor.name for tensor in parameter_tensors(run.architecture)]
    if chunks > 1 and run.architecture.tied_embeddings:
        whole.insert(len(whole) - run.architecture.head_bias, "head.weight")  # before the head's bias
    assert names == whole


@given(architectures())
def test_tensors_stand_in_the_order_in_which_the_forward_pass_reads_them(architecture: Architecture) -> None:
    assert [tensor.name for tensor in parameter_tensors(architecture)] == names_in_order_of_use(architecture)


def meta_model(shape: Architecture, layout: Layout, *, stage: int) -> nn.Module:
    """The modules that one rank of a stage holds, built one by one on the meta device."""
    t = layout.tensor_parallel
    h, d, f = shape.hidden, shape.head_dim, shape.ffn_hidden
    queries, keys = shape.heads // t * d, max(shape.kv_heads // t, 1) * d
    bias, gain = shape.bias, shape.norm_gain
    norm = partial(nn.RMSNorm, elementwise_affine=gain)
    if shape.norm not in (Norm.PRE_RMS_NORM, Norm.OUTPUT_RMS_NORM):
        norm = partial(nn.LayerNorm, elementwise_affine=gain, bias=bias.norm)

    model = nn.ModuleList()
    first, last = stage == 0, stage == layout.pipeline_stages - 1
    no_values = [patch.object(kind, "reset_parameters") for kind in (nn.Linear, nn.Embedding)]
    with torch.device("meta"), no_values[0], no_values[1]:
        numbers = [
            number for chunk in chunk_layers(shape.layers, layout)[stage :: layout.pipeline_stages] for number in chunk
        ]
        for number in numbers:
            model += [norm(h)] if shape.shared_norm else [norm(h), norm(h)]
            if shape.key_value_rank is not None:
                model.append(Latent(shape, tensor_parallel=t))
            else:
                model += [nn.Linear(h, width, bias=bias.attention) for width in (queries, keys, keys)]
                model.append(nn.Linear(queries, h, bias=bias.projection))
            if shape.experts is not None and number >= shape.dense_layers:
                model.append(Experts(shape, tensor_parallel=t))
            else:
                expansions = 2 if shape.activation.gated else 1
                model += [nn.Linear(h, f // t, bias=bias.feed_forward) for _ in range(expansions)]
                model.append(nn.Linear(f // t, h, bias=bias.feed_forward))
            if shape.query_key_norm is QueryKeyNorm.HEAD:
                model += [nn.RMSNorm(d), nn.RMSNorm(d)]
            if shape.query_key_norm is QueryKeyNorm.PROJECTION:
                model += [nn.RMSNorm(queries), nn.RMSNorm(keys)]
        embedding = nn.Embedding(shape.padded_vocabulary // t, h)
        if first:
            model.append(embedding)
            if shape.position is Position.LEARNED:
                model.append(nn.Embedding(shape.sequence + shape.extra_positions, h))
            if shape.embedding_norm:
                model.append(norm(h))
        if last:
            model.append(norm(h))
            if shape.top_query_layer:
                model.append(nn.Embedding(shape.sequence, h))
            head = nn.Linear(h, shape.padded_vocabulary // t, bias=shape.head_bias)
            if first and shape.tied_embeddings:
                head.weight = embedding.weight
            model.append(head)
    return model


@given(st.data(), st.sampled_from([1, 2, 3]), st.integers(1, 5), st.sampled_from(StageAssignment))
def test_a_ranks_parameters_and_tensors_have_the_elements_of_its_modules(
    data: st.DataObject, tensor_parallel: int, stages: int, assignment: StageAssignment
) -> None:
    shape = data.draw(varied_architectures(tensor_parallel=tensor_parallel))
    layout = Layout(
        tensor_parallel=tensor_parallel, pipeline_stages=min(stages, shape.layers), stage_assignment=assignment
    )
    for stage in range(layout.pipeline_stages):
        model = meta_model(shape, layout, stage=stage)
        predicted = rank_parameters(shape, layout, stage=stage)
        matrices = sum(p.numel() for p in model.parameters() if p.dim() > 1)
        vectors = sum(p.numel() for p in model.parameters() if p.dim() == 1)
        assert (predicted.matrices, predicted.vectors) == (matrices, vectors)
        whole = meta_model(shape, msgspec.structs.replace(layout, tensor_parallel=1), stage=stage)
        unsharded = sum(p.numel() for p in whole.parameters())
        assert unsharded - predicted.replicated == tensor_parallel * (predicted.all - predicted.replicated)
        if layout.pipeline_stages == 1:
            before, behind = outer_tensors(shape, tensor_parallel=tensor_parallel)
            tensors = before + shape.layers * layer_tensors(shape, tensor_parallel=tensor_parallel) + behind
            assert sum(tensor.elements for tensor in tensors if tensor.matrix) == matrices
            assert sum(tensor.elements for tensor in tensors if not tensor.matrix) == vectors


@given(st.data(), st.sampled_from([1, 2, 3]), st.sampled_from([2, 4]))
def test_each_rank_above_the_key_value_heads_has_one_of_them(data: st.DataObject, heads: int, copies: int) -> None:
    t = heads * copies
    shape = msgspec.structs.replace(data.draw(varied_architectures(tensor_parallel=t)), kv_heads=heads)
    layout = Layout(tensor_parallel=t)
    predicted = rank_parameters(shape, layout, stage=0)
    assert predicted.all == sum(p.numel() for p in meta_model(shape, layout, stage=0).parameters())
    tensors = chunk_tensors(shape, layout, chunk=0)
    assert predicted.all == sum(tensor.elements for tensor in tensors)
    # the ranks together: all else once, every key and value head on t / k ranks
    once = sum(p.numel() for p in meta_model(shape, Layout(), stage=0).parameters())
    own = predicted.all - predicted.replicated - predicted.copied
    assert once == t * own + predicted.replicated + heads * predicted.copied


def test_every_recorded_run_has_the_elements_of_a_meta_device_model() -> None:
    """Runs that are not executed have transformers' elements (tests/reference_runs/hugging_face)."""
    wrong = {}
    for name in sorted({*run_names()} - {"gpt-oss-120b", "qwen3-next-80b-a3b", "nemotron-h-56b"}):
        whole = reference_run(name).architecture
        few = msgspec.structs.replace(whole, layers=min(whole.layers, whole.dense_layers + 2))  # of each kind, alike
        modules = sum(parameter.numel() for parameter in meta_model(few, Layout(), stage=0).parameters())
        for shape in (few, whole):
            counts = {
                parameter_count(shape),
                sum(tensor.elements for tensor in parameter_tensors(shape)),
                rank_parameters(shape, Layout(), stage=0).all,
            }
            if len(counts) > 1 or (shape is few and counts != {modules}):
                wrong[name, shape.layers] = counts
    assert wrong == {}


def test_the_recorded_stage_assignments_are_the_published_ones() -> None:
    def layers(name: str) -> list[int]:
        run = reference_run(name)
        stages = range(run.layout.pipeline_stages)
        return [stage_layers(run.architecture, run.layout, stage=stage) for stage in stages]

    assert layers("bloom-176b") == [5, *10 * [6], 5]
    assert layers("glm-130b") == [8, *6 * [9], 8]
    assert layers("mt-nlg-530b") == 35 * [3]


@given(architectures())
def test_the_parts_sum_to_the_tensors_of_their_names(architecture: Architecture) -> None:
    sums: dict[str, int] = dict.fromkeys(parameter_counts(architecture), 0)
    for tensor in parameter_tensors(architecture):
        owner = tensor.name.rsplit(".", 1)[0].split(".")
        part = owner[0] if owner[0] in ("embedding", "position", "embedding_norm", "head") else owner[-1]
        if len(owner) > 2:
            part = owner[2]
        part = (
            "norm" if part.endswith("norm") and part != "embedding_norm" else part.replace("embedding_", "embedding ")
        )
        sums[part.replace("feed_forward", "feed-forward")] += tensor.elements
    assert sums == parameter_counts(architecture)


@given(architectures())
def test_the_published_closed_form_holds_for_blooms_kind(architecture: Architecture) -> None:
    h = architecture.hidden
    same_kind = msgspec.structs.replace(
        architecture, ffn_hidden=4 * h, position=Position.ALIBI, embedding_norm=True, biases=True, tied_embeddings=True
    )
    layers, rows = architecture.layers, architecture.padded_vocabulary
    assert parameter_count(same_kind) == layers * (12 * h**2 + 13 * h) + rows * h + 4 * h


def test_padding_is_of_every_table_and_of_the_heads_bias() -> None:
    """GPT-2 124M has 47 rows of 768 more than tokens: 124,475,904 parameters, and 124,439,808 without."""
    shape = {"vocabulary": 50257, "padded_vocabulary": 50304, "hidden": 768}
    tied, untied = (
        msgspec.structs.replace(BLOOM.architecture, **shape, tied_embeddings=tied) for tied in (True, False)
    )
    assert padding_parameters(tied) == 124_475_904 - 124_439_808 == 47 * 768
    assert padding_parameters(untied) == 2 * 47 * 768
    assert padding_parameters(msgspec.structs.replace(untied, head_bias=True)) == 47 * (2 * 768 + 1)


STARCODER = imported_values(PUBLISHED["starcoder"][0], Path("starcoder")).architecture


def test_starcoders_four_tensor_parallel_ranks_have_its_one_key_value_head_each() -> None:
    """Multi-query attention at tp 4: nothing of the head is split."""
    shape, layers, h, d = STARCODER, 40, 6144, 128
    keys_and_values = layers * 2 * d * (h + 1)
    replicated = layers * (4 * h + 2 * h) + 2 * h + 8192 * h  # norms, biases after a sum, positions
    whole = 15_517_456_384
    rank = rank_parameters(shape, Layout(tensor_parallel=4), stage=0)
    assert rank.copied == keys_and_values
    assert rank.replicated == replicated
    assert rank.all == (whole - keys_and_values - replicated) // 4 + keys_and_values + replicated


def test_starcoders_published_layout_is_predicted_with_copies_in_memory_and_traffic() -> None:
    """512 A100 as tp 4, pp 4, dp 32: a middle stage's ten layers."""
    layout = Layout(tensor_parallel=4, pipeline_stages=4, data_parallel=32)
    recipe = msgspec.structs.replace(BLOOM.recipe, global_batch=512)
    shared = msgspec.structs.replace(STARCODER, kv_heads=4)
    workloads = [Workload(shape, recipe, layout) for shape in (STARCODER, shared)]
    one, four = (rank_parameters(workload.architecture, layout, stage=1) for workload in workloads)
    assert one.copied == 10 * 2 * 128 * 6145
    assert four.copied == 0
    assert one.all == four.all  # a rank has a head of each either way
    states = [stage_memory(workload, stage=1, micro_batches=16) for workload in workloads]
    assert states[0].weights == states[1].weights == 2 * one.all
    traffic = [step_traffic(workload, stage=1, micro_batches=16) for workload in workloads]
    # gradients of the copies are summed once a step, in fp32; the four ranks of a group have the same one
    summed = Traffic("kv", "all_reduce", 4 * one.copied, 1)
    assert [entry for entry in traffic[0] if entry not in traffic[1]] == [summed]
    assert [entry for entry in traffic[0] if entry in traffic[1]] == traffic[1]
    copies = key_value_copies(STARCODER, tensor_parallel=4)
    assert sent_bytes(summed, layout, head_copies=copies) == 2 * 3 * summed.payload_bytes // 4
