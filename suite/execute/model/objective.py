"""What the model is trained on: the loss of one micro-batch."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

NOT_LEARNED = -100  # target of a position whose token is given, not generated: it has no loss


class CrossEntropy(nn.Module):
    """Mean cross-entropy of the targets that are learned, in nats a token, in fp32 over all stored vocabulary rows."""

    def forward(self, head: nn.Linear, x_BTD: Tensor, targets_BT: Tensor, _upstream: float) -> Tensor:
        logits_BTV = head(x_BTD)
        return cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT.flatten(), ignore_index=NOT_LEARNED)
