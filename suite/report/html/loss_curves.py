"""Loss curves of runs: every setup and seed that was recorded, the newest launch of each."""

from __future__ import annotations

from pathlib import Path

from suite.records.store import end_of
from suite.records.summary import LaunchSummary, loss_curve
from suite.report.html.plot import Cell, Plot, Trace, colour, significant, symbol
from suite.report.html.setups import Setup

MOST_CURVES = 10  # of a run: the newest
MOST_STEPS = 400  # drawn of a curve: of a longer one every second, third ... step


def losses(run: str, setups: list[Setup]) -> list[Plot]:
    """The curves of one run, a picture for each global batch: curves of different batches differ anyway."""
    newest: dict[int, dict[tuple[str, int], LaunchSummary]] = {}
    for setup in setups:
        for launch in setup.launches:
            if launch.first_loss is not None:
                newest.setdefault(launch.global_batch, {})[setup.key.id, launch.seed] = launch
    plots = (_losses(run, setups, batch, newest[batch], alone=len(newest) == 1) for batch in sorted(newest))
    return [plot for plot in plots if plot is not None]


def _losses(
    run: str, setups: list[Setup], batch: int, newest: dict[tuple[str, int], LaunchSummary], *, alone: bool
) -> Plot | None:
    """Curves of one global batch; None where there is none of two steps or more."""
    names = {setup.key.id: setup.key for setup in setups}
    layouts = {key.layout for key in names.values()}
    several = len({setup.key.machine for setup in setups}) > 1
    ordered = sorted(newest.items(), key=lambda each: (each[1].started, each[1].id), reverse=True)
    traces: list[Trace] = []
    rows: list[list[Cell]] = []
    for (key, seed), launch in ordered:
        points = loss_curve(end_of(Path(launch.path))) if len(traces) < MOST_CURVES else []
        if len(points) < 2:
            continue
        every = -(-len(points) // MOST_STEPS)
        drawn = points[:-1:every] + points[-1:]
        about = names[key]
        ranks = f"{about.ranks} rank{'s' if about.ranks > 1 else ''}"
        words = [ranks, about.layout, about.execution, f"seed {seed}", *([f"node {launch.node}"] if several else [])]
        name, index = ", ".join(words), len(traces)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "cliponaxis": False,
                "name": ", ".join([ranks, *_distinctive_words(about.layout, layouts), about.execution, f"seed {seed}"]),
                "x": [step for step, _ in drawn],
                "y": [significant(loss) for _, loss in drawn],
                "line": {"color": colour(index), "width": 1.75},
                "marker": {"symbol": symbol(index), "size": 6, "color": colour(index)},
                "hovertemplate": "step %{x}: %{y:.4f}",
            }
        )
        rows.append([name, str(len(points)), f"{points[0][1]:.4f}", f"{points[-1][1]:.4f}", launch.status, launch.id])
    if not traces:
        return None
    return Plot(
        id=f"loss-{setups[0].key.id}" + ("" if alone else f"-{batch}"),
        title=f"Loss of {run}" + ("" if alone else f", {batch} samples a step"),
        says=f"The loss by step of {len(traces)} launch{'es' if len(traces) > 1 else ''}, the newest of each setup and "
        f"seed; in the newest of all it goes from {rows[0][2]} to {rows[0][3]}.",
        traces=traces,
        layout={
            "xaxis": {"title": {"text": "step"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "loss, nats a token"}},
        },
        columns=["launch", "steps", "first loss", "last loss", "status", "record"],
        rows=rows,
        height=330 + 22 * len(traces),
    )


def _distinctive_words(layout: str, layouts: set[str]) -> list[str]:
    """The words of a layout that not all of them have."""
    common = set.intersection(*(set(layout.split(",")) for layout in layouts))
    return [word for word in layout.split(",") if word not in common]
