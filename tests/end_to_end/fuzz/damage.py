"""Damages real files as disks, editors, transfers and people do; and makes files that are hostile by themselves."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from pathlib import Path

TOKENS = (
    *(
        b"NaN",
        b"-Infinity",
        b"nan",
        b"inf",
        b"1e999",
        b"-1e-999",
        b"-1",
        b"0",
        b"0.1",
        b"-0.0",
        b"1e18",
        b"0x7f",
        b"1_0",
    ),
    *(b"9007199254740993", b"18446744073709551616", b"9" * 300, b"9" * 5000, "\u0663".encode(), b"A" * 20000),
    *(b"null", b"true", b"{}", b"[]", b'""', b'"', b"'", b"'''", b"\\", b"\\ud800", b"\\u0000", b"#", b"=", b","),
    *(b"\n", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", "\u202e\u2067\u0000".encode()),
    *(b"[" * 3000, b"{" * 3000),
)
_VALUE = re.compile(rb"[^\s,:=\[\]{}]+")


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The bytes with one to three things wrong."""
    for _ in range(chance.randint(1, 3)):
        data = chance.choice(_DAMAGES)(data, chance)
    return data


def _place(data: bytes, chance: random.Random) -> int:
    return chance.randint(0, len(data))


def _truncated(data: bytes, chance: random.Random) -> bytes:
    return data[: _place(data, chance)]


def _flipped(data: bytes, chance: random.Random) -> bytes:
    at = _place(data, chance)
    return data[:at] + bytes(byte ^ (1 << chance.randrange(8)) for byte in data[at : at + 1]) + data[at + 1 :]


def _without_slice(data: bytes, chance: random.Random) -> bytes:
    at = _place(data, chance)
    return data[:at] + data[at + chance.randint(1, 200) :]


def _with_slice_twice(data: bytes, chance: random.Random) -> bytes:
    at, size = _place(data, chance), chance.randint(1, 400)
    return data[:at] + data[at : at + size] * 2 + data[at + size :]


def _with_token(data: bytes, chance: random.Random) -> bytes:
    at = _place(data, chance)
    return data[:at] + chance.choice(TOKENS) + data[at:]


def _with_value(data: bytes, chance: random.Random) -> bytes:
    """One value or key replaced: what a well-formed file with nonsense in it is."""
    found = list(_VALUE.finditer(data))
    if not found:
        return data
    one = chance.choice(found)
    return data[: one.start()] + chance.choice(TOKENS) + data[one.end() :]


def _with_value_of_another(data: bytes, chance: random.Random) -> bytes:
    found = list(_VALUE.finditer(data))
    if len(found) < 2:
        return data
    one, other = chance.sample(found, 2)
    return data[: one.start()] + other.group() + data[one.end() :]


def _without_line(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if lines:
        del lines[chance.randrange(len(lines))]
    return b"".join(lines)


def _lines_swapped(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if len(lines) > 1:
        one, other = chance.sample(range(len(lines)), 2)
        lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def _in_utf16(data: bytes, _chance: random.Random) -> bytes:
    return data.decode("utf-8", errors="replace").encode("utf-16")


def _with_mark(data: bytes, _chance: random.Random) -> bytes:
    return b"\xef\xbb\xbf" + data


_DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(_truncated, _flipped, _without_slice, _with_slice_twice, _with_token, _with_token, _with_value, _with_value),
    *(_with_value, _with_value_of_another, _without_line, _lines_swapped, _in_utf16, _with_mark),
)


def _bytes(data: Callable[[bytes], bytes]) -> Callable[[Path, bytes], None]:
    def make(path: Path, real: bytes) -> None:
        path.write_bytes(data(real))

    return make


def _pipe(path: Path, _real: bytes) -> None:
    os.mkfifo(path)


def _loop(path: Path, _real: bytes) -> None:
    path.symlink_to(path.name)


def _nowhere(path: Path, _real: bytes) -> None:
    path.symlink_to(path.with_name("nothing-is-here"))


def _endless(path: Path, _real: bytes) -> None:
    path.symlink_to("/dev/zero")


def _directory(path: Path, _real: bytes) -> None:
    path.mkdir()


def _of_holes(path: Path, _real: bytes) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 34)


def _many_lines(real: bytes) -> bytes:
    """A million lines: the file's own first and last line, and its last one again and again."""
    lines = real.splitlines(keepends=True) or [b"x\n"]
    return lines[0] + (lines[-1].rstrip(b"\n")[:60] + b"\n") * 10**6


HOSTILE: dict[str, Callable[[Path, bytes], None]] = {
    "empty": _bytes(lambda _: b""),
    "nul": _bytes(lambda _: b"\0" * 4096),
    "utf-16": _bytes(lambda real: real.decode("utf-8", errors="replace").encode("utf-16")),
    "utf-8 with mark": _bytes(lambda real: b"\xef\xbb\xbf" + real),
    "latin-1": _bytes(lambda real: "\u00fc".encode("latin-1") + real),
    "deep lists": _bytes(lambda _: b"a = " + b"[" * 10**5),
    "deep json lists": _bytes(lambda _: b"[" * 10**6),
    "deep objects": _bytes(lambda _: b'{"schema":"1.0","a":' * 10**5),
    "deep tables": _bytes(lambda _: b"[" + b"a." * 10**5 + b"a]\n"),
    "many deep keys": _bytes(lambda _: (b"a." * 3900 + b"b = 1\n") * 130),
    "a digit a million times": _bytes(lambda _: b"9" * 10**6),
    "a million lines": _bytes(_many_lines),
    "a line of ten million letters": _bytes(lambda _: b'{"schema": "' + b"A" * 10**7 + b'"}'),
    "a million quotes": _bytes(lambda _: b'"' * 10**6),
    "a million commas": _bytes(lambda _: b"," * 10**6),
    "named pipe": _pipe,
    "link to itself": _loop,
    "link to nothing": _nowhere,
    "device without end": _endless,
    "directory": _directory,
    "16 GiB of holes": _of_holes,
}
