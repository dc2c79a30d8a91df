"""Versions of a stage's weights, each in storages of its own, for passes that began before an update."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from reference_runs.layout import Schedule
from suite.execute.parallel.sharded_adamw import TensorAdamW
from suite.execute.precision import WeightGroup, stored_weights


@dataclass(frozen=True)
class VersionRule:
    """Which version of its weights a stage computes a micro-batch with; version t is that after t updates.

    With micro-batch b of the whole run, U(n) updates that the first n of them make, p stages, and stage k:
        pipedream                  U(max(0, b - (p - 1 - k)))   the newest one, when its forward pass begins
        pipedream-vertical-sync    U(max(0, b - (p - 1)))       the one that the first stage uses
        pipedream-2bw              max(0, U(b) - 1)             the one before that of the step before

    Source: Narayanan et al. 2019, PipeDream, SOSP, section 3.3; Narayanan et al. 2021, arXiv 2006.09503, section 3.1.
    Differs from these with several micro-batches an update, which PipeDream does not have.

    Where stages have replicas, micro-batches are dealt to them in turns, and b counts those of one replica: its passes,
    and the updates that all replicas of a stage make together, are those of a pipeline of its own. Stages with
    different numbers of replicas: p - 1 - k is n_k - 1 of `waiting`, and micro-batch b of replica r of stage k, of R_k,
    is number b R_k + r of all, and so number (b R_k + r) // R_0 of a replica of the first stage.

    Args:
        micro_batches: of an update, on each replica.
        ramp: those of each of the first updates, where they are other ones.
        replicas: of this stage, of each stage if `of_stages` is empty.
        of_stages: replicas of every stage, where these differ.
        replica: number of this one, from 0.
        of_first: whether the weights are updated as those of the first stage are, in micro-batches.
    """

    schedule: Schedule
    stages: int
    stage: int
    micro_batches: int
    ramp: tuple[int, ...] = ()
    replicas: int = 1
    of_stages: tuple[int, ...] = ()
    replica: int = 0
    of_first: bool = False

    def at(self, stage: int) -> VersionRule:
        """The rule of another stage's first replica."""
        replicas = self.of_stages[stage] if self.of_stages else self.replicas
        ramp = tuple(number * self.replicas // replicas for number in self.ramp)
        return dataclasses.replace(
            self,
            stage=stage,
            micro_batches=self.micro_batches * self.replicas // replicas,
            ramp=ramp,
            replicas=replicas,
            replica=0,
        )

    @property
    def waiting(self) -> int:
        """p - k; ceil((R_k + ... + R_(p - 1)) / R_k), where stages differ in their numbers R of replicas."""
        if not self.of_stages:
            return self.stages - self.stage
        return -(-sum(self.of_stages[self.stage :]) // self.replicas)

    @property
    def in_flight(self) -> int:
        """Micro-batches between their forward pass on this stage and their backward pass, the one in progress too.

        As many as are `waiting`; with two versions m + 1 at most: the one after them needs a version that does not
        exist yet.
        """
        if self.schedule is not Schedule.PIPEDREAM_2BW:
            return self.waiting
        return min(self.waiting, min(self.micro_batches, *self.ramp, self.micro_batches) + 1)

    def first(self, update: int) -> int:
        """The first micro-batch of an update."""
        ramp = self.ramp[:update]
        return sum(ramp) + (update - len(ramp)) * self.micro_batches

    def averaged(self, micro_batch: int) -> int:
        """Micro-batches of all replicas whose mean gradient the update of `micro_batch` takes."""
        update = self.updates(micro_batch)
        return self.replicas * (self.first(update + 1) - self.first(update))

    def updates(self, micro_batches: int) -> int:
        """Number of updates that so many micro-batches make."""
        ends = list(accumulate(self.ramp, initial=0))
        if micro_batches < ends[-1]:
            return bisect_right(ends, micro_batches) - 1
        return len(self.ramp) + (micro_batches - ends[-1]) // self.micro_batches

    def made(self, ended: int) -> int:
        """Updates of these weights once so many backward passes have ended; all replicas of the stage make them alike.

        Of the first stage's, where this one needs them: the replica with the last micro-batch of a turn does first.
        """
        if not self.of_first or not self.stage:
            return self.updates(ended)
        first = self.at(0)
        return first.updates(max(0, self._on_first(ended, self.replicas - 1) - (first.in_flight - 1)))

    def oldest(self, ended: int) -> int:
        """The version that some replica of the stage still needs then: the one with the first micro-batch of a turn."""
        return dataclasses.replace(self, replica=0).version(ended)

    def storages(self, ended: int) -> int:
        """Versions with storages once so many backward passes have ended; none is ever given back."""
        first = self.at(0)
        filled = (first.waiting + 1) * first.replicas // self.replicas  # in flight, once passes are in their turns
        steady = self.first(len(self.ramp) + 3) + filled
        return max(self.made(number) + 1 - self.oldest(number) for number in range(min(ended, steady) + 1))

    def version(self, micro_batch: int) -> int:
        """The version that a micro-batch is computed with."""
        if self.schedule is Schedule.PIPEDREAM_2BW:
            return max(0, self.updates(micro_batch) - 1)
        if self.schedule is Schedule.PIPEDREAM and not self.of_first:
            return self.updates(max(0, micro_batch - (self.waiting - 1)))
        first = self.at(0)
        return first.updates(max(0, self._on_first(micro_batch, self.replica) - (first.waiting - 1)))

    def _on_first(self, micro_batch: int, replica: int) -> int:
        """The number that a micro-batch of a replica of this stage has on its replica of the first one."""
        return (micro_batch * self.replicas + replica) // self.at(0).replicas


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

    Attributes:
        newest: number of updates so far.
    """

    def __init__(
        self, groups: list[WeightGroup], readers: Iterable[nn.Module], optimizer: TensorAdamW, storages: list[Tensor]
    ) -> None:
        self.newest = 0
        self._groups, self._optimizer, self._storages = groups, optimizer, storages
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
        chosen = self._of[version]
        if chosen is self._in_use:
            return
        self._in_use = chosen
        for module, name, index in self._readers:
            module._parameters[name] = chosen.leaves[index]

    def add_gradients(self, version: int) -> None:
        """Before a backward pass with `version`: its leaves add to the gradients so far."""
        self._move(self._first, self._of[version])

    def take_gradients(self, version: int) -> None:
        """After it: the gradients are the optimizer's again."""
        self._move(self._of[version], self._first)

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
        self._update(after)

    def _update(self, stored: _Stored) -> None:
        """Point the optimizer to these storages."""
        views = [_views(group, flat) for group, flat in zip(self._groups, stored.flats, strict=True)]
        self._optimizer.masters.write_to([view for of_group in views for view in of_group])

    def kept(self, oldest: int) -> dict[int, list[Tensor]]:
        """Flat buffers of each version from `oldest` on."""
        return {version: stored.flats for version, stored in self._of.items() if version >= oldest}

    def have(self, *, oldest: int, newest: int, storages: int) -> None:
        """Have these versions, as after `newest` updates; what is in them is still to be loaded.

        Args:
            storages: as many as there were then, with those that no micro-batch needs any more.
        """
        stored = [*self._of.values(), *self._free]
        versions = range(oldest, newest + 1)
        stored += [self._new() for _ in range(len(stored), storages)]
        self._of, self._free = dict(zip(versions, stored, strict=False)), stored[len(versions) :]
        self.newest = newest
        self._update(self._of[newest])

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
