"""Positions: what they add to attention scores, and how they rotate queries and keys."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from reference_runs.placement import context_parts
from reference_runs.run import Architecture, Position, RotaryScaling


class DealtPositions(NamedTuple):
    """Positions of a context-parallel rank's queries, and of the keys of all ranks, rank after rank."""

    queries_T: Tensor  # noqa: N815  # shape letters
    keys_S: Tensor  # noqa: N815


def dealt_positions(*, length: int, rank: int, ranks: int, device: torch.device) -> DealtPositions:
    """Which positions each of the ranks has of a sequence of `length`."""
    keys_S = torch.cat([dealt(torch.arange(length, device=device), rank=each, ranks=ranks) for each in range(ranks)])
    return DealtPositions(keys_S.chunk(ranks)[rank], keys_S)


def dealt(x: Tensor, *, rank: int, ranks: int) -> Tensor:
    """The two parts that context-parallel rank `rank` has of the last dim of `x`, one after the other."""
    parts = x.chunk(2 * ranks, dim=-1)
    return torch.cat([parts[part] for part in context_parts(rank, ranks)], dim=-1)


def score_bias(
    architecture: Architecture,
    *,
    heads: slice,
    length: int,
    device: torch.device,
    positions: DealtPositions | None = None,
    documents_BT: Tensor | None = None,
) -> Tensor:
    """Bias of a causal mask for the scaled scores of `heads`, fp32, [H or 1, T, S]: -inf, 0, or ALiBi's penalty.

    With documents [B, H or 1, T, S]: a token attends to its own alone. Positions go on from one to the next, which no
    score of rotary positions or ALiBi shows: both depend on distances.

    ALiBi adds -slope * distance. BLOOM's code adds slope * key position, which differs by a constant a row: softmax
    removes it. A token attends to the last `sliding_window` positions, its own included.

    Args:
        length: of the sequence.
        positions: of queries and keys; None: all, in order.
        documents_BT: the document of each token; None: it sees all before it.
    """
    if positions is None:
        in_order = torch.arange(length, device=device)
        positions = DealtPositions(in_order, in_order)
    distance_TS = positions.queries_T[:, None] - positions.keys_S[None, :]
    bias_HTS = torch.zeros(1, *distance_TS.shape, device=device)
    if architecture.position is Position.ALIBI:
        slopes_H = torch.tensor(alibi_slopes(architecture.heads)[heads], device=device)
        bias_HTS = -slopes_H[:, None, None] * distance_TS
    unseen_TS = distance_TS < 0
    if architecture.sliding_window is not None and architecture.sliding_window < length:
        unseen_TS = unseen_TS | (distance_TS >= architecture.sliding_window)
    if documents_BT is not None:
        unseen_BTS = unseen_TS | (documents_BT[:, :, None] != documents_BT[:, None, :])
        return bias_HTS.masked_fill(unseen_BTS[:, None], float("-inf"))
    return bias_HTS.masked_fill(unseen_TS, float("-inf"))


def prefix_bias(seen_B2S: Tensor) -> Tensor:
    """The same for a mask that differs by sample, fp32, [B, 1, T, S]: 0 or -inf.

    Args:
        seen_B2S: the range [start, end) of positions that attend to each token.
    """
    places_T1 = torch.arange(seen_B2S.shape[-1], device=seen_B2S.device)[:, None]
    first_B1S, end_B1S = seen_B2S[:, :1], seen_B2S[:, 1:]
    seen_BTS = (first_B1S <= places_T1) & (places_T1 < end_B1S)
    return torch.zeros(seen_BTS.shape, device=seen_B2S.device).masked_fill(~seen_BTS, float("-inf"))[:, None]


