"""Facts of a listing of machine code: opcodes, the bytes of loads and stores, and how many bytes wait at once.

Listings are those of nvdisasm for NVIDIA and the assembly of LLVM for AMD.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_NVIDIA = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)([^;]*);", re.MULTILINE)
_AMD = re.compile(r"^\t([a-z]+_[a-z0-9_]+)\b(.*)$", re.MULTILINE)
_REGISTER = re.compile(r"\bR(\d+)")
_NVIDIA_BYTES = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
_AMD_BYTES = {"dwordx4": 16, "dwordx3": 12, "dwordx2": 8, "dword": 4, "short": 2, "ushort": 2, "byte": 1, "ubyte": 1}
_AMD_ACCESS = re.compile(r"(?:global|buffer|flat)_(load|store|atomic)_\w*?(dwordx[234]|dword|u?short|u?byte)")
_AMD_WAIT = re.compile(r"vmcnt\((\d+)\)")

Instruction = tuple[str, str]  # opcode with its modifiers, operands


def instructions(listing: str) -> list[Instruction]:
    """The instructions of one function in order, without those that do nothing."""
    found = _NVIDIA.findall(listing) or _AMD.findall(listing)
    return [(opcode, operands) for opcode, operands in found if opcode not in {"NOP", "s_nop"}]


def access_bytes(opcodes: Sequence[str], access: str) -> list[int]:
    """Bytes that a thread moves at once from or to memory, each width that occurs, the widest first.

    Args:
        access: load or store.
    """
    widths = {_bytes(opcode) for opcode in opcodes if _access(opcode) == access}
    return sorted(widths, reverse=True)


def _access(opcode: str) -> str:
    """Whether it loads from memory or stores to it: load, store, or neither."""
    if opcode.partition(".")[0] in {"LDG", "LDGSTS"}:
        return "load"
    if opcode.partition(".")[0] == "STG":
        return "store"
    found = _AMD_ACCESS.match(opcode)
    return found[1] if found else ""


def _bytes(opcode: str) -> int:
    if found := _AMD_ACCESS.match(opcode):
        return _AMD_BYTES[found[2]]
    return next((_NVIDIA_BYTES[word] for word in opcode.split(".")[1:] if word in _NVIDIA_BYTES), 4)


def waiting_bytes(code: Sequence[Instruction]) -> int:
    """The most bytes of a thread's loads that are on the way at once, as the code runs from first line to last.

    A load is on the way until one of its registers is read or overwritten, and so are those issued after it; one to
    shared memory (LDGSTS) until DEPBAR waits for its group; AMD's until vmcnt leaves fewer. Jumps are not followed: the
    loads before a loop and those of one pass are seen. Loads that a mask turns off count, as do those that hit a cache.
    """
    return max(_waiting(code), default=0)


def _waiting(code: Sequence[Instruction]) -> Iterator[int]:
    loads: list[tuple[frozenset[int], int]] = []  # registers of a load, and its bytes
    groups = [0]  # bytes of the loads to shared memory, the last group open
    memory: list[int] = []  # AMD: bytes of each access in order, 0 of a store
    for opcode, operands in code:
        if opcode.startswith("DEPBAR"):
            left = int(operands.rpartition(",")[2], 16) if "," in operands else 0
            groups = [0] * max(0, len(groups) - 1 - left) + groups[max(0, len(groups) - 1 - left) :]
        elif opcode.startswith("LDGDEPBAR"):
            groups.append(0)
        elif opcode.startswith("LDGSTS"):
            groups[-1] += _bytes(opcode)
        elif opcode == "s_waitcnt" and (found := _AMD_WAIT.search(operands)):
            memory = memory[max(0, len(memory) - int(found[1])) :]
        elif _AMD_ACCESS.match(opcode):
            memory.append(_bytes(opcode) if _access(opcode) == "load" else 0)
        named = {int(number) for number in _REGISTER.findall(operands)}
        arrived = [place for place, (registers, _) in enumerate(loads) if registers & named]
        if arrived:
            loads = loads[arrived[-1] + 1 :]
        if opcode.partition(".")[0] == "LDG":
            first = _REGISTER.search(operands)
            if first is not None:
                size = _bytes(opcode)
                numbers = range(int(first[1]), int(first[1]) + max(1, size // 4))
                loads.append((frozenset(numbers), size))
        yield sum(size for _, size in loads) + sum(groups) + sum(memory)
