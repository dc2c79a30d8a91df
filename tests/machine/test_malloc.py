"""How ranks get memory on their host."""

import os
import platform
import subprocess
import sys

import pytest

from suite.launch.launcher import _environment
from suite.launch.multi_host import Hosts
from suite.machine import malloc
from suite.machine.fingerprint import fingerprint
from tests.support.page_records import job_of

AGAIN_AND_AGAIN = """
import ctypes, resource
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
faults = []
for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = library.malloc(ctypes.c_size_t(BYTES))
    ctypes.memset(block, 1, BYTES)
    library.free(ctypes.c_void_p(block))
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(*faults)
"""
BYTES = 48 * 2**20
PAGES = BYTES // os.sysconf("SC_PAGE_SIZE")


def faults(environment):
    script = AGAIN_AND_AGAIN.replace("BYTES", str(BYTES))
    reported = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return [int(word) for word in reported.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")
def test_a_block_of_48_mib_is_faulted_in_once_and_not_each_time():
    plain = {name: value for name, value in os.environ.items() if not name.startswith(malloc.PREFIX)}
    kept = faults(plain | malloc.settings())
    assert kept[0] > PAGES / 1024  # however large its pages are
    assert max(kept[1:]) < kept[0] / 10
    assert min(faults(plain)[1:]) > 10 * max(kept[1:])


def test_ranks_keep_their_memory_unless_the_user_says_otherwise(monkeypatch):
    for name in malloc.KEPT:
        monkeypatch.delenv(name, raising=False)
    started = _environment(job_of("gpt2-mini"), "1", Hosts())
    assert malloc.KEPT.items() <= started.items()
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "7")
    assert _environment(job_of("gpt2-mini"), "1", Hosts())["MALLOC_MMAP_MAX_"] == "7"


def test_a_profile_measured_with_another_allocator_is_stale(monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    usual = fingerprint("cpu")
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "7")
    assert fingerprint("cpu").hash != usual.hash
    monkeypatch.delenv("MALLOC_MMAP_MAX_")
    monkeypatch.setattr(malloc, "PRELOAD", "ALLOCATOR_OF_A_TEST")
    monkeypatch.setenv("ALLOCATOR_OF_A_TEST", "/usr/lib/libjemalloc.so.2")
    assert "libjemalloc" in fingerprint("cpu").software["allocator"]
