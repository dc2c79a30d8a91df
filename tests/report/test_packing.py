from __future__ import annotations

from suite.job.events import PackedDocuments
from suite.report.packing import packing_lines


def test_documents_and_their_share_of_the_square_are_those_of_all_ranks() -> None:
    one = PackedDocuments(sequences=1, tokens=4, documents=1, attended=10)  # half of the square, and of its diagonal
    two = PackedDocuments(sequences=1, tokens=4, documents=2, attended=6)  # two of two tokens: a quarter
    assert [*packing_lines([one])] == [
        "documents: 1.0 a sequence, which attend to 50.0% of its square (without: 50.0%)"
    ]
    assert [*packing_lines([two, one])] == [
        "documents: 1.5 a sequence, which attend to 37.5% of its square (without: 50.0%)"
    ]


def test_without_documents_there_is_no_line() -> None:
    assert [*packing_lines([None, None])] == []
