"""What arithmetic says of runs, beside what was published."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from reference_runs.catalog import miniatures, reference_run
from reference_runs.run import ReferenceRun
from suite.compare import Row, compare, overall
from suite.figures import Figure, Quantity
from suite.miniature import miniature
from suite.predict.prediction import describes_ranks, prediction
from suite.report.tables import console, print_comparison


def predict(
    runs: Annotated[list[str], typer.Argument(help="Recorded runs, miniatures, or run files ending in .toml.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Print the predicted figures of runs beside the published ones.

    Examples: python -m suite predict bloom-176b; python -m suite predict bloom-mini my_run.toml --json
    """
    for name in runs:
        rows, unknown = _rows(name)
        if json:
            entry = {"run": name, "status": "ok", "verdict": overall(rows), "record": None, "figures": rows}
            print(msgspec.json.encode(entry).decode())
            continue
        out = console()
        out.print(f"[bold]{escape(name)}[/]")
        print_comparison(out, rows, left="predicted", right="published")
        if unknown:
            out.print(f"[dim]{unknown}[/]")


def _rows(name: str) -> tuple[list[Row], str]:
    minis = miniatures()
    published: list[Figure] = []
    if name in minis:
        small = miniature(reference_run(minis[name]), "cpu", ranks=2)
        architecture, recipe, layout = small.architecture, small.recipe, small.layout
    else:
        run = reference_run(name, also=minis)
        architecture, recipe, layout = run.architecture, run.recipe, run.layout
        published = _published(run)
    unknown = ""
    if not describes_ranks(layout):
        unknown = "state bytes and traffic: not predicted for tensor or pipeline parallelism, or ZeRO beyond stage 1"
    predicted = prediction(architecture, recipe, layout)
    return compare(predicted, published, left_name="predicted", right_name="published", judge=False), unknown


def _published(run: ReferenceRun) -> list[Figure]:
    reported = run.reported
    values = {
        Quantity.PARAMETERS: reported.parameters,
        Quantity.PEAK_BYTES: reported.peak_bytes,
        Quantity.STEP_SECONDS: reported.step_seconds,
        Quantity.TOKENS_PER_SECOND: reported.tokens_per_second,
        Quantity.HARDWARE_FLOP_PER_SECOND: reported.hardware_flop_per_second,
        Quantity.MFU: reported.mfu,
        Quantity.HFU: reported.hfu,
    }
    return [Figure(quantity=quantity, value=value) for quantity, value in values.items() if value is not None]
