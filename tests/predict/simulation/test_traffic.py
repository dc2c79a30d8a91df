from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import msgspec
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.layout import Layout, Recomputation
from reference_runs.run import Architecture, Balancing, Norm, Precision, Recipe, Residual, Workload
from suite.predict.analytic.process_groups import sent_bytes
from suite.predict.analytic.traffic import step_traffic
from suite.predict.executed_run.textbook_gap import TEXTBOOK_TERM, textbook_differences
from suite.predict.simulation.expert_traffic import context_balancing_traffic
from suite.predict.simulation.traffic import executed_traffic, executed_traffic_of_dtypes, scalar_traffic
from tests.support.examples import examples
from tests.support.executed_runs import (
    MANY,
    Place,
    Run,
    chunk_parameters,
    copies,
    dealt_layers,
    executed_runs,
    groups,
    micro_batches,
    own_chunks,
    places,
    rank_parameters,
    stops_early,
)
from tests.support.strategies import BLOOM, recipes, routed_architectures

Message = tuple[str, str, str, int]  # element type, axis, operation, payload bytes


def weight_element(run: Run) -> int:
    return 4 if run.recipe.precision is Precision.FP32 else 2


def gradient_element(run: Run) -> int:
    return 4 if run.recipe.precision in (Precision.FP32, Precision.BF16) else 2


def weight_dtype(run: Run) -> str:
    """Element type of weights, and of hidden states."""
    return {Precision.FP32: "fp32", Precision.BF16: "bf16"}.get(run.recipe.precision, "fp16")


def gradient_dtype(run: Run) -> str:
    return "fp32" if run.recipe.precision is Precision.BF16 else weight_dtype(run)


def hidden_states(run: Run) -> int:
    shape = run.architecture
    return weight_element(run) * run.layout.micro_batch * shape.sequence // run.layout.context_parallel * shape.hidden


def tensor_parallel_messages(run: Run, place: Place) -> Iterator[Message]:
    """Every message on the tensor-parallel axis but the norm's, in the order of a step."""
    layout, a, dtype = run.layout, hidden_states(run), weight_dtype(run)
    if layout.tensor_parallel == 1:
        return
    sequence, recomputed = layout.sequence_parallel, layout.recomputation is Recomputation.FULL
    chunks, own_positions = dealt_layers(run), run.architecture.sequence // layout.context_parallel

    def split(_: str) -> Iterator[Message]:
        """Forward in front of a product that is split by columns."""
        if sequence:
            yield dtype, "tp", "all_gather", a

    def summed(_: str) -> Iterator[Message]:
        """Forward after a product that is split by rows, or after the table's lookup."""
        yield dtype, "tp", "reduce_scatter" if sequence else "all_reduce", a

    def split_backward(_: str) -> Iterator[Message]:
        yield dtype, "tp", "reduce_scatter" if sequence else "all_reduce", a

    def summed_backward(_: str) -> Iterator[Message]:
        if sequence:
            yield dtype, "tp", "all_gather", a

    def layer_forward(*, whole: bool) -> Iterator[Message]:
        yield from split("query, key, value")
        yield from summed("projection")
        yield from split("expansion")
        if whole:
            yield from summed("contraction")

    for _ in range(micro_batches(run)):
        for chunk in own_chunks(run, place):
            if chunk == 0:
                yield from summed("embedding")
            for _ in chunks[chunk]:
                yield from layer_forward(whole=True)
            if chunk == len(chunks) - 1:
                yield from split("head")
                for _ in ("maximum", "target's logit", "sum of exponentials"):
                    yield "fp32", "tp", "all_reduce", 4 * layout.micro_batch * own_positions
                yield from split_backward("head")
            for group in reversed(list(groups(run, chunk))):
                for place_in_group, _ in enumerate(group) if recomputed else ():
                    last = place_in_group == len(group) - 1
                    yield from layer_forward(whole=not (last and stops_early(run)))
                for layer in group:
                    if run.architecture.top_query_layer and layer == run.architecture.layers - 1:
                        # the gradient of the queries, of which every rank has them all
                        yield dtype, "tp", "all_reduce", a
                    for inner, outer in (("contraction", "expansion"), ("projection", "query, key, value")):
                        yield from summed_backward(inner)
                        yield from split_backward(outer)
            if chunk == 0:
                yield from summed_backward("embedding")
    names = ["query_norm", "key_norm"]  # of the rank's own heads
    if sequence:  # of its own positions
        names += ["position", "embedding_norm", "attention_norm", "feed_forward_norm", "final_norm"]
    in_part = [tensor.shape for tensor in rank_parameters(run, place) if tensor.name.split(".")[0] in names]
    if not layout.fully_sharded:
        dtype = gradient_dtype(run)
        payload = gradient_element(run) * sum(math.prod(shape) for shape in in_part)
    else:
        n = layout.shard_ranks or copies(layout)
        shards = [torch.empty(shape, device="meta").chunk(n) for shape in in_part]
        own = sum(chunks[place.dp % n].numel() for chunks in shards if place.dp % n < len(chunks))
        stored = run.recipe.precision is Precision.FP16_NO_MASTER
        dtype, payload = ("fp16", 2 * own) if stored else ("fp32", 4 * own)
    if in_part:  # also where this rank's shards of them are empty
        yield dtype, "tp", "all_reduce", payload


