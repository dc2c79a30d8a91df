"""The page's answers, without a browser."""

from __future__ import annotations

import json
import math
import re
import shlex
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import msgspec
import pytest

pytest.importorskip("dash", reason="the page with controls needs dash, of the extra `explore`")

from dash import Dash, no_update
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import RUNS
from suite.__main__ import main
from suite.report.explore import page
from suite.report.explore.controls import OTHERS, RANKS
from suite.report.explore.elements import MISTAKE
from suite.report.explore.page import NAMES, PageScope, answer, application, export_text, numbers_of, records_of
from suite.report.explore.presets import names
from suite.report.explore.state import COUNTS, ExploreState, controls_of
from suite.report.explore.unsaid import EMPTY
from suite.report.explore.view import recorded_layout, state_of_run

ADDRESS, CONTENT, SOURCE, RUN_OPTIONS = range(len(NAMES), len(NAMES) + 4)
SERVED = PageScope(state_of_run("bloom-176b"))


def asked(given: dict[str, Any], triggered: str) -> list[Any]:
    return answer("", "runs", given, triggered, SERVED)


def controls(run: str, **changes: object) -> dict[str, Any]:
    absent = dict.fromkeys(OTHERS)
    return {**absent, "run": run, **controls_of(recorded_layout(run)), **changes}


def test_the_application_is_built_for_a_run() -> None:
    assert application(SERVED).layout is not None


