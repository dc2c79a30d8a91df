"""Protocol Buffers' wire format, as far as Chakra's messages need it: numbers, texts and messages in messages.

Source: protobuf.dev, "Encoding". A field is a key, its number and wire type, and a value: a varint (type 0), or so many
bytes (type 2).
"""

from __future__ import annotations

from collections.abc import Sequence

_VARINT, _BYTES = 0, 2


def varint(value: int) -> bytes:
    """A whole number in groups of 7 bits, the least first; a negative one in two's complement of 64 bits."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A field of type int32, int64, uint64, bool or enum; nothing where it is 0, as proto3 has it."""
    return varint(field << 3 | _VARINT) + varint(value) if value else b""


def chosen_number(field: int, value: int) -> bytes:
    """The same within a oneof, whose field is written with 0 too: else nothing is chosen."""
    return varint(field << 3 | _VARINT) + varint(value)


def packed(field: int, values: Sequence[int]) -> bytes:
    """A repeated field of whole numbers; nothing where there are none."""
    return message(field, b"".join(map(varint, values))) if values else b""


def text(field: int, value: str) -> bytes:
    """A field of type string."""
    return message(field, value.encode())


def message(field: int, encoded: bytes) -> bytes:
    """A field whose value is a message, encoded already."""
    return varint(field << 3 | _BYTES) + varint(len(encoded)) + encoded


def delimited(encoded: bytes) -> bytes:
    """A message in a file of several: its length, then itself."""
    return varint(len(encoded)) + encoded
