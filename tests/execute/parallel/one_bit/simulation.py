"""1-bit Adam of all ranks in one process, written down as the algorithm is, without packing or messages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def parts(elements: int, ranks: int) -> int:
    """Elements a rank serves: the vector is padded to a multiple of p lcm(p, 8)."""
    padded = elements
    while padded % (ranks * math.lcm(ranks, 8)):
        padded += 1
    return padded // ranks


def sign(value: Tensor) -> Tensor:
    """With sign(0) = +1."""
    return torch.where(value >= 0, torch.ones_like(value), -torch.ones_like(value))


def root_mean_square(value: Tensor, elements: int) -> Tensor:
    """Over the elements that count."""
    return torch.linalg.vector_norm(value) / math.sqrt(max(elements, 1))


@dataclass
class Errors:
    """Errors of one vector: of each worker, and of each server."""

    workers: list[Tensor]
    servers: list[Tensor]


def no_errors(elements: int, ranks: int, dtype: torch.dtype = torch.float32) -> Errors:
    """Before the first step."""
    part = parts(elements, ranks)
    served = [max(0, min(part, elements - rank * part)) for rank in range(ranks)]
    return Errors([torch.zeros(elements, dtype=dtype)] * ranks, [torch.zeros(n, dtype=dtype) for n in served])


def averaged(values: list[Tensor], errors: Errors, active: Tensor | None = None) -> tuple[Tensor, Errors]:
    """The compressed mean of one value of each rank, and the new errors."""
    ranks, elements = len(values), values[0].numel()
    mask = torch.ones(elements, dtype=torch.bool) if active is None else active
    workers, sent = [], []
    for value, error in zip(values, errors.workers, strict=True):
        c = (value + error) * mask
        scale = root_mean_square(c, int(mask.sum()))
        workers.append((c - scale * sign(c)) * mask)
        sent.append((sign(c), scale))
    part = parts(elements, ranks)
    servers, results = [], []
    for rank in range(ranks):
        place = slice(rank * part, min((rank + 1) * part, elements))
        total = torch.zeros_like(errors.servers[rank])
        for signs, scale in sent:
            total = total + signs[place] * scale
        u = (total / ranks * mask[place] + errors.servers[rank]) * mask[place]
        scale = root_mean_square(u, int(mask[place].sum()))
        servers.append((u - scale * sign(u)) * mask[place])
        results.append(scale * sign(u) * mask[place])
    return torch.cat(results), Errors(workers, servers)


class Adam:
    """One flat parameter of every rank: torch.optim.AdamW on the mean gradient, then as 1-bit Adam says."""

    def __init__(self, weight: Tensor, settings: dict[str, Any]) -> None:
        self.weight = torch.nn.Parameter(weight.clone())
        self._settings = {key: value for key, value in settings.items() if key not in ("warmup_steps", "renewal")}
        self._warm_up = self._last_exact = settings["warmup_steps"]
        renewal = settings.get("renewal")
        self._again: set[int] = set()  # exact steps after the warm-up
        begin = self._warm_up
        while renewal is not None and begin < 10**4:
            begin *= renewal.factor
            self._again |= set(range(int(begin) + 1, int(begin) + 1 + renewal.steps))
        self._exact = torch.optim.AdamW([self.weight], **self._settings)
        self._step = 0
        self.errors: Errors | None = None

    @torch.no_grad()
    def update(self, gradients: list[Tensor]) -> None:
        """With one gradient of each rank."""
        self._step += 1
        if self._step <= self._warm_up or self._step in self._again:
            if self._step > self._warm_up and self._last_exact < self._step - 1:
                beta2 = self._settings["betas"][1]
                v = self._exact.state[self.weight]["exp_avg_sq"]
                v *= (1 - beta2 ** (self._step - 1)) / (1 - beta2**self._last_exact)
            self.weight.grad = mean(gradients)
            self._exact.step()
            self._last_exact = self._step
            return
        self._exact.state[self.weight]["step"] += 1
        rate, (beta1, beta2), epsilon, decay = (self._settings[key] for key in ("lr", "betas", "eps", "weight_decay"))
        m, v = self._exact.state[self.weight]["exp_avg"], self._exact.state[self.weight]["exp_avg_sq"]
        own = [torch.lerp(m, gradient, 1 - beta1) for gradient in gradients]
        active = None if bool((v != 0).all()) else v != 0
        errors = self.errors or no_errors(self.weight.numel(), len(gradients), self.weight.dtype)
        average, self.errors = averaged(own, errors, active)
        m.copy_(average)
        spread = v.sqrt() / math.sqrt(1 - beta2**self._last_exact) + epsilon
        self.weight.mul_(1 - rate * decay)
        self.weight.addcdiv_(m, spread, value=-rate / (1 - beta1**self._step))


def mean(gradients: list[Tensor]) -> Tensor:
    """Over ranks, in their order."""
    total = gradients[0]
    for gradient in gradients[1:]:
        total = total + gradient
    return total / len(gradients)
