"""Opinions of other projects, which only the session `opinions` installs, and PyTorch's, which are always there."""

from __future__ import annotations

import importlib.util

OF = {
    "deepspeed": "test_deepspeed_estimates.py",
    "llm_analysis": "test_llm_analysis.py",
    "megatron": "test_megatron_bridge.py",
}

collect_ignore = [file for package, file in OF.items() if importlib.util.find_spec(package) is None]
