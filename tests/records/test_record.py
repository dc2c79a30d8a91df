"""Hashes and kernels of a launch, and structs with a part of another's fields."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from reference_runs.architecture import QueryKeyNorm
from reference_runs.layout import Layout
from reference_runs.run import ProductFormat
from suite.job.checkpoints import Checkpoints
from suite.job.events import Failed, Finished, Phase, Status, Step, StepKind
from suite.job.options import DEFAULT_OPTIONS, Texts
from suite.job.slice import Slice, SliceStage
from suite.job.synchronisation import SlowRank, Synchronisation, Waiting
from suite.machine.gpu import H100
from suite.paths import ROOT
from suite.records.record import (
    THROUGH_FP32,
    Begin,
    End,
    RankOutcome,
    Record,
    decode,
    partial,
    policy,
    rank_outcome,
    recorded_kernels,
    shared_fields,
)
from tests.support.record_halves import begin, end

EARLIER = sorted((ROOT / "tests/records/earlier_records/records").rglob("*.begin.json"))
RECORDED = sorted((ROOT / "results/recorded/records").rglob("*.begin.json"))


def test_the_architecture_of_an_earlier_launch_has_its_stored_hash() -> None:
    begins = [decode(path.read_bytes(), Begin, path.name) for path in (*EARLIER, *RECORDED)]
    names = ("architecture", "layout", "recipe")
    other = [(one.id, name) for one in begins for name in names if policy(one.job)[name] != one.policy[name]]
    assert other == []
    assert len(begins) > 20


def test_another_value_of_a_later_field_is_another_hash() -> None:
    begin = decode(EARLIER[0].read_bytes(), Begin, "here")
    architecture = msgspec.structs.replace(begin.job.architecture, query_key_norm=QueryKeyNorm.HEAD)
    job = msgspec.structs.replace(begin.job, architecture=architecture)
    assert policy(job)["architecture"] != begin.policy["architecture"]
    recipe = msgspec.structs.replace(begin.job.recipe, product_format=ProductFormat.FP8_CURRENT)
    assert policy(msgspec.structs.replace(begin.job, recipe=recipe))["recipe"] != begin.policy["recipe"]


FILES = Texts(tokenizer_file="/a", text_file="/b", documents_file="/c")
SLICE = Slice(run="bloom", layout=Layout(), stage=SliceStage.LAST, layers=2, sequence=64, micro_batch=1, rank=0)


def test_a_policy_says_what_a_launch_asks_for_and_nothing_more() -> None:
    """Launches are compared by it: a fact more would make all earlier ones incomparable."""
    cases: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({}, {}),
        ({"device": "cuda"}, {"device": "cuda", "deterministic": "False"}),
        ({"interface": "eth1"}, {"interface": "eth1"}),
        ({"shares_devices": True}, {"shares_devices": "True"}),
        ({"synchronisation": Synchronisation(Waiting.SSP, 3)}, {"synchronisation": "ssp:3"}),
        ({"slow_ranks": (SlowRank(0, 2.0), SlowRank(1, 1.5, 4))}, {"slow_ranks": "0:2:1,1:1.5:4"}),
        ({"checkpoints": Checkpoints(directory="/x", every=5)}, {"checkpoint_every": "5"}),
        ({"slice": SLICE}, {"slice": "2 layers, stage last"}),
        ({"slice": msgspec.structs.replace(SLICE, group=(0, 1))}, {"slice": "2 layers, stage last", "processes": "2"}),
    ]
    job = begin().job
    assert policy(job)["deterministic"] == "True"
    for changes, said in cases:
        assert policy(msgspec.structs.replace(job, **changes)) == policy(job) | said


def test_a_policy_has_a_script_without_the_files_of_its_texts() -> None:
    job = begin().job
    options = [msgspec.structs.replace(DEFAULT_OPTIONS, rung="speed/compile", texts=texts) for texts in (None, FILES)]
    without, with_texts = (policy(msgspec.structs.replace(job, training_options=each)) for each in options)
    assert with_texts == without
    assert "speed/compile" in without["script"]
    assert "script" not in policy(job)


def record_of(device: str, *ranks: dict[str, Any]) -> Record:
    first = begin()
    first = msgspec.structs.replace(first, job=msgspec.structs.replace(first.job, device=device))
    outcomes = [RankOutcome(rank=rank, steps=[], last="finished", **said) for rank, said in enumerate(ranks)]
    return Record(path="r", begin=first, end=end(first.id, ranks=outcomes))


def test_kernels_are_those_of_the_device() -> None:
    for device, cuda in (("cpu", False), ("cuda", True)):
        kernels = recorded_kernels(record_of(device, {"arithmetic": "bf16"}))
        assert (kernels.cuda, kernels.products_through_fp32, kernels.gpu) == (cuda, False, H100)


def test_one_rank_whose_products_go_through_fp32_is_enough() -> None:
    arithmetic = [{"arithmetic": "bf16"}, {"arithmetic": f"bf16, {THROUGH_FP32}"}]
    assert recorded_kernels(record_of("cpu", *arithmetic)).products_through_fp32


def test_the_gpu_is_the_first_rank_s() -> None:
    def said(processors: int) -> dict[str, Any]:
        facts = {"gpu_capability": "8.0", "gpu_processors": str(processors), "gpu_threads": "2048"}
        return {"environment": facts | {"cudnn": "91002", "torch": "2.13.0"}}

    assert recorded_kernels(record_of("cuda", said(108), said(64))).gpu.processors == 108


def test_a_launch_that_has_not_ended_or_has_no_ranks_reported_nothing() -> None:
    ended = record_of("cuda")
    for each in (ended, msgspec.structs.replace(ended, end=None)):
        kernels = recorded_kernels(each)
        assert (kernels.cuda, kernels.products_through_fp32, kernels.gpu) == (True, False, H100)


class Whole(msgspec.Struct, kw_only=True):
    kept: int = msgspec.field(name="stored")
    given: str = "default"
    left_out: dict[str, int]


def test_a_partial_struct_decodes_its_fields_as_the_whole_one_and_passes_over_the_rest() -> None:
    decoded = msgspec.json.decode(b'{"stored": 3, "left_out": "not even a dict"}', type=partial(Whole, "kept", "given"))
    assert (decoded.kept, decoded.given) == (3, "default")
    with pytest.raises(msgspec.ValidationError, match="stored"):
        msgspec.json.decode(b'{"given": "x"}', type=partial(Whole, "kept", "given"))


def test_a_field_can_be_decoded_as_another_type_or_a_list_of_it() -> None:
    kind = partial(End, "id", ranks=[partial(RankOutcome, "rank")])
    decoded = msgspec.json.decode(b'{"id": "a", "ranks": [{"rank": 0}, {"rank": 1}]}', type=kind)
    assert [rank.rank for rank in decoded.ranks] == [0, 1]


def test_a_name_that_the_whole_struct_lacks_is_an_error() -> None:
    with pytest.raises(KeyError, match="renamed"):
        partial(Whole, "renamed")


def test_what_a_rank_counted_reaches_its_outcome_by_name() -> None:
    """Every field that both structs have; a new one needs no line of its own."""
    names = shared_fields(RankOutcome, Finished)
    assert {
        "environment",
        "arithmetic",
        "resident_bytes",
        "reserved_bytes",
        "synchronisations",
        "routed",
        "packed",
        "computed_rows",
        "slice_times",
        "pipeline_times",
        "store_work",
        "device_kernels",
    } == {*names}
    counts = {field.name: 0 for field in msgspec.structs.fields(Finished) if field.required}
    lists = {name: [] for name in ("collectives", "worked_seconds", "pipeline_seconds")}
    reported = {"environment": {"torch": "2"}, "arithmetic": "fp32", "resident_bytes": 7, "synchronisations": 2}
    finished = Finished(**(counts | lists | {"coordinates": {}} | reported))  # type: ignore[arg-type]
    step = Step(4, StepKind.TIMED, 1.0, 0.5, 9.0)
    outcome = rank_outcome(1, [Phase("warm-up", 1.0), step, finished])
    assert (outcome.rank, outcome.steps, outcome.last, outcome.failure) == (1, [step], "finished", "")
    assert {name: getattr(outcome, name) for name in reported} == reported


def test_a_rank_that_did_not_finish_leaves_its_last_words() -> None:
    assert rank_outcome(0, [Phase("imports", 1.0)]).last == "imports"
    assert rank_outcome(0, [Phase("imports", 1.0), Phase("warm-up", 2.0)]).last == "warm-up"
    assert rank_outcome(0, []).last == "not started"
    steps = [Step(number, StepKind.TIMED, 1.0, 0.5, 9.0) for number in (4, 5)]
    failed = Failed(Status.OUT_OF_MEMORY, "out of memory", True, "Traceback: out of memory", 1.0)
    outcome = rank_outcome(0, [Phase("warm-up", 1.0), *steps, failed])
    assert (outcome.last, outcome.steps, outcome.failure) == ("step 5 done", steps, failed.traceback)
