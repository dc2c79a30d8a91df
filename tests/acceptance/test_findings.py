"""All verdicts together become the right decision, and re-runs confirm or take back what failed."""

from __future__ import annotations

import msgspec
import pytest

from suite.acceptance import check_table
from suite.acceptance.check_table import EXACT_FIGURES, HANG_GUARD, MATRIX
from suite.acceptance.findings import confirmed, decision
from suite.job.events import Status
from suite.records.battery import CheckFinding, CheckVerdict, Decision


def finding(verdict, check=MATRIX, status=Status.OK, **rest):
    return CheckFinding(check=check, subject="x", verdict=verdict, status=status, **rest)


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([], Decision.UNDECIDED),
        ([finding(CheckVerdict.NOT_RUN)], Decision.UNDECIDED),
        ([finding(CheckVerdict.NOT_RUN), finding(CheckVerdict.PASS)], Decision.ACCEPTED),
        ([finding(CheckVerdict.WARN)], Decision.ACCEPTED),
        ([finding(CheckVerdict.PASS), finding(CheckVerdict.INCONCLUSIVE)], Decision.UNDECIDED),
        ([finding(CheckVerdict.PASS), finding(CheckVerdict.INVALID)], Decision.UNDECIDED),
        ([finding(CheckVerdict.INVALID), finding(CheckVerdict.FAIL)], Decision.REJECTED),
        ([finding(CheckVerdict.PASS), finding(CheckVerdict.HANG, status=Status.HANG)], Decision.EXECUTION_FAILED),
        ([finding(CheckVerdict.FAIL, status=Status.NAN), finding(CheckVerdict.INVALID)], Decision.EXECUTION_FAILED),
        ([finding(CheckVerdict.HANG, status=Status.HANG), finding(CheckVerdict.FAIL)], Decision.REJECTED),
        # software explains other figures, and a file system a slow phase
        ([finding(CheckVerdict.PASS), finding(CheckVerdict.FAIL, EXACT_FIGURES)], Decision.UNDECIDED),
        ([finding(CheckVerdict.PASS), finding(CheckVerdict.FAIL, HANG_GUARD)], Decision.UNDECIDED),
        ([finding(CheckVerdict.FAIL), finding(CheckVerdict.FAIL, EXACT_FIGURES)], Decision.REJECTED),
        ([finding(CheckVerdict.FAIL, EXACT_FIGURES, Status.CRASHED)], Decision.EXECUTION_FAILED),
    ],
)
def test_the_decision_follows_the_most_certain_finding_and_nothing_is_accepted_that_did_not_run(findings, expected):
    assert decision(findings) is expected


def test_a_failed_time_that_passes_again_is_inconclusive_and_an_exact_failure_stands():
    first = [finding(CheckVerdict.FAIL, ratio=0.9), finding(CheckVerdict.FAIL, check=check_table.REPLAYS)]
    again = [finding(CheckVerdict.PASS, ratio=1.0), finding(CheckVerdict.PASS, check=check_table.REPLAYS)]
    taken_back, stands = confirmed(first, again)
    assert taken_back.verdict is CheckVerdict.INCONCLUSIVE
    assert "failed once at 0.900, not in the re-run at 1.000" in taken_back.evidence
    assert stands.verdict is CheckVerdict.FAIL
    assert "intermittent" in stands.evidence
    (open_,) = confirmed(first[:1], [])
    assert (open_.verdict, open_.part) == (CheckVerdict.INCONCLUSIVE, first[0].part)
    assert "no time was left for a re-run" in open_.evidence
    crashed = finding(CheckVerdict.FAIL, status=Status.CRASHED)
    assert confirmed([crashed, first[1]], []) == [crashed, first[1]]
    (both,) = confirmed(first[:1], [finding(CheckVerdict.FAIL, ratio=0.91)])
    assert both.verdict is CheckVerdict.FAIL
    assert "confirmed by a re-run at 0.910" in both.evidence


