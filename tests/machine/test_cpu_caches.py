"""Caches as Linux tells them."""

from __future__ import annotations

from pathlib import Path

from suite.machine.cpu_caches import UNKNOWN_SHARE, all_bytes, later_caches, share_bytes


def tell(processors: Path, thread: int, index: str, level: str, size: str, sharing: str) -> Path:
    own = processors / f"cpu{thread}" / "cache" / index
    own.mkdir(parents=True)
    for name, text in (("level", level), ("size", size), ("shared_cpu_map", sharing)):
        (own / name).write_text(text + "\n", encoding="ascii")
    return own


def test_a_cache_is_shared_by_the_usable_threads_that_have_it(tmp_path: Path) -> None:
    tell(tmp_path, 2, "index0", "1", "32K", "00000000,0000000c")
    tell(tmp_path, 2, "index2", "2", "512K", "00000000,0000000c")
    last = tell(tmp_path, 2, "index3", "3", "32768K", "0000000f,000000ff")
    assert share_bytes(tmp_path, frozenset({2, 3, 33})) == 256 * 1024 + 32 * 2**20 // 3
    assert share_bytes(tmp_path, frozenset({2})) == 512 * 1024 + 32 * 2**20
    (last / "size").write_text("unknown", encoding="ascii")
    assert share_bytes(tmp_path, frozenset({2, 3})) == 256 * 1024
    assert share_bytes(tmp_path, frozenset({5})) == UNKNOWN_SHARE
    assert later_caches(tmp_path, frozenset({5})) == frozenset()


def test_all_caches_are_counted_once_whoever_shares_them(tmp_path: Path) -> None:
    for thread in (0, 1):
        tell(tmp_path, thread, "index2", "2", "512K", "3")
        tell(tmp_path, thread, "index3", "3", "32768K", "0f")
    tell(tmp_path, 4, "index3", "3", "32768K", "f0")
    assert all_bytes(tmp_path, frozenset({0, 1, 4})) == 512 * 1024 + 64 * 2**20
    assert all_bytes(tmp_path, frozenset({0})) == 512 * 1024 + 32 * 2**20
    assert all_bytes(tmp_path, frozenset({7})) == 0