def test_twenty_first_loads_at_once_are_answered_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tabs that were open before ask for scripts alone, while Dash prepares itself: that lasts longer here."""
    walk = Dash._walk_assets_directory

    def slow_walk(app: Dash) -> None:
        time.sleep(0.3)
        walk(app)

    with application(SERVED).server.test_client().get("/") as page_:
        scripts = re.findall(r'src="([^"]+)"', page_.text)
    monkeypatch.setattr(Dash, "_walk_assets_directory", slow_walk)
    server, gate = application(SERVED).server, threading.Barrier(20)

    def load(_: int) -> tuple[list[tuple[str, int]], bytes]:
        browser, found = server.test_client(), []
        gate.wait()
        for path in (*scripts, "/_dash-layout", "/_dash-dependencies", "/"):
            with browser.get(path) as response:
                found.append((path, response.status_code))
        return found, msgspec.json.encode(answer("", "runs", {}, None, SERVED)[CONTENT])

    with ThreadPoolExecutor(20) as pool:
        loads = [*pool.map(load, range(20))]
    assert [(path, status) for found, _ in loads for path, status in found if status != 200] == []
    assert len({shown for _, shown in loads}) == 1
    assert len(scripts) > 5


def test_an_empty_address_shows_the_first_state_and_names_it() -> None:
    shown = answer("", "runs", {}, None, SERVED)
    assert shown[ADDRESS].startswith("?run=bloom-176b&layout=dp8,tp4,pp12")
    again = answer(shown[ADDRESS], "runs", {}, "url", SERVED)
    assert again[: len(NAMES) + 2] == shown[: len(NAMES) + 2]


def test_controls_of_an_address_without_layout_are_those_of_the_run() -> None:
    shown = dict(zip(NAMES, answer("?run=gpt-neox-20b&on=h100-sxm", "runs", {}, "url", SERVED), strict=False))
    assert [shown[name] for name in ("dp", "tp", "pp")] == [12, 2, 4]


def test_another_run_begins_as_it_was_recorded() -> None:
    shown = dict(zip(NAMES, asked(controls("gpt-neox-20b", dp=1), "run"), strict=False))
    assert shown["dp"] == recorded_layout("gpt-neox-20b").data_parallel


def test_another_source_shows_its_first_row_and_offers_the_others() -> None:
    shown = answer("", "korthikanti2022_table5", controls("bloom-176b"), "source", SERVED)
    offered = [each["value"] for each in shown[RUN_OPTIONS]]
    assert shown[0] == offered[0]
    assert offered == list(names("korthikanti2022_table5"))
    assert shown[SOURCE] == "korthikanti2022_table5"
    again = answer(shown[ADDRESS], "runs", {}, "url", SERVED)
    assert again[CONTENT] == shown[CONTENT]


def test_what_did_not_change_is_not_sent_again() -> None:
    shown = asked(controls("bloom-176b", tp=8, pp=6, gpus=384), "tp")
    assert [value for value in shown[: len(NAMES)] if value is not no_update] == []
    assert shown[SOURCE] is shown[RUN_OPTIONS] is no_update


def test_an_empty_control_says_what_it_stands_for() -> None:
    shown = dict(zip(EMPTY, asked(controls("bloom-176b", network=1600), "network")[-len(EMPTY) :], strict=True))
    assert (shown["on"], shown["network"], shown["price"]) == ("as recorded: a100-sxm-80gb", "1,600", "none")


def test_what_is_shown_is_exported_or_refused_in_words() -> None:
    text = export_text("?run=llama3.1-405b&layout=dp128,tp8,pp16,sp,zero1", "megatron", SERVED)
    assert "dp128,tp8,pp16" in text
    assert "--tensor-model-parallel-size 8" in text
    assert "no place for" in export_text("", "megatron", SERVED)
    assert "no run to start" in export_text("?run=korthikanti2022_table5:3&layout=", "slurm", SERVED)
    assert export_text("", None, SERVED) == ""


def test_other_numbers_of_accelerators_are_those_of_plan(capsys: pytest.CaptureFixture[str]) -> None:
    query = "?run=gpt-neox-20b&layout=dp12,tp2,pp4,zero1&on=h100-sxm&network=1600&price=2"
    shown = numbers_of(query, SERVED)
    options = ("--on", "h100-sxm", "--gpus", "96", "--network", "1600", "--price", "2", "--numbers", "--json")
    assert main(["plan", "gpt-neox-20b", *options]) == 0
    planned = {each["accelerators"]: each for each in json.loads(capsys.readouterr().out)["numbers"]}
    assert [row["accelerators"] for row in shown["rows"]] == list(planned)
    for row in shown["rows"]:
        expected = planned[row["accelerators"]]
        assert row["days"] == pytest.approx(expected["seconds"] / 86400, rel=1e-9)
        assert row["cost"] == pytest.approx(expected["cost"], rel=1e-9)
        assert expected["layout"] in answer(row["address"], "runs", {}, "url", SERVED)[ADDRESS]
    best = {row["accelerators"] for row in shown["rows"] if row["best"]}
    assert best == {
        number for number, each in planned.items() if not any(_is_better(o, each) for o in planned.values())
    }
    same = answer(query, "runs", {}, "url", SERVED)[CONTENT]["search"]
    other = answer(query.replace("dp12", "dp6"), "runs", {}, "url", SERVED)[CONTENT]["search"]
    assert shown["searched"] == same != other


def _is_better(one: dict[str, float], other: dict[str, float]) -> bool:
    return one["cost"] <= other["cost"] and one["seconds"] <= other["seconds"] and one is not other


def test_why_there_are_no_other_numbers_is_said() -> None:
    for query, words in (
        ("?run=megatron_sc21_table1:2&layout=", "not known how many tokens"),
        ("?run=bloom-176b&layout=dp1,tp1,pp1&on=v100-sxm-32gb", "no peak for the dtype"),
        ("?run=bloom-176b&layout=dp1,tp1,pp1", "fits"),
        ("?run=bloom-176b&colour=red", "unknown key"),
    ):
        assert words in str(numbers_of(query, SERVED)["wrong"]), query


def test_a_layout_is_kept_and_stands_beside_the_next_one() -> None:
    kept = dict(zip(NAMES, asked(controls("bloom-176b", tp=8, pp=6), "keep"), strict=False))
    assert kept["other"].startswith("dp8,tp8,pp6,zero1")
    shown = asked(controls("bloom-176b", other="dp8,tp8,pp6,zero1"), "other")
    assert [len(view["instants"]) for view in shown[CONTENT]["views"]] == [12, 6]


def test_what_is_wrong_is_said_and_the_page_stays() -> None:
    for changes in ({"tp": 5}, {"dp": None}, {"on": "v100-sxm-32gb"}):
        shown = asked(controls("bloom-176b", **changes), "tp")
        assert shown[CONTENT]["views"][0]["wrong"], changes


def said(query: str) -> list[str]:
    """Refusals of an address by the page."""
    content = answer(query, "runs", {}, "url", SERVED)[CONTENT]
    return [line for shown in content["views"] for line in shown["wrong"]]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?run=nothere&layout=dp8", "unknown run; got 'nothere'"),
        ("?run=bloom-176b&layout=dp8,dp8", "layout: given twice; got 'dp8'"),
        ("?run=bloom-176b&layout=&network=nan", "network: not a usable number; got nan"),
        ("?run=bloom-176b&layout=&network=-5", "network: not a usable number; got -5.0"),
        ("?run=bloom-176b&layout=&network=0", "network: not a usable number; got 0.0"),
        ("?run=bloom-176b&layout=&network=inf", "network: not a usable number; got inf"),
        ("?run=bloom-176b&layout=&price=nan", "price: not a usable number; got nan"),
        ("?run=bloom-176b&layout=&price=-1", "price: not a usable number; got -1.0"),
        ("?run=bloom-176b&layout=&products=fp4", "products: unknown format; got 'fp4'"),
        ("?run=bloom-176b&layout=&on=abacus", "abacus"),
        ("?run=bloom-176b&layout=&precision=bf16-true", "did you mean bf16-pure?"),
        ("?run=bloom-176b&layout=&batch=0", "batch: not a usable number; got 0"),
        ("?run=bloom-176b&layout=&batch=2.5", "batch"),
        ("?run=bloom-176b&layout=&sequence=-1", "sequence: not a usable number; got -1"),
        ("?run=bloom-176b&layout=&tokens=nan", "tokens: not a usable number; got nan"),
        ("?run=bloom-176b&layout=&tokens=0.5", "got 0.5, allowed: 1 or more"),
        ("?run=bloom-176b&layout=&tokens=1e400", "tokens: Number out of range"),
        (f"?run=bloom-176b&layout=&batch={2**63 - 1}", "batch: not a usable number; got 9223372036854775807"),
        (f"?run=bloom-176b&layout=&sequence={10**20}", "sequence: not a usable number; got 100000000000000000000"),
        (f"?run=bloom-176b&gpus={10**10}", "gpus: not a usable number; got 10000000000, allowed: a finite one above 0"),
        ("?run=bloom-176b&layout=&on=/etc/a.toml", "accelerator: a file; got '/etc/a.toml', allowed: a100-pcie-40gb"),
        ("?run=bloom-176b&gpus=0", "gpus: not a usable number; got 0"),
        ("?run=bloom-176b&gpus=7919", "accelerators: no layout of so many divides model and batch; got 7,919"),
        ("?run=bloom-176b&layout=dp8,tp4,pp12&batch=7", "the global batch of 7"),
        ("?run=bloom-176b&layout=&stack=abacus", "abacus"),
        ("?run=bloom-176b&layout=&other=dp8,dp8", "given twice"),
        ("?run=nothing:3&layout=", "unknown table; got 'nothing'"),
        ("?colour=red", "unknown key; got 'colour'"),
    ],
)
def test_an_address_that_asks_for_nothing_is_answered_in_one_line(query: str, words: str) -> None:
    lines = said(query)
    assert len(lines) == 1
    assert words in lines[0]
    assert MISTAKE not in lines[0]


def test_an_alias_in_the_address_becomes_the_name_that_the_control_offers() -> None:
    """A list drops what it does not offer, and the page would go on to answer of the run's own accelerator."""
    shown = dict(zip(NAMES, answer("?on=h100&stack=Megatron-LM", "runs", {}, "url", SERVED), strict=False))
    offered = {each.name: each.options for group in page.controls().values() for each in group}
    assert shown["on"] == "h100-sxm"
    assert [shown[name] in (offered[name] or ()) for name in ("on", "stack")] == [True, True]


