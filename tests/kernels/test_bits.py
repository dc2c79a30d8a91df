"""Packed signs beside numpy's bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.bits import pack_bits, unpack_signs


@pytest.mark.parametrize("elements", [0, 1, 7, 8, 9, 63, 64, 65, 4097])
def test_bits_are_packed_from_the_lowest_and_unpacked_to_signs(elements: int) -> None:
    bits = torch.rand(elements, generator=torch.Generator().manual_seed(elements)) > 0.5
    packed = pack_bits(bits)
    assert packed.dtype == torch.uint8
    assert np.array_equal(packed.numpy(), np.packbits(bits.numpy(), bitorder="little"))
    for dtype in (torch.float32, torch.float64):
        signs = unpack_signs(packed, elements, dtype)
        assert signs.dtype == dtype
        assert torch.equal(signs, torch.where(bits, 1.0, -1.0).to(dtype))


def test_every_byte_is_unpacked_row_by_row() -> None:
    packed = torch.arange(256, dtype=torch.uint8).view(2, 128)
    assert torch.equal(pack_bits(unpack_signs(packed, 1024, torch.float32).flatten() > 0), packed.flatten())


def test_strided_bits_are_packed_in_their_order() -> None:
    bits = torch.rand(32, generator=torch.Generator().manual_seed(1)) > 0.5
    assert torch.equal(pack_bits(bits[::2]), pack_bits(bits[::2].clone()))
