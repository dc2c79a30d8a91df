"""Mixtures of experts and latent attention as PyTorch modules, to count elements and products."""

from __future__ import annotations

from torch import nn

from reference_runs.architecture import Architecture, Balancing


class Experts(nn.Module):
    """Router, experts and shared experts as modules of their own, each token through the experts in turn."""

    def __init__(self, shape: Architecture, *, tensor_parallel: int = 1, expert_parallel: int = 1) -> None:
        super().__init__()
        h, width = shape.hidden, shape.expert_width // tensor_parallel
        gates = 2 if shape.activation.gated else 1

        def part(width: int) -> nn.Module:
            return nn.ModuleList([nn.Linear(h, gates * width, bias=False), nn.Linear(width, h, bias=False)])

        self.router = nn.Linear(h, shape.experts or 0, bias=shape.balancing is Balancing.BIAS)
        self.experts = nn.ModuleList(part(width) for _ in range((shape.experts or 0) // expert_parallel))
        self.shared_gate = nn.ModuleList([nn.Linear(h, 1, bias=False)] if shape.shared_gate else [])
        self.shared = nn.ModuleList(part(width) for _ in range(shape.shared_experts))


class Latent(nn.Module):
    """The matrices of latent attention."""

    def __init__(self, shape: Architecture, *, tensor_parallel: int = 1) -> None:
        super().__init__()
        h, a, c, q = shape.hidden, shape.heads // tensor_parallel, shape.key_value_rank or 0, shape.query_rank
        rotated, values = shape.rotary_dim or 0, shape.value_head_dim or 0
        self.compression = nn.Linear(h, c + rotated, bias=False)
        self.norm = nn.RMSNorm(c)
        self.keys = nn.Linear(c, a * (shape.head_dim - rotated), bias=False)
        self.values = nn.Linear(c, a * values, bias=False)
        if q is None:
            self.queries = nn.ModuleList([nn.Linear(h, a * shape.head_dim, bias=False)])
        else:
            expansion = nn.Linear(q, a * shape.head_dim, bias=False)
            self.queries = nn.ModuleList([nn.Linear(h, q, bias=False), nn.RMSNorm(q), expansion])
        self.projection = nn.Linear(a * values, h, bias=False)
