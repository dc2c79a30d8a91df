"""Signs packed eight a byte and back, by PyTorch's operators on any device, without Triton.

Bit k, from the lowest, of byte j belongs to element 8 j + k.
"""

from __future__ import annotations

import torch
from torch import Tensor

BITS = 8  # of a byte
# Times eight bytes of 0 or 1, the lowest first: brings byte j to bit 56 + j, and everything else below bit 56.
_GATHER = sum(1 << (56 - 7 * byte) for byte in range(BITS))


def pack_bits(bits: Tensor) -> Tensor:
    """Bool [N] as uint8 [ceil(N / 8)], the bits after the last element 0.

    Eight elements are one product of 64 bits, so that it takes a few passes over N bytes.
    """
    padding = -bits.numel() % BITS
    padded = torch.nn.functional.pad(bits, (0, padding)) if padding else bits.contiguous()
    return (padded.view(torch.int64) * _GATHER >> 56).to(torch.uint8)


def unpack_signs(packed: Tensor, elements: int, dtype: torch.dtype, scale: Tensor | None = None) -> Tensor:
    """+scale where a bit is 1, -scale where it is 0: [..., elements] of packed bits [..., bytes]; 1 without a scale.

    Eight elements are a row of a table of 256: a pass over the bytes and one over the elements.
    """
    numbers = torch.arange(256, device=packed.device)
    each = (numbers.unsqueeze(1) >> torch.arange(BITS, device=packed.device) & 1).to(dtype) * 2 - 1
    if scale is not None:
        each *= scale
    return torch.nn.functional.embedding(packed.int(), each).flatten(-2)[..., :elements]
