"""The page in Chromium: it loads alone, filters, hovers, links, prints, and everybody can read it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page

from reference_runs.published_tables import shipped_tables
from suite.records.index import launches
from suite.report.html.page import page as rendered
from tests.support.page_records import EVIL_RUN, page_records

AXE = os.environ.get("AXE_CORE", "")  # axe.min.js, where the session could fetch it
LEAST_CONTRAST = 4.5  # WCAG 2.2, 1.4.3, level AA
PHONE, DESKTOP = {"width": 360, "height": 780}, {"width": 1280, "height": 900}
A4 = 210 / 25.4 * 96 - 2 * 14 / 25.4 * 96  # pixels between the margins of page.css
Opened = Callable[..., Page]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    results = page_records(tmp_path_factory.mktemp("page"))
    path = results / "index.html"
    path.write_text(rendered(results, launches(results)[0]), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def opened(browser: Browser, address: str) -> Iterator[Opened]:
    """Opens the page; afterwards nothing was logged and nothing was asked of a network."""
    contexts, wrong = [], []

    def open_page(place: str = "", *, viewport: Any = DESKTOP, scheme: Any = "light") -> Page:
        context = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: None if local(request.url) else wrong.append(request.url))
        page.goto(address + place)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def local(url: str) -> bool:
    return url.startswith(("file:", "data:", "blob:"))


def filters(page: Page) -> Locator:
    return page.locator("#filters")


def rows(page: Page) -> list[str]:
    """Runs of the setups that show."""
    return page.locator("#setup-table tbody tr:visible th").all_inner_texts()


def draw_all(page: Page) -> None:
    """Open every setup, and have every picture drawn."""
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for canvas in page.locator(".canvas").all():
        canvas.scroll_into_view_if_needed()
        canvas.locator("svg.main-svg").first.wait_for()


def test_every_picture_is_drawn_and_nothing_is_logged_or_loaded(opened: Opened) -> None:
    page = opened()
    draw_all(page)
    assert page.locator(".canvas").count() >= 18
    assert page.locator(".canvas:not(:has(svg.main-svg))").count() == 0
    assert page.evaluate("window.hacked") is None
    assert page.locator("#setup-table").get_by_text(EVIL_RUN).count() == 1


def test_filters_leave_what_fits_and_stand_in_the_address(opened: Opened) -> None:
    page = opened()
    every = rows(page)
    filters(page).get_by_label("Run").select_option("gpt2-mini")
    assert rows(page) == ["gpt2-mini"] * 2
    assert page.locator("#count").inner_text() == f"2 of {len(every)} setups"
    assert page.locator("details.setup:visible").count() == 2
    assert page.locator("#loss details:visible").count() == 1
    filters(page).get_by_label("Verdict").select_option("hang")
    assert rows(page) == ["gpt2-mini"]
    assert page.url.endswith("#?run=gpt2-mini&verdict=hang")
    page.reload()
    assert rows(page) == ["gpt2-mini"]
    assert filters(page).get_by_label("Verdict").input_value() == "hang"
    page.go_back()
    assert rows(page) == ["gpt2-mini"] * 2
    assert filters(page).get_by_label("Verdict").input_value() == ""
    page.go_back()
    assert rows(page) == every
    filters(page).get_by_label("Verdict").select_option("fail")
    page.get_by_role("button", name="Clear").click()
    assert rows(page) == every
    assert "verdict" not in page.url


def test_the_machine_filter_takes_the_other_columns_away(opened: Opened) -> None:
    page = opened()
    filters(page).get_by_label("Machine").select_option(label="Intel Xeon, 8 cores")
    assert page.locator(".matrix thead th:visible").all_inner_texts() == ["run", "Intel Xeon, 8 cores"]
    assert sorted(rows(page)) == ["bloom-mini", "gpt2-mini"]


def test_text_finds_setups_by_layout_message_and_facts_by_their_words(opened: Opened) -> None:
    page = opened()
    filters(page).get_by_label("Text").press_sequentially("silent rank")
    assert rows(page) == ["gpt2-mini"]
    assert page.evaluate("history.length") <= 3  # one entry for what is typed, not one a letter
    filters(page).get_by_label("Text").fill("optimizer_bytes apex fusedadam")
    assert rows(page) == []
    assert page.locator("#setups .none").is_visible()
    filters(page).get_by_label("Text").fill("apex fusedadam")
    assert page.locator("#facts details:visible h3").count() >= 1
    page.locator("#facts details.opens[open] > details:visible > summary").first.click()
    found = page.locator("#facts tbody tr:visible").all_inner_texts()
    assert found
    assert all("apex FusedAdam" in text for text in found)


def test_an_address_with_filters_opens_the_setup_that_it_names(opened: Opened) -> None:
    page = opened()
    link = page.locator("#setup-table tbody a").first
    name = (link.get_attribute("href") or "")[1:]
    link.click()
    detail = page.locator(f"details#{name}")
    assert detail.get_attribute("open") is not None
    assert page.evaluate("document.activeElement.tagName") == "H3"
    again = opened(f"#{name}?run=bloom-mini")
    assert again.locator(f"details#{name}").get_attribute("open") is not None
    assert set(rows(again)) == {"bloom-mini"}
    again.locator("nav").get_by_text("Loss").click()
    assert again.url.endswith("#loss?run=bloom-mini")
    assert set(rows(again)) == {"bloom-mini"}


def test_a_count_of_the_overview_leads_to_its_setups(opened: Opened) -> None:
    page = opened()
    page.locator(".matrix").get_by_role("link", name=re.compile("fail")).click()
    assert rows(page) == ["bloom-mini"]
    assert filters(page).get_by_label("Verdict").input_value() == "fail"


def test_a_column_s_name_sorts_by_numbers_and_back(opened: Opened) -> None:
    page = opened()
    head = page.locator("#setup-table thead th").filter(has_text="launches")
    for direction, reverse in (("ascending", False), ("descending", True)):
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == direction
        cells = page.locator("#setup-table tbody tr td:nth-child(7)").all()
        counts = [int(cell.get_attribute("data-sort") or "0") for cell in cells]
        assert counts == sorted(counts, reverse=reverse)
        assert len(set(counts)) > 1


def test_hovering_says_what_a_point_is(opened: Opened) -> None:
    page = opened()
    canvas = page.locator("#errors-by-table .canvas")
    canvas.scroll_into_view_if_needed()
    scatter = page.locator("#predicted-published")
    scatter.scroll_into_view_if_needed()
    scatter.locator(".scatterlayer .point").nth(5).wait_for()
    scatter.locator(".scatterlayer .point").nth(5).hover(force=True)
    page.locator("#predicted-published .hoverlayer text").first.wait_for()
    assert "published" in " ".join(scatter.locator(".hoverlayer text").all_text_contents())


def test_the_numbers_behind_a_picture_are_a_table(opened: Opened) -> None:
    page = opened()
    figure = page.locator("#errors-by-table")
    figure.locator("summary").click()
    spec = page.evaluate("JSON.parse(document.getElementById('plots').textContent)['errors-by-table']")
    table = figure.get_by_role("table")
    assert table.locator("tbody tr").count() == len(spec["rows"]) == len(list(shipped_tables()))
    assert table.locator("tbody tr").first.locator("td").all_inner_texts() == spec["rows"][0][1:]
    assert table.locator("caption").inner_text() == "Errors by table"


CONTRASTS = """() => {
  const parse = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  const linear = (c) => c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4;
  const light = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, share, n) => sum + share * linear(rgb[n]), 0);
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const ground = parse(getComputedStyle(one).backgroundColor);
      if (ground[3] === 1) return ground;
    }
    return [255, 255, 255];
  };
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !one.getClientRects().length) continue;
    const style = getComputedStyle(one);
    const ink = parse(one.closest("svg") ? style.fill : style.color);
    if (ink[3] === 0) continue;
    const [a, b] = [light(ink), light(behind(one))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), walker.currentNode.data.trim().slice(0, 40)]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground_in_both_schemes(opened: Opened, scheme: str) -> None:
    page = opened(scheme=scheme)
    draw_all(page)
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 3000
    assert [one for one in contrasts if one[0] < LEAST_CONTRAST] == []


