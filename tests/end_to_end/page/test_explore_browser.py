"""The page with controls in a real browser."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("dash")

from playwright.sync_api import Browser, Page, sync_playwright

from suite.paths import ROOT

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
START_SECONDS = 60

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def requests() -> list[str]:
    return []


@pytest.fixture
def shown(browser: Browser, address: str, requests: list[str]) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1280, "height": 1400})
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
    shown.wait_for_selector("#memory-picture .plot-container")
    assert requests
    assert all(url.startswith((address, "data:", "blob:")) for url in requests)


def test_a_formula_opens_by_the_keyboard(shown: Page) -> None:
    summary = shown.locator("#why summary").first
    summary.focus()
    shown.keyboard.press("Enter")
    assert shown.locator("#why details[open] pre").first.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_width_and_scheme_shows_all_without_sideways_scrolling(
    browser: Browser, address: str, scheme: Any, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(address)
    page.wait_for_selector("#memory-picture .plot-container")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1")
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(18, 19, 23)") == (scheme == "dark")
    for name in ("#answer", "#figures", "#memory-picture", "#time-picture", "#traffic", "#why"):
        assert page.locator(name).is_visible()
    page.close()
