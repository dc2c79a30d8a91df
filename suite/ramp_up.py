"""The ramp-up of the global batch at the beginning of a training run."""

from __future__ import annotations

from reference_runs.errors import InputError
from reference_runs.layout import Layout, Schedule
from reference_runs.run import Recipe
from suite.job import WARM_UP_STEPS


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


def check_ramp_up(recipe: Recipe, layout: Layout, where: str) -> None:
    """Refuse a ramp-up that cannot be executed, or that is still going on in the steps that are counted.

    Raises:
        InputError: it is recorded in part; its batches are not whole micro-batches of every replica (with 1F1B, one for
            each stage); it does not end at the whole batch, or not within the warm-up steps, or with pipeline stages
            not before the last of them, which prepares the schedule of the whole batch.
    """
    ramp_up = (recipe.batch_rampup_start, recipe.batch_rampup_increment, recipe.batch_rampup_samples)
    start, increment, samples = ramp_up
    if start is None or increment is None or samples is None:
        if ramp_up != (None, None, None):
            raise InputError("recipe.batch_rampup_start, increment, samples: all or none", got=ramp_up, where=where)
        return
    replicas = layout.data_parallel * layout.micro_batch
    least = replicas * (layout.pipeline_stages if layout.schedule is Schedule.ONE_F_ONE_B else 1)
    if start % replicas or increment % replicas or not least <= start <= recipe.global_batch:
        raise InputError(
            "recipe.batch_rampup_start and batch_rampup_increment",
            got=f"{start} and {increment}",
            allowed=f"multiples of data_parallel * micro_batch = {replicas}, from {least} to {recipe.global_batch}",
            where=where,
        )
    if (recipe.global_batch - start) % increment:
        raise InputError(
            "recipe.batch_rampup_increment does not divide global_batch - batch_rampup_start = "
            f"{recipe.global_batch - start}",
            got=increment,
            where=where,
        )
    seen = 0
    for _ in range(WARM_UP_STEPS - (layout.pipeline_stages > 1)):
        seen += global_batch_at(recipe, seen)
    if global_batch_at(recipe, seen) < recipe.global_batch:
        raise InputError(
            "recipe.batch_rampup_samples: the steps that are counted need the whole batch",
            got=samples,
            allowed=f"a ramp-up that ends within the first {seen} samples",
            where=where,
        )
