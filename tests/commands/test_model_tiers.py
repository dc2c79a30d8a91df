"""`fit --tiers` as a user sees it."""

from __future__ import annotations

import pytest

from tests.support.answers import whole


def test_the_table_fits_100_columns_and_answers_why_models_have_their_sizes(said, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    lines = said("fit", "--tiers").splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == "the largest model that fits one card"
    rows = {line.split()[1]: line.split()[2:] for line in lines[2:15]}
    # a card of 24 GB serves 8B in 16 bits and 14B in 8; one of 80 GB serves 70B in 8 and 4 bits
    assert rows["rtx-4090"][:3] == ["8B", "14B", "32B"]
    assert rows["h100-sxm"][:3] == ["32B", "70B", "70B"]
    assert any("70B llama3.1-70b" in line for line in lines)


def test_one_model_needs_what_the_other_commands_say(answered):
    found = answered("fit", "llama2-7b", "--tiers")
    (model,) = found["models"]
    on = ("--stack", "pytorch", "--sequence", "4096", "--on", "h200-sxm")
    layouts = {
        ("bf16", "1"): ("dp1,zero0", "bf16-pure", "1", on),
        ("bf16", "8"): ("dp8,zero3", "bf16-pure", "8", on),
        ("mixed", "8"): ("dp8,zero3", "bf16", "8", on),
        ("mixed", "1"): ("dp1,zero0", "bf16", "1", on),
    }
    for (purpose, cards), (words, precision, batch, options) in layouts.items():
        layout = f"{words},recompute-full,micro1,fused"
        asked = ("predict", "llama2-7b", "--layout", layout, "--precision", precision, "--batch", batch, *options)
        peak = whole(answered(*asked))["peak_bytes"]
        assert model["needed_bytes"][purpose][cards] == pytest.approx(peak, rel=1e-9), (purpose, cards)
    for cards in ("1", "8"):
        served = answered("fit", "llama2-7b", "--serve", "--on", "h200-sxm", "--gpus", cards, "--context", "4096")
        needed = {each["weight_format"]: each["needed"] for each in served["serving"]["formats"]}
        for purpose, name in (("serve-16", "bf16"), ("serve-8", "int8"), ("serve-4", "int4")):
            assert model["needed_bytes"][purpose][cards] == needed[name]
        (card,) = (each for each in found["cards"] if each["accelerator"] == "h200-sxm")
        assert card["room_bytes"]["serve-16"][cards] == served["memory_bytes"]


def test_longer_contexts_and_more_sequences_leave_room_for_less(answered):
    found = [answered("fit", "--tiers", *more) for more in ((), ("--sequences", "8"), ("--context", "32768"))]
    needs = [{model["name"]: model["needed_bytes"] for model in each["models"]} for each in found]
    assert needs[0].keys() == needs[1].keys() == needs[2].keys()
    for name, own in needs[0].items():
        assert own["serve-4"]["1"] < needs[1][name]["serve-4"]["1"]
        assert own["qlora"]["1"] == needs[1][name]["qlora"]["1"] < needs[2][name]["qlora"]["1"]


def test_one_model_is_printed_with_its_smallest_cards(said):
    lines = said("fit", "--tiers", "llama3.1-70b").splitlines()
    assert lines[0] == "llama3.1-70b: 70,553,706,496 parameters"
    assert lines[4].split() == ["serve", "4", "bit", "39.5", "48", "GiB", "l40s", "5.0", "8", "GiB", "(consumer)"]


def test_what_does_not_go_together_is_one_line(not_refused):
    table = [
        ("--tiers --on h100-sxm", "--on: does not go with --tiers"),
        ("--tiers --gpus 2", "--gpus: does not go with --tiers"),
        ("--tiers --chunk 2", "--chunk: does not go with --tiers"),
        ("llama2-7b --tiers --serve", "--tiers: does not go with --serve"),
        ("--tiers --precision bf16", "--precision: is of training, not of --tiers"),
        ("", "missing argument 'run'"),
        ("--serve", "missing argument 'run'"),
        ("llama2-8b --tiers", "unknown run"),
    ]
    assert not_refused("fit", table) == []
