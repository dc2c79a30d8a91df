"""`fit --tiers`: which size of model fits which card."""

from __future__ import annotations

from typing import Any

from reference_runs.model_sizes import ModelSize, model_sizes, size_word
from suite.commands.options import print_json
from suite.commands.served_model import AskedServing, described_architecture
from suite.predict.plan.tiers import NODE, Purpose, Tiers, tiers
from suite.report.terminal.tables import console
from suite.report.terminal.tiers import print_tiers, print_tiers_of

CONTEXT = 4096  # tokens, which all of the models take


def print_model_tiers(name: str | None, options: AskedServing, *, as_json: bool) -> None:
    """Print which models fit which cards, or which cards fit the model of that name.

    Raises:
        InputError: no such model, or one that no formula describes.
    """
    context = options.context or CONTEXT
    models = model_sizes() if name is None else [ModelSize(name, size_word(name), described_architecture(name))]
    answer = tiers(models, context=context, sequences=options.sequences or 1)
    if as_json:
        print_json(_entry(answer))
    elif name is None:
        print_tiers(console(), answer)
    else:
        (model,) = answer.models
        print_tiers_of(console(), answer, model)


def _entry(answer: Tiers) -> dict[str, Any]:
    numbers = (1, NODE)
    return {
        "context": answer.context,
        "sequences": answer.sequences,
        "models": [
            {
                "name": model.name,
                "size": model.size,
                "parameters": model.parameters,
                "needed_bytes": {
                    purpose: {str(cards): model.needed[purpose, cards] for cards in numbers} for purpose in Purpose
                },
            }
            for model in answer.models
        ],
        "cards": [
            {
                "accelerator": card.accelerator,
                "printed_bytes": card.printed,
                "room_bytes": {
                    purpose: {str(cards): card.room(purpose, cards) for cards in numbers} for purpose in Purpose
                },
                "largest": {
                    purpose: {
                        str(cards): getattr(answer.largest(card, purpose, cards), "name", None) for cards in numbers
                    }
                    for purpose in Purpose
                },
            }
            for card in answer.cards
        ],
    }
