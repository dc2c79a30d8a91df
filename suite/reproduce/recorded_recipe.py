"""A recorded recipe as it is executed where no training is repeated: in a dry run, or in a slice."""

from __future__ import annotations

import msgspec

from reference_runs.run import Recipe

LOSS_SCALE, LOSS_SCALE_WINDOW = 2.0**16, 1000  # where none is recorded: no count and no time depends on it


def in_whole_batches(recipe: Recipe) -> Recipe:
    """The recipe without a ramp-up of the batch."""
    none = dict.fromkeys(("batch_rampup_start", "batch_rampup_increment", "batch_rampup_samples"))
    return msgspec.structs.replace(recipe, **none)


def with_loss_scale(recipe: Recipe) -> Recipe:
    """The recipe with a dynamic loss scale, where its precision has one and none is recorded."""
    if not recipe.precision.scaled or recipe.initial_loss_scale is not None:
        return recipe
    return msgspec.structs.replace(recipe, initial_loss_scale=LOSS_SCALE, loss_scale_window=LOSS_SCALE_WINDOW)
