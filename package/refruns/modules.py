"""Finds our packages in a process that is not ours, and leaves Hugging Face's `kernels` what it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from refruns import HOME

OURS = ("suite", "reference_runs")
KERNELS = "kernels"


class OurPackages:
    """A finder of `suite` and `reference_runs`, ahead of all others."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The specification of one of our packages, else None."""
        return PathFinder.find_spec(name, [HOME], target) if path is None and name in OURS else None


class OurKernels:
    """A finder of modules of our `kernels`, the last one asked: `kernels` itself is ours only where there is no other.

    Theirs and ours have no module of the same name (tests/end_to_end/test_installed.py compares with a release), so
    that `kernels.bits` is ours and `kernels.hf_hub` is theirs, in one process.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The specification of `kernels`, or of a module of ours in it; else None."""
        if name == KERNELS:
            return PathFinder.find_spec(name, [HOME], target)
        if path is not None and name.startswith(f"{KERNELS}.") and name.count(".") == 1:
            return PathFinder.find_spec(name, [str(Path(HOME, KERNELS))], target)
        return None


def serve(*, kernels: bool = False) -> None:
    """Make our packages importable in this process, with `kernels` our kernels too.

    Raises:
        ImportError: another module of such a name has been imported before.
    """
    for name in OURS:
        found = getattr(sys.modules.get(name), "__file__", None)
        if name in sys.modules and not (found and os.path.realpath(found).startswith(HOME + os.sep)):
            raise ImportError(f"refruns needs its own package {name}, and {found or 'another one'} is imported already")
    if OurPackages not in sys.meta_path:
        sys.meta_path.insert(0, OurPackages)
    if kernels and OurKernels not in sys.meta_path:
        sys.meta_path.append(OurKernels)
