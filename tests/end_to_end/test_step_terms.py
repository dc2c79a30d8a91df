"""The terms of a step on real ranks: they add up, and time that was put somewhere is found there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reference_runs.layout import Layout, parse_layout
from suite.job.events import Status
from suite.job.trace_rows import ROW, trace_rows
from suite.job.training_job import LEAST_PROFILED, LEAST_STEPS
from suite.metrics.figures import Quantity, StepTerm
from suite.paths import ROOT
from suite.reproduce.plan import Plan
from suite.reproduce.reproduce import LaunchResult
from tests.support.launches import FP32_WITHOUT_DROPOUT, failed_rows, launched, patch_processes, small_plan

pytestmark = pytest.mark.ranks
EXACT = {"parameters", "model_flop", "hardware_flop", "weight_bytes", "gradient_bytes", "optimizer_bytes"}

NAMES = [term.value for term in StepTerm]


def profiled_plan(**more: Any) -> Plan:
    """The small plan with three timed steps and two profiled ones."""
    return msgspec.structs.replace(small_plan(**more), steps=LEAST_PROFILED + 2)


def terms_of(rows: list[dict[str, Any]], rank: int | None = None) -> dict[str, float]:
    """Term -> measured seconds, of the job or of a rank, in the order of the rows."""
    return {
        row["term"]: row["right"]
        for row in rows
        if row["quantity"] == "step_seconds" and row["term"] in NAMES and row["rank"] == rank
    }


def figures(result: LaunchResult) -> list[dict[str, Any]]:
    assert result.status is Status.OK, result.message
    rows: list[dict[str, Any]] = msgspec.to_builtins(result.rows)
    return rows


def check(rows: list[dict[str, Any]], *, ranks: int) -> None:
    """The job's terms add up to its step, none is negative, and they stand below it in their order."""
    (step,) = [row for row in rows if row["quantity"] == "step_seconds" and row["term"] is None]
    reported = terms_of(rows)
    assert list(reported) == NAMES
    # a sum of 9 doubles, each rounded to 1.1e-16 of the whole
    assert sum(reported.values()) == pytest.approx(step["right"], rel=9 * 1.2e-16, abs=0)
    for rank in [None, *range(ranks)]:
        own = terms_of(rows, rank)
        assert min(seconds for term, seconds in own.items() if term != "unexplained") >= 0
        assert min(own["forward"], own["backward"], own["optimizer"]) > 0
    place = rows.index(step)
    assert [row["term"] for row in rows[place + 1 : place + 1 + len(NAMES)]] == NAMES


