"""Pictures that commands write when their work is done, refused before it begins where they could not be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reference_runs.errors import InputError
from reference_runs.layout import Layout, layout_text
from reference_runs.run import Workload
from suite.commands.new_file import check_new
from suite.job.pipeline_passes import PipelineTimes
from suite.machine.packages import require
from suite.metrics.figures import Figure
from suite.report.schedule import launch_panels

SCHEDULE = "--schedule"


def check_picture(picture: Path | None, option: str, *, force: bool) -> None:
    """Refuse a picture that could not be drawn when the work is done.

    Raises:
        InputError: it cannot be written, matplotlib is missing, or the name is no PNG's.
    """
    if picture is None:
        return
    check_new(picture, option, force=force)
    if picture.suffix != ".png":
        raise InputError("not a picture's name", got=str(picture), allowed="a file ending in .png", where=option)
    require("matplotlib")


def check_pipelined(schedule: Path | None, layout: Layout) -> None:
    """Refuse the schedule of what has none.

    Raises:
        InputError: one stage.
    """
    if schedule is not None and layout.pipeline_stages == 1:
        raise InputError("a schedule is of pipeline stages", got=layout_text(layout), allowed="ppN", where=SCHEDULE)


def draw_launch(
    schedule: Path, name: str, workload: Workload, times: Sequence[PipelineTimes | None], figures: Sequence[Figure]
) -> None:
    """Write the predicted passes of a launch, and below them the measured ones.

    Args:
        times: of every rank.
        figures: that were measured.

    Raises:
        InputError: neither is known, or the file cannot be written.
    """
    from suite.report.plots.schedule import draw_schedule

    heading = f"{name}, {layout_text(workload.layout)}"
    panels = launch_panels(workload, times, figures)
    if not panels:
        raise InputError("nothing is known of the passes", got=heading, allowed="a measured pipeline", where=SCHEDULE)
    draw_schedule(schedule, panels, heading=heading)
