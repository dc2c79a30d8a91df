"""Values that hold where a control is left empty, for the page to show in it."""

from __future__ import annotations

from reference_runs.incomplete import missing_keys
from reference_runs.run import ProductFormat
from suite.report.explore.state import ExploreState
from suite.report.explore.view import view

EMPTY = ("on", "network", "stack", "products", "price")


def unsaid(state: ExploreState) -> dict[str, str]:
    """What each control that may be empty stands for then, in a few words."""
    predicted = view(state, state.layout).predicted
    run, machine = (predicted.run, predicted.machine) if predicted else (None, None)
    able = machine.machine if machine else None
    formats = None
    if run is not None:
        of_layers = run.recipe.product_format
        own = None if "precision" in missing_keys(run.recipe) else run.recipe.precision
        formats = own if of_layers is ProductFormat.NONE else of_layers
    found = {
        "on": f"as recorded: {machine.accelerator.name}" if machine else "choose one",
        "network": f"{8e-9 * able.network_bytes_per_second:,.0f}" if able else "?",
        "stack": f"as recorded: {machine.stack.name}" if machine else "choose one",
        "products": f"as recorded: {formats}" if formats else "choose one",
        "price": "none",
    }
    return {name: found[name] for name in EMPTY}
