"""Opinions of other projects, which only the session `opinions` installs, and PyTorch's, which are always there."""

from __future__ import annotations

import importlib.util

OF = {
    "test_deepspeed_estimates.py": "deepspeed",
    "test_llm_analysis.py": "llm_analysis",
    "test_megatron_bridge.py": "megatron",
    "test_megatron_core.py": "megatron",
}

collect_ignore = [file for file, package in OF.items() if importlib.util.find_spec(package) is None]
