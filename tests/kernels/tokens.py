"""Target tokens for the loss kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cross_entropy import IGNORED
from tests.kernels.agreement import DEVICE


def tokens(rows: int, vocabulary: int) -> Tensor:
    """Targets from the first to the last token, every fourth ignored."""
    targets = torch.randint(vocabulary, (rows,), generator=torch.Generator().manual_seed(3))
    targets[-1], targets[0], targets[1::4] = 0, vocabulary - 1, IGNORED
    return targets.to(DEVICE)
