"""A pipeline stage that never flushes: forward and backward passes in turns, over the updates between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from suite.execute.measure.phases import Part, Phases
from suite.execute.parallel.neighbours import Arrival, StageLink
from suite.execute.parallel.weight_versions import VersionRule, WeightVersions
from suite.job.pipeline_passes import Pass, PassKind


class Versioned(NamedTuple):
    """Weights of a stage, and which version of them each micro-batch is computed with."""

    weights: WeightVersions
    rule: VersionRule


class _Passed(NamedTuple):
    """A micro-batch between its passes: what came in, None of tokens; what went out; versions of the weights."""

    x: Tensor | None
    output: Tensor
    versions: list[int]


class AsynchronousStage:
    """One stage of a pipeline without flush (PipeDream, 2BW).

    Before the backward pass of micro-batch b of the whole run come forward passes up to that of b + n - 1, n being
    `rule.in_flight`. So where all stages take equally long, none is idle once the first gradient has reached it. Every
    step but the first is alike: what is in flight after the last one is dropped.

    Args:
        versioned: all weights of the stage, those that it alone has first.
        before, after: the neighbours; None at the ends.
        begins, done: called with the number of a micro-batch before its forward pass, and after its backward pass, when
            its gradient is on its way.

    Attributes:
        staleness: of each micro-batch of the last step, the updates of its stage between the weights that its passes
            used and the update that it takes part in.
    """

    def __init__(
        self,
        module: nn.Module,
        versioned: list[Versioned],
        rule: VersionRule,
        *,
        before: StageLink | None,
        after: StageLink | None,
        phases: Phases,
        begins: Callable[[int], None] = lambda _: None,
        done: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.staleness: list[int] = []
        self._module, self._versioned, self._rule = module, versioned, rule
        self._before, self._after, self._phases = before, after, phases
        self._begins, self._done = begins, done
        self._resumed = self._begun = self._ended = self._first = self._updates = 0
        self._passed: dict[int, _Passed] = {}
        self._arriving: Arrival | None = None
        self._gradient: Arrival | None = None

    @property
    def missing(self) -> int:
        """Micro-batches that `step` will be given: of its backward passes, and that are in flight after them."""
        return self._rule.first(self._updates + 1) + self._rule.in_flight - 1 - self._begun

    def continue_from(self, updates: int) -> None:
        """Go on as after so many updates. Forward passes that were in flight come again, with the versions they had."""
        self._updates = updates
        self._resumed = self._begun = self._ended = self._rule.first(updates)

    def step(self, tokens: list[Tensor], arguments: list[dict[str, Tensor]]) -> Tensor:
        """Run the passes up to the next update; gradients are those of the mean loss of its micro-batches.

        Of several replicas each has its part of that mean, and of the gradients.

        Args:
            tokens, arguments: of the micro-batches whose forward passes are next, `missing` of them.

        Returns the loss of those whose backward passes ran, detached; 0 if this is not the last stage.
        """
        given = iter(zip(tokens, arguments, strict=True))
        losses: list[Tensor] = []
        self.staleness, self._first = [], self._ended
        self._updates += 1
        for number in range(self._first, self._rule.first(self._updates)):
            while self._begun < number + self._rule.in_flight:
                with self._phases.phase(Part.PIPELINE):
                    self._forward(*next(given))
            with self._phases.phase(Part.PIPELINE):
                losses += self._backward(number)
            self._done(number)
        if not losses:
            return torch.zeros((), device=tokens[0].device)
        return torch.stack(losses).sum()

    def finish(self) -> None:
        """Wait for all messages; what is in flight is dropped."""
        for link in (self._before, self._after):
            if link is not None:
                link.finish()
        for arrival in (self._arriving, self._gradient):
            if arrival is not None:
                arrival.wait()
        self._arriving = self._gradient = None
        self._passed.clear()

    def _pass(self, kind: PassKind, micro_batch: int) -> Pass:
        """A pass, its micro-batch counted from the first one of the step."""
        return Pass(kind, self._rule.stage, micro_batch - self._first)

    def _forward(self, tokens_BT: Tensor, arguments: dict[str, Tensor]) -> None:
        number = self._begun
        self._begins(number)
        x = None
        if self._before is not None:
            arriving = self._arriving or self._before.exchange(None, receives=True)
            self._arriving = None
            assert arriving is not None
            x = arriving.wait().requires_grad_()
        versions = [rule.version(number) for _, rule in self._versioned]
        for each, version in zip(self._versioned, versions, strict=True):
            each.weights.use(version)
        with self._phases.phase(Part.FORWARD, self._pass(PassKind.FORWARD, number)):
            output: Tensor = self._module(tokens_BT if x is None else x, **arguments)
            if self._after is None:
                output = output / self._rule.averaged(number)
        self._passed[number] = _Passed(x, output, versions)
        self._begun += 1
        if self._after is None:
            return
        first = number - self._rule.in_flight + 1  # whose backward pass is next
        joined = first >= self._resumed and _joined(self._rule)
        gradient = self._after.exchange(output.detach(), receives=joined)
        if first >= self._resumed:
            self._gradient = gradient or self._after.exchange(None, receives=True)

    def _backward(self, number: int) -> list[Tensor]:
        """The loss of the micro-batch, where this stage has it."""
        x, output, versions = self._passed.pop(number)
        gradient = None
        if self._gradient is not None:
            gradient, self._gradient = self._gradient.wait(), None
        for each, version in zip(self._versioned, versions, strict=True):
            each.weights.use(version)  # for what is computed again
            each.weights.add_gradients(version)
        with self._phases.phase(Part.BACKWARD, self._pass(PassKind.BACKWARD, number)):
            output.backward(gradient)
        for each, version in zip(self._versioned, versions, strict=True):
            each.weights.take_gradients(version)
        self._ended += 1
        self.staleness.append(self._rule.updates(number) - versions[0])
        if x is not None and self._before is not None:
            self._arriving = self._before.exchange(x.grad, receives=_joined(self._rule.at(self._rule.stage - 1)))
        return [output.detach()] if self._after is None else []


def _joined(upper: VersionRule) -> bool:
    """Whether a stage sends an output while the one after it sends a gradient: it is one micro-batch more ahead.

    Stages with different numbers of replicas send one thing at a time: the next one is for another replica.
    """
    return not upper.of_stages and upper.in_flight > upper.at(upper.stage + 1).in_flight
