"""Pages from outside of docs/ in the site: README, CONTRIBUTING, logs and others, read where they lie.

A hook of mkdocs. Links are written for GitHub, relative to the file; each is turned into one between the site's pages.
A linked directory becomes a page that shows its files. Any other file outside of docs/ is a broken link, and `mkdocs
build --strict` fails.
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
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "results/recorded/LOG.md",
    "results/recorded/README.md",
    "results/recorded/TABLES.md",
    "results/recorded/WHERE_TESTS_WENT.md",
    "results/recorded_h100/TABLES.md",
    "tests/simulated_cuda/README.md",
)
DIRECTORIES = ("deploy/slurm", "deploy/kubernetes")
TEXTS = ("LICENSE",)
LANGUAGES = {".sh": "bash", ".sbatch": "bash", ".yaml": "yaml", ".yml": "yaml", ".py": "python", ".conf": "ini"}
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the repository's own pages, and a page for each directory or text that pages link to."""
    for name in PAGES:
        files.append(File.generated(config, f"{PREFIX}/{name}", abs_src_path=str(ROOT / name)))
    for name in (*DIRECTORIES, *TEXTS):
        files.append(File.generated(config, f"{PREFIX}/{name}.md", content=shown(ROOT / name)))
    return files


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
    in_repository = here.relative_to(PREFIX) if here.parts[0] == PREFIX else PurePosixPath("docs") / here

    def turned(link: re.Match[str]) -> str:
        target, anchor = link.group(1), link.group(2) or ""
        if ":" in target:
            return link.group()
        path = os.path.normpath(in_repository.parent / target)
        return os.path.relpath(place(path), here.parent) + anchor

    return _LINK.sub(turned, markdown)


def place(path: str) -> str:
    """Where a path of the repository is in the site's sources."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{PREFIX}/{path}.md" if path in (*DIRECTORIES, *TEXTS) else f"{PREFIX}/{path}"
