"""A Slurm cluster for a file of tests; `nox -s slurm` names the files, which no other session collects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import slurm_cluster
from tests.support.slurm_cluster import SlurmCluster


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that every node sees; its path is short, because sockets lie in it."""
    if reason := slurm_cluster.why_not():
        pytest.skip(f"NOT RUN: {reason}")
    return tmp_path_factory.mktemp("slurm")


@pytest.fixture(scope="module")
def cluster(place: Path, request: pytest.FixtureRequest) -> Iterator[SlurmCluster]:
    """Four nodes, two below each of two switches, or as many as the module's NODES says."""
    with slurm_cluster.slurm_cluster(place, getattr(request.module, "NODES", 4)) as running:
        yield running
