"""Replays that vote, memory that is verified, and phases that hang."""

from __future__ import annotations

import msgspec
import pytest

from suite.acceptance.evidence import PhaseTiming, SoakResult
from suite.acceptance.findings import guard_findings
from suite.acceptance.judge.bit_errors import replay_finding, soak_finding
from tests.support.batteries import probing, replays


@pytest.mark.parametrize(
    ("wrong", "verdict", "part", "words"),
    [
        (lambda _rank, _replay, _step: False, "PASS", "", "all equal"),
        (lambda rank, replay, step: (rank, replay, step) == (1, 1, 2), "FAIL", "rank 1", "step 2, in the gradients"),
        (lambda rank, _replay, _step: rank == 0, "FAIL", "rank 0", "rank 0 outvoted in 9"),
        (lambda _rank, _replay, _step: True, "INVALID", "no rank repeats itself", "step 0"),
    ],
)
def test_replays_vote(wrong, verdict, part, words):
    found = replay_finding(probing(replays=replays(wrong=wrong)))
    assert found.verdict == verdict
    assert part in found.part
    assert words in found.evidence


def test_two_ranks_that_each_repeat_themselves_leave_open_which_is_wrong():
    halves = [msgspec.structs.replace(one, gradients=str(one.rank)) for one in replays()]
    found = replay_finding(probing(replays=halves))
    assert found.verdict == "FAIL"
    assert found.part.startswith("rank 0 or rank 1")


def phase(outcome, message="", **more):
    usual = {"phase": "p", "predicted_seconds": 10.0, "budget_seconds": 50.0, "seconds": 51.0}
    return PhaseTiming(outcome=outcome, message=message, **(usual | more))


STACKS = "rank 1: an error of the log\ncollectives:\nrank 0: in none\nrank 0:\nThread 1:\n  File train.py\nrank 1:\n"


@pytest.mark.parametrize(
    ("ranks", "message", "stacks", "part", "words"),
    [
        ([1], "rank 1 fell back", f"{STACKS}no answer", "rank 1", "; stacks of rank 0 in the record"),
        (
            [1],
            "default_pg: rank 1 did not come to number 7; no rank made progress",
            f"{STACKS}Thread 2:",
            "rank 1",
            "; stacks of rank 0, rank 1 in the record",
        ),
        (
            [],
            "no rank made progress",
            "",
            "unknown rank: all ranks made equal progress",
            "; no rank reported its stacks",
        ),
    ],
)
def test_a_hang_names_the_rank_at_fault_and_the_stacks_that_there_are(ranks, message, stacks, part, words):
    hung = phase("hang", message, ranks_at_fault=ranks, stacks=stacks)
    (found, *_) = guard_findings([hung], disturbed=False)
    assert (found.part, found.evidence) == (part, message + words)


def test_slow_is_not_hung():
    message = "rank 1 stopped (process state T); rank 0: step 3 done"
    hung, slow = (
        guard_findings([phase(kind, message, ranks_at_fault=[1])], disturbed=False)[0] for kind in ("hang", "slow")
    )
    assert (hung.verdict, hung.part) == ("HANG", "rank 1")
    assert (slow.verdict, slow.part) == ("FAIL", "slow, not hung")
    assert guard_findings([phase("slow")], disturbed=True)[0].verdict == "INCONCLUSIVE"


def test_equal_replays_are_counted_by_rank_and_hash():
    found = replay_finding(probing(replays=replays(ranks=3, times=2, steps=4)))
    assert (found.verdict, found.evidence) == ("PASS", "2 replays of 3 ranks, 12 hashes each, all equal")


def test_of_several_ranks_the_one_outvoted_most_is_at_fault_and_all_are_told_of():
    def wrong(rank, replay, step):
        return (rank, replay, step) in {(0, 0, 1), (2, 0, 1), (2, 1, 2)}

    found = replay_finding(probing(replays=replays(ranks=4, wrong=wrong)))
    assert (found.verdict, found.part) == ("FAIL", "rank 2: arithmetic or memory")
    assert found.evidence == (
        "first at step 1, in the gradients; rank 0 outvoted in 1 hashes, rank 2 outvoted in 2 hashes"
    )


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({1: {"loss": "x", "parameters": "y"}, 2: {"loss": "z"}}, "loss"),  # of one step what is computed first
        ({1: {"parameters": "y"}, 2: {"gradients": "x"}}, "parameters"),  # of all steps the earliest
    ],
)
def test_the_earliest_difference_is_named(changed, kind):
    mixed = [
        msgspec.structs.replace(one, **changed.get(one.step, {})) if one.rank == 1 else one for one in replays(ranks=3)
    ]
    assert replay_finding(probing(replays=mixed)).evidence.startswith(
        f"first at step 1, in the {kind}; rank 1 outvoted"
    )


def test_a_soak_tells_how_much_was_verified():
    soaks = [SoakResult(rank=rank, bytes=(3 + rank) * 2**29, passes=4 - rank, wrong=0, first="") for rank in (0, 1)]
    found = soak_finding(probing(soaks=soaks, soak_seconds=12.4))
    assert found.evidence == "12.0 GiB verified in 12 s: 3 passes over 1.50 GiB a rank"
    (first, *_) = soaks
    assert soak_finding(probing(soaks=[first])).evidence.startswith("6.0 GiB verified")
    odd = msgspec.structs.replace(first, passes=3)
    assert soak_finding(probing(soaks=[odd])).evidence.startswith("4.5 GiB verified")
    assert (found.measured, found.expected, found.subject) == (0.0, 0.0, "memory and products")
    bad = [msgspec.structs.replace(soak, wrong=2 + soak.rank, first="here") for soak in soaks]
    wrong = soak_finding(probing(soaks=bad))
    assert (wrong.verdict, wrong.part) == ("FAIL", "rank 0: memory or arithmetic, rank 1: memory or arithmetic")
    assert (wrong.measured, wrong.evidence) == (5.0, "rank 0: 2 wrong, here; rank 1: 3 wrong, here")
    assert soak_finding(probing()).verdict == "NOT RUN"
    assert replay_finding(probing()).verdict == "NOT RUN"
