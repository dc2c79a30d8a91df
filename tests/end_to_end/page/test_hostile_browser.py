"""Records with strings that want to run, break out, turn the text around or be too long: the page stays whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, Page

from suite.job.events import Status
from suite.records.battery import CheckFinding, CheckVerdict, Decision
from suite.records.index import launches
from suite.report.html.page import page as rendered
from tests.support.page_records import HERE, battery, job_of, record

BREAKING = (
    "</script><script>window.hacked = 1</script>",
    "<!--<script>window.hacked = 1",
    "]]><img src=x onerror='window.hacked = 1'>",
    '" onmouseover="window.hacked = 1" x="',
    "' autofocus onfocus='window.hacked = 1",
    "</td></tr></table></main><iframe srcdoc='<script>parent.hacked = 1</script>'>",
    "javascript:window.hacked = 1",
    "{{ 7 * 7 }} ${window.hacked = 1} <%= 1 %>",
    "\u2028window.hacked = 1\u2029",
    "<style>* { display: none }</style>",
)
TURNING = ("\u202eevil\u2066", "\u05e9\u05dc\u05d5\u05dd \u0627\u0644\u0633\u0644\u0627\u0645", "a\u0301" * 50)
LONG = 10**7
MOST_BYTES = 40 * 10**6  # of a page of a few launches: plotly's script is 5 MB of it


def hostile_records(results: Path) -> Path:
    number = 0
    for text in (*BREAKING, *TURNING):
        hardware = {**HERE, "cpu": text, "gpus": text}
        record(results, job_of("bloom-mini"), number, hardware=hardware, suite=text)
        record(results, job_of("gpt2-mini", ranks=1), number + 1, status=Status.CRASHED, message=text)
        failed = CheckFinding(check=5, subject=text, verdict=CheckVerdict.FAIL, part=text, evidence=text)
        finding = msgspec.structs.replace(failed, measured=1.0, expected=2.0, unit=text)
        battery(results, number, text[:40], finding, decision=Decision.REJECTED)
        number += 2
    for text in ("A" * LONG, "<" * LONG, "\u202e" * (LONG // 3)):
        record(results, job_of("opt-mini"), number, status=Status.CRASHED, message=text)
        finding = CheckFinding(check=5, subject="x", verdict=CheckVerdict.FAIL, part=text, evidence=text)
        battery(results, number, "long", finding, decision=Decision.REJECTED)
        number += 1
    return results


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = hostile_records(tmp_path_factory.mktemp("hostile"))
    path = results / "index.html"
    path.write_text(rendered(results, launches(results)[0]), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser: Browser, page_file: Path) -> Iterator[Page]:
    """The page; afterwards nothing was logged, asked of a network, or popped up."""
    wrong: list[str] = []
    page = browser.new_page()
    page.set_default_timeout(120_000)
    page.on("console", lambda message: wrong.append(f"{message.type}: {message.text[:300]}"))
    page.on("pageerror", lambda error: wrong.append(str(error)[:300]))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on(
        "request", lambda request: None if request.url.startswith(("file:", "data:")) else wrong.append(request.url)
    )
    page.goto(page_file.as_uri())
    yield page
    assert wrong == []


def test_hostile_strings_are_text_and_nothing_else(opened: Page) -> None:
    assert opened.evaluate("typeof window.hacked") == "undefined"
    selectors = ("iframe", "main img[src=x]", "[onmouseover]", "[onfocus]", "[autofocus]", "a[href^='javascript:']")
    assert [selector for selector in selectors if opened.locator(selector).count()] == []
    body = opened.evaluate("document.body.textContent")
    for text in BREAKING[:6]:
        assert text in body
    assert "49 " not in body.split("{{ 7 * 7 }}")[0][-3:]
    assert "{{ 7 * 7 }}" in body
    for details in opened.locator("details").all()[:40]:
        details.evaluate("each => { each.open = true }")
    opened.mouse.move(300, 300)
    opened.keyboard.press("Tab")
    assert opened.evaluate("typeof window.hacked") == "undefined"


def test_the_page_is_whole_after_hostile_strings(opened: Page) -> None:
    sections = opened.locator("main > section, main section[id]").count()
    assert sections >= 4
    assert opened.locator("footer, #facts").first.is_visible()
    assert opened.locator("#setup-table tbody tr").count() >= len(BREAKING)
    assert opened.evaluate("getComputedStyle(document.body).display") != "none"


def test_controls_that_turn_text_round_are_shown_as_their_codes(opened: Page) -> None:
    body = opened.evaluate("document.body.textContent")
    assert "\u202e" not in body
    assert "\\u202eevil\\u2066" in body
    assert "\u05e9\u05dc\u05d5\u05dd" in body  # Hebrew stays


def test_ten_million_letters_do_not_make_a_page_that_no_browser_opens(page_file: Path, opened: Page) -> None:
    assert page_file.stat().st_size < MOST_BYTES
    assert (
        opened.evaluate(
            "Math.max(...[...document.querySelectorAll('td, li, p, th, span')].map(each => each.textContent.length))"
        )
        < 10**5
    )
    assert opened.evaluate("document.documentElement.scrollHeight") < 10**6
