"""Settings of the C library's memory allocator in ranks, by environment variables.

On a GPU, PyTorch keeps freed memory for the next tensor. On a CPU it leaves that to the C library. By default glibc
maps every block of more than 32 MiB anew and returns the free end of the heap, so that the kernel faults in each large
tensor page by page every time it is allocated. Ranks keep their memory instead.
"""

from __future__ import annotations

import os

PREFIX = "MALLOC_"
PRELOAD = "LD_PRELOAD"  # replaces glibc's allocator by another one
KEPT = {
    "MALLOC_MMAP_MAX_": "0",  # no block is mapped by itself
    "MALLOC_TRIM_THRESHOLD_": str(2**62),  # free bytes at the heap's end that are returned to the kernel: never
}


def settings() -> dict[str, str]:
    """Environment variables of the allocator in a rank that this process starts; those of this process override them.

    Source: mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD; other C libraries than glibc read none of them.
    """
    return KEPT | {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}


def described() -> str:
    """The settings as one text, with the library that is preloaded, if any."""
    preload = os.environ.get(PRELOAD)
    variables = settings() | ({PRELOAD: preload} if preload else {})
    return " ".join(f"{name}={value}" for name, value in sorted(variables.items()))
