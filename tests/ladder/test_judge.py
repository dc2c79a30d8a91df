"""Ranks and launches of one rung: whose peak is judged, and that losses are the same."""

from __future__ import annotations

from suite.ladder.judge import Mark, loss_check
from suite.ladder.result import RungResult, failures
from suite.ladder.rung import RUNGS, Promise
from tests.support.ladder_machine import Machine, ladder_of, results_of, rung_measurement


def peak_words(rung_result: RungResult) -> tuple[Mark, str]:
    (check,) = (check for check in rung_result.checks if check.name == "peak")
    return check.mark, check.says


def test_the_largest_peak_of_all_ranks_is_judged(machine: Machine) -> None:
    machine.rank_peaks = {"speed/ddp": [1.0, 1.06], "speed/compile": [1.04, 1.0]}
    outcome = ladder_of(["compile", "ddp"])
    assert peak_words(results_of(outcome)["ddp"]) == (Mark.FAIL, "6.0 % more than predicted")
    assert peak_words(results_of(outcome)["compile"]) == (Mark.PASS, "4.0 % more than predicted")
    measured = results_of(outcome)["ddp"].measured
    assert measured is not None
    assert measured.peak_bytes == measured.largest_peak_bytes


def test_of_state_sharded_over_a_processor_s_ranks_the_median_one_is_judged_and_the_line_says_so(
    machine: Machine,
) -> None:
    machine.rank_peaks = {"memory/fsdp-4": [1.0, 1.0, 1.23, 1.0]}
    words = "as predicted on the median rank; one has 23.0 % more than that, gloo's messages perhaps: not judged"
    mark, says = peak_words(results_of(ladder_of(["fsdp-4"]))["fsdp-4"])
    assert (mark, says.replace("-0.0%", "+0.0%")) == (Mark.PASS, words)
    machine.rank_peaks = {"memory/fsdp-4": [1.07, 1.07, 1.07, 1.0]}
    assert peak_words(results_of(ladder_of(["fsdp-4"]))["fsdp-4"])[0] is Mark.FAIL


def test_launches_of_one_seed_with_other_losses_fail_whatever_stands_below(machine: Machine) -> None:
    """A baseline has nothing below it, `offline` a rung that crashed, and `batch` promises other losses anyway."""
    for name, crashes in (("speed-baseline", ""), ("offline", "workers"), ("batch", "")):
        machine.drifting = {f"speed/{name}"}
        machine.wrong = {f"speed/{crashes}"}
        found = failures(ladder_of([name, crashes] if crashes else [name], repeat=2))
        assert f"{name}: repeats: launches of one seed have different losses" in found
        machine.drifting = set()
        assert not any("repeats" in line for line in failures(ladder_of([name], repeat=2)))


def test_losses_of_zero_are_judged_as_others_are() -> None:
    rung = next(rung for rung in RUNGS if rung.promise is Promise.EQUAL)
    zero, near = (rung_measurement(losses=[0.0, last]) for last in (0.0, 1e-9))
    assert [loss_check(rung, one, zero).mark for one in (zero, near)] == [Mark.PASS, Mark.FAIL]
