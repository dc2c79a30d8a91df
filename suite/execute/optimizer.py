"""The learning rate of a step."""

from __future__ import annotations

import math

from reference_runs.run import LearningRateDecay, Recipe


def learning_rate(recipe: Recipe, step: int) -> float:
    """Learning rate of step `step` (0, 1, ...): linear warm-up, then half a cosine down to the minimum.

    With u = samples seen when the step ends, w warm-up and d decay samples, peak p, minimum q:
        u <= w:  p u / w
        else:    q + (p - q) (1 + cos(pi (u - w) / (d - w))) / 2, and q after d
    Source: Megatron-LM, learning_rates.py, AnnealingLR (samples as its unit).
    """
    assert recipe.learning_rate_decay is LearningRateDecay.COSINE
    seen = (step + 1) * recipe.global_batch
    if seen <= recipe.warmup:
        return recipe.learning_rate * seen / recipe.warmup
    if seen >= recipe.decay:
        return recipe.minimum_learning_rate
    share = (seen - recipe.warmup) / (recipe.decay - recipe.warmup)
    span = recipe.learning_rate - recipe.minimum_learning_rate
    return recipe.minimum_learning_rate + span * (1 + math.cos(math.pi * share)) / 2
