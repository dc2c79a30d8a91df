"""Lines of a log without what launchers and terminals put around them, and the numbers in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from gzip import GzipFile
from io import BufferedReader, TextIOWrapper
from pathlib import Path

from reference_runs.regular_file import regular_file

MOST_BYTES_OF_LINE = 1 << 16  # a line may be longer: progress bars without line ends, dumps of tensors
NUMBER = r"[+-]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[+-]?\d+)?[KMBGT]?(?![\w.])|nan|[+-]?inf"
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(r"^\s*(?:\[(?:default|rank)\d+\]:|\(\w[\w-]* pid=\d+[^)]*\)|\d{1,5}: )\s*")
_GZIP = b"\x1f\x8b"
_SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


def log_lines(path: Path) -> Iterator[str]:
    """Lines of a log, one at a time: without colours and the ranks that launchers put before them.

    A gzip file is unpacked. What a progress bar writes over itself counts as lines of their own. A longer line than
    64 kB is cut.

    Raises:
        OSError: the file cannot be read.
        EOFError, zlib.error: a gzip file is cut off, or damaged.
    """
    with regular_file(path) as raw:
        is_packed = raw.read(len(_GZIP)) == _GZIP
        raw.seek(0)
        file = TextIOWrapper(
            GzipFile(fileobj=raw) if is_packed else BufferedReader(raw), "utf-8", "replace", newline=""
        )
        while text := file.readline(MOST_BYTES_OF_LINE):
            for part in re.split(r"[\r\n]+", text):
                line = _COLOUR.sub("", part)
                while (stripped := _PREFIX.sub("", line, count=1)) != line:
                    line = stripped
                if line.strip():
                    yield line


def number(text: str) -> float:
    """A number as logs print it: 1,234; 1.23K; 1.249e+03.

    Raises:
        ValueError: it is none.
    """
    text = text.strip().replace(",", "")
    factor = _SUFFIXES.get(text[-1:], 1.0)
    return float(text[:-1] if factor != 1.0 else text) * factor