def rotation(architecture: Architecture, positions: Tensor) -> Tensor | None:
    """Cosines and sines by which rotary positions turn queries and keys, fp32; None for other positions.

    Pair i of the R = `rotary_dim` leading dimensions, (i, i + R / 2), turns by position * base^(-2 i / R).
    Source: Su et al. 2021, arXiv 2104.09864, equation 34; the pairing is GPT-NeoX's (halves, not neighbours).

    Args:
        positions: [T] or [B, T]; the result is [2, T, R] or [2, B, 1, T, R], of grouped queries [2, B, 1, 1, T, R].
    """
    if architecture.rotary_dim is None:
        return None
    assert architecture.rotary_base is not None
    if architecture.rotary_scaling_factor is not None:
        turns_R2 = torch.tensor(scaled_turns(architecture), device=positions.device)
    else:
        pairs = torch.arange(0, architecture.rotary_dim, 2, device=positions.device)
        turns_R2 = architecture.rotary_base ** (-pairs.float() / architecture.rotary_dim)
    angles = positions[..., None] * turns_R2
    angles = torch.cat([angles, angles], dim=-1)
    if positions.dim() == 2:
        angles = angles[:, None] if architecture.kv_heads == architecture.heads else angles[:, None, None]
    rotation_2TR = torch.stack([angles.cos(), angles.sin()])
    amplitude = architecture.rotary_scaling_amplitude
    return rotation_2TR if amplitude is None else rotation_2TR.mul_(amplitude)


def scaled_turns(architecture: Architecture) -> list[float]:
    """Angles a position of each pair, those of long wavelength slowed down.

    (1 - s) angle / f + s angle, with factor f, positions S, low l and high h of `rotary_scaling_*`, s within 0 and 1:
        bands    s = (S / w - l) / (h - l) with the wavelength w = 2 pi / angle
        YaRN     s = (b - i) / (b - a) of pair i, with a = floor(i(h)), at least 0, and b = ceil(i(l)), at most R - 1
                 (were they equal, b = a + 0.001); i(r) = R ln(S / (2 pi r)) / (2 ln base) is the pair that turns r
                 times in S positions

    Sources: meta-llama/llama-models, models/llama3/model.py, apply_scaling; Peng et al. 2023, arXiv 2309.00071, section
    3.2, rounded as in transformers, modeling_rope_utils.py, _compute_yarn_parameters, and by DeepSeek.
    """
    a = architecture
    assert a.rotary_dim is not None
    assert a.rotary_base is not None
    assert a.rotary_scaling_factor is not None
    assert a.rotary_scaling_low is not None
    assert a.rotary_scaling_high is not None
    assert a.rotary_scaling_sequence is not None
    bands = a.rotary_scaling is RotaryScaling.BANDS
    # the pair of one turn in S positions, and how many pairs later one turns e times less
    of_one, later = (
        a.rotary_dim * math.log(x) / (2 * math.log(a.rotary_base))
        for x in (a.rotary_scaling_sequence / (2 * math.pi), math.e)
    )
    first, last = (of_one - later * math.log(turns) for turns in (a.rotary_scaling_high, a.rotary_scaling_low))
    if a.rotary_scaling is RotaryScaling.YARN:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(0, first), min(a.rotary_dim - 1, last)
    last = first + 0.001 if last == first else last
    turns = []
    for pair in range(a.rotary_dim // 2):
        turn = a.rotary_base ** (-2 * pair / a.rotary_dim)
        rotations = a.rotary_scaling_sequence * turn / (2 * math.pi)
        if bands:
            share = (rotations - a.rotary_scaling_low) / (a.rotary_scaling_high - a.rotary_scaling_low)
        else:
            share = (last - pair) / (last - first)
        share = min(1.0, max(0.0, share))
        turns.append((1 - share) * turn / a.rotary_scaling_factor + share * turn)
    return turns


def rotated(x_BHTK: Tensor, rotation_2TR: Tensor) -> Tensor:
    """`x_BHTK` with its leading dimensions turned by `rotation_2TR`; the others pass."""
    size = rotation_2TR.shape[-1]
    cosine_TR, sine_TR = rotation_2TR.to(x_BHTK.dtype)
    turned, passed = x_BHTK[..., :size], x_BHTK[..., size:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cosine_TR + torch.cat([-second, first], dim=-1) * sine_TR
    return torch.cat([turned, passed], dim=-1)


def alibi_slopes(heads: int) -> list[float]:
    """The slope of each head, for any head count.

    With n heads, n a power of two: 2^(-8 i / n) for i = 1 .. n. Otherwise the slopes of the power of two below n,
    followed by every other slope of the power of two above n, until there are n.

    Source: Press et al. 2022, arXiv 2108.12409, section 3, and the authors' attention_with_linear_biases (for other
    counts), which BLOOM's 112 heads use.
    """
    below = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * i / below) for i in range(1, below + 1)]
    above = [2.0 ** (-8 * i / (2 * below)) for i in range(1, 2 * below + 1, 2)]
    return slopes + above[: heads - below]
