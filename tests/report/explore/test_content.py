from __future__ import annotations

import json
import math
import shlex
from pathlib import Path

import msgspec
import pytest

from reference_runs.catalog import reference_run, run_names
from reference_runs.machine_model import edition_chosen, editions
from reference_runs.run import Precision, ProductFormat
from suite.__main__ import main
from suite.predict.analytic.collective_time import Group, collective_seconds
from suite.predict.validation.published_tables import row_prediction
from suite.report.explore.content import content, layout_content
from suite.report.explore.machine_use import LinkTraffic
from suite.report.explore.presets import RUNS, names, row_of, sources
from suite.report.explore.state import ExploreState
from suite.report.explore.unsaid import unsaid
from suite.report.explore.view import memory_parts, state_of_run, view
from suite.report.explore.why import FUNCTIONS, SUM, derivations, worked_traffic

FP8 = ProductFormat.FP8_CURRENT
EACH_OF_A_TABLE = 9  # every so many rows of a published table


@pytest.fixture
def bloom() -> dict:
    return content(state_of_run("bloom-176b"))


def computed(why: dict) -> float:
    """The result of a formula with its numbers."""
    values = [value for _, value, _ in why["numbers"]]
    if why["formula"] == SUM:
        return sum(values)
    return eval(why["formula"].format(*map(repr, values)), {"ceil": math.ceil})


def check_formulas(shown: dict) -> int:
    """Every figure is what its formula gives with the numbers beside it."""
    for figure in shown["figures"]:
        assert computed(figure["why"]) == pytest.approx(figure["value"], rel=1e-9), figure["quantity"]
        assert figure["quantity"] in FUNCTIONS
    return len(shown["figures"])


def test_every_figure_of_every_run_is_given_with_its_why_and_parts_add_up_to_wholes() -> None:
    for run in run_names():
        state = state_of_run(run)
        found = view(state, state.layout)
        shown = layout_content(found)
        assert not shown["wrong"], run
        assert not [line for line in (*shown["not_predicted"], *shown["notes"]) if "--" in line], run
        assert check_formulas(shown) >= 1, run
        step = next((row.left for row in found.rows if row.quantity == "step_seconds"), 0)
        assert sum(found.terms.values()) == pytest.approx(step), run
        peaks = [sum(parts) for parts in zip(*memory_parts(found.stages).values(), strict=True)]
        assert peaks == pytest.approx([stage.peak for stage in found.stages]), run


def test_why_gives_each_figure_of_other_machines_formats_and_schedules() -> None:
    for state in (
        ExploreState(run="bloom-176b", layout="dp4,tp8,pp8,1f1b,interleave2,recompute-none", on="h100-sxm", price=2.5),
        ExploreState(
            run="gpt3-175b",
            layout="dp8,tp8,pp8,zero-bubble",
            on="h100-sxm",
            network=3200,
            products=ProductFormat.FP8_CURRENT,
        ),
        ExploreState(run="gpt3-175b", layout="dp8,tp8,pp8,zero0,gpipe", on="b200", network=3200),
        ExploreState(run="mixtral-8x7b", layout="dp8,tp2,pp2,ep4", on="h100-sxm", network=3200, price=1),
    ):
        shown = content(state)["views"][0]
        assert not shown["wrong"], shown["wrong"]
        assert check_formulas(shown) >= 10


def test_derivations_have_a_title_with_names_marked_as_code_and_sources_of_one_sentence() -> None:
    found = derivations()
    assert set(found) == set(map(str, FUNCTIONS))
    every = [one for functions in found.values() for one in functions]
    assert all(len(one["title"]) > 20 and "suite." not in one["title"] for one in every)
    words = {one["title"]: one["title"].split("`") for one in every}  # every second one is code
    assert [title for title, parts in words.items() if len(parts) % 2 == 0 or "_" in "".join(parts[::2])] == []
    assert any(len(parts) > 1 for parts in words.values())
    sources = [one["source"] for one in every if one["source"]]
    assert len(sources) >= 20
    assert sum("arXiv" in source for source in sources) >= 12
    assert not [source for source in sources if "Differs" in source or "Raises" in source]


