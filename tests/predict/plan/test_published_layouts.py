"""Published layouts are near the best that the search finds."""

from __future__ import annotations

import pytest

from suite.predict.plan.published_layouts import RUNS, ranked_layouts


@pytest.fixture(scope="module")
def ranked():
    return {each.name: each for each in ranked_layouts()}


def test_eighteen_layouts_are_ranked(ranked) -> None:
    assert len(ranked) == 18
    assert set(RUNS) < set(ranked)


def test_every_published_layout_is_predicted_to_fit_and_no_layout_is_faster_than_the_first(ranked) -> None:
    for each in ranked.values():
        assert each.fits, each
        assert 1 <= each.rank <= each.fitting
        assert (each.rank == 1) == (each.loss == 0)
        assert each.rank <= each.rank_interleaved
        assert each.loss <= each.loss_interleaved


def test_what_the_builders_chose_is_near_the_best(ranked) -> None:
    """Twelve of eighteen within 3 % is what is aimed at; the machine model that is shipped reaches fourteen."""
    assert sum(each.loss < 0.03 for each in ranked.values()) >= 14
    assert max(each.loss for each in ranked.values()) < 0.09


def test_the_layout_that_was_wrongly_preferred_for_gpt_neox_does_not_fit(ranked) -> None:
    """dp24,tp4,pp1 needs 35.2 of 40 GiB by a prediction that published peaks exceed by a fifth."""
    neox = ranked["gpt-neox-20b"]
    assert "tp2" in neox.best
    assert "pp1," not in neox.best


def test_nothing_is_preferred_whose_layers_the_software_of_the_time_could_not_deal(ranked) -> None:
    """Megatron-LM of 2021 wants as many layers in every chunk: 60 of GPT-76B are not dealt to 8 stages of 3 chunks."""
    for name in ("GPT-76B", "GPT-145B"):
        assert ranked[f"megatron_sc21_table1, {name}"].rank == 1
    # 105 layers on 35 stages of 3 chunks: two samples at once are predicted 0.4 % faster, dealt as published
    largest = ranked["megatron_sc21_table1, GPT-530B"]
    assert largest.best.removesuffix("micro2") == largest.layout.removesuffix("micro1")
    assert largest.loss < 0.01
