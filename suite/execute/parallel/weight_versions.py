"""Versions of a stage's weights, each in storages of its own, for passes that began before an update."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reference_runs.layout import Schedule
from suite.execute.parallel.sharded_adamw import TensorAdamW
from suite.execute.precision import WeightGroup, stored_weights


@dataclass(frozen=True)
class VersionRule:
    """Which version of its weights a stage computes a micro-batch with; version t is that after t updates.

    With micro-batch b of the whole run, m of them an update, p stages, and stage k:
        pipedream                  max(0, b - (p - 1 - k)) // m   the newest one, when its forward pass begins
        pipedream-vertical-sync    max(0, b - (p - 1)) // m       the one that the first stage uses
        pipedream-2bw              max(0, b // m - 1)             the one before that of the step before

    Source: Narayanan et al. 2019, PipeDream, SOSP, section 3.3; Narayanan et al. 2021, arXiv 2006.09503, section 3.1.
    Differs from these with several micro-batches an update, which PipeDream does not have.
    """

    schedule: Schedule
    stages: int
    stage: int
    micro_batches: int

    @property
    def in_flight(self) -> int:
        """Micro-batches between their forward pass on this stage and their backward pass, the one in progress too.

        p - k; with two versions m + 1 at most: the one after them needs a version that does not exist yet.
        """
        waiting = self.stages - self.stage
        return min(waiting, self.micro_batches + 1) if self.schedule is Schedule.PIPEDREAM_2BW else waiting

    def version(self, micro_batch: int) -> int:
        if self.schedule is Schedule.PIPEDREAM_2BW:
            return max(0, micro_batch // self.micro_batches - 1)
        stage = self.stage if self.schedule is Schedule.PIPEDREAM else 0
        return max(0, micro_batch - (self.stages - 1 - stage)) // self.micro_batches


@dataclass(frozen=True)
class _Stored:
    """Storages of one version: flat buffers, and leaves of autograd that view them."""

    flats: list[Tensor]
    leaves: list[nn.Parameter]


class WeightVersions:
    """The versions of some of a stage's weights that micro-batches in flight still need, and the newest one.

    An update writes to storages that no such micro-batch needs. Gradients gather in the leaves of `groups`, which the
    optimizer reads, whatever version a backward pass is of.

    Args:
        readers: the modules that read the weights.
        optimizer: that updates them, and nothing else.
        storages: flat buffers of all versions of the rank; new ones are added.
        keeps: whether versions are kept. Without, backward passes silently use other weights than their forward passes
            did: for tests.

    Attributes:
        newest: number of updates so far.
    """

    def __init__(
        self,
        groups: list[WeightGroup],
        readers: Iterable[nn.Module],
        optimizer: TensorAdamW,
        storages: list[Tensor],
        *,
        keeps: bool = True,
    ) -> None:
        self.newest = 0
        self._groups, self._optimizer, self._storages, self._keeps = groups, optimizer, storages, keeps
        self._first = _Stored([group.flat for group in groups], [leaf for group in groups for leaf in group.leaves])
        self._of: dict[int, _Stored] = {0: self._first}
        self._free: list[_Stored] = []
        self._in_use = self._first
        number = {id(leaf): index for index, leaf in enumerate(self._first.leaves)}
        self._readers = [
            (module, name, number[id(parameter)])
            for reader in readers
            for module in reader.modules()
            for name, parameter in module.named_parameters(recurse=False)
            if id(parameter) in number
        ]

    @property
    def stored(self) -> int:
        """Versions for which there are storages; none is ever given back."""
        return len(self._of) + len(self._free)

    def use(self, version: int) -> None:
        """Have the modules compute with `version`, and autograd add its gradients to those that are there.

        Raises:
            KeyError: the version is not kept, or not there yet.
        """
        chosen = self._of[version if self._keeps else self.newest]
        if chosen is self._in_use:
            return
        self._in_use = chosen
        for module, name, index in self._readers:
            module._parameters[name] = chosen.leaves[index]

    def add_gradients(self, version: int) -> None:
        """Before a backward pass with `version`: its leaves add to the gradients so far."""
        self._move(self._first, self._of[version if self._keeps else self.newest])

    def take_gradients(self, version: int) -> None:
        """After it: the gradients are the optimizer's again."""
        self._move(self._of[version if self._keeps else self.newest], self._first)

    def _move(self, source: _Stored, target: _Stored) -> None:
        if source is target:
            return
        for old, new in zip(source.leaves, target.leaves, strict=True):
            new.grad, old.grad = old.grad, None

    def begin_update(self, *, oldest: int) -> None:
        """Point the optimizer to storages for the next version, which have the newest weights.

        Args:
            oldest: version that micro-batches will still need.
        """
        oldest = oldest if self._keeps else self.newest + 1
        for version in [version for version in self._of if version < oldest]:
            if version < self.newest:
                self._free.append(self._of.pop(version))
        before = self._of[self.newest]
        after = before
        if self.newest < oldest:
            del self._of[self.newest]
        else:
            after = self._free.pop() if self._free else self._new()
            for old, new in zip(before.flats, after.flats, strict=True):
                new.copy_(old)
        self.newest += 1
        self._of[self.newest] = after
        views = [_views(group, flat) for group, flat in zip(self._groups, after.flats, strict=True)]
        self._optimizer.masters.write_to([view for of_group in views for view in of_group])

    def _new(self) -> _Stored:
        flats = [torch.empty_like(group.flat) for group in self._groups]
        self._storages += flats
        leaves = []
        for group, flat in zip(self._groups, flats, strict=True):
            for first, weight in zip(group.leaves, _views(group, flat), strict=True):
                leaf = nn.Parameter(weight)
                leaf.grad_dtype = first.grad_dtype
                leaves.append(leaf)
        return _Stored(flats, leaves)


def _views(group: WeightGroup, flat: Tensor) -> list[Tensor]:
    return stored_weights(WeightGroup(group.weight_decay, flat, group.leaves))
