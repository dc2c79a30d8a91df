"""The stored result of a dry run says what was counted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from reference_runs.accelerator import accelerator
from suite.metrics.comparison import Verdict
from suite.reproduce.dry_run.comparison import dry_run
from suite.reproduce.dry_run.plan import dry_plan
from suite.reproduce.dry_run.result import DIRECTORY, DryRunResult, result_of, store

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("warm_ranks")]


def test_a_result_reads_as_it_was_stored_and_has_the_peak_of_the_whole_step(tmp_path: Path) -> None:
    plan = dry_plan("gpt2-mini", "dp1,pp2,zero0,micro1", mini=False, results=tmp_path)
    run = dry_run(plan, lambda _: None)
    result = result_of(run, accelerator("a100-sxm-80gb"))
    path = store(result, tmp_path)
    assert path.parent == tmp_path / DIRECTORY
    assert msgspec.json.decode(path.read_bytes(), type=DryRunResult) == result
    assert result.verdict is Verdict.PASS
    assert (result.ranks, result.kinds) == (2, 2)
    assert result.executed < result.micro_batches == run.micro_batches
    assert result.peak.total == run.fullest.step.counts.peak_bytes
    assert result.peak.total >= max(moment.total for moment in result.history)
    assert result.board == ("a100-sxm-80gb", 80 * 2**30)
