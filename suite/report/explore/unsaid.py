"""Values that hold where a control is left empty, for the page to show in it."""

from __future__ import annotations

from reference_runs.incomplete import missing_keys
from reference_runs.run import ProductFormat
from suite.report.explore.controls import TRAINING
from suite.report.explore.presets import described_run
from suite.report.explore.state import ExploreState
from suite.report.explore.view import view

EMPTY = ("on", "network", "stack", "products", *TRAINING, "price")


def unsaid(state: ExploreState) -> dict[str, str]:
    """Words for what each control that may be empty stands for then, recorded or assumed."""
    predicted = view(state, state.layout).predicted
    run, machine = (predicted.run, predicted.machine) if predicted else (None, None)
    recipe, able = run.recipe if run else None, machine.machine if machine else None
    absent = missing_keys(recipe) if recipe else ()
    recorded = described_run(state.run)

    def choice(value: str | None, *, is_recorded: bool) -> str:
        return f"{'as recorded' if is_recorded else 'assumed'}: {value}" if value else "choose one"

    precision = recipe.precision if recipe and "precision" not in absent else None
    own_precision = "precision" not in missing_keys(recorded.recipe)
    products = recipe.product_format if recipe else ProductFormat.NONE
    of_precision = f"as the precision: {precision}" if precision else "choose one"
    found = {
        "on": choice(machine and machine.accelerator.name, is_recorded=recorded.cluster is not None),
        "network": f"{8e-9 * able.network_bytes_per_second:,.0f}" if able else "?",
        "stack": choice(machine and machine.stack.name, is_recorded=recorded.software is not None),
        "products": of_precision if products is ProductFormat.NONE else f"as recorded: {products}",
        "precision": choice(precision, is_recorded=own_precision),
        "batch": f"{recipe.global_batch:,}" if recipe and "global_batch" not in absent else "?",
        "sequence": f"{run.architecture.sequence:,}" if run else "?",
        "tokens": f"{recipe.tokens:.3g}".replace("e+", "e") if recipe and "tokens" not in absent else "?",
        "price": "none",
    }
    return {name: found[name] for name in EMPTY}
