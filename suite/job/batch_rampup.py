"""The ramp-up of the global batch at the beginning of a training run."""

from __future__ import annotations

from reference_runs.run import Recipe


def global_batch_at(recipe: Recipe, seen: int) -> int:
    """Samples of the step that begins when `seen` samples have been trained on.

    With b samples at the start, i the increment, r the samples of the ramp-up, B the full batch, n = (B - b) / i:
        seen < r:  b + i floor(seen n / r)
        else:      B, as without ramp-up

    Source: Megatron-LM, core/num_microbatches_calculator.py, RampupBatchsizeNumMicroBatchesCalculator. It divides r by
    n first, in floating point; the batch can differ where `seen` is a multiple of r / n to within a rounding.
    """
    start, increment, samples = recipe.batch_rampup_start, recipe.batch_rampup_increment, recipe.batch_rampup_samples
    if start is None and increment is None and samples is None:
        return recipe.global_batch
    assert start is not None
    assert increment is not None
    assert samples is not None
    increments = (recipe.global_batch - start) // increment
    return start + increment * min(seen * increments // samples, increments)
