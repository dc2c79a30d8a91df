"""The catalog: which runs are recorded, and what can be reproduced of them."""

from __future__ import annotations

from reference_runs.accelerator import accelerator_names
from reference_runs.catalog import miniatures, reference_run, run_names
from reference_runs.model_sizes import known_models
from reference_runs.units import printed
from suite.commands.options import JsonLines, print_json
from suite.job.slice import SUFFIX
from suite.predict.analytic.parameters import parameter_count
from suite.report.terminal.tables import console, print_folded, print_table


def runs(json: JsonLines = False) -> None:
    """List the recorded runs and their miniatures.

    Example: python -m suite runs
    """
    minis = {run: mini for mini, run in miniatures().items()}
    listed = [reference_run(name) for name in run_names()]
    if json:
        for run in listed:
            entry = {
                "run": run.name,
                "title": run.title,
                "parameters": parameter_count(run.architecture),
                "reproduce": minis.get(run.name),
            }
            print_json(entry)
        return
    rows = [[r.name, r.title, printed(parameter_count(r.architecture), "1"), minis.get(r.name, "-")] for r in listed]
    out = console()
    print_table(out, rows, ["run", "title", "parameters", "reproduce with"])
    out.print()
    print_folded(out, f"what one accelerator of a run computes, at its true shapes: reproduce RUN{SUFFIX}", "")
    print_folded(out, f"models by name, for `predict`, `fit` and `plan` alone: {', '.join(known_models())}", "")
    print_folded(out, f"accelerators for `show` and `predict --on`: {', '.join(accelerator_names())}", "")