def test_a_run_whose_layout_was_not_published_begins_with_a_fast_one() -> None:
    unpublished = [name for name in names("runs") if state_of_run(name).layout == ""]
    shown = answer("?run=llama2-70b&on=h100-sxm", "runs", {}, "url", SERVED)
    assert unpublished == []
    assert "&layout=dp" in shown[ADDRESS]
    assert shown[CONTENT]["views"][0]["terms"]
    assert any("layout was not published" in line for line in shown[CONTENT]["views"][0]["notes"])


def test_an_address_without_run_is_about_the_first() -> None:
    assert answer("?on=h100-sxm&network=3200", "runs", {}, "url", SERVED)[ADDRESS].startswith("?run=bloom-176b&")


WORDS = st.sampled_from(
    [
        *("bloom-176b", "gpt2-124m", "mixtral-8x7b", "korthikanti2022_table5:9", "a.toml", "/etc/passwd", ":", ".."),
        *("dp8,tp4,pp12", "dp1", "dp8,dp8", "dp0", "dp99999999999999999999", "pp70,interleave70", "zero9", ",", "nan"),
        *("dp8,tp4,pp12,micro1000000", "every3,recompute-full", "h100-sxm", "v100-sxm-32gb", "megatron-core", "-1"),
    ]
)
QUERIES = st.lists(
    st.tuples(st.sampled_from([*ExploreState.__struct_fields__, "x", "run"]), WORDS | st.text(max_size=12)), max_size=6
).map(lambda pairs: "?" + urlencode(pairs, errors="replace"))