def test_parts_of_the_page_are_worked_through_with_their_own_numbers(bloom: dict) -> None:
    shown = bloom["views"][0]
    longest = max(shown["traffic"], key=lambda row: row["seconds"])
    (traffic,), (intensity, ridge) = shown["worked"]["traffic"], shown["worked"]["roofline"]
    assert traffic["name"] == f"{longest['axis']} {longest['operation']}"
    expected = (
        longest["seconds"],
        shown["products"]["points"][0]["intensity"],
        shown["products"]["points"][0]["ridge"],
    )
    for worked, value in zip((traffic, intensity, ridge), expected, strict=True):
        assert worked["value"] == value
        assert computed(worked["why"]) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"])
@pytest.mark.parametrize("payload", [10**3, 10**10])
def test_seconds_of_every_collective_are_worked_through(operation: str, payload: int) -> None:
    group = Group(16, 2e10, 1e-5)
    seconds = collective_seconds(operation, group, payload_bytes=payload, messages=7)
    row = LinkTraffic("dp", operation, payload, 7, 16, 8, group.bytes_per_second, group.latency_seconds, seconds)
    (worked,) = worked_traffic([row])
    assert computed(worked.why._asdict()) == pytest.approx(seconds, rel=1e-12)


def test_what_an_empty_control_stands_for_is_known_of_every_run() -> None:
    for run in run_names():
        assert all(unsaid(state_of_run(run)).values()), run
    assert unsaid(state_of_run("bloom-176b")) == {
        "on": "as recorded: a100-sxm-80gb",
        "network": "400",
        "stack": "as recorded: deepspeed-pipeline",
        "products": "as the precision: bf16",
        "precision": "as recorded: bf16",
        "batch": "2,048",
        "sequence": "2,048",
        "tokens": "3.66e11",
        "price": "none",
    }


def test_a_row_says_what_its_table_leaves_blank_and_its_command_names_a_file_that_is_there() -> None:
    shown = content(state_of_run("korthikanti2022_table5:9"))
    assert Path(shlex.split(shown["command"])[-1]).is_file()
    (blank,) = (line for line in shown["views"][0]["notes"] if "what the table leaves blank" in line)
    assert "padded vocab = 51200" in blank


def test_rows_of_published_tables_have_the_times_of_validate() -> None:
    compared = 0
    for source in sources():
        for name in list(names(source))[::EACH_OF_A_TABLE] if source != RUNS else ():
            row = row_of(name)
            assert row is not None
            shown = content(state_of_run(name))["views"][0]
            assert not shown["wrong"]
            seconds = sum(shown["terms"].values()) - (shown["terms"].get("overhead", 0.0) if row.composed else 0.0)
            # the page shows one layout: where a table leaves columns open, the likeliest
            one = msgspec.structs.replace(row, alternatives=())
            assert seconds == pytest.approx(row_prediction(one).step_seconds, rel=1e-9)
            step = next(each for each in shown["figures"] if each["quantity"] == "step_seconds")
            assert step["published"] == row.step_seconds
            compared += 1
    assert compared > 100


def test_a_row_without_known_tokens_says_nothing_of_the_training() -> None:
    rows = names("mosaicml_a100_40gb")
    shown = content(state_of_run(next(iter(rows))))["views"][0]
    assert "training_seconds" not in {figure["quantity"] for figure in shown["figures"]}


def test_products_are_those_of_the_predicted_time(bloom: dict) -> None:
    """Layers and head of one micro-batch take as long, in all stages, as the step's products do."""
    shown = bloom["views"][0]
    points = shown["products"]["points"]
    assert {point["part"] for point in points} >= {"query, key, value", "attention scores", "expansion", "head"}
    of_layers = (
        sum(point["seconds"] for point in points if point["part"] != "head")
        / reference_run("bloom-176b").architecture.layers
    )
    stage = shown["terms"]["forward"] + shown["terms"]["backward"]
    layers = stage / (shown["micro_batches"] * of_layers)
    assert layers == pytest.approx(6, rel=0.2)  # of 70 on 12 stages; the first has 5, the slowest one the head too
    head = next(point["seconds"] for point in points if point["part"] == "head")
    found = {5: 0.0, 6: 0.0} | {count: shown["micro_batches"] * count * of_layers for count in (5, 6)}
    assert any(
        stage == pytest.approx(seconds + extra * shown["micro_batches"] * head, rel=1e-9)
        for seconds in found.values()
        for extra in (0, 1)
    )


