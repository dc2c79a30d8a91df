"""Interface for notebooks and programs: predictions, plans and records as Python objects (docs/python.md).

`import refruns` makes `suite` and `reference_runs` importable, wherever they lie. It leaves `kernels` alone: that name
is Hugging Face's in such a process, and nothing here needs ours but `refruns.one_bit`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refruns.interface import (
        InputError,
        answers,
        batteries,
        figures,
        fit,
        frame,
        launches,
        plan,
        predict,
        runs,
        show,
    )

__all__ = [
    "HOME",
    "InputError",
    "__version__",
    "answers",
    "batteries",
    "figures",
    "fit",
    "frame",
    "launches",
    "plan",
    "predict",
    "runs",
    "show",
]

_HERE = Path(__file__).resolve().parent
_INSTALLED = _HERE / "_home"
HOME = str(_INSTALLED if _INSTALLED.is_dir() else _HERE.parents[1])
"""The directory of `suite`, `reference_runs` and `kernels`: in the wheel a part of this package, or the checkout."""


def __getattr__(name: str) -> Any:
    """The interface is imported when something of it is asked for: the console command needs none of it."""
    if name == "__version__":
        from importlib.metadata import version

        return version("llm-reference-runs")
    if name in __all__:
        from refruns import interface

        return getattr(interface, name)
    raise AttributeError(f"module 'refruns' has no attribute {name!r}")