SIZES = st.sampled_from([1, 1, 1, 2, 3, 4, 8, 12, 64, 1000, 10**18])
LAYOUTS = st.lists(
    st.tuples(st.sampled_from([*COUNTS, "every"]), SIZES).map(lambda pair: f"{pair[0]}{pair[1]}")
    | st.sampled_from(["zero0", "zero1", "zero2", "zero3", "gpipe", "1f1b", "zero-bubble", "pipedream", "sp"])
    | st.sampled_from(
        ["recompute-full", "recompute-none", "fused", "unfused", "offload", "noreshard", "reduce-scatter"]
    ),
    max_size=6,
).map(",".join)
LAID_OUT = st.builds(
    lambda **values: "?" + urlencode({key: value for key, value in values.items() if value}),
    run=st.sampled_from(["bloom-176b", "gpt2-124m", "mixtral-8x7b", "deepseek-v3", "korthikanti2022_table5:9"]),
    layout=LAYOUTS,
    other=st.just("") | LAYOUTS,
    on=st.sampled_from(["", "h100-sxm", "gb200", "rtx-4090", "v100-sxm-32gb"]),
    network=st.sampled_from(["", "1e-9", "3200", "1e300"]),
    stack=st.sampled_from(["", "pytorch", "megatron-core"]),
    precision=st.sampled_from(["", "fp32", "bf16-pure"]),
    batch=st.sampled_from(["", "1", "64", "4096", str(10**18)]),
    sequence=st.sampled_from(["", "1", "8192", str(10**18)]),
    tokens=st.sampled_from(["", "1", "0.5", "3e11", "1e300"]),
    products=st.sampled_from(["", "mxfp8"]),
    price=st.sampled_from(["", "0", "1e308"]),
)


@given(QUERIES | LAID_OUT | st.text(max_size=30).map("?".__add__))
def test_every_address_is_shown_or_refused_and_never_a_mistake_of_the_suite(query: str) -> None:
    shown = answer(query, "runs", {}, "url", SERVED)
    msgspec.json.encode(shown[CONTENT])
    lines = [*(line for view in shown[CONTENT]["views"] for line in view["wrong"]), export_text(query, "slurm", SERVED)]
    assert not [line for line in lines if MISTAKE in line]
    assert records_of(parse_qs(query[1:]).get("run", [""])[0], SERVED) is not None


def test_a_mistake_of_the_suite_is_a_line_on_the_page_and_a_traceback_in_the_terminal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(page, "content", lambda _: 1 // 0)
    assert said("")[0].startswith("a mistake of the suite, not of your input (ZeroDivisionError")
    assert "ZeroDivisionError" in caplog.text


def posted(query: str) -> dict[str, Any]:
    """A change of the address, as the browser sends it."""
    outputs = [*((name, "value") for name in NAMES), ("url", "search"), ("content", "data"), ("source", "value")]
    outputs += [("run", "options"), *((name, "placeholder") for name in EMPTY), ("export-text", "children")]
    inputs = {"url": ("search", query), "source": ("value", "runs"), "keep": ("n_clicks", 0), "export": ("value", None)}
    return {
        "output": f"..{'...'.join(f'{name}.{of}' for name, of in outputs)}..",
        "outputs": [{"id": name, "property": of} for name, of in outputs],
        "inputs": [
            {"id": name, "property": of, "value": value}
            for name, (of, value) in {**inputs, **dict.fromkeys(NAMES, ("value", None))}.items()
        ],
        "changedPropIds": ["url.search"],
        "parsedChangedPropsIds": ["url.search"],
        "state": [],
    }


def test_first_loads_at_once_are_all_answered() -> None:
    """A browser asks for several things at once, and several browsers may be first."""
    server = application(SERVED).server
    queries = ("", "?run=korthikanti2022_table5:9&layout=", "?run=nothere", "?run=mixtral-8x7b&layout=dp8")

    def status(asked: str) -> int:
        if asked.startswith("/"):
            return server.test_client().get(asked).status_code
        return server.test_client().post("/_dash-update-component", json=posted(asked)).status_code

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(status, ["/", "/_dash-layout", "/_dash-dependencies", *queries])) == {200}


