"""Positions: what they add to attention scores, and how they rotate queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor

from reference_runs.alibi import alibi_slopes
from reference_runs.run import Architecture, Mask, Position


def score_bias(position: Position, mask: Mask, *, heads: int, length: int, device: torch.device) -> Tensor:
    """What is added to the scaled attention scores, fp32, [H or 1, T, S]: -inf where masked, ALiBi's penalty else.

    ALiBi adds -slope * distance. BLOOM's code adds slope * key position, which differs by a constant a row and
    therefore not behind a softmax.
    """
    assert mask is Mask.CAUSAL
    places = torch.arange(length, device=device)
    distance_TS = places[:, None] - places[None, :]
    bias_HTS = torch.zeros(1, length, length, device=device)
    if position is Position.ALIBI:
        slopes_H = torch.tensor(alibi_slopes(heads), device=device)
        bias_HTS = -slopes_H[:, None, None] * distance_TS
    return bias_HTS.masked_fill(distance_TS < 0, float("-inf"))


def rotation(architecture: Architecture, *, length: int, device: torch.device) -> Tensor | None:
    """Cosines and sines by which rotary positions turn queries and keys, fp32, [2, T, R]; None for other positions.

    Pair i of the R = `rotary_dim` leading dimensions, (i, i + R / 2), turns by position * base^(-2 i / R).
    Source: Su et al. 2021, arXiv 2104.09864, equation 34; the pairing is GPT-NeoX's (halves, not neighbours).
    """
    if architecture.rotary_dim is None:
        return None
    assert architecture.rotary_base is not None
    pairs = torch.arange(0, architecture.rotary_dim, 2, device=device)
    turns_R2 = architecture.rotary_base ** (-pairs.float() / architecture.rotary_dim)
    angles_TR2 = torch.arange(length, device=device)[:, None] * turns_R2
    angles_TR = torch.cat([angles_TR2, angles_TR2], dim=-1)
    return torch.stack([angles_TR.cos(), angles_TR.sin()])


def rotated(x_BHTK: Tensor, rotation_2TR: Tensor) -> Tensor:
    """`x_BHTK` with its leading dimensions turned by `rotation_2TR`; the others pass."""
    size = rotation_2TR.shape[-1]
    cosine_TR, sine_TR = rotation_2TR.to(x_BHTK.dtype)
    turned, passed = x_BHTK[..., :size], x_BHTK[..., size:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cosine_TR + torch.cat([-second, first], dim=-1) * sine_TR
    return torch.cat([turned, passed], dim=-1)
