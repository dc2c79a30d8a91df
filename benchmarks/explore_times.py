"""How long the page with controls takes to answer a change: at the server, and in a browser until it is drawn.

Wall and processor time of 200 random changes of a control, each; the processor time does not depend on what else runs.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import statistics
import threading
import time
from typing import Any

import msgspec
import psutil

from suite.report.explore.controls import OTHERS
from suite.report.explore.page import PageScope, answer, application
from suite.report.explore.state import address, controls_of
from suite.report.explore.view import recorded_layout, state_of_run

RUNS = ("bloom-176b", "gpt-neox-20b", "llama3.1-405b", "mixtral-8x7b", "deepseek-v3", "korthikanti2022_table5:9")
SIZES = {"dp": (4, 8, 16, 64), "tp": (1, 2, 4, 8), "pp": (1, 2, 4, 8, 12, 16), "micro": (1, 2, 4, 8)}
# sets a field as a person does, and waits until what follows is painted
CHANGE = """async ([id, value]) => {
  const field = document.getElementById(id), before = document.body.dataset.shown;
  const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
  const begun = performance.now();
  set.call(field, String(value));
  field.dispatchEvent(new Event("input", { bubbles: true }));
  while (document.body.dataset.shown === before) { await new Promise((go) => setTimeout(go)); }
  await new Promise(requestAnimationFrame);
  return performance.now() - begun;
}"""


def changes(seed: int, number: int) -> list[tuple[str, str, int]]:
    """Run, control and value of each change."""
    chooser = random.Random(seed)
    made = []
    for index in range(number):
        control = chooser.choice(list(SIZES))
        made.append((RUNS[index * len(RUNS) // number], control, chooser.choice(SIZES[control])))
    return made


def at_the_server(asked: list[tuple[str, str, int]]) -> tuple[list[float], list[float]]:
    """Seconds of wall and of processor of each change."""
    wall, processor = [], []
    for run, control, value in asked:
        given: dict[str, Any] = {**dict.fromkeys(OTHERS), "run": run, **controls_of(recorded_layout(run))}
        given |= {"on": "h100-sxm", "network": 3200, control: value}
        begun, spent = time.perf_counter(), time.process_time()
        answer("", "runs", given, control, PageScope(state_of_run(run)))
        wall.append(time.perf_counter() - begun)
        processor.append(time.process_time() - spent)
    return wall, processor


def in_the_browser(asked: list[tuple[str, str, int]], port: int) -> tuple[list[float], list[float]]:
    """The same until the page is drawn; processor time of server and browser together."""
    from playwright.sync_api import sync_playwright

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = application(PageScope(state_of_run(RUNS[0]))).run
    threading.Thread(target=server, kwargs={"port": port, "debug": False}, daemon=True).start()
    wall, processor = [], []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.set_default_timeout(120_000)
        shown = None
        for run, control, value in asked:
            if run != shown:
                state = msgspec.structs.replace(state_of_run(run), on="h100-sxm", network=3200.0)
                page.goto(f"http://127.0.0.1:{port}/{address(state)}")
                page.wait_for_function("document.body.dataset.shown")
                page.wait_for_timeout(1000)
                shown = run
            if page.input_value(f"#{control}") == str(value):
                continue
            spent = _processor_seconds()
            wall.append(page.evaluate(CHANGE, [control, value]) / 1e3)
            processor.append(_processor_seconds() - spent)
        browser.close()
    return wall, processor


def _processor_seconds() -> float:
    own = psutil.Process()
    found = 0.0
    for each in (own, *own.children(recursive=True)):
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        found += times.user + times.system
    return found


def _printed(name: str, measured: tuple[list[float], list[float]]) -> str:
    words = []
    for what, seconds in zip(("wall", "processor"), measured, strict=True):
        share = statistics.quantiles(seconds, n=20)
        middle = 1e3 * statistics.median(seconds)
        words.append(f"{what} median {middle:.0f} ms, 95th percentile {1e3 * share[-1]:.0f} ms")
    return f"{name}, {len(measured[0])} changes: {'; '.join(words)}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--port", type=int, default=8059)
    arguments = parser.parse_args()
    asked = changes(38, arguments.changes)
    print(f"load before: {psutil.getloadavg()[0]:.1f}", flush=True)
    print(_printed("server", at_the_server(asked)), flush=True)
    print(_printed("browser", in_the_browser(asked, arguments.port)))
    print(f"load after: {psutil.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
