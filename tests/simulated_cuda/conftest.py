"""Tests of this folder run with PyTorch's CUDA build over the stand-ins, as `nox -s simulated_gpu` starts them."""

from __future__ import annotations

import os

import pytest

# begun last, they would run alone; the first takes three minutes
LONGEST_FIRST = ("test_first_hour_simulated.py", "test_layouts_simulated.py", "test_peaks_simulated.py")

if "SIMULATED_CUDA_DEVICES" not in os.environ:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest come first."""
    order = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))
