"""One-bit compression of one layer's momentum with error feedback, and the mean of what eight ranks sent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.kernels.case import Case, Draw
from benchmarks.kernels.sizes import layers
from kernels.sign_pack import reference, reference_unpack, sign_pack, sign_unpack

RANKS = 8


def _packed(elements: int, draw: Draw) -> tuple[Any, ...]:
    return tuple(draw.normal(elements, dtype=torch.float32) for _ in range(2))


def _sent(elements: int, draw: Draw) -> tuple[Any, ...]:
    packed = draw.integers(256, RANKS, -(-elements // 8), dtype=torch.uint8)
    return packed, draw.normal(RANKS, dtype=torch.float32).abs()


def cases(device: torch.device) -> Iterator[Case]:
    """Momentum in fp32; PyTorch has neither operation."""
    for place, elements in enumerate(map(sum, layers(device))):
        yield Case(
            kernel="sign_pack",
            dtype="fp32",
            sizes={"elements": elements, "element_bytes": 4},
            over="elements",
            inputs=partial(_packed, elements),
            ours=sign_pack,
            plain=reference,
            eager=reference,
        )
        if device.type == "cpu" and place > 0:
            continue  # the plain reference takes seconds
        unpack = partial(reference_unpack, elements=elements)
        yield Case(
            kernel="sign_pack",
            formula="sign_unpack",
            variant="unpack",
            dtype="fp32",
            sizes={"elements": elements, "ranks": RANKS},
            over="elements",
            inputs=partial(_sent, elements),
            ours=partial(sign_unpack, elements=elements),
            plain=unpack,
            eager=unpack,
        )
