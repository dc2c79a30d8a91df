"""Nodes of a scheduler, asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.launch import slurm
from suite.reproduce.request import Request
from suite.reproduce.scheduled import scheduled, scratch


@pytest.fixture(autouse=True)
def four_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "why_not", lambda: None)
    monkeypatch.setattr(slurm, "cluster_nodes", lambda *_: [slurm.SlurmNode(f"n{n}", "idle") for n in range(4)])
    monkeypatch.setattr(slurm, "expanded", lambda names: names.split(","))


def test_ranks_are_nodes_times_those_of_each(tmp_path):
    request, nodes = scheduled(Request(name="x", engine="slurm", nodes=2, ranks_per_node=4, results=tmp_path))
    assert request.ranks == 8
    assert nodes is not None
    assert (nodes.hosts.nodes, nodes.hosts.ranks_of_node, nodes.hosts.elsewhere) == (2, 4, True)


REFUSED = [
    ({"nodes": 2}, "--nodes: nodes without an engine"),
    ({"ranks_per_node": 2}, "--ranks-per-node"),
    ({"engine": "mpi"}, "allowed: slurm"),
    ({"engine": "slurm", "nodes": 9}, "at most 4"),
    ({"engine": "slurm", "nodes": 2, "ranks_per_node": -1}, "--ranks-per-node"),
    ({"engine": "slurm", "nodes": 0, "ranks_per_node": 1}, "--nodes"),
    ({"engine": "slurm", "nodes": 2, "ranks": 3}, "2 nodes of 1 ranks are 2 ranks"),
    ({"engine": "slurm", "nodes": 2, "node_list": "n1"}, "--on"),
]


def test_what_contradicts_is_refused(not_refused):
    assert not_refused(lambda **fields: scheduled(Request(name="x", **fields)), REFUSED) == []


def test_scratch_files_of_several_nodes_lie_where_all_see_them(tmp_path):
    with scratch(tmp_path, shared=True) as shared, scratch(tmp_path, shared=False) as own:
        assert Path(shared).is_relative_to(tmp_path)
        assert not Path(own).is_relative_to(tmp_path)