def test_the_scheme_follows_the_system_until_one_is_chosen(opened: Opened) -> None:
    page = opened(scheme="dark")

    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    dark = ground()
    picture = page.locator("#errors-by-table")
    picture.scroll_into_view_if_needed()
    text = picture.locator("svg text").first
    text.wait_for()
    ink = text.evaluate("(one) => getComputedStyle(one).fill")
    page.get_by_role("button", name="Light").click()
    assert ground() != dark
    assert picture.locator("svg text").first.evaluate("(one) => getComputedStyle(one).fill") != ink
    assert page.get_by_role("button", name="Light").get_attribute("aria-pressed") == "true"
    page.reload()
    assert ground() != dark
    page.get_by_role("button", name="System").click()
    assert ground() == dark


def test_a_phone_shows_everything_without_scrolling_sideways(opened: Opened) -> None:
    page = opened(viewport=PHONE)
    draw_all(page)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    wide = page.evaluate(
        "[...document.querySelectorAll('svg.main-svg')].filter((one) => one.getBoundingClientRect().right > 360).length"
    )
    assert wide == 0


def test_on_paper_everything_that_is_open_fits_the_sheet(opened: Opened, tmp_path: Path) -> None:
    page = opened(scheme="dark")
    page.locator("#runs details.opens > summary").first.click()
    page.locator("details.setup > summary").first.click()
    paper = page.pdf(format="A4", prefer_css_page_size=False)
    assert paper[:5] == b"%PDF-"
    assert paper.count(b"/Type /Page\n") + paper.count(b"/Type /Page ") >= 4
    page.set_viewport_size({"width": int(A4), "height": 1000})
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.scrollWidth") <= int(A4)
    assert page.locator("section .canvas:visible:not(:has(svg.main-svg))").count() == 0
    wide = page.evaluate(
        "[...document.querySelectorAll('main *')].filter((one) => one.getClientRects().length"
        f" && one.getBoundingClientRect().right > {int(A4) + 1}).map((one) => one.outerHTML.slice(0, 80))"
    )
    assert wide == []
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 29, 33)"
    assert not page.locator("nav").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") is None


