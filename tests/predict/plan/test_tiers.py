"""Which size of model fits which card: orders that must hold, and agreement with the other commands' formulas."""

from __future__ import annotations

import pytest

from reference_runs.model_sizes import model_sizes
from suite.predict.plan.tiers import NODE, Purpose, Tiers, tiers


@pytest.fixture(scope="module")
def answer() -> Tiers:
    return tiers(model_sizes(), context=4096, sequences=1)


def test_fewer_bits_and_more_cards_need_less(answer: Tiers) -> None:
    wrong = []
    orders = [
        (Purpose.SERVE_4, Purpose.SERVE_8, Purpose.SERVE_16),
        (Purpose.QLORA, Purpose.LORA, Purpose.BF16, Purpose.MIXED),
    ]
    for model in answer.models:
        for order in orders:
            for cards in (1, NODE):
                sizes = [model.needed[purpose, cards] for purpose in order]
                wrong += [(model.name, order, cards, sizes)] if sizes != sorted(sizes) else []
        for purpose in Purpose:
            one, node = (model.needed[purpose, cards] for cards in (1, NODE))
            # nothing is shared without loss; training of all weights is other software on one card (autocast) and on 8
            least = one / NODE if purpose in (*orders[0], *orders[1][:2]) else 0
            wrong += [(model.name, purpose, one, node)] if not least < node < one else []
    assert wrong == []


def test_the_largest_fits_and_nothing_larger_does(answer: Tiers) -> None:
    assert [model.parameters for model in answer.models] == sorted(model.parameters for model in answer.models)
    for purpose in Purpose:
        for cards in (1, NODE):
            before = 0
            for card in answer.cards:
                found = answer.largest(card, purpose, cards)
                fitting = [m.parameters for m in answer.models if m.needed[purpose, cards] <= card.room(purpose, cards)]
                largest = found.parameters if found else 0
                assert largest == max(fitting, default=0)
                assert before <= largest, (card, purpose, cards)  # more memory never fits less
                before = largest
                if found:
                    smallest = answer.smallest_card(found, purpose, cards)
                    assert smallest is not None
                    assert smallest.printed <= card.printed


def test_cards_have_the_sizes_from_8_to_288_gb_in_their_order(answer: Tiers) -> None:
    sizes = [round(card.printed / 2**30) for card in answer.cards]
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (8, 288)
