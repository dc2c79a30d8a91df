"""A launch for people: the verdict first, at most 15 lines, differences in words, terms in one unit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from rich.console import Console

from suite.job.events import Status
from suite.metrics.comparison import compare, overall
from suite.metrics.figures import Figure, Quantity, StepTerm
from suite.predict.executed_run.stage_plan import StagePlan
from suite.report.terminal.reproduction import print_launch, print_launch_line
from suite.reproduce.reproduce import LaunchResult
from suite.reproduce.step_time import residuals
from tests.support.launches import launch_result

MILLISECONDS = {StepTerm.FORWARD: (120, 100), StepTerm.BACKWARD: (240, 200), StepTerm.OVERHEAD: (30, 60)}
COUNTED = (
    *(Quantity.PARAMETERS, Quantity.MODEL_FLOP, Quantity.HARDWARE_FLOP, Quantity.WEIGHT_BYTES, Quantity.GRADIENT_BYTES),
    *(Quantity.OPTIMIZER_BYTES, Quantity.PAYLOAD_BYTES, Quantity.MESSAGES),
)
SMALL_TERMS = {StepTerm.DATA_LOADING: (1, 2), StepTerm.OPTIMIZER: (9, 8), StepTerm.UNEXPLAINED: (0, 30)}


def result(**changes: Any) -> LaunchResult:
    """A launch of 400 ms that was predicted to take 440 ms; everything that is counted agrees."""
    counted = [
        Figure(quantity=Quantity.PARAMETERS, value=1000),
        Figure(quantity=Quantity.WEIGHT_BYTES, value=2000),
        Figure(quantity=Quantity.WEIGHT_BYTES, value=2000, rank=0),
        Figure(quantity=Quantity.PAYLOAD_BYTES, value=4000, axis="dp", operation="all_reduce"),
    ]
    left, right = [*counted], [*counted]
    for figure, measured in (
        (
            Figure(quantity=Quantity.PEAK_BYTES, value=71_000_000, tolerance=0.02, why="every block of a step"),
            70_000_000,
        ),
        (Figure(quantity=Quantity.FIRST_LOSS, value=9.0, tolerance=0.02, why="one batch of text"), 9.0),
        (Figure(quantity=Quantity.STEP_SECONDS, value=0.44, why="from this machine's profile"), 0.4),
        (Figure(quantity=Quantity.TOKENS_PER_SECOND, value=1000.0), 1100.0),
        (Figure(quantity=Quantity.CPU_SLOWDOWN, term="host", value=1.0), 1.05),
        (Figure(quantity=Quantity.STEP_SECONDS_AT_CPU_SPEED, value=0.42), 0.4),
    ):
        left.append(figure)
        right.append(Figure(quantity=figure.quantity, term=figure.term, value=measured))
    for term, (predicted, measured) in (MILLISECONDS | SMALL_TERMS).items():
        left.append(Figure(quantity=Quantity.STEP_SECONDS, term=term.value, value=predicted / 1e3))
        right.append(Figure(quantity=Quantity.STEP_SECONDS, term=term.value, value=measured / 1e3))
    rows = compare(left, right, left_name="predicted", right_name="measured", judge=True)
    whole = launch_result(
        run="gpt2-mini",
        verdict=overall(rows),
        record="/results/records/gpt2-mini/1.begin.json",
        rows=rows,
        losses=[9.0, 8.0, 7.0, 7.0, 7.0],
        loss_scales=[4096.0, 4096.0],
        arithmetic="bf16 products by the device",
        profile="/results/machines/1.json",
        time=residuals(rows),
        others_share=0.3,
        steal_share=0.0,
    )
    return msgspec.structs.replace(whole, **changes)


def printed(shown: LaunchResult, *, width: int = 150, complete: bool = False) -> list[str]:
    out = Console(width=width, highlight=False)
    with out.capture() as captured:
        print_launch(out, shown, complete=complete)
    return captured.get().splitlines()


def physical_lines(lines: list[str], width: int) -> int:
    """Number of lines that a terminal shows: it breaks those that are longer than it is wide."""
    return sum(-(-len(line) // width) for line in lines)


def not_calibrated() -> LaunchResult:
    took = [Figure(quantity=Quantity.STEP_SECONDS, value=0.4)]
    rows = compare([], took, left_name="predicted", right_name="measured", judge=True)
    why = "not calibrated: others take 60% of the processors now: python (1234), python (1235), stress (7)"
    return result(rows=rows, time=None, profile=why)


def of_two_ranks() -> LaunchResult:
    """A result with figures of each rank, all slowdowns, and numbers and a path as long as those of a real launch."""
    left = [Figure(quantity=quantity, value=13_004_439_552, rank=rank) for quantity in COUNTED for rank in (None, 0, 1)]
    speeds = {"host": 1.013, "product": 0.927, "elementwise": 1.032, "memory": 1.048}
    slower = [Figure(quantity=Quantity.CPU_SLOWDOWN, term=kind, value=value) for kind, value in speeds.items()]
    normal = [msgspec.structs.replace(figure, value=1.0) for figure in slower]
    rows = compare([*left, *normal], [*left, *slower], left_name="predicted", right_name="measured", judge=True)
    record = (
        "/home/somebody/llm-reference-runs/results/records/bloom-mini/20261125T113423Z__daa4ee97__c440b680.begin.json"
    )
    return result(rows=[*rows, *result().rows], record=record, step_uncertainty=0.16)


def with_wrong_parameters(times: int = 1) -> LaunchResult:
    left = [Figure(quantity=Quantity.PARAMETERS, value=1000 + number, rank=number) for number in range(times)]
    right = [msgspec.structs.replace(figure, value=900) for figure in left]
    rows = compare(left, right, left_name="predicted", right_name="measured", judge=True)
    return result(rows=[*result().rows, *rows], verdict=overall(rows))


@pytest.mark.parametrize("width", [80, 100])
def test_a_launch_takes_at_most_15_lines_of_a_terminal(width: int) -> None:
    for launch in (result(), with_wrong_parameters(7), not_calibrated(), of_two_ranks()):
        lines = printed(launch, width=width)
        assert physical_lines(lines, width) <= 15, lines
        assert sum("not calibrated" in line for line in lines) == ("not calibrated" in launch.profile)


def test_a_launch_begins_with_its_verdict() -> None:
    lines = printed(result())
    assert lines[:3] == [
        "gpt2-mini: pass",
        "4 exact figures agree: parameters, state bytes, payload bytes",
        "memory at the peak: 70.00 MB, 1.4 % less than predicted (71.00 MB)",
    ]
    assert lines[-1] == "record /results/records/gpt2-mini/1.begin.json"


def test_differences_are_in_words_and_terms_in_the_unit_of_the_step() -> None:
    text = "\n".join(printed(result()))
    assert "step time: 400.0 ms, 9.1 % faster than predicted (440.0 ms); not judged" in text
    assert "throughput: 1,100 token/s, 10.0 % faster than predicted (1,000 token/s)" in text
    terms = [line for line in text.splitlines() if line.startswith("  ")]
    assert [line.split()[:-1] for line in terms] == [
        ["backward", "200.0", "ms,", "40.0", "ms", "faster", "than", "predicted"],
        ["forward", "100.0", "ms,", "20.0", "ms", "faster", "than", "predicted"],
        ["launch", "and", "host", "overhead", "60.0", "ms,", "30.0", "ms", "slower", "than", "predicted"],
    ]
    assert [line.split()[-1] for line in terms] == ["██████", "███", "█▊"]  # of 400 ms
    at_a_terminal = printed(of_two_ranks(), width=80)
    assert sum("██" in line for line in at_a_terminal) == 2


def test_the_last_loss_is_said_to_be_a_mean() -> None:
    first = "loss: first 9.000, as predicted (9.000)"
    assert f"{first}; mean of last 3: 7.000" in printed(result())
    assert f"{first}; mean of last 2: 8.500" in printed(result(losses=[9.0, 8.0]))


def test_each_figure_that_differs_has_a_line_of_its_own() -> None:
    lines = printed(with_wrong_parameters(2))
    assert lines[0] == "gpt2-mini: fail"
    assert "fail parameters rank 0: 900, 100 less than predicted (1,000)" in lines
    assert "fail parameters rank 1: 900, 101 less than predicted (1,001)" in lines
    assert "fail 4 more: --all" in printed(with_wrong_parameters(7))


@pytest.mark.parametrize("complete", [False, True])
def test_no_word_is_cut_at_any_width(complete: bool) -> None:
    record = {"record /results/records/gpt2-mini/1.begin.json"}
    for width in (60, 80, 100, 150):
        lines = [*printed(result(), width=width, complete=complete)]
        lines += printed(with_wrong_parameters(2), width=width, complete=complete)
        assert "…" not in "".join(lines)
        assert max(len(line) for line in {*lines} - record) <= width
        words = {word.rstrip(",") for word in " ".join(lines).split()}
        numbers = {"(1)", "(2)", "(3)"} if complete else set()
        assert {"overhead", "parameters", "predicted", *numbers} <= words, width


def test_every_figure_is_printed_on_request() -> None:
    text = "\n".join(printed(result(), complete=True))
    for words in ("CPU slowdown", "step_seconds at that CPU speed", "not judged", "data loading", "arithmetic: bf16"):
        assert words in text
    assert "shown" not in text
    assert "pace" not in text
    assert "1.0 ms slower" in text  # data loading: 2 in place of 1 ms
    assert text.count("exact: counted on both sides, and has to be equal to the last digit") == 1


def test_without_a_prediction_the_reason_is_printed() -> None:
    lines = printed(not_calibrated())
    assert "step time: measured 400.0 ms" in lines
    assert f"step time is not predicted: {not_calibrated().profile}" in lines


def test_a_launch_that_failed_says_how_and_where_its_record_is() -> None:
    failed = result(status=Status.OUT_OF_MEMORY, message="rank 1: out of memory", rows=[], losses=[])
    assert printed(failed) == [
        "gpt2-mini: oom: rank 1: out of memory",
        "record /results/records/gpt2-mini/1.begin.json",
    ]


def test_one_of_several_launches_is_a_line() -> None:
    out = Console(width=150, highlight=False)
    with out.capture() as captured:
        print_launch_line(out, result(), number=2, launches=5)
    assert captured.get() == "launch 2 of 5: pass, step time 400.0 ms, 9.1 % faster than predicted (440.0 ms)\n"


def test_stages_and_their_fastest_split_are_printed_on_request() -> None:
    best = StagePlan(layers=[3, 1], seconds=[0.03, 0.04], planned_layers=[3, 1], planned_seconds=[0.03, 0.04])
    other = msgspec.structs.replace(best, layers=[2, 2], seconds=[0.02, 1.05])
    text = "\n".join(printed(result(stages=best), complete=True))
    assert "stages of 3 + 1 layers take 30 ms, 40 ms a micro-batch; which no other split betters" in text
    text = " ".join("\n".join(printed(result(stages=other), complete=True)).split())
    assert "stages of 2 + 2 layers take 20 ms, 1.05 s a micro-batch; the fastest split: 3 + 1 layers take 30 ms" in text
    assert ", layers3-1 in --layout" in text
    assert "stages" not in "\n".join(printed(result(stages=other)))
