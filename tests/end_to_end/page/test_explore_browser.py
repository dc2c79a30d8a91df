"""The page with controls in a real browser."""

from __future__ import annotations

import math
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

pytest.importorskip("dash")

from playwright.sync_api import Browser, Page

from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Recomputation, parse_layout
from suite.metrics.comparison import Row
from suite.paths import ROOT
from suite.predict.plan.plan import machine_of, other_numbers, question_of
from suite.predict.plan.predicted_run import PredictionRequest, predicted_run
from suite.predict.recorded_run.figures import NO_PRICES
from suite.report.explore.grid import computed_grid
from suite.report.explore.offline import offline_page
from suite.report.explore.state import ExploreState, complete_text
from suite.report.explore.state import address as address_of
from suite.report.explore.view import recorded_layout, state_of_run, view
from suite.report.explore.words import in_controls

AXE = os.environ.get("AXE_CORE", "")  # axe.min.js, where the session could fetch it
START_SECONDS = 120
VIOLATIONS = "axe.run().then((found) => found.violations.map((one) => [one.id, one.nodes.map((node) => node.html)]))"
SHOWN = "body[data-shown]"  # waiting for a function would need eval, which the file forbids


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "suite", "explore", "bloom-176b", "--port", str(port)]
    served = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.2)
    yield f"http://127.0.0.1:{port}/"
    served.terminate()
    served.wait(timeout=20)


@pytest.fixture
def requests() -> list[str]:
    return []


@pytest.fixture
def shown(browser: Browser, address: str, requests: list[str]) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1280, "height": 1400})
    page.set_default_timeout(120_000)
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)
    page.wait_for_selector("#answer p")
    yield page
    page.close()


def value(page: Page, quantity: str) -> float:
    return float(page.get_attribute(f'[data-quantity="{quantity}"]', "data-value") or "nan")


def test_a_change_of_a_control_changes_figures_and_address(shown: Page, address: str) -> None:
    before = value(shown, "step_seconds")
    shown.fill("#tp", "8")
    shown.wait_for_url("**tp8**")
    shown.fill("#dp", "4")
    shown.wait_for_url("**dp4,tp8,pp12**")
    shown.wait_for_function(f"document.querySelector('[data-quantity=step_seconds]').dataset.value != '{before!r}'")
    after = value(shown, "step_seconds")
    link = shown.url
    shown.goto("about:blank")
    shown.goto(link)
    shown.wait_for_selector("#answer p")
    assert shown.input_value("#tp") == "8"
    assert value(shown, "step_seconds") == after != before


def test_what_is_wrong_is_an_alert_and_the_page_stays(shown: Page) -> None:
    shown.fill("#tp", "5")
    shown.wait_for_selector('[role="alert"]')
    assert "does not divide" in shown.inner_text('[role="alert"]')
    shown.fill("#tp", "4")
    shown.wait_for_selector('[role="status"]')


def test_nothing_comes_from_the_network(shown: Page, requests: list[str], address: str) -> None:
    shown.wait_for_selector("#memory-picture rect")
    assert requests
    assert all(url.startswith((address, "data:", "blob:")) for url in requests)


def test_why_opens_by_the_keyboard_and_stays_open_with_new_numbers(shown: Page) -> None:
    button = shown.get_by_role("button", name="Why MFU?")
    button.focus()
    shown.keyboard.press("Enter")
    named, numbers = shown.locator("#why-mfu .formula").all()
    assert "÷ (seconds of a step" in named.inner_text()
    assert "÷ (108.7" in numbers.inner_text()
    assert "arXiv 2204.02311" in shown.locator("#why-mfu .source").inner_text()
    before = numbers.inner_text()
    shown.locator("#why-mfu summary").first.focus()
    shown.keyboard.press("Enter")
    assert "Source" in shown.locator("#why-mfu details[open] pre").first.inner_text()
    assert "suite." not in shown.inner_text("#why-mfu")
    shown.fill("#micro", "4")
    shown.wait_for_url("**micro4**")
    now = "document.querySelectorAll('#why-mfu .formula')[1].innerText"
    shown.wait_for_function(f"before => {now} != before", arg=before)
    assert shown.get_by_role("button", name="Why MFU?").get_attribute("aria-expanded") == "true"


