"""JUnit XML, as CI servers read it: one suite of cases that passed, failed, could not be decided, or did not run."""

from __future__ import annotations

import re
from enum import StrEnum
from xml.etree import ElementTree

_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class JunitOutcome(StrEnum):
    """The element of a case that did not pass."""

    FAILURE = "failure"
    ERROR = "error"
    SKIPPED = "skipped"


class JunitSuite:
    """Cases under one name."""

    def __init__(self, name: str, *, seconds: float | None = None) -> None:
        self._suite = ElementTree.Element("testsuite", name=name)
        if seconds is not None:
            self._suite.set("time", f"{seconds:.1f}")

    def add_property(self, name: str, value: str) -> None:
        """A fact of the whole suite; properties stand before the cases, as the schema of JUnit asks."""
        properties = self._suite.find("properties")
        if properties is None:
            properties = ElementTree.Element("properties")
            self._suite.insert(0, properties)
        ElementTree.SubElement(properties, "property", name=_text(name), value=_text(value))

    def add(
        self,
        group: str,
        name: str,
        *,
        outcome: JunitOutcome | None = None,
        message: str = "",
        text: str = "",
        seconds: float | None = None,
    ) -> None:
        """A case; without `outcome` it passed, and `text` is its output.

        Args:
            group: what CI servers sort cases by ("classname").
        """
        case = ElementTree.SubElement(self._suite, "testcase", classname=_text(group), name=_text(name))
        if seconds is not None:
            case.set("time", f"{seconds:.6f}")
        if outcome is not None:
            ElementTree.SubElement(case, outcome.value, message=_text(message)).text = _text(text) or None
        elif text:
            ElementTree.SubElement(case, "system-out").text = _text(text)

    def xml(self) -> str:
        """The file's content."""
        kinds = (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
        for kind, tag in kinds:
            self._suite.set(kind, str(len(list(self._suite.iter(tag)))))
        root = ElementTree.Element("testsuites")
        root.append(self._suite)
        ElementTree.indent(root)
        return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _text(text: str) -> str:
    """The text with a mark in place of every character that XML cannot hold."""
    return _NOT_XML.sub("?", text)
