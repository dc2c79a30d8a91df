from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.errors import InputError
from reference_runs.layout import (
    AXES,
    Layout,
    Offload,
    Recomputation,
    Schedule,
    StageAssignment,
    layout_text,
    parse_layout,
)
from reference_runs.placement import coordinates
from tests.support.strategies import layouts


@given(layouts(), layouts())
def test_a_layout_survives_its_own_text(layout: Layout, other: Layout) -> None:
    text = layout_text(layout)
    # words that are left out at their default come from the base
    base = Layout(schedule=other.schedule if layout.pipeline_stages > 1 else Schedule.ONE_F_ONE_B)
    assert parse_layout(text, base=base) == layout


@st.composite
def sayable(draw: st.DrawFn) -> Layout:
    """Any layout whose every field has a word."""
    stages = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    return msgspec.structs.replace(
        draw(layouts()),
        reshard_after_forward=draw(st.booleans()),
        offload=draw(st.sampled_from(Offload)),
        schedule=draw(st.sampled_from(Schedule)),
        stage_assignment=draw(st.sampled_from(StageAssignment)),
        stage_layer_counts=draw(st.sampled_from([None, tuple(stages)])),
        rank_order=draw(st.permutations(AXES).map("-".join)),
        bucket_bytes=draw(st.integers(1, 2000)) * 10**6,
    )


@given(sayable(), sayable())
def test_a_layout_survives_its_text_from_the_base_that_the_text_was_made_for(layout: Layout, base: Layout) -> None:
    base = msgspec.structs.replace(base, stage_layer_counts=None)
    assert parse_layout(layout_text(layout, base=base), base=base) == layout


@given(layouts())
def test_ranks_are_the_product_of_the_axes(layout: Layout) -> None:
    words = dict.fromkeys(("dp", "tp", "pp", "cp"), 1)
    for word in layout_text(layout).split(","):
        if word[:2] in words and word[2:].isdigit():
            words[word[:2]] = int(word[2:])
    assert layout.ranks == words["dp"] * words["tp"] * words["pp"] * words["cp"]


def test_blooms_layout_is_read_as_people_write_it_and_changed_by_some_words() -> None:
    layout = parse_layout("dp8,tp4,pp12,zero1,1f1b,recompute-full,accumulate128", base=Layout())
    assert layout == Layout(
        data_parallel=8,
        tensor_parallel=4,
        pipeline_stages=12,
        zero_stage=1,
        recomputation=Recomputation.FULL,
        accumulation=128,
    )
    assert layout.ranks == 384
    # axes that are left out are one, and the rest stays
    assert parse_layout("dp2", base=layout) == Layout(data_parallel=2, zero_stage=1, recomputation=Recomputation.FULL)


def test_layers_listed_for_each_stage_are_of_their_own_stages() -> None:
    base = Layout(pipeline_stages=4, stage_layer_counts=(7, 9, 9, 7))
    kept = dict.fromkeys(("dp2,pp4", "pp4,zero1,fused", "pp4,layers"), (7, 9, 9, 7))
    for text in (*kept, "pp2", "dp8", "pp4,interleave2", "pp4,layers-and-tables"):
        assert parse_layout(text, base=base).stage_layer_counts == kept.get(text), text
        assert parse_layout(f"{text},layers6-10-10-6", base=base).stage_layer_counts == (6, 10, 10, 6), text


OUTSIDE = (
    "dp|dp0|dp-1|dp2.5|2dp|zero4|bucket0|interleave0|recompute|recompute-some|full|dp2,,tp2|gpipe2|sp1|DP2|dp2;tp2|"
)
TWICE = "dp2,dp2|dp2,dp4|sp,sp|gpipe,1f1b|recompute-none,recompute-full|fused,unfused"


@pytest.mark.parametrize(
    ("texts", "complaint"), [(f"{OUTSIDE}|dp2;tp2|accumulate0", "--layout: .*allowed: dpN"), (TWICE, "given twice")]
)
def test_a_word_outside_the_grammar_or_given_twice_is_refused(texts: str, complaint: str) -> None:
    for text in texts.split("|"):
        with pytest.raises(InputError, match=complaint):
            parse_layout(text, base=Layout())


def test_replicas_of_each_stage_are_a_list_and_so_are_its_layers() -> None:
    layout = parse_layout("pipedream,replicas15-1,layers12-2", base=Layout())
    assert layout == Layout(
        pipeline_stages=2, schedule=Schedule.PIPEDREAM, stage_replicas=(15, 1), stage_layer_counts=(12, 2)
    )
    assert layout.ranks == 16
    assert parse_layout(layout_text(layout), base=Layout(data_parallel=3)) == layout
    assert [(each.data_parallel, each.ranks) for each in map(layout.at_stage, (0, 1))] == [(15, 16), (1, 16)]
    assert parse_layout("pipedream,replicas2-2", base=Layout()) == parse_layout("dp2,pp2,pipedream", base=Layout())


def test_ranks_of_stages_with_different_numbers_of_replicas_are_numbered_stage_by_stage() -> None:
    layout = parse_layout("pipedream,replicas2-1-3", base=Layout())
    places = [coordinates(layout, rank) for rank in range(layout.ranks)]
    assert [(place["pp"], place["dp"]) for place in places] == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
