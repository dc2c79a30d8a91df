"""The page of a diagnosis: what is drawn is what was measured, and nothing of it comes from outside."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reference_runs.accelerator import accelerator
from reference_runs.training_logs.training_log import PrintedStep
from suite.__main__ import main
from suite.predict.diagnosis.diagnosis import RunDiagnosis, RunOutcome
from suite.predict.diagnosis.pace import pace
from suite.report.html.diagnosis import MOST_POINTS, WHOLE, steps_plot
from tests.support.gpu_traces import gpu_steps, with_shapes

pytest.importorskip("plotly", reason="plotly is not installed")
pytest.importorskip("jinja2", reason="jinja2 is not installed")
GPT2 = ("--run", "gpt2-124m", "--on", "a100-sxm-80gb", "--gpus", "8", "--batch", "480", "--layout", "dp8,micro12")


def written(path: Path, *words: object) -> tuple[str, dict[str, Any]]:
    """The page's text without scripts, and its pictures."""
    page = path / "page.html"
    main(["diagnose", *map(str, words), "--html", str(page), "--force", "--json"])
    text = page.read_text(encoding="utf-8")
    plots = re.search(r'<script type="application/json" id="plots">(.*?)</script>', text, re.DOTALL)
    assert plots
    return re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL), json.loads(plots[1])


def test_a_log_is_one_bar_beside_the_predicted_terms_and_its_stalls_are_marked(tmp_path: Path) -> None:
    times = [3000.0, 600, 600] + ([600.0] * 9 + [2000.0]) * 3
    log = tmp_path / "<b>train.log"
    log.write_text("\n".join(f"iter {number}: loss 4.0, time {each}ms" for number, each in enumerate(times)))
    text, plots = written(tmp_path, log, *GPT2)
    assert "&lt;b&gt;train.log" in text
    assert "<b>train" not in text
    assert "http" not in re.sub(r"http-equiv", "", text)
    assert sorted(plots) == ["steps-plot", "terms-plot"]
    bars = {trace["name"]: trace for trace in plots["terms-plot"]["traces"]}
    assert bars[WHOLE]["x"] == [0.6, 0]
    points = {trace["name"]: trace["y"] for trace in plots["steps-plot"]["traces"]}
    assert points["left out"] == [3.0, 0.6, 0.6]
    assert points["longer than 1.5 times the median"] == [2.0] * 3
    assert points["step"] == [0.6] * 27


def test_the_terms_of_a_trace_add_up_to_both_steps_and_its_products_lie_below_the_roof(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = with_shapes(gpu_steps(), 4096, 4096, 1024).write(tmp_path / "trace.json")
    _, plots = written(tmp_path, trace, *GPT2)
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])["diagnosis"]
    sides = [trace["x"] for trace in plots["terms-plot"]["traces"]]
    assert [sum(side) for side in zip(*sides, strict=True)] == pytest.approx(
        [answer["pace"]["seconds"], answer["predicted_seconds"]], rel=1e-3
    )
    lanes = {trace["name"]: sum(trace["x"]) for trace in plots["timeline-plot"]["traces"]}
    assert lanes["matrix multiplications"] == pytest.approx(8 * 3 * 2 * 0.3, rel=0.01)
    (row,) = plots["roofline-trace"]["rows"]
    flop, peak = 2 * 4096**2 * 1024 / 300e-6, accelerator("a100-sxm-80gb").peak_flop_per_second["bf16"]
    assert row[1] == "4096 x 4096 x 1024 bf16, 192 times"
    assert float(row[3].replace(",", "")) == pytest.approx(flop / 1e9, rel=1e-3)
    assert row[5] == f"{flop / peak:.0%}"


def test_without_shapes_or_accelerator_the_page_says_why_there_is_no_roofline(tmp_path: Path) -> None:
    plain = gpu_steps().write(tmp_path / "trace.json")
    assert "does not say the shapes" in written(tmp_path, plain)[0]
    shaped = with_shapes(gpu_steps(), 512, 512, 512).write(tmp_path / "trace.json")
    assert "--on says which accelerator" in written(tmp_path, shaped)[0]


def test_of_many_steps_some_are_drawn_and_every_stall() -> None:
    seconds = [2.0 if number % 1000 == 999 else 1.0 for number in range(10 * MOST_POINTS)]
    steps = [PrintedStep(number=float(number), seconds=each) for number, each in enumerate(seconds)]
    answer = RunDiagnosis(outcome=RunOutcome.NOT_PREDICTED, pace=pace(steps), counted=[], causes=[], notes=[])
    plot = steps_plot(steps, answer)
    assert plot is not None
    counts = {trace["name"]: len(trace["x"]) for trace in plot.traces}
    assert counts["longer than 1.5 times the median"] == 20
    assert MOST_POINTS / 2 < counts["step"] <= MOST_POINTS
    assert "Every 10th ordinary step is drawn" in plot.says
