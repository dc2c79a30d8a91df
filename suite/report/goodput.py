"""What checkpoints and restarts cost a launch, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from suite.job.checkpoints import LaunchGoodput


def goodput_lines(goodput: LaunchGoodput | None) -> Iterator[str]:
    """A line of checkpoints, one of each restart, and the share of time that trained; none without checkpoints."""
    if goodput is None:
        return
    if goodput.checkpoints:
        size, stall = goodput.checkpoint_bytes / 1e6, goodput.stall_seconds * 1e3
        yield f"checkpoints: {goodput.checkpoints} of {size:,.4g} MB; training waited {stall:.3g} ms for each"
    for restart in goodput.restarts:
        lost = f"{restart.lost_steps} step{'' if restart.lost_steps == 1 else 's'} done again"
        went_on = f"step {restart.step} began {restart.seconds:.3g} s after step {restart.after_step} had ended"
        yield f"restart: {went_on if restart.after_step >= 0 else f'step {restart.step} began'}, {lost}: {restart.why}"
    useful = f"{goodput.useful_seconds:.3g} of {goodput.wall_seconds:.3g} s trained"
    yield f"goodput: predicted {goodput.predicted_share:.0%}, measured {goodput.share:.0%}: {useful}"