def test_what_a_sum_adds_has_one_unit(shown: Page) -> None:
    for quantity, unit in (("peak_bytes", "GiB"), ("step_seconds", "s")):
        shown.locator(f"[aria-controls=why-{quantity}]").click()
        cells = [cell.inner_text() for cell in shown.locator(f"#why-{quantity} .numbers td").all()]
        assert len(cells) > 5
        assert {cell.split("\u00a0")[-1] for cell in cells} == {unit}


def test_accelerators_and_samples_change_layout_and_time(shown: Page) -> None:
    shown.fill("#gpus", "192")
    shown.wait_for_function("document.querySelector('#dp').value != '8'")
    sizes = [int(shown.input_value(f"#{axis}")) for axis in ("dp", "tp", "pp")]
    assert math.prod(sizes) == 192
    assert f"dp{sizes[0]},tp{sizes[1]},pp{sizes[2]}," in shown.url
    before = value(shown, "step_seconds")
    shown.fill("#batch", "1024")
    shown.wait_for_url("**batch=1024**")
    shown.wait_for_function(f"document.querySelector('[data-quantity=step_seconds]').dataset.value != '{before!r}'")
    assert 0.5 < value(shown, "step_seconds") / before < 0.6  # of 2,048 samples, and the pipeline's bubble stays


def test_a_part_is_worked_through_with_the_numbers_of_the_state(shown: Page) -> None:
    part = shown.locator("#traffic-part details.derived").first
    part.locator("summary").first.click()
    named, numbers = part.locator(".formula").all()
    assert named.inner_text().startswith("pp send = messages")
    before = numbers.inner_text()
    assert before.startswith("= 256 ")
    shown.fill("#micro", "4")
    shown.wait_for_url("**micro4**")
    shown.wait_for_function(f"document.querySelectorAll('#traffic-part .formula')[1].innerText != {before!r}")


def test_values_of_200_random_states_are_those_of_predict(shown: Page) -> None:
    """To 1e-9, in the page that the browser shows; or the same refusal."""
    chooser = random.Random(38)
    compared = refused = 0
    for _ in range(200):
        state = random_state(chooser)
        request = PredictionRequest(
            state.on, None, state.layout, None if state.network is None else state.network * 1e9 / 8, NO_PRICES, None
        )
        shown.evaluate(GO, address_of(state))
        refusal, rows = predicted(state.run, request)
        if refusal:
            assert refusal in shown.inner_text("#answer")
            refused += 1
            continue
        expected = {row.quantity: row.left for row in rows if is_whole(row)}
        found = shown.evaluate(READ)
        assert found
        for quantity, printed in found.items():
            assert float(printed) == pytest.approx(expected[quantity], rel=1e-9), (state, quantity)
            compared += 1
    assert compared > 1000
    assert refused > 5


# another address in the same page, as by its own links, and wait until it is drawn
GO = """async (query) => {
  const before = document.body.dataset.shown;
  history.pushState(null, "", query);
  window.dispatchEvent(new PopStateEvent("popstate"));
  while (document.body.dataset.shown === before) { await new Promise(requestAnimationFrame); }
}"""
READ = """() => Object.fromEntries([...document.querySelectorAll('#figures [data-quantity]')]
  .map((cell) => [cell.dataset.quantity, cell.dataset.value]))"""


def random_state(chooser: random.Random) -> ExploreState:
    run = chooser.choice(("bloom-176b", "gpt-neox-20b", "gpt2-124m", "mixtral-8x7b", "llama3.1-405b"))
    sizes = ",".join(f"{axis}{chooser.choice((1, 2, 4, 8))}" for axis in ("dp", "tp", "pp", "micro"))
    zero = chooser.choice(("zero0", "zero1,all-reduce", "zero1,reduce-scatter"))
    words = f"{sizes},{zero},recompute-{chooser.choice(('none', 'selective', 'full'))}"
    layout = complete_text(parse_layout(words, base=recorded_layout(run)))
    return ExploreState(
        run=run, layout=layout, on=chooser.choice((None, "h100-sxm")), network=chooser.choice((None, 1600.0))
    )


