"""Prints which size of model fits which card."""

from __future__ import annotations

from rich.console import Console

from suite.predict.analytic.usable_memory import GIB
from suite.predict.plan.serving import CHUNK, MEMORY_SHARE
from suite.predict.plan.tiers import ADAPTER_RANK, NODE, Card, Purpose, SizedModel, Tiers
from suite.report.terminal.serving import sequences
from suite.report.terminal.tables import print_folded, print_table

TITLES = {
    Purpose.SERVE_16: "serve 16 bit",
    Purpose.SERVE_8: "8 bit",
    Purpose.SERVE_4: "4 bit",
    Purpose.QLORA: "QLoRA",
    Purpose.LORA: "LoRA",
    Purpose.BF16: "train bf16",
    Purpose.MIXED: "mixed",
}
WHOLE_TITLES = TITLES | {Purpose.SERVE_8: "serve 8 bit", Purpose.SERVE_4: "serve 4 bit", Purpose.MIXED: "train mixed"}
CONSUMER = "(consumer)"


def print_tiers(out: Console, answer: Tiers) -> None:
    """Print the largest model that fits, for each card and purpose: of one card, and of a node."""
    for cards, words in ((1, "one card"), (NODE, f"a node of {NODE} cards")):
        if cards > 1:
            out.print()
        print_folded(out, f"the largest model that fits {words}", "bold")
        rows = []
        for card in answer.cards:
            largest = (answer.largest(card, purpose, cards) for purpose in Purpose)
            rows.append(
                [f"{card.printed / GIB:.0f}", _name(card), *(model.size if model else "-" for model in largest)]
            )
        print_table(out, rows, ["GiB", "card", *TITLES.values()], right=["GiB", *TITLES.values()])
    out.print()
    print_folded(out, f"models: {', '.join(f'{model.size} {model.name}' for model in answer.models)}", "")
    _print_terms(out, answer)


def print_tiers_of(out: Console, answer: Tiers, model: SizedModel) -> None:
    """Print what one model needs for each purpose, and the smallest card that does."""
    print_folded(out, f"{model.name}: {model.parameters:,} parameters", "bold")
    titles = ["purpose", "GiB", "smallest card", f"GiB on each of {NODE}", f"smallest card, {NODE} of them"]
    rows = []
    for purpose in Purpose:
        row = [WHOLE_TITLES[purpose]]
        for cards in (1, NODE):
            needed, card = model.needed[purpose, cards], answer.smallest_card(model, purpose, cards)
            row += ["-" if needed is None else f"{needed / GIB:,.1f}", "-" if card is None else _sized_name(card)]
        rows.append(row)
    print_table(out, rows, titles, right=[titles[1], titles[3]])
    _print_terms(out, answer)


def _name(card: Card) -> str:
    return card.accelerator or CONSUMER


def _sized_name(card: Card) -> str:
    return f"{card.printed / GIB:.0f} GiB {_name(card)}"


def _print_terms(out: Console, answer: Tiers) -> None:
    """Print what is served and trained, and how."""
    load = f"{sequences(answer.sequences)} of {answer.context:,} tokens (--context, --sequences)"
    how = f"prefill in chunks of {CHUNK:,}, in {MEMORY_SHARE:.0%} of the memory; {NODE} cards by tensor parallelism"
    print_folded(out, f"serve: {load}, {how}")
    each = f"one sequence of {answer.context:,} tokens on each card, every layer computed again"
    print_folded(out, f"train: AdamW, {each}; {NODE} cards by FSDP")
    print_folded(out, "train bf16: 8 bytes a parameter; mixed: 16, with fp32 weights; fits as `fit` says it")
    adapters = f"adapters of rank {ADAPTER_RANK} on all linear layers, as peft 0.21 finds them"
    print_folded(out, f"LoRA: {adapters}; QLoRA: beside these in NF4, and stacked experts in 16 bits")
