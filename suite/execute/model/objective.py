"""What the model is trained on: the loss of one micro-batch."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy


def causal_lm_loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean cross-entropy in nats a token, computed in fp32 over all stored vocabulary rows."""
    return cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT.flatten())