def copied_head_messages(run: Run, place: Place) -> Iterator[Message]:
    """Gradients of the key and value that other tensor-parallel ranks have too: the last rows of what projects them."""
    layout, rows = run.layout, 2 * run.architecture.head_dim
    if layout.tensor_parallel <= run.architecture.kv_heads:
        return
    elements = 0
    for tensor in rank_parameters(run, place):
        if tensor.name.startswith(("query_key_value", "key_value")):
            copied = torch.zeros(tensor.shape)
            copied[-rows:] = 1
            n = layout.shard_ranks or copies(layout)
            shards = copied.chunk(n) if layout.fully_sharded else [copied]
            own = place.dp % n if layout.fully_sharded else 0
            elements += int(shards[own].sum()) if own < len(shards) else 0
    stored = layout.fully_sharded and run.recipe.precision is not Precision.FP16_NO_MASTER
    dtype, element = ("fp32", 4) if stored else (gradient_dtype(run), gradient_element(run))
    yield dtype, "kv", "all_reduce", element * elements


def context_parallel_messages(run: Run, place: Place) -> Iterator[Message]:
    """Keys and values of every layer, in the order of a step."""
    layout, shape = run.layout, run.architecture
    if layout.context_parallel == 1:
        return
    keys = layout.micro_batch * shape.sequence * max(shape.kv_heads // layout.tensor_parallel, 1) * shape.head_dim

    def both(operation: str, layers: list[int]) -> Iterator[Message]:
        for _ in layers:
            for _ in ("keys", "values"):
                yield weight_dtype(run), "cp", operation, weight_element(run) * keys

    for _ in range(micro_batches(run)):
        for chunk in own_chunks(run, place):
            yield from both("all_gather", dealt_layers(run)[chunk])
            for group in reversed(list(groups(run, chunk))):
                if layout.recomputation is Recomputation.FULL:
                    yield from both("all_gather", group)
                yield from both("reduce_scatter", group)


def pipeline_messages(run: Run, place: Place) -> Iterator[Message]:
    layout, chunks = run.layout, dealt_layers(run)
    if layout.pipeline_stages == 1:
        return
    size = hidden_states(run)
    if layout.sequence_parallel:
        size //= layout.tensor_parallel
    for chunk in own_chunks(run, place):
        for _ in range(micro_batches(run)):
            if chunk + 1 < len(chunks):
                yield weight_dtype(run), "pp", "send", size  # an activation
            if chunk > 0:
                yield weight_dtype(run), "pp", "send", size  # a gradient
    if run.architecture.tied_embeddings and place.pp in (0, layout.pipeline_stages - 1):
        table = run.architecture.padded_vocabulary // layout.tensor_parallel * run.architecture.hidden
        yield gradient_dtype(run), "embedding", "all_reduce", gradient_element(run) * table


def gradient_messages(run: Run, place: Place) -> Iterator[Message]:
    layout, n = run.layout, copies(run.layout)
    if n == 1:
        return
    if layout.zero_stage <= 1:
        scatters = layout.zero_stage == 1 and layout.reduce_scatter
        for chunk in own_chunks(run, place) if not scatters else ():
            dtype = torch.float32 if gradient_element(run) == 4 else torch.float16
            gradients = [
                torch.empty(tensor.shape, dtype=dtype, device="meta")
                for tensor in reversed(chunk_parameters(run, chunk))
            ]
            buckets, _ = dist._compute_bucket_assignment_by_size(gradients, [layout.bucket_bytes])
            for bucket in buckets:
                yield gradient_dtype(run), "dp", "all_reduce", sum(gradients[number].nbytes for number in bucket)
        if layout.zero_stage == 1:
            decaying = [len(t.shape) > 1 or run.recipe.decay_of_vectors for t in rank_parameters(run, place)]
            sizes = [math.prod(tensor.shape) for tensor in rank_parameters(run, place)]
            for kind in (True, False):
                elements = sum(size for size, decays in zip(sizes, decaying, strict=True) if decays is kind)
                if elements:
                    yield weight_dtype(run), "dp", "all_gather", weight_element(run) * (elements + -elements % n)
                if elements and scatters:
                    padded = gradient_element(run) * (elements + -elements % n)
                    yield gradient_dtype(run), "dp", "reduce_scatter", padded
        return
    yield from _sharded_messages(run, place)


def _sharded_messages(run: Run, place: Place) -> Iterator[Message]:
    """Units of fully_shard: what is gathered when it is needed and not there, and dropped as the stage says."""
    layout, n = run.layout, run.layout.shard_ranks or copies(run.layout)
    several_groups = n < copies(layout)
    axis = "shard" if several_groups else "dp"
    elements: Counter[int] = Counter()
    for tensor in rank_parameters(run, place):
        elements[tensor.unit] += n * torch.empty(tensor.shape, device="meta").chunk(n)[0].numel()
    layers = list(range(run.architecture.layers))
    gathered: set[int] = set()

    def needed(unit: int) -> Iterator[Message]:
        if unit not in gathered:
            gathered.add(unit)
            yield weight_dtype(run), axis, "all_gather", weight_element(run) * elements[unit]

    for micro_batch in range(micro_batches(run)):
        for unit in [-1, *layers]:
            yield from needed(unit)
            if unit >= 0 and layout.zero_stage == 3 and layout.reshard_after_forward:
                gathered.remove(unit)
        for unit in [*reversed(layers), -1]:
            yield from needed(unit)
            yield gradient_dtype(run), axis, "reduce_scatter", gradient_element(run) * elements[unit]
            if several_groups and micro_batch == micro_batches(run) - 1:
                yield gradient_dtype(run), "replicate", "all_reduce", gradient_element(run) * elements[unit] // n
            if layout.zero_stage == 3 or micro_batch == micro_batches(run) - 1:
                gathered.remove(unit)
    assert not gathered


def scalars(run: Run) -> Iterator[Message]:
    layout = run.layout
    norm, loss = 4, 4
    if layout.tensor_parallel > 1:
        yield "fp32", "tp", "all_reduce", norm
    if layout.pipeline_stages > 1:
        yield "fp32", "pp", "all_reduce", loss + norm
    if copies(layout) > 1:
        in_shards = layout.zero_stage >= 2 or (layout.zero_stage == 1 and layout.reduce_scatter)
        yield "fp32", "dp", "all_reduce", loss + norm if in_shards else loss


def messages(run: Run, place: Place) -> Iterator[Message]:
    yield from tensor_parallel_messages(run, place)
    yield from copied_head_messages(run, place)
    yield from context_parallel_messages(run, place)
    yield from pipeline_messages(run, place)
    yield from gradient_messages(run, place)
    yield from scalars(run)


@examples(MANY)
@given(executed_runs())
def test_the_traffic_of_every_rank_equals_the_list_of_its_messages_and_their_element_types(run: Run) -> None:
    for place in set(places(run.layout)):
        payload: Counter[tuple[str, str, str]] = Counter()
        count: Counter[tuple[str, str]] = Counter()
        whole: Counter[tuple[str, str]] = Counter()
        for dtype, axis, operation, size in messages(run, place):
            payload[dtype, axis, operation] += size
            count[axis, operation] += 1
            whole[axis, operation] += size
        traffic = executed_traffic(Workload(*run), stage=place.pp, replica=place.dp)
        assert len({(entry.axis, entry.operation) for entry in traffic}) == len(traffic)
        assert {(entry.axis, entry.operation): entry.messages for entry in traffic} == count
        assert {(entry.axis, entry.operation): entry.payload_bytes for entry in traffic} == whole
        found = executed_traffic_of_dtypes(Workload(*run), stage=place.pp, replica=place.dp)
        assert payload == {
            (dtype, entry.axis, entry.operation): entry.payload_bytes
            for dtype, entries in found.items()
            for entry in entries
        }


def without_scalars(run: Run, stage: int) -> dict[tuple[str, str], int]:
    left_out = {entry.axis: entry.payload_bytes for entry in scalar_traffic(run.layout)}
    payload = {
        (entry.axis, entry.operation): entry.payload_bytes
        - (left_out.get(entry.axis, 0) if entry.operation == "all_reduce" else 0)
        for entry in executed_traffic(Workload(*run), stage=stage, replica=0)
    }
    return {key: size for key, size in payload.items() if size}


def textbook(run: Run, stage: int) -> dict[tuple[str, str], int]:
    traffic = step_traffic(Workload(*run), stage=stage, micro_batches=micro_batches(run))
    return {(entry.axis, entry.operation): entry.payload_bytes for entry in traffic}


@examples(MANY)
@given(executed_runs())
def test_every_departure_from_the_papers_is_told_with_its_reason(run: Run) -> None:
    executed = [without_scalars(run, stage) for stage in range(run.layout.pipeline_stages)]
    papers = [textbook(run, stage) for stage in range(run.layout.pipeline_stages)]
    expected = {}
    for key in {key for payload in (*executed, *papers) for key in payload}:
        own = [payload.get(key, 0) for payload in executed]
        stage = own.index(max(own))
        if papers[stage].get(key, 0) != own[stage]:
            expected[key] = papers[stage].get(key, 0) - own[stage]
    figures = textbook_differences(Workload(*run))
    assert {(figure.axis, figure.operation): figure.value for figure in figures} == expected
    for figure in figures:
        assert (figure.term, figure.rank, figure.stage) == (TEXTBOOK_TERM, None, None)
        assert figure.why


def test_keys_and_values_are_gathered_in_place_of_a_ring() -> None:
    """Forward as many bytes leave a rank as in a ring, backward, with the keys kept, half as many."""
    recipe = msgspec.structs.replace(BLOOM.recipe, global_batch=3)
    layout = Layout(context_parallel=4)
    workload = Workload(BLOOM.architecture, recipe, layout)
    entries = [*executed_traffic(workload, stage=0, replica=0), *step_traffic(workload, stage=0, micro_batches=3)]
    sent = {entry.operation: sent_bytes(entry, layout) for entry in entries if entry.axis == "cp"}
    part = 2 * 2048 // 4 * 14336  # bf16 keys of a rank
    assert sent == {
        "all_gather": 3 * 70 * 3 * 2 * part,
        "reduce_scatter": 3 * 70 * 3 * 2 * part,
        "send": 3 * 70 * 3 * 6 * part,
    }
    reasons = {figure.why for figure in textbook_differences(workload) if figure.axis == "cp"}
    assert reasons == {"keys and values are gathered whole, and their gradients reduced and dealt, in place of a ring"}


def test_a_departure_is_worth_an_all_reduce_a_layer() -> None:
    plain = msgspec.structs.replace(BLOOM.architecture, layers=5)
    recipe = msgspec.structs.replace(BLOOM.recipe, global_batch=3)
    still = msgspec.structs.replace(recipe, hidden_dropout=0.0)
    full = Layout(tensor_parallel=4, recomputation=Recomputation.FULL)
    each = 3 * 5 * 2 * 2048 * 14336  # hidden states in bf16, of 5 layers and 3 micro-batches

    def departures(shape: Architecture, recipe: Recipe, layout: Layout) -> list[tuple[str, float]]:
        return [(figure.why, figure.value) for figure in textbook_differences(Workload(shape, recipe, layout))]

    # 2 sums forward where the paper has 1
    parallel = msgspec.structs.replace(plain, residual=Residual.PARALLEL)
    dropping = msgspec.structs.replace(recipe, hidden_dropout=0.1)
    two_parts = departures(parallel, dropping, Layout(tensor_parallel=4))
    assert two_parts == [("a parallel residual is summed in two parts", -each)]
    # 2 forward, 2 backward, 2 again; PyTorch stops before the last
    assert departures(plain, still, full) == [("recomputation stops before the last sum of a group", each)]
    # a norm after the last product keeps its input: nothing is left out
    assert departures(msgspec.structs.replace(plain, norm=Norm.DEEP_NORM), still, full) == []


@examples(40)
@given(routed_architectures(), recipes(), st.integers(1, 3), st.sampled_from([None, 0.1]))
def test_every_layer_with_experts_sends_the_rows_of_each_expert_once_a_micro_batch(
    architecture: Architecture, recipe: Recipe, accumulation: int, sequence_loss: float | None
) -> None:
    architecture = msgspec.structs.replace(architecture, sequence_loss_weight=sequence_loss)
    recipe = msgspec.structs.replace(recipe, global_batch=2 * accumulation)
    layout = Layout(context_parallel=2, micro_batch=2)
    traffic = context_balancing_traffic(Workload(architecture, recipe, layout), stage=0)
    mixtures, experts = architecture.layers - architecture.dense_layers, architecture.experts or 0
    sizes = [4 * experts] * (architecture.balancing is Balancing.AUXILIARY_LOSS)
    sizes += [4 * 2 * experts] * (sequence_loss is not None)
    assert traffic.messages == accumulation * mixtures * len(sizes)
    assert traffic.payload_bytes == accumulation * mixtures * sum(sizes)
    alone = msgspec.structs.replace(layout, context_parallel=1)
    assert context_balancing_traffic(Workload(architecture, recipe, alone), stage=0).messages == 0
    if architecture.layers > 1:
        stages = msgspec.structs.replace(layout, pipeline_stages=2)
        both = [context_balancing_traffic(Workload(architecture, recipe, stages), stage=stage) for stage in range(2)]
        assert sum(each.payload_bytes for each in both) == traffic.payload_bytes
