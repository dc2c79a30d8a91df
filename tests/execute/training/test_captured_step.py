"""Captured steps against plain ones. On a CPU a stand-in for CUDA's graphs keeps operators, and calls them again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from reference_runs.run import Precision
from suite.execute.parallel import parallelize as parallelize_module
from suite.execute.parallel.gradient_sums import GradientSums
from suite.execute.parallel.mesh import device_mesh
from suite.execute.parallel.parallelize import parallelize
from suite.execute.training.captured_step import CapturedSteps
from suite.execute.training.step import Steps
from suite.reproduce.plan import corpus_for, job_for
from tests.support.launches import FP32_WITHOUT_DROPOUT, TEXT, small_plan

CPU = torch.device("cpu")
WARM_UP, CAPTURED = 2, 3  # steps


class KeptOperators(TorchDispatchMode):
    """Calls of operators, which `replay` makes again, with results where the first ones are."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append(tree_map_only(torch.Tensor, torch.Tensor.detach, (func, args, kwargs or {}, result)))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, kept in self.calls:
            aliases = [returned.alias_info for returned in func._schema.returns]
            if any(alias is not None and not alias.is_write for alias in aliases):
                continue  # a view of what is replaced in place
            result = func(*args, **kwargs)
            for to, of in zip(tensors(kept), tensors(result), strict=True):
                to.copy_(of)

    def reset(self) -> None:
        self.calls.clear()


def tensors(result: Any) -> list[torch.Tensor]:
    values = result if isinstance(result, (tuple, list)) else [result]
    return [value for value in values if isinstance(value, torch.Tensor)]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[KeptOperators]:
    made: list[KeptOperators] = []

    def new() -> KeptOperators:
        made.append(KeptOperators())
        return made[-1]

    @contextmanager
    def capture(graph: KeptOperators, **_options: Any) -> Iterator[None]:
        with graph:
            yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", new)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    return made


def losses(kind: type[Steps], precision: Precision, directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    planned = small_plan(ranks=1, recipe={**FP32_WITHOUT_DROPOUT, "precision": precision})
    job = job_for(planned, corpus_for(planned, TEXT), str(directory))
    if precision is Precision.BF16:  # as compiled blocks on a GPU
        monkeypatch.setattr(parallelize_module, "sums_in_blocks", lambda *_: True)
    mesh = device_mesh(job.layout, "cpu")
    steps = kind(job, parallelize(job, mesh=mesh, device=CPU), mesh, CPU)
    assert (steps.training.gradient_sums is None) == (precision is Precision.FP32)
    found = []
    for number in range(WARM_UP + CAPTURED):
        if number == WARM_UP:
            steps.before_timed()
        found += [outcome.loss for outcome in steps.update(steps.forward_and_backward())]
    assert steps.micro_batches > 1
    steps.finish(lambda _: None)
    if steps.training.gradient_sums is not None:
        assert isinstance(steps.training.gradient_sums, GradientSums)
        assert steps.training.gradient_sums._kept is None
    return found


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_replayed_micro_batches_train_as_plain_ones(
    precision: Precision, graphs: list[KeptOperators], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = losses(Steps, precision, tmp_path, monkeypatch)
    assert not graphs
    captured = losses(CapturedSteps, precision, tmp_path, monkeypatch)
    assert captured == plain  # the same operators of the same numbers in the same order
    assert len(set(plain)) == len(plain)
    forward, backward = graphs
    assert forward.replays == backward.replays > CAPTURED