@pytest.mark.parametrize(
    ("verdicts", "ends_as", "ratio", "words"),
    [
        ("FAIL FAIL", "FAIL", 0.5, "confirmed by a re-run at 0.600"),
        ("FAIL PASS", "INCONCLUSIVE", 0.5, "failed once at 0.500, not in the re-run at 0.600 (PASS)"),
        ("FAIL PASS FAIL", "FAIL", 0.5, "confirmed by a re-run at 0.700, not in another at 0.600"),
        ("FAIL WARN PASS", "WARN", 0.7, "failed once at 0.500, not in two more at 0.600 and at 0.700"),
        ("FAIL INVALID FAIL", "FAIL", 0.5, "confirmed by a re-run at 0.700"),
        ("FAIL INVALID PASS", "INCONCLUSIVE", 0.5, "not in the re-run at 0.700 (PASS)"),
        ("INVALID PASS", "PASS", 0.6, "measured again"),
        ("INVALID INVALID WARN", "WARN", 0.7, "measured again"),
        ("INVALID FAIL", "INCONCLUSIVE", 0.6, "failed once at 0.600"),
        ("INVALID FAIL FAIL", "FAIL", 0.6, "confirmed by a re-run at 0.700"),
        ("INVALID INVALID", "INVALID", 0.5, ""),
        ("PASS FAIL", "PASS", 0.5, ""),
    ],
)
def test_two_of_three_measurements_by_clocks_decide(verdicts, ends_as, ratio, words):
    ratios = (0.5, 0.6, 0.7)
    first, *rounds = (
        finding(CheckVerdict(verdict), ratio=one, part="link")
        for verdict, one in zip(verdicts.split(), ratios, strict=False)
    )
    (found,) = confirmed([first], *([again] for again in rounds))
    assert (found.verdict, found.ratio) == (CheckVerdict(ends_as), ratio)
    assert words in found.evidence


def test_failures_of_different_ranks_do_not_confirm_each_other():
    parts = ("rank 0: compute", "rank 1: compute", "rank 0: compute")
    first, second, third = (finding(CheckVerdict.FAIL, check_table.STRAGGLER, ratio=0.9, part=part) for part in parts)
    (apart,) = confirmed([first], [second])
    assert apart.verdict is CheckVerdict.INCONCLUSIVE
    (again,) = confirmed([first], [second], [third])
    assert (again.verdict, again.part) == (CheckVerdict.FAIL, parts[0])
    memory = [msgspec.structs.replace(one, check=check_table.MEMORY) for one in (first, second)]
    (both,) = confirmed(memory[:1], memory[1:])
    assert both.verdict is CheckVerdict.FAIL


def test_a_re_run_that_did_not_end_well_confirms_nothing_and_is_said_itself():
    link = msgspec.structs.replace(finding(CheckVerdict.FAIL, check=check_table.PEER), subject="link 0-1")
    step = finding(CheckVerdict.FAIL, check=check_table.STEP_TIME)
    hung = msgspec.structs.replace(finding(CheckVerdict.HANG, check=check_table.PEER, status=Status.HANG), subject="")
    crashed = finding(CheckVerdict.FAIL, check=check_table.STEP_TIME, status=Status.CRASHED)
    found = confirmed([link, step], [hung, crashed])
    assert [(one.check, one.verdict) for one in found] == [
        (check_table.PEER, CheckVerdict.INCONCLUSIVE),
        (check_table.PEER, CheckVerdict.HANG),
        (check_table.STEP_TIME, CheckVerdict.INCONCLUSIVE),
        (check_table.STEP_TIME, CheckVerdict.FAIL),
    ]
    assert {one.evidence for one in found if one.status is Status.OK} == {"failed once; no re-run of it ended well"}
    assert decision(found) is Decision.EXECUTION_FAILED
    assert confirmed([crashed], [crashed]) == [crashed]


def test_bit_errors_of_a_link_stand_without_a_re_run_and_its_rate_does_not():
    bits, rate = (
        msgspec.structs.replace(finding(CheckVerdict.FAIL, check=check_table.PEER), subject=subject)
        for subject in ("messages to the bit", "link 0-1")
    )
    assert [one.verdict for one in confirmed([bits, rate], [])] == [CheckVerdict.FAIL, CheckVerdict.INCONCLUSIVE]
    (intermittent,) = confirmed([bits], [msgspec.structs.replace(bits, verdict=CheckVerdict.PASS)])
    assert intermittent.verdict is CheckVerdict.FAIL
