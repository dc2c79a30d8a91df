"""Flight recorders of a hung launch say where each rank waits, who did not come, and where ranks have parted."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from suite.launch.flight_recorder import Entry, Recording, decoded, diagnosed

NOW = 10_000_000_000


def entry(number: int, *, group: str = "mesh_tp", operation: str = "gloo:all_reduce", **fields: Any) -> Entry:
    usual: dict[str, Any] = {"input_sizes": [[7, 3]], "input_dtypes": ["Float"], "retired": True}
    return Entry(process_group=["1", group], profiling_name=operation, collective_seq_id=number, **usual | fields)


def waits(number: int, **fields: Any) -> Entry:
    return entry(number, retired=False, time_created_ns=NOW - 2_500_000_000, **fields)


def test_the_rank_that_did_not_come_is_named_with_the_collective_in_which_the_others_wait():
    recordings = {0: Recording([entry(1), waits(2)]), 1: Recording([entry(1)]), 2: Recording([entry(1), waits(2)])}
    reported = diagnosed(recordings, ranks=4, now_ns=NOW)
    assert reported.missing == [1]
    assert reported.lines == [
        "rank 0: for 2.5 s in number 2 of mesh_tp: all_reduce Float [7, 3]",
        "rank 1: in no collective; the last was number 1 of mesh_tp: all_reduce Float [7, 3]",
        "rank 2: for 2.5 s in number 2 of mesh_tp: all_reduce Float [7, 3]",
        "rank 3: no answer",
        "mesh_tp: rank 1 did not come to number 2 (all_reduce Float [7, 3]), in which ranks 0, 2 wait",
    ]


def test_a_rank_of_another_group_is_not_missing():
    recordings = {0: Recording([waits(2)]), 1: Recording([entry(1)]), 2: Recording([entry(1, group="mesh_dp")])}
    assert diagnosed(recordings, ranks=3, now_ns=NOW).missing == [1]


def test_of_several_groups_the_rank_that_waits_in_nothing_is_missing_and_its_absence_is_the_reason():
    behind, held_up = entry(1), entry(4, group="mesh_dp")
    recordings = {0: Recording([held_up, waits(2)]), 1: Recording([behind]), 2: Recording([waits(5, group="mesh_dp")])}
    reported = diagnosed(recordings, ranks=3, now_ns=NOW)
    assert reported.missing == [1]
    assert reported.why == "mesh_tp: rank 1 did not come to number 2 (all_reduce Float [7, 3]), in which rank 0 waits"
    assert [line for line in reported.lines if line.startswith("mesh_dp: rank 0 did not come to number 5")]


def test_where_all_that_are_missing_wait_elsewhere_all_are_named():
    recordings = {
        0: Recording([entry(1, group="mesh_dp"), waits(2)]),
        1: Recording([entry(1), waits(2, group="mesh_dp")]),
    }
    reported = diagnosed(recordings, ranks=2, now_ns=NOW)
    assert reported.missing == [0, 1]
    assert reported.why.count("did not come") == 2


def test_ranks_that_wait_in_different_operations_have_parted():
    recordings = {0: Recording([waits(5)]), 1: Recording([waits(5, operation="gloo:all_gather")])}
    reported = diagnosed(recordings, ranks=2, now_ns=NOW)
    assert reported.missing == []
    assert (
        reported.lines[-1]
        == "mesh_tp: number 5 is not the same operation on all ranks: rank 0: all_reduce; rank 1: all_gather"
    )


def test_messages_between_two_ranks_are_told_and_not_compared():
    sends = waits(0, operation="nccl:send 0->1", is_p2p=True, p2p_seq_id=4)
    reported = diagnosed({0: Recording([sends]), 1: Recording([])}, ranks=2, now_ns=NOW)
    assert reported.missing == []
    assert reported.lines == [
        "rank 0: for 2.5 s in number 4 of mesh_tp: send 0->1 Float [7, 3]",
        "rank 1: in no collective, and none before",
    ]


def test_the_oldest_of_several_under_way_is_named_and_many_tensors_are_counted():
    many = waits(3, input_sizes=[[1]] * 5, input_dtypes=["Float", "Float", "BFloat16"])
    (line, *_) = diagnosed({0: Recording([many, waits(4)])}, ranks=1, now_ns=NOW).lines
    assert line == (
        "rank 0: for 2.5 s in number 3 of mesh_tp: all_reduce Float/BFloat16 [1] [1] [1] and 2 more, "
        "and 1 more after it"
    )


def test_what_is_cut_off_or_of_another_form_is_no_recording():
    fields = b'"process_group": ["0", "default_pg"], "profiling_name": "gloo:barrier", "new": 1'
    whole = b'{"entries": [{' + fields + b'}], "version": "3"}'
    assert decoded(whole) == Recording([Entry(process_group=["0", "default_pg"], profiling_name="gloo:barrier")])
    for cut in (whole[:-20], b"", b"[]", b'{"entries": [{"process_group": 3}]}'):
        assert decoded(cut) is None
    assert diagnosed({}, ranks=2).lines == []


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_exactly_the_ranks_behind_the_furthest_one_that_waits_are_missing(done):
    """Every rank has recorded some of the first collectives of one group; those that came furthest wait in the last."""
    furthest = max(done)
    recordings = {
        rank: Recording([waits(n) if n == furthest and min(done) < furthest else entry(n) for n in range(1, count + 1)])
        for rank, count in enumerate(done)
    }
    reported = diagnosed(recordings, ranks=len(done), now_ns=NOW)
    # a rank without any entry of the group is not known to belong to it
    assert reported.missing == [rank for rank, count in enumerate(done) if 0 < count < furthest]
    assert msgspec.json.decode(msgspec.json.encode(recordings[0]), type=Recording) == recordings[0]
