"""Optimizers of a traced step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW, Muon, Optimizer

from suite.execute.measure.counters import stored
from suite.job.trace_job import OptimizerKernel

MakesOptimizer = Callable[[list[nn.Parameter]], Optimizer]


def optimizers(
    kind: OptimizerKernel, model: nn.Module, layers: Sequence[nn.Module], *, by_shard: bool = False
) -> list[Optimizer]:
    """The optimizers of the parameters that are trained, each of one optimizer.

    Args:
        layers: decoder layers, whose matrices Muon updates; without them it updates all matrices but embeddings.
        by_shard: whether FSDP2's shards are given to them as parameters of their own, where each element is updated by
            itself. The operators are the same, and DTensor does not look at thousands of specifications for each list.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def made(optimizer: MakesOptimizer) -> list[Optimizer]:
        shards = by_shard and any(isinstance(each, DTensor) for each in trained)
        return [_OfShards(trained, optimizer) if shards else optimizer(trained)]

    match kind:
        case OptimizerKernel.SGD:
            return made(partial(SGD, lr=1e-3, foreach=True))
        case OptimizerKernel.SGD_MOMENTUM:
            return made(partial(SGD, lr=1e-3, momentum=0.9, foreach=True))
        case OptimizerKernel.ADAMW_8BIT:
            return [_adamw_8bit(trained)]
        case OptimizerKernel.MUON:
            hidden = _hidden_matrices(model, layers)
            matrices = [parameter for parameter in trained if id(parameter) in hidden]
            others = [parameter for parameter in trained if id(parameter) not in hidden]
            of_others: list[Optimizer] = [AdamW(others, foreach=True)] if others else []
            return [Muon(matrices), *of_others] if matrices else of_others
        case _:
            fused = kind is OptimizerKernel.ADAMW_FUSED
            return made(partial(AdamW, fused=fused, foreach=not fused))


def _adamw_8bit(trained: Sequence[nn.Parameter]) -> Optimizer:
    """bitsandbytes' class, whose operators know what they return without memory.

    It takes no DTensor; torchao's takes FSDP2's shards and stores the same bytes of them, but computes them by
    torch.compile. So a shard is given to bitsandbytes' as a parameter of its own.
    """
    from bitsandbytes.optim import AdamW8bit

    return _OfShards(trained, AdamW8bit) if any(isinstance(each, DTensor) for each in trained) else AdamW8bit(trained)


class _OfShards(Optimizer):
    """Updates this rank's shards of parameters by another optimizer, which has the state."""

    def __init__(self, parameters: Sequence[nn.Parameter], kind: MakesOptimizer) -> None:
        super().__init__(parameters, {})
        self._shards = {parameter: nn.Parameter(stored(parameter.detach())) for parameter in parameters}
        self._optimizer = kind(list(self._shards.values()))

    def step(self, _closure: object = None) -> None:  # type: ignore[override]  # no closure is ever given
        """Update the shards."""
        for parameter, shard in self._shards.items():
            shard.grad = None if parameter.grad is None else stored(parameter.grad)
        self._optimizer.step()
        for parameter, shard in self._shards.items():
            shard.grad = None
            self.state[parameter] = self._optimizer.state[shard]


def _hidden_matrices(model: nn.Module, layers: Sequence[nn.Module]) -> set[int]:
    modules = list(layers) or [each for each in model.modules() if not list(each.children())]
    tables = (table for table in model.modules() if isinstance(table, nn.Embedding))
    left_out = {id(parameter) for table in tables for parameter in table.parameters()}
    matrices = (parameter for module in modules for parameter in module.parameters() if parameter.ndim == 2)
    return {id(parameter) for parameter in matrices} - left_out
