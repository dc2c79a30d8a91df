"""The site's navigation; `nox -s docs` builds the site itself, and fails at a broken link."""

from __future__ import annotations

import re

from suite.paths import ROOT

SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
PAGES = re.findall(r"^ +- (?:[^\n]+: )?([\w./]+\.md)$", SETTINGS.partition("\nnav:\n")[2], re.MULTILINE)


def test_every_page_of_docs_stands_in_the_navigation_once() -> None:
    docs = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
    assert sorted(page for page in PAGES if not page.startswith("repository/")) == docs


def test_pages_of_the_navigation_from_outside_of_docs_exist() -> None:
    outside = [page.removeprefix("repository/") for page in PAGES if page.startswith("repository/")]
    assert outside
    assert [page for page in outside if not (ROOT / page).is_file()] == []


def test_the_start_page_of_docs_links_every_page_for_readers() -> None:
    start = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([\w./]+\.md)\)", start)
    assert {page for page in PAGES if "/" not in page} - set(linked) == {"README.md"}
    formulas = (ROOT / "docs" / "formulas" / "README.md").read_text(encoding="utf-8")
    linked = [f"formulas/{page}" for page in re.findall(r"\]\((\w+\.md)\)", formulas)]
    assert [page for page in PAGES if page.startswith("formulas/")] == ["formulas/README.md", *linked]


def test_nothing_of_the_site_comes_from_another_server() -> None:
    assert "font: false" in SETTINGS
    assert "http" not in SETTINGS
    assert "http" not in (ROOT / "docs" / "site" / "site.css").read_text(encoding="utf-8")
