"""How many documents the sequences of a launch had, and what they saw of each other, in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from suite.job.events import PackedDocuments


def packing_lines(ranks: Iterable[PackedDocuments | None]) -> Iterator[str]:
    """One line of all ranks, none where no documents are kept apart.

    The share of the square is counted as areas, as conventions of flop have it: the diagonal counts half.
    """
    packed = [each for each in ranks if each is not None]
    if not packed:
        return
    sequences, documents = sum(each.sequences for each in packed), sum(each.documents for each in packed)
    square = sum(each.sequences * each.tokens**2 for each in packed)
    share = sum(each.attended - each.sequences * each.tokens / 2 for each in packed) / square
    a_sequence = f"{documents / sequences:.1f} a sequence"
    yield f"documents: {a_sequence}, which attend to {share:.1%} of its square (without: 50.0%)"
