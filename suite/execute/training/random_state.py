"""The random numbers that dropout draws, as they are to go on."""

from __future__ import annotations

import torch
from torch import Tensor


def random_state(device: torch.device) -> dict[str, Tensor]:
    """State of the generators that dropout draws from."""
    states = {"cpu generator": torch.get_rng_state()}
    return states if device.type == "cpu" else states | {"cuda generator": torch.cuda.get_rng_state(device)}


def set_random_state(states: dict[str, Tensor], device: torch.device) -> None:
    """Restore a state that `random_state` returned."""
    torch.set_rng_state(states["cpu generator"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda generator"], device)
