"""Positions: what they add to attention scores and to embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from reference_runs.alibi import alibi_slopes
from reference_runs.run import Mask, Position


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