def test_run_files_are_read_where_the_command_line_named_them(tmp_path: Path) -> None:
    own, other = tmp_path / "own.toml", tmp_path / "other.toml"
    for path in (own, other):
        path.write_bytes((RUNS / "gpt_neox_20b.toml").read_bytes())
    served = PageScope(state_of_run(str(own)), (str(own),))
    for run, is_read in ((own, True), (other, False), (tmp_path / "absent.toml", False)):
        query = f"?run={run}&layout="
        content = answer(query, "runs", {}, "url", served)[CONTENT]
        controls_ = dict.fromkeys(OTHERS) | controls_of(recorded_layout("gpt-neox-20b")) | {"run": str(run)}
        refusals = [
            content["views"][0]["wrong"],
            answer("", "runs", controls_, "run", served)[CONTENT]["views"][0]["wrong"],
            answer("", "runs", controls_, "tp", served)[CONTENT]["views"][0]["wrong"],
        ]
        assert all(("was not started with" in str(lines)) != is_read for lines in refusals)
        assert ("was not started with" in export_text(query, "slurm", served)) != is_read
        assert bool(content["title"]) == is_read
    own.write_text(
        own.read_text(encoding="utf-8").replace("global_batch = { value = 1538", "global_batch = { value = 3076")
    )
    again = answer(f"?run={own}&layout=", "runs", {}, "url", served)[CONTENT]
    assert again["views"][0]["figures"] != content["views"][0].get("figures")


@pytest.mark.parametrize(
    ("run", "options"),
    [
        ("llama2-7b", {"on": "h100-sxm", "gpus": "16", "batch": "512", "sequence": "2048", "stack": "megatron-core"}),
        ("gpt2-124m", {"on": "rtx-4090", "gpus": "1", "precision": "bf16-pure", "tokens": "1e9", "batch": "64"}),
        ("bloom-176b", {"layout": "dp8,tp4,pp12,micro1", "batch": "1024", "network": "800", "precision": "fp16"}),
    ],
)
def test_controls_mean_what_the_options_of_predict_mean(
    run: str, options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    def predicted(words: Sequence[str]) -> dict[str, float]:
        assert main(["predict", *words, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["figures"]
        return {row["quantity"]: row["left"] for row in rows if row["stage"] is row["term"] is row["axis"] is None}

    shown = answer("?" + urlencode({"run": run, **options}, safe=","), "runs", {}, "url", SERVED)
    figures = {each["quantity"]: each["value"] for each in shown[CONTENT]["views"][0]["figures"]}
    compared = ("step_seconds", "peak_bytes", "mfu", "training_seconds", "energy_joules")
    of_options = predicted([run, *(word for key, value in options.items() for word in (f"--{key}", value))])
    command = shlex.split(shown[CONTENT]["command"])
    of_command = predicted(command[command.index("predict") + 1 :])  # the command that the page shows
    for found in (of_options, of_command):
        assert [figures[name] for name in compared] == pytest.approx([found[name] for name in compared], rel=1e-9)
    values = dict(zip(NAMES, shown, strict=False))
    assert (
        math.prod(values[axis] for axis in ("dp", "tp", "pp", "cp")) == values[RANKS] == int(options.get("gpus", 384))
    )


def test_another_number_of_accelerators_sets_the_fastest_layout_of_so_many() -> None:
    before = controls("llama2-7b", on="h100-sxm", network=3200, gpus=16)
    found = asked(before, "gpus")
    shown = {name: before[name] if value is no_update else value for name, value in zip(NAMES, found, strict=False)}
    assert shown["dp"] * shown["tp"] * shown["pp"] == shown[RANKS] == 16
    assert "gpus" not in found[ADDRESS]


def test_an_imported_model_is_shown_at_once_with_what_is_assumed(tmp_path: Path) -> None:
    configuration, file = tmp_path / "config.json", tmp_path / "own.toml"
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16}
    more = {"vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    own = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}
    configuration.write_text(json.dumps({**own, **shape, **more}))
    assert main(["import", str(configuration), "--output", str(file)]) == 0
    shown = answer("", "runs", {}, None, PageScope(state_of_run(str(file)), (str(file),)))
    view = shown[CONTENT]["views"][0]
    assert view["wrong"] == []
    assert {"step_seconds", "peak_bytes", "training_seconds"} <= {each["quantity"] for each in view["figures"]}
    assumed = [line for line in view["notes"] if line.startswith("assumed: ")]
    assert any("accelerator" in line for line in assumed)
    assert not any("--" in line for line in view["notes"])
    assert all(isinstance(words, str) and words for words in shown[-len(EMPTY) :])