def test_the_keyboard_reaches_everything_and_shows_where_it_is(opened: Opened) -> None:
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    assert page.locator(".skip").bounding_box()["x"] >= 0  # type: ignore[index]
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    seen: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        where = "(one) => [one.tagName, getComputedStyle(one).outlineStyle, one.matches(':focus-visible')]"
        tag, outline, visible = page.evaluate(f"({where})(document.activeElement)")
        if tag == "BODY":  # beyond the last one
            break
        seen.append(tag)
        assert visible
        assert outline != "none"
    assert len(seen) > 30
    assert {"SELECT", "INPUT", "BUTTON", "A", "DIV", "SUMMARY"} <= set(seen)
    page.locator("#runs details.opens > summary").first.click()
    page.locator("details.setup > summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details.setup").first.get_attribute("open") is not None


def test_a_screen_reader_finds_landmarks_and_names(opened: Opened) -> None:
    page = opened()
    for role, name in (("navigation", "Sections"), ("search", "Filters"), ("main", None), ("banner", None)):
        assert page.get_by_role(role, **({"name": name} if name else {})).count() == 1, role  # type: ignore[arg-type]
    sections = page.get_by_role("region").evaluate_all("(all) => all.map((one) => one.tagName)")
    assert sections.count("SECTION") == 9
    pictures = page.get_by_role("img").all()
    assert len(pictures) > 3
    nameless = page.evaluate(
        "[...document.querySelectorAll('a, button, select, input, summary, [role=img], [role=region]')].filter("
        "(one) => {"
        " const by = (one.getAttribute('aria-labelledby') || '').split(' ').map((id) => document.getElementById(id));"
        " const text = one.getAttribute('aria-label') || by.map((b) => b ? b.textContent : '').join('')"
        " || (one.labels ? [...one.labels].map((l) => l.textContent).join('') : '') || one.textContent;"
        " return !text.trim(); }).length"
    )
    assert nameless == 0


@pytest.mark.skipif(not AXE, reason="axe-core is not fetched: npm is missing, or its registry")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_to_mend(browser: Browser, address: str, scheme: Any) -> None:
    context = browser.new_context(viewport=DESKTOP, color_scheme=scheme, reduced_motion="reduce", bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(address)
    draw_all(page)
    page.add_script_tag(path=AXE)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    context.close()
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]] == []