def predicted(run: str, request: PredictionRequest) -> tuple[str, list[Row]]:
    try:
        return "", predicted_run(run, request).rows
    except InputError as error:
        return in_controls(error.lines[0]), []


def is_whole(row: Row) -> bool:
    return row.rank is row.stage is row.axis is row.term is None and row.left is not None


def test_a_published_row_is_chosen_by_the_keyboard_alone(shown: Page) -> None:
    shown.evaluate(GO, "?run=korthikanti2022_table5:9&layout=")
    shown.wait_for_function("document.querySelector('#source').innerText.includes('selective recomputation')")
    assert "published" in shown.inner_text("#cards")
    field = shown.get_by_role("button", name="run or row")
    field.focus()
    assert field.get_attribute("tabindex") == "0"
    shown.keyboard.press("Enter")
    shown.wait_for_selector(".dash-options-list-option-checkbox:focus")  # after the search, which has it first
    focused = "document.activeElement.closest('.dash-options-list-option').innerText"
    before = shown.evaluate(focused)
    shown.keyboard.press("ArrowUp")
    shown.wait_for_function(f"before => {focused} != before", arg=before)
    shown.keyboard.press("Space")
    shown.wait_for_url("**?run=korthikanti2022_table5%3A8&**")


def test_a_layout_is_kept_and_exported(shown: Page) -> None:
    shown.click("#keep")
    shown.wait_for_selector("#answer p:nth-of-type(2)")
    assert "other=dp8,tp4,pp12" in shown.url
    shown.evaluate(GO, "?run=llama3.1-405b&layout=dp128,tp8,pp16,sp,zero1")
    shown.locator("#export").click()
    shown.get_by_role("option", name="megatron").click()
    shown.wait_for_function(
        "document.querySelector('#export-text').innerText.includes('--tensor-model-parallel-size 8')"
    )


def test_other_numbers_are_searched_when_asked_for_and_go_with_another_question(shown: Page) -> None:
    shown.click("#numbers-search")
    shown.wait_for_selector("#numbers-table tbody tr")
    run, state = reference_run("bloom-176b"), state_of_run("bloom-176b")
    question = question_of(run, machine_of(run, None, 384, None, None), ranks=384, fixed={}, global_batch=None)
    expected = other_numbers(question, tokens=run.recipe.tokens, prices=NO_PRICES)
    days = shown.eval_on_selector_all("[data-days]", "cells => cells.map((cell) => Number(cell.dataset.days))")
    assert days == pytest.approx([each.planned.training.days for each in expected], rel=1e-9)
    assert shown.locator("#numbers-pictures svg .asked").count() == 2
    shown.fill("#tp", "8")
    shown.wait_for_selector("#numbers-table tbody tr", state="detached")
    shown.evaluate(GO, address_of(state))
    shown.click("#numbers-search")
    shown.locator("#numbers-table a").first.click()
    shown.wait_for_function("document.body.dataset.shown && document.querySelector('#pp').value != '12'")


