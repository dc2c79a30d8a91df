"""Slices that are asked for: of every run of the catalog, at the shapes of one accelerator, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from reference_runs.catalog import reference_run, run_names
from reference_runs.errors import InputError
from reference_runs.placement import coordinates
from suite.job.slice import SliceStage
from suite.predict.analytic.memory import optimizer_shards
from suite.predict.analytic.parameters import parameter_count
from suite.predict.simulation.state import executed_state
from suite.report.slice import slice_words
from suite.reproduce import slice_memory
from suite.reproduce.plan import Plan
from suite.reproduce.request import Request
from suite.reproduce.slice_plan import asks_for_slice, slice_plan, slice_tokens

# of runs without slices, what is missing
UNPUBLISHED = dict.fromkeys(("palm-540b", "gpt-oss-120b", "qwen3-next-80b-a3b"), "recipe.optimizer")
UNPUBLISHED |= {"nemotron-h-56b": "recipe.learning_rate_decay", "mlperf-llama2-70b-lora": "recipe.warmup"}


@pytest.fixture(autouse=True)
def _much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_memory, "free_bytes", lambda: 2**50)


def plan(name: str, **asked: Any) -> Plan:
    return slice_plan(Request(**({"name": f"{name}-slice", "device": "cpu", "results": Path("results")} | asked)))


def of_one_accelerator(name, stage):
    """How a slice of a stage differs from the recorded shapes and from the layout of the stage's accelerators."""
    run = reference_run(name)
    recorded, planned = run.recorded_layout, plan(name, stage=stage, layers=1)
    whole, own, layout = run.architecture, planned.architecture, planned.layout
    shapes = ("hidden", "heads", "kv_heads", "ffn_hidden", "padded_vocabulary", "sequence", "experts")
    differing = [each for each in shapes if getattr(own, each) != getattr(whole, each)]
    if recorded is not None:
        axes = ("tensor_parallel", "expert_parallel", "micro_batch", "executed_recomputation", "sequence_parallel")
        differing += [axis for axis in axes if getattr(layout, axis) != getattr(recorded, axis)]
    shared = 1 if recorded is None or recorded.shard_ranks is not None else optimizer_shards(recorded)
    if (optimizer_shards(layout), planned.ranks, layout.zero_stage) != (shared, 1, int(shared > 1)):
        differing.append("shards")
    assert planned.slice is not None
    return [*differing, *([] if planned.slice.stage == stage else ["stage"])]


def test_every_run_has_a_slice_of_every_stage_with_the_share_of_one_accelerator():
    wrong = {}
    for name in sorted(set(run_names()) - set(UNPUBLISHED)):
        recorded = reference_run(name).recorded_layout
        stages = 1 if recorded is None else recorded.pipeline_stages
        for stage in ["only"] if stages == 1 else ["first", "middle", "last"]:
            if differing := of_one_accelerator(name, stage):
                wrong[name, stage] = differing
    assert wrong == {}


def test_a_run_without_a_recipe_is_refused_by_what_it_lacks(not_refused):
    assert not_refused(plan, [({"name": name}, lacking) for name, lacking in UNPUBLISHED.items()]) == []


