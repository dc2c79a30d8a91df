"""1-bit Adam on fp32 masters of the stored weights, one of each weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from reference_runs.run import Optimizer, Recipe
from suite.execute.optim.master_weights import MasterWeights, master_weights
from suite.execute.parallel.one_bit import OneBitAdam, Renewal
from suite.execute.precision import WeightGroup, stored_weights


@dataclass(frozen=True)
class OneBitMasters:
    """1-bit Adam, as a training step uses it.

    Args:
        leaves: that have the gradients, in the order of the masters.
        adam: the optimizer of the masters.
    """

    leaves: list[nn.Parameter]
    masters: MasterWeights
    adam: OneBitAdam

    @property
    def gradients_differ(self) -> bool:
        """Whether each rank keeps its own gradient: it is no longer averaged before the update."""
        return self.adam.compresses

    def step(self, learning_rate: float, gradient_factor: float | Tensor = 1.0) -> None:
        """One update from the leaves' gradients times `gradient_factor`.

        Raises:
            FloatingPointError: a momentum is not finite on some rank, though all gradients are.
        """
        gradients = [leaf.grad for leaf in self.leaves if leaf.grad is not None]
        assert len(gradients) == len(self.leaves)
        self.masters.update(learning_rate, gradients, gradient_factor)
        if self.adam.skipped:
            raise FloatingPointError("a momentum's squares are beyond fp32 on some rank")

    @property
    def state_tensors(self) -> list[Tensor]:
        """Tensors kept from step to step on this rank: the state of `MasterWeights`, and the errors."""
        return [*self.masters.state_tensors, *self.adam.error_tensors]


def one_bit_masters(
    groups: list[WeightGroup],
    names: Mapping[int, str],
    modules: list[nn.Module],
    recipe: Recipe,
    *,
    exact_steps: int,
    renewal: bool,
    process_group: dist.ProcessGroup,
) -> OneBitMasters:
    """The optimizer of one rank among the ranks of `process_group`, which all hold the same weights.

    The matrices of the layers are compressed. Biases and norms are not, nor are the tables outside the layers: rows of
    rare tokens have small second moments, and one bit gives them all the same momentum.

    Args:
        names: id of a leaf -> its name, which says which layer it belongs to.
        modules: every DistributedDataParallel of them averages gradients during the warm-up alone.
        renewal: of the second moment, at every doubling of the exact steps.
    """
    local_groups = [(group.weight_decay, stored_weights(group)) for group in groups]
    leaves = [leaf for group in groups for leaf in group.leaves]
    named = iter([names[id(leaf)] for leaf in leaves])

    def one_bit_adam(settings: list[dict[str, object]]) -> OneBitAdam:
        divided: list[dict[str, object]] = []
        for group in settings:
            masters = group["params"]
            assert isinstance(masters, list)
            pairs = [(next(named), master) for master in masters]
            layers = [pair for pair in pairs if pair[0].startswith("blocks.")]
            tables = [pair for pair in pairs if not pair[0].startswith("blocks.")]
            for members, compressed in ((layers, None), (tables, False)):
                divided += [group | {"params": members, "compressed": compressed}] if members else []
        return OneBitAdam(
            divided,
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.epsilon,
            warmup_steps=exact_steps,
            renewal=Renewal() if renewal else None,
            decoupled_weight_decay=recipe.optimizer is Optimizer.ADAMW,
            process_group=process_group,
            fused=True,
        )

    masters = master_weights(local_groups, recipe, make=one_bit_adam)
    assert isinstance(masters.optimizer, OneBitAdam)
    for module in modules:
        if isinstance(module, DistributedDataParallel):
            masters.optimizer.average_gradients_of(module)
    return OneBitMasters(leaves, masters, masters.optimizer)
