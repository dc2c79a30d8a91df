"""A dry run refuses what it cannot execute."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from reference_runs.errors import InputError
from suite.reproduce.dry_run.plan import check_without_memory, dry_plan


def test_rows_that_expert_parallel_ranks_cannot_share_evenly_are_refused():
    workload = dry_plan("deepseek-v3-mini", "ep4,zero0", mini=False, results=Path("results")).workload
    check_without_memory(workload, "--layout")
    architecture = msgspec.structs.replace(workload.architecture, sequence=63, experts_per_token=2)
    with pytest.raises(InputError, match="126 rows of a sample over ep4"):
        check_without_memory(workload._replace(architecture=architecture), "--layout")


def test_steps_that_overlap_are_refused_and_every_schedule_that_flushes_is_allowed():
    with pytest.raises(InputError, match="overlap, allowed: gpipe, 1f1b, zero-bubble, zbv, dualpipev$"):
        dry_plan("gpt2-mini", "pp2,pipedream", mini=False, results=Path("results"))
    for layout in ("pp2,zero-bubble,micro1", "pp2,zbv,micro1", "pp2,dualpipev,micro1"):
        assert dry_plan("gpt2-mini", layout, mini=False, results=Path("results"))