def test_a_middle_stage_has_layers_alone_in_the_share_of_a_tensor_parallel_rank():
    """BLOOM has 12 h^2 in matrices and 13 h in vectors a layer, of which 6 h of whole ones and 7 h are split by 4."""
    planned = plan("bloom-176b", layers=2)
    assert planned.slice is not None
    assert planned.slice.stage is SliceStage.MIDDLE
    hidden, ranks = planned.architecture.hidden, 4
    state = executed_state(planned.workload, stage=1, replica=0)
    # norms 4 h and the biases of projection and contraction 2 h are whole; those of query, key, value and expansion not
    assert state.parameters == 2 * (12 * hidden**2 // ranks + 7 * hidden // ranks + 6 * hidden)


def test_ends_add_what_the_whole_model_has_besides_its_layers():
    """GPT-2, whose only stage has all of it: the slice of every layer is the run."""
    whole = reference_run("gpt2-124m")
    assert parameter_count(plan("gpt2-124m").architecture) == parameter_count(whole.architecture)
    one, two = (executed_state(plan("gpt2-124m", layers=n).workload, stage=0, replica=0) for n in (1, 2))
    of_layer = two.parameters - one.parameters
    assert one.parameters + 11 * of_layer == parameter_count(whole.architecture)


def test_processes_of_a_slice_take_the_places_that_share_its_layers(monkeypatch):
    """The places of the first replica; each needs its own memory."""
    planned = plan("bloom-176b", layers=1, ranks=4)
    assert planned.slice is not None
    assert planned.ranks == len(planned.slice.places) == 4
    index = [coordinates(planned.layout, rank) for rank in planned.slice.places]
    assert [each["tp"] for each in index] == [0, 1, 2, 3]
    assert {(each["pp"], each["dp"]) for each in index} == {(1, 0)}
    alone = plan("bloom-176b", layers=1, ranks=1)
    assert alone.slice is not None
    assert alone.slice.places == (planned.slice.rank,)
    needed = slice_memory.needed_bytes(planned)
    assert needed == slice_memory.needed_bytes(alone)
    monkeypatch.setattr(slice_memory, "free_bytes", lambda: 4 * needed - 1)
    with pytest.raises(InputError, match="does not fit"):
        plan("bloom-176b", layers=1, ranks=4)


def test_a_smaller_slice_says_what_it_changed():
    planned = plan("bloom-176b", layers=1, sequence=256, micro_batch=1)
    assert planned.changes == (
        "1 of 6 layers of the middle stage",
        "sequence 256, recorded 2048",
        "micro-batch 1, recorded 2",
    )
    assert planned.slice is not None
    assert (planned.slice.sequence, planned.slice.micro_batch) == (2048, 2)


def test_what_is_not_executed_as_recorded_is_said():
    said = {
        "codegeex-13b": "the top-query layer is an ordinary one",
        "deepseek-v3": "without the first 3 layers, which have no experts",
        "llama2-13b": "no layout is recorded",
        "llama3.1-8b": "which 2 accelerators (cp) share",
        "opt-175b": "weights are whole",
        "grok-1": "experts compute as many rows for each of 8 ranks (ep)",
    }
    changes = {name: plan(name, layers=1).changes for name in said}
    assert [name for name, words in said.items() if not any(words in change for change in changes[name])] == []


def test_the_first_stage_of_a_v_has_embedding_and_head_and_the_last_one_neither():
    layout = "dp8,tp4,pp6,zbv,zero1"
    stages = [plan("bloom-176b", stage=number, layout=layout, layers=1).slice for number in ("0", "last", "5", None)]
    assert [of and of.stage for of in stages] == [
        SliceStage.ONLY,
        SliceStage.ONLY,
        SliceStage.MIDDLE,
        SliceStage.MIDDLE,
    ]
    assert stages[0] is not None
    assert slice_words(stages[0]).startswith("1 layer, embedding, head of the first stage of bloom-176b")


def test_stages_have_numbers():
    for number, stage in (("0", SliceStage.FIRST), ("5", SliceStage.MIDDLE), ("11", SliceStage.LAST)):
        of = plan("bloom-176b", stage=number).slice
        assert of is not None
        assert of.stage is stage


REFUSED = [
    ({"stage": "12"}, "no such stage"),
    ({"stage": "end"}, "no such stage"),
    ({"stage": "only"}, "no such stage"),
    ({"layers": 0}, "layers of the middle stage; got 0, allowed: 1 to 6"),
    ({"layers": 7}, "layers of the middle stage; got 7, allowed: 1 to 6"),
    ({"sequence": 4096}, "--sequence: out of range; got 4096, allowed: 1 to 2048"),
    ({"micro_batch": 0}, "--micro-batch: out of range"),
    ({"minutes": 0.0}, "--minutes: minutes; got 0.0, allowed: more than 0"),
    ({"ranks": 3}, "--ranks: processes of a slice; got 3, allowed: 1, or 4 = 4 (tp)"),
    ({"ranks": 2, "layout": "dp32,pp12"}, "allowed: 1: no other accelerator shares its layers"),
    ({"mini": True, "optimizer": "one-bit-adam"}, "got --mini, --optimizer"),
    ({"renewal": True, "trace": Path("a.json")}, "got --renew-second-moment, --trace"),
    ({"layout": "dp8,tp3,pp12"}, "--layout: layout.tensor_parallel does not divide"),
    ({"steps": 3}, "too few steps"),
    ({"name": "blom-176b"}, "did you mean bloom-176b"),
    ({"name": "bloom-mini"}, "unknown run; got 'bloom-mini'"),
]


def test_what_is_not_there_is_refused_with_what_is(not_refused):
    assert not_refused(plan, [({"name": "bloom-176b"} | asked, words) for asked, words in REFUSED]) == []


def test_too_little_memory_is_refused_with_what_would_be_less(monkeypatch):
    monkeypatch.setattr(slice_memory, "free_bytes", lambda: 16 * 2**30)
    with pytest.raises(InputError) as refused:
        plan("bloom-176b", stage="first")
    assert "does not fit: the slice needs" in str(refused.value)
    assert "--layers below 5, --sequence below 2048, --micro-batch below 2, --stage middle" in str(refused.value)
    assert slice_memory.needed_bytes(plan("bloom-176b", layers=1, sequence=256)) < 16 * 2**30


def test_tokens_are_drawn_once_for_a_seed_and_lie_in_the_vocabulary(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    planned = plan("gpt2-124m", layers=1, sequence=64, micro_batch=2)
    first, again = slice_tokens(planned), slice_tokens(planned)
    assert first == again
    other = slice_tokens(msgspec.structs.replace(planned, seed=2))
    assert other.sha256 != first.sha256
    data = memoryview(Path(first.tokens_file).read_bytes()).cast("i")
    assert planned.recipe.global_batch == 8 * 2  # ranks that share state of the optimizer
    assert len(data) == first.tokens == 2 * 8 * 2 * 64 + 1
    assert 0 <= min(data) <= max(data) < planned.architecture.vocabulary


def test_a_slice_is_asked_for_by_name_or_by_option():
    results = Path("results")
    assert asks_for_slice(Request(name="bloom-176b-slice", results=results))
    assert asks_for_slice(Request(name="my_run.toml", slice=True, results=results))
    assert not asks_for_slice(Request(name="bloom-mini", results=results))
