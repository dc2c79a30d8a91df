"""The page without a browser: the same bytes, nothing from outside, no text that becomes markup, true numbers."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import statistics
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from suite.__main__ import main
from suite.job.events import Status
from suite.metrics.comparison import Row, Verdict
from suite.metrics.figures import Quantity, StepTerm
from suite.paths import ROOT
from suite.records.battery import Decision
from suite.records.index import launches
from suite.regression.segments import segments
from suite.report.html import acceptance, page
from suite.report.html.acceptance import batteries
from suite.report.html.history import BUCKETS, NEWEST, history
from suite.report.html.loss_curves import losses
from suite.report.html.memory import REST, memory
from suite.report.html.plot import Plot
from suite.report.html.rendering import in_script
from suite.report.html.roofline import benchmarks, profiles, rooflines
from suite.report.html.setups import JudgedSetup, judged_setup, newest, remembered, setups
from suite.report.html.sources import linked, recorded_facts
from suite.report.html.step_time import WHOLE, traffic, waterfall
from suite.report.html.validation import validation
from tests.support.histories import launch_of, normal_launches
from tests.support.page_records import EVIL_MESSAGE, EVIL_RUN, THERE, battery, job_of, page_records, record

pytest.importorskip("plotly", reason="plotly is not installed")
pytest.importorskip("jinja2", reason="jinja2 is not installed")


class Elements(HTMLParser):
    """Every element with its attributes, and all text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.raw: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        del tag
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("script", "style"):
            self.raw.append(data)
        else:
            self.text += data


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_records(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def html(results: Path) -> str:
    return page.page(results, launches(results)[0])


@pytest.fixture(scope="module")
def elements(html: str) -> Elements:
    return Elements(html)


@pytest.fixture(scope="module")
def plots(elements: Elements) -> dict[str, Any]:
    return dict(json.loads(elements.raw[1]))


def judged(results: Path, run: str, machine: str = "AMD", **wanted: Any) -> JudgedSetup:
    found = setups(launches(results, run=run)[0])
    (one,) = [
        s
        for s in found
        if machine in s.key.machine and all(getattr(s.key, name) == value for name, value in wanted.items())
    ]
    return judged_setup(one, remembered())


def test_the_same_records_give_the_same_bytes(results: Path, html: str) -> None:
    assert page.page(results, launches(results)[0]) == html


def test_nothing_is_loaded_from_anywhere_and_only_links_lead_out(elements: Elements) -> None:
    for tag, attributes in elements.elements:
        assert "src" not in attributes
        assert tag not in ("link", "iframe", "object", "img", "form") or tag == "form"
        if "href" in attributes:
            assert tag == "a"
            assert re.match(r"#|https?://", attributes["href"] or ""), attributes
            assert attributes["href"][:1] == "#" or "noopener" in (attributes["rel"] or "")


def test_only_the_page_s_own_scripts_may_run(elements: Elements) -> None:
    (policy,) = [a["content"] for tag, a in elements.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    scripts = elements.raw[2:]
    assert len(scripts) == 2
    assert allowed == {base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts}
    assert "default-src 'none'" in policy
    assert "script-src 'unsafe" not in policy


def test_names_and_messages_with_markup_are_text(elements: Elements, html: str) -> None:
    tags = [tag for tag, _ in elements.elements]
    assert tags.count("script") == 3
    assert "img" not in tags
    assert EVIL_RUN in elements.text
    assert EVIL_MESSAGE in elements.text
    assert "window.hacked" not in "".join(elements.raw[2:])
    assert not any(name.startswith("on") for _, attributes in elements.elements for name in attributes)


def test_no_text_in_a_picture_ends_the_script_that_holds_it() -> None:
    evil = "</script><!-- \u2028 &"
    rows: list[Any] = [[evil]]
    plot = Plot(id="x", title="", says="", traces=[{"name": evil}], layout={}, columns=[evil], rows=rows)
    text = in_script([plot])
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text)["x"]["rows"] == rows


def test_every_element_with_a_name_has_one_of_its_own_and_every_inner_link_leads_somewhere(elements: Elements) -> None:
    names = [attributes["id"] for _, attributes in elements.elements if "id" in attributes]
    assert len(names) == len(set(names))
    for tag, attributes in elements.elements:
        href = attributes.get("href") or ""
        if tag == "a" and href.startswith("#"):
            assert href[1:].partition("?")[0] in names
        for name in (attributes.get("aria-labelledby") or "").split():
            assert name in names


def test_every_picture_is_one_that_plotly_knows_and_has_numbers(elements: Elements, plots: dict[str, Any]) -> None:
    from plotly import graph_objects

    drawn = [attributes["data-plot"] for _, attributes in elements.elements if "data-plot" in attributes]
    assert sorted(filter(None, drawn)) == sorted(plots)
    kinds = {name.partition("-")[0] for name in plots}
    assert kinds == {"time", "memory", "bytes", "history", "loss", "roofline", "predicted", "errors"}
    for name, plot in plots.items():
        text = re.sub(r'"--[a-z0-9]+"', '"#123456"', json.dumps(plot))
        spec = json.loads(text)
        graph_objects.Figure(data=spec["traces"], layout=spec["layout"])
        assert plot["rows"], name
        assert all(len(row) == len(plot["columns"]) for row in plot["rows"])


def test_headings_go_down_one_level_at_a_time_and_tables_say_what_they_are(elements: Elements) -> None:
    levels = [int(tag[1]) for tag, _ in elements.elements if re.fullmatch(r"h[1-6]", tag)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    tags = [tag for tag, _ in elements.elements]
    assert tags.count("table") == tags.count("caption") > 5
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in elements.elements if tag == "th")


def test_a_launch_passes_or_fails_by_the_name_of_its_figures_or_says_how_it_ended(results: Path) -> None:
    good, bad = judged(results, "bloom-mini", execution="eager"), judged(results, "bloom-mini", "Xeon")
    hung = judged(results, "gpt2-mini", "Xeon")
    assert (good.verdict, good.why) == ("pass", "")
    assert (bad.verdict, set(bad.why.split(", "))) == ("fail", {"messages dp all_reduce", "messages dp all_gather"})
    assert (hung.verdict, hung.why, hung.rows) == ("hang", "rank 0 was silent", [])


def test_a_setup_whose_last_launch_failed_shows_the_median_one_before_and_why(tmp_path: Path) -> None:
    record(tmp_path, job_of("small"), 1)
    record(tmp_path, job_of("small"), 2, seconds=0.6)
    record(tmp_path, job_of("small"), 3, status=Status.NAN, message="the loss is NaN")
    one = judged(tmp_path, "small")
    assert (one.verdict, one.why) == ("nan", "the loss is NaN")
    assert one.record is not None
    (setup,) = setups(launches(tmp_path)[0])
    assert one.record.begin.started == setup.launches[0].started  # the faster of two
    assert one.rows


def test_figures_that_differ_in_the_last_launch_are_shown_in_place_of_the_median_one_s(tmp_path: Path) -> None:
    for number, seconds in enumerate((0.5, 0.6, 0.7)):
        record(tmp_path, job_of("small"), number, seconds=seconds)
    agree = judged(tmp_path, "small")
    assert agree.record is not None
    assert (agree.verdict, agree.record.begin.id) == ("pass", agree.setup.launches[1].id)
    record(tmp_path, job_of("small"), 3, seconds=0.8, changed={Quantity.MESSAGES: 1})
    differ = judged(tmp_path, "small")
    assert differ.record is not None
    assert (differ.verdict, differ.record.begin.id) == ("fail", differ.setup.latest.id)
    assert "messages" in differ.why


def test_a_waterfall_s_terms_follow_each_other_to_the_whole_step(results: Path) -> None:
    plot = waterfall("x", judged(results, "bloom-mini", execution="compiled").rows)
    assert plot is not None
    predicted, measured = plot.traces
    for trace, seconds in ((predicted, 0.55), (measured, 0.5)):
        ends = [base + length for base, length in zip(trace["base"], trace["x"], strict=True)]
        assert trace["base"][0] == trace["base"][-1] == 0
        assert trace["base"][1:-1] == pytest.approx(ends[:-2], rel=1e-4)
        assert ends[-1] == pytest.approx(1e3 * seconds)
        assert ends[-2] == pytest.approx(1e3 * seconds, rel=1e-4)
    assert plot.rows[-1] == [WHOLE, "550.0", "500.0", "50.0 ms faster", "10.0%"]


def row(quantity: Quantity, **changes: Any) -> Row:
    nothing: dict[str, Any] = dict.fromkeys(Row.__struct_fields__)
    return Row(**{**nothing, "quantity": quantity, "unit": "s", "verdict": Verdict.SHOWN, **changes})


def test_a_measured_step_without_prediction_is_drawn_alone() -> None:
    rows = [row(Quantity.STEP_SECONDS, right=2.0), row(Quantity.STEP_SECONDS, term=StepTerm.FORWARD, right=2.0)]
    plot = waterfall("x", rows)
    assert plot is not None
    assert [trace["name"] for trace in plot.traces] == ["measured"]
    assert waterfall("x", rows[:1]) is traffic("x", rows) is None


def test_a_textbook_s_payload_does_not_hide_what_is_sent() -> None:
    sent = row(Quantity.PAYLOAD_BYTES, axis="dp", operation="all_reduce", left=8, right=8)
    plot = traffic("x", [sent, msgspec.structs.replace(sent, term="textbook ring", left=4, right=None)])
    assert plot is not None
    assert plot.rows == [["dp", "all_reduce", "8", "8", None, None]]


def test_memory_shows_three_predicted_peaks_and_the_measured_one_by_category(results: Path) -> None:
    one = judged(results, "bloom-mini", execution="eager")
    assert one.record is not None
    plot = memory("x", one.record)
    assert plot is not None
    assert [row[1] for row in plot.rows] == ["forward", "backward", "update", "measured"]
    sums = [int(str(row[-1]).replace(",", "")) for row in plot.rows]
    peaks = {r.left for r in one.rows if r.quantity == Quantity.PEAK_BYTES}
    assert {max(sums[:3]), sums[3]} == peaks
    rest = plot.columns.index(REST)
    assert plot.rows[3][rest]
    assert all(row[rest] is None for row in plot.rows[:3])
    for place, peak in enumerate(sums):
        drawn = sum(trace["x"][place] for trace in plot.traces)
        assert drawn == pytest.approx(peak / 1e6, rel=1e-4)


def test_a_peak_below_the_state_is_one_bar(results: Path) -> None:
    one = judged(results, "bloom-mini", execution="eager").record
    assert one is not None
    assert one.end is not None
    figures = [f for f in one.end.figures if f.quantity is not Quantity.PEAK_BYTES]
    low = [msgspec.structs.replace(f, value=7) if f.quantity is Quantity.PEAK_BYTES else f for f in one.end.figures]
    for kept, last in ((figures, "update"), (low, "measured")):
        plot = memory("x", msgspec.structs.replace(one, end=msgspec.structs.replace(one.end, figures=kept)))
        assert plot is not None
        assert plot.rows[-1][1] == last
    assert plot.rows[-1][-1] == "7"


def long_history(count: int) -> Plot:
    values = normal_launches(1, count)
    (segment,) = segments([launch_of(n, value) for n, value in enumerate(values)])
    plot = history("x", [segment])
    assert plot is not None
    return plot


def test_older_launches_are_thinned_to_medians_and_the_page_says_so() -> None:
    plot = long_history(5000)
    older, newer = plot.traces[:2]
    assert len(newer["x"]) == NEWEST
    assert len(older["x"]) == BUCKETS
    counts = [int(re.findall(r"\d+", text)[0]) for text in older["text"]]
    assert sum(counts) == 5000 - NEWEST
    assert "4,700 older launches are thinned" in plot.says
    first = normal_launches(1, 5000)[: counts[0]]
    assert older["y"][0] == pytest.approx(1e3 * statistics.median(first), rel=1e-4)
    assert older["y"][0] + older["error_y"]["array"][0] == pytest.approx(1e3 * max(first), rel=1e-3)
    assert older["y"][0] - older["error_y"]["arrayminus"][0] == pytest.approx(1e3 * min(first), rel=1e-3)
    short = long_history(NEWEST)
    assert "thinned" not in short.says
    assert len(short.traces[0]["x"]) == NEWEST


def test_a_change_is_in_the_setup_s_picture_and_in_the_list(html: str, plots: dict[str, Any]) -> None:
    (changed,) = [plot for name, plot in plots.items() if name.startswith("history") and plot["layout"]["shapes"]]
    assert [row[5] for row in changed["rows"] if row[5]] == ["20.0 % slower"]
    assert html.count("20.0 % slower") == 1 + 1  # the list; once more in the pictures' numbers
    assert "1 change point among" in html


def test_loss_has_the_newest_launch_of_every_setup_and_seed(results: Path) -> None:
    found = setups(launches(results, run="bloom-mini")[0])
    (plot,) = losses("bloom-mini", found)
    assert len(plot.traces) == 4
    assert [trace["name"] for trace in plot.traces] == [
        "2 ranks, eager, seed 3",
        "2 ranks, eager, seed 4",
        "2 ranks, compiled, seed 3",
        "2 ranks, eager, seed 3",
    ]
    assert [str(row[-1])[:6] for row in plot.rows] == ["000032", "000031", "000030", "000023"]


def test_losses_of_different_global_batches_are_apart(results: Path) -> None:
    """More ranks can mean more samples a step: those curves need not lie on each other."""
    found = setups(launches(results, run="bloom-mini")[0])
    first, *others = found
    changed = [msgspec.structs.replace(one, global_batch=30) for one in first.launches]
    plots = losses("bloom-mini", [msgspec.structs.replace(first, launches=changed), *others])
    assert [plot.title for plot in plots] == [
        f"Loss of bloom-mini, {batch} samples a step" for batch in sorted({30, others[0].launches[0].global_batch})
    ]
    assert len({plot.id for plot in plots}) == 2
    assert sum(len(plot.traces) for plot in plots) == 4


def test_a_roofline_s_points_are_bytes_and_seconds_of_the_records(results: Path) -> None:
    found, bad = profiles(results)
    timed, damaged = benchmarks(results)
    assert not bad
    assert not damaged
    ((machine, plot),) = rooflines(found, timed)
    assert machine.startswith("AMD EPYC, 2 cores")
    rows = {str(row[1]): row for row in plot.rows}
    # 64 x 64 x 64 in 2e-9 s a product term: 1 Gflop/s; 2 n^3 / (3 * 4 n^2) flop a byte
    assert rows["product NT 64 x 64 x 64 fp32"][2:4] == [f"{64 / 6:.3g}", "1"]
    kernels = [row for row in plot.rows if not str(row[0]).startswith("products")]
    assert len(kernels) == sum(len(one.kernels) for one in timed)
    assert sum(len(one.kernels) for one in timed) > 200


def test_the_predictor_s_points_are_every_published_row_that_counts() -> None:
    scatter, boxes = validation()
    counted = sum(len(trace["x"]) for trace in scatter.traces if trace["mode"] == "markers")
    assert counted == len(scatter.rows) == 1180
    assert sum(int(str(row[2])) for row in boxes.rows) == 1180


def test_the_newest_battery_of_a_node_has_its_findings_worst_first(results: Path) -> None:
    found = batteries(results)
    assert [(one.node, one.decision, one.newest) for one in found.shown] == [
        ("n3", "not ended", True),
        ("n2", "rejected", True),
        ("n1", "accepted", True),
        ("n1", "rejected", False),
    ]
    _, rejected, accepted, older = found.shown
    assert [row.verdict for row in rejected.rows] == ["FAIL", "PASS"]
    worst = rejected.rows[0]
    assert (worst.name, worst.measured, worst.expected, worst.difference) == (
        "peer to peer",
        "500 Mbyte/s",
        "1 Gbyte/s",
        "50.0 % slower",
    )
    assert (worst.part, worst.action) == (EVIL_MESSAGE, "reseat")
    assert worst.why.endswith("next: reseat the cable")
    assert len(accepted.rows) == 1
    assert older.rows == []


def test_a_damaged_battery_is_named_and_older_ones_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        battery(tmp_path, number, "n1", decision=Decision.ACCEPTED)
    damaged = battery(tmp_path, 4, "n2", decision=Decision.ACCEPTED)
    damaged.write_bytes(damaged.read_bytes()[:-20])
    monkeypatch.setattr(acceptance, "MOST_BATTERIES", 2)
    found = batteries(tmp_path)
    assert [(one.id[-4:], one.decision) for one in found.shown] == [("004Z", "not ended"), ("003Z", "accepted")]
    assert (str(damaged) in str(found.damaged), found.left_out) == (True, 3)
    text = Elements(page.page(tmp_path, [])).text
    assert damaged.name in text
    assert "3 older batteries are left out" in text


LINKS = {
    "see https://example.org/a?b=c.": "https://example.org/a?b=c",
    "Zeng et al., arXiv 2210.02414v2": "https://arxiv.org/abs/2210.02414v2",
    "THUDM/GLM-130B@212215c logs/main-log-en.md": "https://github.com/THUDM/GLM-130B/blob/212215c/logs/main-log-en.md",
    "karpathy/llm.c@f1e2ace scripts/run_gpt2_*.sh": "https://github.com/karpathy/llm.c/tree/f1e2ace",
    "javascript:alert(1)": "",
    "data:text/html,<script>alert(1)</script>": "",
    'https://a.example/"onclick="x': "https://a.example/",
}


def test_sources_link_to_where_they_stand_and_to_nothing_else() -> None:
    assert {text: "".join(piece.link for piece in linked(text)) for text in LINKS} == LINKS
    assert all("".join(piece.text for piece in linked(text)) == text for text in LINKS)


def test_every_fact_of_the_catalog_is_there_with_its_source() -> None:
    found = recorded_facts()
    assert len(found) > 25
    assert all(fact.source and fact.kind for one in found for fact in one.facts)
    assert sum(any(piece.link for piece in fact.source) for one in found for fact in one.facts) > 500


def test_a_setup_beyond_the_newest_has_a_row_and_no_verdict(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_DETAILS", 2)
    text = page.page(results, launches(results)[0])
    found = setups(launches(results)[0])
    assert text.count(' class="item setup card"') == 2
    assert text.count("not judged</span>") >= len(found) - 2
    assert "older setups have a row above" in text
    kept, left = newest(found, 2)
    assert min(one.latest.started for one in kept) > max(one.latest.started for one in left)


def test_a_page_without_records_says_how_to_make_one(tmp_path: Path) -> None:
    html = page.page(tmp_path, [])
    assert 'id="acceptance"' not in html
    text = Elements(html).text
    assert "No launch is recorded yet" in text
    assert "Validation of the predictor" in text
    assert "Run by run" not in text


def test_report_writes_the_page_and_names_what_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, job_of("small"), 1)
    assert main(["report", "--results", str(tmp_path), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["page"] == str(tmp_path / "index.html")
    written = (tmp_path / "index.html").read_bytes()
    assert main(["report", "--results", str(tmp_path), "--no-page", "--out", str(tmp_path / "b"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["page"] is None
    assert not (tmp_path / "b" / "index.html").exists()
    damaged = tmp_path / "records" / "small" / "x.begin.json"
    damaged.write_text("{", encoding="utf-8")
    assert main(["report", "--results", str(tmp_path)]) == 2
    assert "x.begin.json" in (tmp_path / "index.html").read_text(encoding="utf-8")
    damaged.unlink()
    assert main(["report", "--results", str(tmp_path)]) == 0
    assert (tmp_path / "index.html").read_bytes() == written


def test_without_the_page_s_packages_nothing_is_written_unless_the_tables_alone_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, job_of("small"), 1)
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert main(["report", "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("[report]'; or --no-page, for the tables alone\n")
    assert not (tmp_path / "TABLES.md").exists()
    assert main(["report", "--results", str(tmp_path), "--no-page"]) == 0
    assert (tmp_path / "TABLES.md").exists()


def test_launches_that_nobody_predicted_have_a_page_and_no_table(tmp_path: Path) -> None:
    record(tmp_path, job_of("small"), 1, status=Status.CRASHED, message="gone", hardware=THERE)
    assert main(["report", "--results", str(tmp_path)]) == 3
    assert (tmp_path / "index.html").exists()
    assert not (tmp_path / "TABLES.md").exists()


def test_without_the_page_nothing_of_it_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom suite.__main__ import main\nmain(sys.argv[1:])\n"
        "print([name for name in sys.modules if name.startswith(('suite.report.html', 'suite.predict', 'plotly'))])"
    )
    words = [sys.executable, "-c", code, "report", "--no-page", "--results", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
