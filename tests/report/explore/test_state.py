from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.accelerator import accelerator_names
from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.run import ProductFormat
from reference_runs.stack import stacks
from suite.report.explore.state import (
    ZERO_FORMS,
    ExploreState,
    address,
    complete_text,
    controls_of,
    layout_of,
    state_of,
)

FIRST = ExploreState(run="bloom-176b", layout="dp8", on="h100-sxm")
counts = st.integers(1, 1000)
texts = st.none() | st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), min_size=1)
numbers = st.none() | st.floats(1e-9, 1e9)
states = st.builds(
    ExploreState,
    run=st.text(min_size=1),
    layout=st.sampled_from(["dp8,tp4,pp12", "dp1"]),
    on=st.none() | st.sampled_from(accelerator_names()),
    network=numbers,
    stack=st.none() | st.sampled_from([*stacks()]),
    products=st.none() | st.sampled_from(ProductFormat),
    price=numbers,
    other=texts,
)
controls = st.fixed_dictionaries(
    {
        **dict.fromkeys(("dp", "tp", "pp", "cp", "ep", "interleave", "micro"), counts),
        "zero": st.sampled_from(ZERO_FORMS),
        "schedule": st.sampled_from(["gpipe", "1f1b", "zero-bubble", "pipedream"]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "every": st.just(1),
        "switches": st.lists(st.sampled_from(["sp", "fused", "noreshard"]), unique=True),
    }
)


@given(states)
def test_an_address_carries_the_whole_state(state: ExploreState) -> None:
    assert state_of(address(state), FIRST) == state


@given(controls)
def test_controls_and_layout_say_the_same(given_controls: dict[str, object]) -> None:
    layout = layout_of(given_controls, Layout())
    shown = controls_of(layout)
    assert sorted(shown.pop("switches")) == sorted(given_controls["switches"])  # type: ignore[call-overload]
    assert shown == {name: value for name, value in given_controls.items() if name != "switches"}
    # whatever the run's own layout is, the complete text is read as this layout
    other = Layout(zero_stage=1, reduce_scatter=True, fused_attention=True, checkpoint_layers=1)
    assert layout_of(given_controls, other) == layout
    assert complete_text(layout)


def test_an_address_that_says_nothing_is_the_first_state_and_its_run_is_the_one_that_none_names() -> None:
    assert state_of("", FIRST) == FIRST
    assert state_of("?layout=dp1", FIRST) == ExploreState(run="bloom-176b", layout="dp1")


@pytest.mark.parametrize("query", ["?run=bloom-176b&colour=red", "?run=bloom-176b&network=fast"])
def test_a_wrong_address_is_refused(query: str) -> None:
    with pytest.raises(InputError, match="the address: "):
        state_of(query, FIRST)


@pytest.mark.parametrize("value", [None, 0, -1, 1.5, "8"])
def test_a_count_that_no_layout_has_is_refused(value: object) -> None:
    given_controls = {**controls_of(Layout()), "dp": value}
    with pytest.raises(InputError, match="dp: expected a whole number of 1 or more"):
        layout_of(given_controls, Layout())
