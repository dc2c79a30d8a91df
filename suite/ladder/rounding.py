"""What rounding may make of a rung's losses."""

from __future__ import annotations

import math

# Relative, of losses: one rounding to 16 bits, of 8 in bf16's significand and 11 in fp16's. Logits are rounded so, and
# a loss is a mean over 1,000 tokens and more, whose roundings average out. Of fp32 sums next to them nothing is seen
ROUNDING = 2.0**-8
FP16_ROUNDING = 2.0**-11


def reordered_bound(*, addends: int, steps: int) -> float:
    """By what part of itself a loss may differ where sums of fp32 are added in another order, in the last of `steps`.

    (S + 1) sqrt(n) u, with n addends, S steps and u = 2^-24, fp32's unit roundoff:
        sqrt(n) u   a sum of n addends: roundings are as good as independent, so that they add up as a random walk. That
                    holds too where the addends cancel, relative to what is left of them
        1           the loss of the step itself, a mean over its tokens
        S           gradients of the steps before. Adam's update has the relative error of its gradient, and moves the
                    loss by that part of what the update takes off it: at most all of the loss, each step
    One addend after the other; PyTorch adds in blocks, whose sums are rounded less often. The longest of these sums are
    those over a step's tokens, in gradients of weights; the gradients' norm is one over all parameters, but a factor of
    all gradients leaves Adam's updates as they are.

    Source: Higham and Mary, A new approach to probabilistic rounding error analysis, 2019, theorem 2.4, with
    lambda = 1. Differs from the worst case, n u, by sqrt(n).
    """
    return (steps + 1) * math.sqrt(addends) * 2.0**-24
