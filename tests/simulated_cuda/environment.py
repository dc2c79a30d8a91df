"""The environment in which a process sees simulated devices."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tests.simulated_cuda.build import build

ROOT = Path(__file__).resolve().parents[2]
NVML = ROOT / "benchmarks" / "accept_selftest" / "nvml"  # stands in for nvidia-ml-py
FIRST_BUS = 16  # of the PCI bus, where src/runtime.c has its devices
PLUGIN = Path(__file__).resolve().parent / "plugin"  # PyTorch finds it on its path


MOVED = 1 << 20  # bytes of each transfer that are moved, unless more are computed with


def simulated_environment(
    devices: int = 1,
    *,
    model: str = "H100",
    nvml_faults: Mapping[str, object] | None = None,
    base: Mapping[str, str] | None = None,
    **settings: object,
) -> dict[str, str]:
    """Variables of a process that sees `devices` simulated GPUs.

    Args:
        model: a part of the name of a model in src/device.c.
        nvml_faults: what the management library reports of devices, by number, as its stand-in takes them.
        base: the variables to start from; this process's by default.
        settings: further SIMULATED_CUDA_* variables, in small letters: memory, mig, times, faults,
            log, moved, state, values (see README.md).
    """
    environment = dict(os.environ if base is None else base)
    for name in [name for name in environment if name.startswith("SIMULATED_CUDA_")]:
        del environment[name]
    directory = str(build())
    environment |= {
        "LD_LIBRARY_PATH": directory,
        "TRITON_LIBCUDA_PATH": directory,
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # another process to compile in imports PyTorch once more
        "SIMULATED_CUDA_DEVICES": str(devices),
        "SIMULATED_CUDA_MODEL": model,
        "FAKE_NVML": json.dumps({"gpus": devices, "first_bus": FIRST_BUS, "faults": dict(nvml_faults or {})}),
        "PYTHONPATH": os.pathsep.join([str(PLUGIN), str(NVML), *([p] if (p := environment.get("PYTHONPATH")) else [])]),
    }
    if "values" in settings:  # what is computed with has to arrive
        settings = {"moved": max(int(str(settings["values"])), MOVED), **settings}
    environment |= {f"SIMULATED_CUDA_{name.upper()}": str(value) for name, value in settings.items()}
    return environment