@pytest.mark.skipif(not AXE, reason="axe-core is not at AXE_CORE: npm, or no network")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "query",
    [
        "",
        "?run=bloom-176b&layout=dp8,tp4,pp12&other=dp8,tp8,pp6,zero1&price=2",
        "?run=bloom-176b&layout=tp5",
        "?run=llama2-70b&on=h100-sxm&layout=dp16,tp8,pp4,micro1",  # likely to fit
    ],
)
def test_axe_finds_nothing(browser: Browser, address: str, scheme: Any, query: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page.goto(address + query)
    page.wait_for_selector(SHOWN, state="attached")
    for button in page.locator(".whybutton").all()[:2]:
        button.click()
    page.click("#numbers-search")
    page.wait_for_selector("#numbers-words p")
    page.add_script_tag(path=AXE)
    violations = page.evaluate(VIOLATIONS)
    page.close()
    assert violations == []


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("explore") / "neox.html"
    path.write_text(offline_page("gpt-neox-20b", computed_grid("gpt-neox-20b", lambda *_: None, most=400)), "utf-8")
    return path.as_uri()


def test_the_file_shows_other_states_without_a_network(browser: Browser, file: str) -> None:
    page, asked, wrong = browser.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.goto(file)
    page.wait_for_selector(SHOWN, state="attached")
    state = state_of_run("gpt-neox-20b")
    assert float(value(page, "step_seconds")) == pytest.approx(sum(view(state, state.layout).terms.values()), rel=1e-6)
    page.select_option("#recompute", "none")
    assert "recompute=none" in page.url
    own = recorded_layout("gpt-neox-20b")
    layout = complete_text(msgspec.structs.replace(own, recomputation=Recomputation.NONE, checkpoint_layers=1))
    assert float(value(page, "step_seconds")) == pytest.approx(sum(view(state, layout).terms.values()), rel=1e-6)
    page.fill("#price", "2")
    assert value(page, "cost") == pytest.approx(2 * value(page, "accelerator_seconds") / 3600, rel=1e-9)
    page.click("#keep")
    assert page.locator("#answer p").count() == 2
    assert page.locator("#numbers-table tbody tr").count() > 4
    link = page.url
    page.close()
    again = browser.new_page()
    again.goto(link)
    again.wait_for_selector(SHOWN, state="attached")
    assert again.input_value("#recompute") == "none"
    assert again.locator("#answer p").count() == 2
    again.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == wrong == []


def test_the_file_says_what_is_outside_of_its_grid(browser: Browser, file: str) -> None:
    page = browser.new_page()
    page.goto(f"{file}#dp=7&tp=2")
    page.wait_for_selector(SHOWN, state="attached")
    assert "outside of the grid: dp 7: allowed are" in page.inner_text('[role="alert"]')
    page.select_option("#dp", "12")
    page.select_option("#pp", "4")
    page.select_option("#zero", "zero3")
    assert "outside of the grid: this combination was not computed" in page.inner_text('[role="alert"]')
    page.close()


@pytest.mark.skipif(not AXE, reason="axe-core is not at AXE_CORE: npm, or no network")
def test_axe_finds_nothing_in_the_file(browser: Browser, file: str) -> None:
    context = browser.new_context(bypass_csp=True, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(file)
    page.wait_for_selector(SHOWN, state="attached")
    page.evaluate("document.getElementById('controls-fold').open = true")
    page.add_script_tag(path=AXE)
    violations = page.evaluate(VIOLATIONS)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1")
    context.close()
    assert violations == []


# elements whose content is wider than they are: cut, or to be scrolled sideways
WIDE = """() => [...document.querySelectorAll(
    'section, .card, pre:not(#export-text), #controls-fold, #answer, #answer-more, td, th')]
  .filter((each) => each.clientWidth && each.scrollWidth > each.clientWidth + 1)
  .map((each) => [each.id, each.className, each.innerText])"""
# boxes of the form without any text
BLANK = """() => [...document.querySelectorAll('#controls button.dash-dropdown, #controls input[type][id]')]
  .filter((each) => !(each.innerText || each.value || each.placeholder || '').trim()).map((each) => each.id)"""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize(
    ("query", "scheme"),
    [
        ("", "light"),
        ("", "dark"),
        ("?run=deepseek-v3", "dark"),
        ("?run=mixtral-8x7b", "light"),
        ("?run=korthikanti2022_table5:9&layout=", "dark"),
        ("?layout=dp8,tp4,pp12&other=dp8,tp8,pp6,zero1&price=2", "light"),
    ],
)
def test_every_width_and_scheme_shows_all_without_sideways_scrolling(
    browser: Browser, address: str, query: str, scheme: Any, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(address + query)
    page.wait_for_selector(SHOWN, state="attached")
    page.wait_for_selector("#figures td")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1")
    assert page.evaluate(WIDE) == []
    page.evaluate("document.getElementById('controls-fold').open = true")
    assert page.evaluate(BLANK) == []
    page.evaluate("document.getElementById('controls-fold').open = window.innerWidth > 800")
    if query:
        page.close()
        return
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(18, 19, 23)") == (scheme == "dark")
    for name in ("answer", "cards", "figures", "memory-picture", "time", "passes", "traffic", "roofline-picture"):
        assert page.locator(f"#{name}").is_visible(), name
    page.close()
