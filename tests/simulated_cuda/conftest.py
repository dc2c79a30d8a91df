"""Tests of this folder run with PyTorch's CUDA build over the stand-ins, as `nox -s simulated_gpu` starts them."""

from __future__ import annotations

import os

if "SIMULATED_CUDA_DEVICES" not in os.environ:
    collect_ignore_glob = ["test_*.py"]
