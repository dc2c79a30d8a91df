"""Softmax of attention scores: causal, and with ALiBi."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Draw, dtypes
from kernels.masked_softmax import masked_softmax, reference
from reference_runs.alibi import alibi_slopes

HEADS = {"cuda": 16, "cpu": 4}
LENGTHS = {"cuda": (1024, 2048, 4096), "cpu": (64, 256)}
SCALE = 0.125


def _ours(scores: Tensor, slopes: Tensor | None = None) -> Tensor:
    return masked_softmax(scores, SCALE, causal=True, slopes_H=slopes)


def _plain(scores: Tensor, slopes: Tensor | None = None) -> Tensor:
    return reference(scores, SCALE, causal=True, slopes_H=slopes)


def _eager(scores: Tensor, slopes: Tensor | None = None) -> Tensor:
    places = torch.arange(scores.shape[-1], device=scores.device)
    distance = places[:, None] - places[None, :]
    wide = scores.float() * SCALE
    if slopes is not None:
        wide = wide - slopes[:, None, None] * distance
    return torch.softmax(wide.masked_fill(distance < 0, float("-inf")), dim=-1).to(scores.dtype)


def _inputs(alibi: bool, heads: int, length: int, dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    scores = draw.normal(1, heads, length, length, dtype=dtype)
    if not alibi:
        return (scores,)
    return scores, torch.tensor(alibi_slopes(heads), dtype=torch.float32, device=draw.device)


def cases(device: torch.device) -> Iterator[Case]:
    """Both masks at each length in each dtype, forward and backward."""
    heads = HEADS[device.type]
    for variant in ("causal", "alibi"):
        for dtype, torchs in dtypes(device).items():
            for length in LENGTHS[device.type]:
                sizes = {"rows": heads * length, "columns": length, "element_bytes": torchs.itemsize, "causal": 1}
                yield Case(
                    kernel="masked_softmax",
                    variant=variant,
                    dtype=dtype,
                    sizes=sizes,
                    over="columns",
                    inputs=partial(_inputs, variant == "alibi", heads, length, torchs),
                    ours=_ours,
                    plain=_plain,
                    eager=_eager,
                    differentiated=1,
                )
