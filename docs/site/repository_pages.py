"""Pages from outside of docs/ in the site: README, CONTRIBUTING, logs and others, read where they lie.

A hook of mkdocs. Links are written for GitHub, relative to the file; each is turned into one between the site's pages.
Whatever a page links to outside of docs/ joins: Markdown as a page, another text or a directory as a page that shows
it. A link to nothing is left to mkdocs, which fails.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PREFIX = "repository"
LANGUAGES = {".sh": "bash", ".sbatch": "bash", ".yaml": "yaml", ".yml": "yaml", ".py": "python", ".conf": "ini"}
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for everything that pages link to outside of docs/, and for what such pages link to."""
    waiting = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        text = (ROOT / page).read_text(encoding="utf-8")
        targets = {linked(page, link.group(1)) for link in _LINK.finditer(text) if ":" not in link.group(1)} - seen
        for path in sorted(target for target in targets if not target.startswith("docs/") and (ROOT / target).exists()):
            seen.add(path)
            if path.endswith(".md"):
                files.append(File.generated(config, place(path), abs_src_path=str(ROOT / path)))
                waiting.append(path)
            else:
                files.append(File.generated(config, place(path), content=shown(ROOT / path)))
    return files


def linked(page: str, target: str) -> str:
    """The path in the repository that `page`, a path in it, means by the relative link `target`."""
    return os.path.normpath(PurePosixPath(page).parent / target)


def shown(path: Path) -> str:
    """A page of Markdown with the text of a file, or of every file in a directory."""
    listed = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    parts = [f"# {path.relative_to(ROOT).as_posix()}"]
    for file in listed:
        text = file.read_text(encoding="utf-8").replace("````", "` ` ` `")
        parts.append(f"## {file.name}\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{text}\n````")
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """The page with its links between files of the repository turned into links between pages of the site."""
    here = PurePosixPath(page.file.src_uri)
    if here.name == "TABLES.md":  # wide tables, whose first column has names with hyphens
        page.meta["hide"] = ["toc"]
        markdown += "\n<style>.md-typeset td:first-child { white-space: nowrap; }</style>\n"
    in_repository = here.relative_to(PREFIX) if here.parts[0] == PREFIX else PurePosixPath("docs") / here

    def moved(link: re.Match[str]) -> str:
        target, anchor = link.group(1), link.group(2) or ""
        if ":" in target:
            return link.group()
        return os.path.relpath(place(linked(str(in_repository), target)), here.parent) + anchor

    return _LINK.sub(moved, markdown)


def place(path: str) -> str:
    """Where a path of the repository is in the site's sources."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{PREFIX}/{path}" if path.endswith(".md") else f"{PREFIX}/{path}.md"
