"""Looks up every name that exports use in the published releases that names.toml says; exits with 1 if one is missing.

The releases are downloaded with pip, without their dependencies, and read: nothing of them is installed or executed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from suite.report.export.names import NamedPlace, recorded_names, target_software


def release_file(archive: Path, name: str) -> str:
    """The text of a file of a wheel, or of a source archive below its own directory."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(name).decode()
    with tarfile.open(archive) as source:
        found = source.extractfile(f"{archive.name.removesuffix('.tar.gz')}/{name}")
        assert found is not None
        return found.read().decode()


def names_of(text: str) -> set[str]:
    """Names that a module defines, takes, passes or reads as attributes, and its strings."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.arg | ast.keyword):
            found.add(node.arg or "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def downloaded(release: str, directory: Path) -> Path:
    """The archive of a release."""
    place = directory / release
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(place), release]
    subprocess.run(command, check=True)
    return next(place.iterdir())


def missing(places: dict[str, NamedPlace], archives: dict[str, Path]) -> Iterator[str]:
    """The names that their release does not have where it is said, a line each."""
    for name, place in places.items():
        try:
            known = names_of(release_file(archives[place.release], place.file))
        except KeyError:
            yield f"{name}: {place.release} has no {place.file}"
            continue
        if place.name not in known:
            yield f"{name}: no {place.name} in {place.file} of {place.release}"


def main() -> int:
    """Look all names up, and say how many were found."""
    wrong, count = [], 0
    with tempfile.TemporaryDirectory() as directory:
        for export in recorded_names():
            places = dict(target_software(export).places)
            releases = {place.release for place in places.values()}
            archives = {release: downloaded(release, Path(directory)) for release in releases}
            wrong += [f"{export}: {line}" for line in missing(places, archives)]
            count += len(places)
    print(*wrong, f"{count - len(wrong)} of {count} names found", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
