"""The names that exports may use, each with where a published release has it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from suite.paths import ROOT

FILE = ROOT / "suite/report/export/names.toml"


class NamedPlace(NamedTuple):
    """The place of a name in a release.

    Args:
        release: as pip writes it, such as deepspeed==0.19.8.
        file: in the release.
        name: what stands there.
    """

    release: str
    file: str
    name: str


class TargetSoftware(NamedTuple):
    """Software that a format is for.

    Args:
        title: with its version.
        places: exported name -> where it was read.
    """

    title: str
    places: Mapping[str, NamedPlace]


@cache
def recorded_names() -> dict[str, dict[str, Any]]:
    """Everything in names.toml."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def target_software(export: str) -> TargetSoftware:
    """The software of an export and its names."""
    section = recorded_names()[export]
    return TargetSoftware(
        section["software"], {name: _place(section, name, value) for name, value in section["names"].items()}
    )


def _place(section: dict[str, Any], name: str, value: str) -> NamedPlace:
    """`release:file`, or `release:file:name` where the release writes the name differently."""
    release, file, *other = value.split(":")
    usual = name.rpartition(".")[2].removeprefix("--").replace("-", "_")
    return NamedPlace(section["releases"][release], file, other[0] if other else usual)
