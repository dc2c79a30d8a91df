"""Partial structs: the fields of the full one, nothing named twice, and a decoder that reads no more."""

from __future__ import annotations

import msgspec
import pytest

from suite.job.events import Failed, Finished, Phase, Status, Step, StepKind
from suite.records.record import End, RankOutcome, partial, rank_outcome, shared_fields


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
