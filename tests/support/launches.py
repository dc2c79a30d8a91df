"""Small launches for tests: a plan of a few thousand parameters, real text, real ranks."""

from __future__ import annotations

import _pydecimal
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.miniature import miniature
from reference_runs.run import Precision
from suite.job.corpus import Corpus
from suite.job.events import Event, Status
from suite.job.probe_job import ProbeJob
from suite.metrics.comparison import Row, Verdict
from suite.paths import ROOT
from suite.reproduce.plan import Plan, corpus_for
from suite.reproduce.reproduce import LaunchResult, reproduce

STEPS = 6
CORPUS = Corpus(
    source="none", sha256="0" * 64, text_bytes=1, files=1, vocabulary=600, tokens=10**6, tokens_file="/none"
)
TEXT = Path(_pydecimal.__file__)  # 0.2 MB: where there is no cache, all of the standard library takes 20 s
BATCH = 8  # 4 micro-batches of one rank: an ordinary one, the last one, and some to add up


WHOLE_BATCHES: dict[str, Any] = {
    "batch_rampup_start": None,
    "batch_rampup_increment": None,
    "batch_rampup_samples": None,
}


def small_plan(
    *, ranks: int, recipe: dict[str, Any] | None = None, layout: dict[str, Any] | None = None, compiled: bool = False
) -> Plan:
    """BLOOM's block and recipe with two layers of 48: about 60,000 parameters; all batches are whole ones."""
    mini = miniature(reference_run("bloom-176b"), "cpu", ranks=ranks, steps=STEPS)
    architecture = msgspec.structs.replace(
        mini.architecture,
        layers=2,
        hidden=48,
        heads=3,
        head_dim=16,
        kv_heads=3,
        ffn_hidden=192,
        vocabulary=600,
        padded_vocabulary=608,
        sequence=32,
    )
    return Plan(
        name="small",
        architecture=architecture,
        recipe=msgspec.structs.replace(mini.recipe, **({"global_batch": BATCH} | WHOLE_BATCHES | (recipe or {}))),
        layout=msgspec.structs.replace(mini.layout, **({"accumulation": None} | (layout or {}))),
        device="cpu",
        compiled=compiled,
        steps=STEPS,
        seed=3,
    )


def probe_job(directory: Path, **changes: Any) -> ProbeJob:
    """A probe of one rank: nothing to repeat, exchange or soak unless `changes` say so."""
    plan = small_plan(ranks=1)
    usual: dict[str, Any] = {
        "directory": str(directory),
        "device": "cpu",
        "ranks": 1,
        "threads": 1,
        "architecture": plan.architecture,
        "recipe": plan.recipe,
        "seed": 5,
        "replays": 0,
        "replay_steps": 0,
        "samples": 0,
        "exchanges": 0,
        "exchange_seconds": 0.0,
        "exchange_bytes": 0,
        "soak_seconds": 0.0,
        "soak_bytes": 1 << 16,
        "product_seconds": 0.0,
        "product_size": 0,
        "collective_timeout_seconds": 10.0,
    }
    return ProbeJob(**(usual | changes))


FP32_WITHOUT_DROPOUT: dict[str, Any] = {
    "precision": Precision.FP32,
    "embedding_dropout": 0.0,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}


def launch_result(**changes: Any) -> LaunchResult:
    """A launch of bloom-mini that ended well, without figures."""
    lists: dict[str, Any] = {name: [] for name in ("rows", "losses", "loss_scales", "skipped")}
    texts = {"run": "bloom-mini", "message": "", "record": "record", "arithmetic": ""}
    return LaunchResult(**({"status": Status.OK, "verdict": Verdict.PASS} | lists | texts | changes))


def launched(plan: Plan, results: Path) -> LaunchResult:
    """The plan executed once on real ranks and compared with its prediction."""

    def ignore(rank: int, event: Event) -> None:
        pass

    return reproduce(plan, corpus_for(plan, TEXT), results, ignore)


def failed_rows(result: LaunchResult) -> set[tuple[str, str | None]]:
    """Quantity and operation of every row that failed, for the maximum over ranks."""
    return {(row.quantity, row.operation) for row in result.rows if row.verdict is Verdict.FAIL and row.rank is None}


def exact_rows(rows: list[Row]) -> list[Row]:
    """Rows that compare with ==."""
    return [row for row in rows if row.tolerance == 0]


def patch_processes(code: str, directory: Path, patch: pytest.MonkeyPatch) -> None:
    """Make every Python process that is started from now on begin with this code, which lies in the directory."""
    (directory / "sitecustomize.py").write_text(code)
    patch.setenv("PYTHONPATH", os.pathsep.join([str(directory), str(ROOT)]))
