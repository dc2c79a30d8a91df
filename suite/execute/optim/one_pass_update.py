"""Adam or AdamW of many tensors in one pass over memory: clipping, update, and the weights rounded from their masters.

The state is that of torch.optim.AdamW, made here before the first update, so that checkpoints do not depend on which of
the two updates: `step`, `exp_avg`, `exp_avg_sq` of each parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suite.execute.optim.learning_rate import squared_norm
from suite.job.options import TrainingOptions


def updates_in_one_pass(options: TrainingOptions, device: torch.device) -> bool:
    """Whether a rank's optimizer does; not one without memory, which runs on a CPU."""
    return options.updates_in_one_pass and device.type == "cuda"


def squared_norm_in_one_launch(gradients: Iterable[Tensor], *, device: torch.device) -> Tensor:
    """`learning_rate.squared_norm`, by one kernel over all tensors."""
    from kernels.gradient_norm import gradient_norm  # needs Triton

    tensors = list(gradients)
    return gradient_norm(tensors).square() if tensors else torch.zeros((), device=device)


def update_norm(options: TrainingOptions, device: torch.device) -> Callable[..., Tensor]:
    """The function that computes the squared norm of gradients on this device."""
    return squared_norm_in_one_launch if updates_in_one_pass(options, device) else squared_norm


@dataclass
class UpdatesTaken:
    """Number of updates so far, which the kernel takes as a number of the host's.

    The optimizer's counter is on the device; it is read, and the host waits, only where it was loaded in between.
    """

    _taken: int = 0
    _seen: Tensor | None = None  # the counter; held, so that none that replaces it is taken for it
    _version: int = 0  # of the counter when it was last written here

    def next(self, counters: Sequence[Tensor]) -> int:
        """Count an update in each counter; returns its number, 1 the first."""
        first = counters[0]
        if first is not self._seen or first._version != self._version:
            self._taken = int(first.item())
        torch._foreach_add_(list(counters), 1)
        self._taken += 1
        self._seen, self._version = first, first._version
        return self._taken


def with_state(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, like: Tensor) -> dict[str, Tensor]:
    """The optimizer's state of a parameter; before the first update as PyTorch makes it, zeros, moments as `like`."""
    state: dict[str, Tensor] = optimizer.state[parameter]
    if not state:
        state["step"] = torch.zeros((), device=like.device)
        state["exp_avg"] = torch.zeros_like(like, dtype=torch.float32)
        state["exp_avg_sq"] = torch.zeros_like(like, dtype=torch.float32)
    return state


def update_in_one_pass(
    optimizer: torch.optim.Adam,
    taken: UpdatesTaken,
    *,
    masters: Sequence[nn.Parameter],
    updated: Sequence[Tensor],
    gradients: Sequence[Tensor],
    copies: Sequence[Tensor],
    gradient_factor: Tensor,
) -> None:
    """Update `updated` once, by the settings of the optimizer's groups; the gradients stay as they are.

    Args:
        masters: the optimizer's parameters, in its order.
        updated: their values, or 16-bit weights without masters.
        copies: what the new values are rounded into; may be none.
        gradient_factor: a scalar in fp32 on the device, by which the gradients are multiplied.
    """
    from kernels.adamw import adamw  # needs Triton

    states = [with_state(optimizer, master, value) for master, value in zip(masters, updated, strict=True)]
    step = taken.next([state["step"] for state in states])
    first = 0
    for settings in optimizer.param_groups:
        part = slice(first, first + len(settings["params"]))
        first = part.stop
        beta1, beta2 = settings["betas"]
        adamw(
            updated[part],
            gradients[part],
            [state["exp_avg"] for state in states[part]],
            [state["exp_avg_sq"] for state in states[part]],
            step=step,
            learning_rate=settings["lr"],
            beta1=beta1,
            beta2=beta2,
            epsilon=settings["eps"],
            weight_decay=settings["weight_decay"],
            decays_gradient=not isinstance(optimizer, torch.optim.AdamW),
            gradient_factor=gradient_factor,
            copies=copies[part] or None,
        )
