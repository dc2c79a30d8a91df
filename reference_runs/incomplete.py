"""Run files that ask for less than everything: a recipe that lacks keys, and what then names them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from reference_runs.errors import MissingFactError, Mistakes
from reference_runs.run import Moments, Recipe, ReferenceRun

_RECIPE_KEYS = frozenset(Recipe.__struct_fields__)


class IncompleteRecipe(Recipe, frozen=True, kw_only=True):
    """The recipe of a file that leaves out a part of it, or does not have it at all. It refuses to say what it lacks.

    So every figure says by itself what it needs: the refusal names the key.

    Args:
        missing: keys that the file leaves out; their values here are None, and cannot be read.
    """

    missing: tuple[str, ...]
    where: str

    def __getattribute__(self, name: str) -> Any:
        if name in _RECIPE_KEYS and name in object.__getattribute__(self, "missing"):
            where = object.__getattribute__(self, "where")
            raise MissingFactError(f"recipe.{name} is needed, and the file leaves it out", where=where)
        return object.__getattribute__(self, name)

    @property
    def kept_moments(self) -> Moments:
        """Dtype of the optimizer's moments; of Adam's where the file names no optimizer."""
        return self.moments if "optimizer" in self.missing else super().kept_moments

    @property
    def orthogonalises(self) -> bool:
        """As of Adam where the file names no optimizer."""
        return "optimizer" not in self.missing and super().orthogonalises


def incomplete_recipe(values: dict[str, Any], missing: tuple[str, ...], where: str) -> IncompleteRecipe:
    """The recipe with `values` that lacks the keys `missing`."""
    absent: dict[str, Any] = dict.fromkeys(missing)
    return IncompleteRecipe(**{**values, **absent}, missing=missing, where=where)


def missing_keys(recipe: Recipe) -> tuple[str, ...]:
    """Keys that the recipe lacks, in the order of the record."""
    return recipe.missing if isinstance(recipe, IncompleteRecipe) else ()


def check_complete(recipe: Recipe, what: str, where: str) -> None:
    """Refuse a recipe that lacks anything.

    Raises:
        MissingFactError: it does; the line names all that `what` needs of it.
    """
    if keys := [f"recipe.{key}" for key in missing_keys(recipe)]:
        are, them = ("is", "it") if len(keys) == 1 else ("are", "them")
        raise MissingFactError(f"{', '.join(keys)} {are} needed {what}, and the file leaves {them} out", where=where)


def check_whole(run: ReferenceRun, *, needs_layout: bool) -> None:
    """Refuse a run file that leaves out what an execution needs: any of a recipe, and a layout where it is needed.

    Raises:
        MissingFactError: it does; each section that lacks something has a line.
    """
    mistakes = Mistakes()
    with mistakes.collected():
        check_complete(run.recipe, "to execute", run.where)
    if needs_layout:
        with mistakes.collected():
            _ = run.layout
    mistakes.refuse()


class NotPredicted:
    """Collects which figures need what a file leaves out."""

    def __init__(self) -> None:
        self._figures: dict[str, list[str]] = {}

    @contextlib.contextmanager
    def unless(self, figures: str) -> Iterator[None]:
        """A context that computes `figures`; a missing fact ends it, and nothing else."""
        try:
            yield
        except MissingFactError as error:
            named = self._figures.setdefault(str(error).removeprefix(f"{error.where}: "), [])
            named += [figures] if figures not in named else []

    @property
    def reasons(self) -> tuple[str, ...]:
        """A line for each missing fact, with all that is not predicted without it."""
        return tuple(f"{', '.join(figures)}: {reason}" for reason, figures in self._figures.items())
