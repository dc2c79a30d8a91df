"""A slice in words, and a row for each part that it has."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs.catalog import reference_run
from suite.job.slice import Slice, SlicePart, SliceStage, SliceTimes
from suite.report.slice import part_rows, slice_words, stopped_words


@pytest.mark.parametrize(
    ("name", "stage", "layers", "words"),
    [
        ("bloom-176b", SliceStage.MIDDLE, 1, "1 layer of the middle stage of bloom-176b, tensor-parallel share 1/4"),
        ("bloom-176b", SliceStage.FIRST, 5, "5 layers, embedding of the first stage of bloom-176b"),
        ("gpt2-124m", SliceStage.ONLY, 12, "12 layers, embedding, head of the only stage of gpt2-124m"),
    ],
)
def test_the_words_say_what_of_which_stage_is_executed(name: str, stage: SliceStage, layers: int, words: str) -> None:
    run = reference_run(name)
    of = Slice(run=name, layout=run.layout, stage=stage, layers=layers, sequence=1, micro_batch=1, rank=0)
    assert slice_words(of).startswith(words)


def test_a_slice_whose_minutes_are_over_says_so() -> None:
    layout = reference_run("bloom-176b").layout
    whole = Slice(run="bloom-176b", layout=layout, stage=SliceStage.MIDDLE, layers=1, sequence=1, micro_batch=1, rank=0)
    short = msgspec.structs.replace(whole, minutes=2.5)
    assert stopped_words(short, taken=7, asked=30) == "stopped after 7 of 30 repetitions: 2.5 minutes are over"
    assert stopped_words(short, taken=30, asked=30) == ""
    assert stopped_words(whole, taken=7, asked=30) == stopped_words(None, taken=7, asked=30) == ""


def test_parts_are_in_the_order_of_a_step_with_their_median_and_spread() -> None:
    samples = {SlicePart.UPDATE: [0.5, 0.25], SlicePart.LAYER_FORWARD: [0.1, 0.2, 0.3, 0.4, 0.5]}
    assert part_rows(SliceTimes(seconds=samples, updated_parameters=1234)) == [
        ["layer forward", "300 ms", "± 50.0%", "5"],
        ["update of 1,234 parameters", "375 ms", "-", "2"],
    ]