def test_intensity_and_ridge_say_what_limits_a_product(bloom: dict) -> None:
    products = bloom["views"][0]["products"]
    for point in products["points"]:
        m, n, k = point["sizes"]
        assert point["intensity"] == pytest.approx(2 * m * n * k / (2 * (m * k + k * n + m * n)))
        assert point["ridge"] == pytest.approx(products["peak"] / products["memory_bytes_per_second"])
        assert point["rate"] <= min(products["peak"], point["intensity"] * products["memory_bytes_per_second"])


def test_messages_say_over_which_link_and_add_up_to_the_step(bloom: dict) -> None:
    shown = bloom["views"][0]
    by_axis = {row["axis"]: row for row in shown["traffic"]}
    assert not by_axis["tp"]["leaves_node"]
    assert by_axis["dp"]["leaves_node"]
    assert by_axis["tp"]["seconds"] == pytest.approx(shown["terms"]["tensor parallel"], rel=1e-9)
    assert by_axis["pp"]["seconds"] == pytest.approx(shown["terms"]["pipeline"], rel=1e-9)


def test_passes_are_drawn_of_a_pipeline_alone(bloom: dict) -> None:
    passes = bloom["views"][0]["passes"]
    assert passes["lanes"] == 12
    assert set(passes["stages"]) == set(range(12))
    assert len(passes["stages"]) == len(passes["starts"]) == len(passes["kinds"]) == 2 * 12 * passes["micro_batches"]
    assert content(ExploreState(run="bloom-176b", layout="dp32,tp8,pp1"))["views"][0]["passes"] is None


def test_published_figures_compare_with_the_recorded_machine_and_layout_alone(bloom: dict) -> None:
    def compared(shown: dict) -> set[str]:
        return {each["quantity"] for each in shown["views"][0]["figures"] if each["compares"]}

    own = state_of_run("bloom-176b")
    assert {"step_seconds", "mfu", "training_seconds"} <= compared(bloom)
    for changes in ({"on": "h100-sxm"}, {"batch": 1024}, {"precision": Precision.FP16}, {"layout": "dp8,tp8,pp6"}):
        assert compared(content(msgspec.structs.replace(own, **changes))) == {"parameters"}, changes


def test_the_command_prints_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    layout = "dp8,tp8,pp6,zero1"
    state = ExploreState(run="bloom-176b", layout=layout, on="h100-sxm", network=1600, price=2)
    assert main([*shlex.split(content(state)["command"])[3:], "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["figures"]
    printed = {(row["quantity"], row["term"], row["convention"]): row["left"] for row in rows if row["stage"] is None}
    found = view(state, layout).rows
    assert len(found) >= 9
    for row in found:
        assert row.left == pytest.approx(printed[row.quantity, row.term, row.convention], rel=1e-12)


def test_what_is_wrong_with_a_layout_is_said_in_a_line() -> None:
    state = state_of_run("bloom-176b")
    assert view(state, "dp8,tp5,pp12").wrong[0].startswith("tensor parallel does not divide")
    assert "not a layout" in view(state, "dp8,tpp").wrong[0]


def test_the_page_of_an_earlier_edition_has_its_numbers_says_so_and_names_it_in_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    earlier, state = editions()[0], state_of_run("gpt2-1558m")
    today = content(state)
    with edition_chosen(earlier):
        then = content(state)
        row = content(state_of_run(next(iter(names("korthikanti2022_table5")))))
    assert content(state) == today
    seconds = [
        next(each["value"] for each in shown["views"][0]["figures"] if each["quantity"] == "step_seconds")
        for shown in (then, today)
    ]
    assert seconds[0] != seconds[1]
    assert any(f"of edition {earlier}," in note for note in then["views"][0]["notes"])
    assert f"--edition {earlier}" in row["command"]
    assert main([*shlex.split(then["command"])[3:], "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["edition"] == earlier
    assert seconds[0] in [each["left"] for each in answer["figures"] if each["quantity"] == "step_seconds"]
