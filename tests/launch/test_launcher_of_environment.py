"""The environment that a launch gives its ranks."""

from __future__ import annotations

import pytest

from suite.launch.launcher import cuda_allocator

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_segments_grow_on_a_gpu_alone() -> None:
    assert cuda_allocator("cuda") == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert cuda_allocator("cpu") == {}


@pytest.mark.parametrize("name", NAMES)
def test_what_the_user_says_of_the_allocator_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "max_split_size_mb:64")
    assert cuda_allocator("cuda") == {}
