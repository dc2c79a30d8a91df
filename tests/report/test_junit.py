"""The file that CI servers read: what happened to each case, counts that add up, no character that XML cannot hold."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from suite.report.junit import JunitOutcome, JunitSuite

OUTCOMES = st.sampled_from([None, *JunitOutcome])
TEXTS = st.text(st.characters(exclude_categories=()), max_size=20)


def test_a_case_says_how_it_ended_how_long_it_took_and_what_it_printed() -> None:
    suite = JunitSuite("all", seconds=12.34)
    suite.add("a", "passes", text="said", seconds=0.5)
    suite.add("a", "fails", outcome=JunitOutcome.FAILURE, message="why", text="more")
    suite.add("b", "waits", outcome=JunitOutcome.SKIPPED, message="no GPU")
    (root,) = ElementTree.fromstring(suite.xml())
    assert root.attrib == {"name": "all", "time": "12.3", "tests": "3", "failures": "1", "errors": "0", "skipped": "1"}
    passes, fails, waits = root
    assert (passes.attrib, passes.findtext("system-out")) == (
        {"classname": "a", "name": "passes", "time": "0.500000"},
        "said",
    )
    assert [(each.tag, each.get("message"), each.text) for each in fails] == [("failure", "why", "more")]
    assert [(each.tag, each.get("message"), each.text) for each in waits] == [("skipped", "no GPU", None)]


@given(st.lists(st.tuples(TEXTS, TEXTS, OUTCOMES, TEXTS, TEXTS), max_size=5))
def test_any_text_makes_a_file_that_parses_with_its_counts(
    cases: list[tuple[str, str, JunitOutcome | None, str, str]],
) -> None:
    suite = JunitSuite("any")
    for group, name, outcome, message, text in cases:
        suite.add(group, name, outcome=outcome, message=message, text=text)
    (root,) = ElementTree.fromstring(suite.xml())
    counted = [root.get(kind) for kind in ("tests", "failures", "errors", "skipped")]
    outcomes = [case[2] for case in cases]
    assert counted == [str(len(cases)), *(str(outcomes.count(outcome)) for outcome in JunitOutcome)]