@pytest.mark.parametrize(("name", "ranks"), [("gpt2-mini", 1), pytest.param("opt-mini", 2, marks=pytest.mark.rare)])
@pytest.mark.always
def test_the_terms_of_a_miniature_are_all_of_its_step(name: str, ranks: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "suite", "reproduce", name, "--ranks", str(ranks), "--steps", str(LEAST_PROFILED)]
    done = subprocess.run(
        [*command, "--results", str(tmp_path), "--json"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert (reported["run"], reported["status"], reported["verdict"]) == (name, "ok", "pass")
    exact = [row for row in reported["figures"] if row["tolerance"] == 0]
    assert all(row["left"] == row["right"] for row in exact)
    traffic = {"payload_bytes", "messages"} if ranks > 1 else set()
    assert {row["quantity"] for row in exact} == EXACT | traffic
    check(reported["figures"], ranks=ranks)
    assert (terms_of(reported["figures"])["exposed communication"] > 0) == (ranks > 1)
    assert terms_of(reported["figures"])["bubble"] == 0
    end = json.loads(Path(reported["record"].replace("begin", "end")).read_text())
    kinds = [step["kind"] for step in end["ranks"][0]["steps"]]
    assert kinds == ["warm-up"] * 2 + ["counted"] * 3 + ["timed"] + ["profiled"] * 2


@pytest.mark.rare
def test_the_terms_of_compiled_blocks_are_all_of_their_step(tmp_path: Path) -> None:
    check(figures(launched(profiled_plan(ranks=1, compiled=True), tmp_path)), ranks=1)


@pytest.mark.rare
def test_too_few_steps_to_profile_any_have_no_terms(tmp_path: Path) -> None:
    plan = msgspec.structs.replace(small_plan(ranks=1), steps=LEAST_PROFILED - 1)
    assert plan.steps > LEAST_STEPS
    assert terms_of(figures(launched(plan, tmp_path))) == {}


PUT_SOMEWHERE = """
import os, sys, time
if "RANK" in os.environ and any("suite.execute" in word for word in sys.orig_argv):
    import torch
    from suite.execute.data import token_stream
    from suite.execute.parallel import sharded_adamw
    load = token_stream.TokenStream.micro_batch
    def late(self, first, samples):
        time.sleep(LOADING if os.environ["RANK"] == "1" else 0)
        return load(self, first, samples)
    token_stream.TokenStream.micro_batch = late
    update = sharded_adamw.ShardedAdamW.step
    big = torch.ones(100_000)
    def longer(self, *args):
        end = time.perf_counter() + OPTIMIZER
        while time.perf_counter() < end:
            for _ in range(10):
                torch.sin(big)
        time.sleep(OVERHEAD)
        update(self, *args)
    sharded_adamw.ShardedAdamW.step = longer
"""


@pytest.mark.rare
def test_time_that_was_put_somewhere_is_found_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loading, optimizer, overhead = 0.06, 0.08, 0.10
    patch = f"LOADING, OPTIMIZER, OVERHEAD = {loading}, {optimizer}, {overhead}\n{PUT_SOMEWHERE}"
    patch_processes(patch, tmp_path, monkeypatch)
    plan = profiled_plan(ranks=2)
    loading *= plan.recipe.global_batch // (2 * plan.layout.micro_batch)
    rows = figures(launched(plan, tmp_path / "results"))
    check(rows, ranks=2)
    first, second = terms_of(rows, 0), terms_of(rows, 1)
    # The least is what was put there; 5 % below it, because a phase's part of the median step is its mean share of
    # steps. The most is a tenth of what was put elsewhere: these ranks' own steps take a few hundredths of a second.
    assert second["data loading"] >= 0.95 * loading
    assert first["data loading"] < 0.1 * loading
    assert first["exposed communication"] >= 0.8 * loading  # it loads nothing and waits in the backward pass
    assert second["exposed communication"] < 0.5 * loading
    for own in (first, second):
        assert own["optimizer"] >= 0.8 * optimizer
        assert own["launch and host overhead"] >= 0.9 * overhead


SLOW_LAST_STAGE = """
import os, sys, time
if os.environ.get("RANK") == "1" and any("suite.execute" in word for word in sys.orig_argv):
    from suite.execute.model import decoder
    forward = decoder.Decoder.forward
    def slow(self, *args, **more):
        time.sleep(0.05)
        return forward(self, *args, **more)
    decoder.Decoder.forward = slow
"""


@pytest.mark.rare
def test_a_stage_that_waits_for_a_slow_one_has_a_bubble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch_processes(SLOW_LAST_STAGE, tmp_path, monkeypatch)
    plan = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT)
    recipe = msgspec.structs.replace(plan.recipe, global_batch=4)
    layout = parse_layout("pp2,1f1b", base=Layout(micro_batch=1))
    plan = msgspec.structs.replace(plan, recipe=recipe, layout=layout, steps=LEAST_PROFILED + 2)
    rows = figures(launched(plan, tmp_path / "results"))
    check(rows, ranks=2)
    slept = 4 * 0.05
    assert terms_of(rows, 0)["bubble"] >= 0.9 * slept
    assert terms_of(rows, 1)["bubble"] < 0.5 * slept
    assert terms_of(rows, 1)["launch and host overhead"] >= 0.9 * slept
    assert [row["right"] > 0 for row in rows if row["quantity"] == Quantity.BUBBLE_FRACTION] == [True]


BROKEN = """
import os, sys
if os.environ.get("RANK") == "1" and any("suite.execute" in word for word in sys.orig_argv):
    from suite.execute.measure import profiler
    class Broken(profiler.profile):
        def METHOD(self, *args):
            raise RuntimeError("out of order")
    profiler.profile = Broken
"""


@pytest.mark.rare
@pytest.mark.parametrize(
    ("method", "why", "terms"),
    [
        ("start", "the profiler did not start: RuntimeError: out of order", []),
        ("export_chrome_trace", "the trace was not written: RuntimeError: out of order", NAMES),
    ],
)
def test_a_profiler_that_fails_on_one_rank_costs_the_terms_or_the_trace_and_not_the_run(
    method: str, why: str, terms: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_processes(BROKEN.replace("METHOD", method), tmp_path, monkeypatch)
    (tmp_path / "traces").mkdir()
    plan = msgspec.structs.replace(profiled_plan(ranks=2), trace=tmp_path / "traces" / "trace.json")
    result = launched(plan, tmp_path / "results")
    rows = figures(result)
    assert failed_rows(result) == set()
    assert list(terms_of(rows)) == terms
    (step,) = [row for row in rows if row["quantity"] == "step_seconds" and row["term"] is None]
    assert step["why"].endswith(f"; {why}")
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["trace.json"]


@pytest.mark.rare
def test_a_trace_changes_no_loss_and_has_every_phase_of_every_profiled_step(tmp_path: Path) -> None:
    plan = profiled_plan(ranks=2)
    (tmp_path / "traces").mkdir()
    traced = msgspec.structs.replace(plan, trace=tmp_path / "traces" / "a trace.json")
    losses = launched(plan, tmp_path / "results").losses
    assert launched(traced, tmp_path / "results").losses == losses
    assert {path.name for path in (tmp_path / "traces").iterdir()} == {"a trace.json", "a trace.rank1.json"}
    for path in (tmp_path / "traces").iterdir():
        events = json.loads(path.read_text())["traceEvents"]
        ranges = [event["name"] for event in events if event.get("cat") == "user_annotation"]
        micro_batches = plan.recipe.global_batch // (2 * plan.layout.micro_batch)
        assert {name: ranges.count(f"step: {name}") for name in ("data loading", "forward", "backward", "update")} == {
            "data loading": 2 * micro_batches,
            "forward": 2 * micro_batches,
            "backward": 2 * micro_batches,
            "update": 2,
        }
        assert any(event["name"] == "aten::mm" for event in events)
        assert any(event["name"] == "gloo:all_reduce" for event in events)


@pytest.mark.rare
def test_messages_of_a_pipeline_in_a_trace_outlast_no_call_on_their_row(tmp_path: Path) -> None:
    plan = profiled_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT)
    layout, path = parse_layout("pp2,1f1b", base=Layout(micro_batch=1)), tmp_path / "trace.json"
    launched(msgspec.structs.replace(plan, layout=layout, trace=path), tmp_path / "results")
    events = json.loads(path.read_text())["traceEvents"]
    messages = [event for event in events if event["name"].startswith("gloo:")]
    assert {event["name"] for event in messages if event["tid"] > ROW} == {"gloo:send", "gloo:recv"}
    assert trace_rows(events) == events
