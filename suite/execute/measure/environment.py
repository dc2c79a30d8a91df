"""What a rank knows of its machine that needs torch to be asked."""

from __future__ import annotations

import torch


def environment(device: torch.device) -> dict[str, str]:
    """Device and library facts of this rank, as texts."""
    facts = {
        "torch": str(torch.__version__),
        "device": device.type,
        "threads": str(torch.get_num_threads()),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": properties.name,
            "gpu_memory_bytes": str(properties.total_memory),
            "cuda": str(torch.version.cuda),
            "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()),
        }
    return facts
