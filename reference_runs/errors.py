"""The one exception family for bad input: what, allowed, got, where."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator

MOST_LETTERS = 5000  # of a line: the longest list of what is allowed has 1,600


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that `name` misspells; None where none is near."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=0.75)), None)


class InputError(Exception):
    """A wrong name, file, layout, corpus, device or permission, as one line.

    The line reads `where: what; got GOT, allowed: ALLOWED`, with the parts that apply; `where` can be asked for alone.

    Args:
        meant: the name that was perhaps meant, see `nearest`.
    """

    def __init__(
        self,
        what: str,
        *,
        allowed: str | None = None,
        got: object | None = None,
        where: str | None = None,
        meant: str | None = None,
    ) -> None:
        self.where = where
        line = what if where is None else f"{where}: {what}"
        values = {f"got {got}": got, f"did you mean {meant}?": meant, f"allowed: {allowed}": allowed}
        parts = ", ".join(part for part, value in values.items() if value is not None).replace("?, ", "? ")
        super().__init__(f"{line}; {parts}" if parts else line)

    @property
    def lines(self) -> tuple[str, ...]:
        """One line for each mistake."""
        line = " ".join(str(self).split())
        if len(line) > MOST_LETTERS:
            line = f"{line[: MOST_LETTERS // 2]} ... {line[-MOST_LETTERS // 2 :]}"
        return (line,)


class MissingFactError(InputError):
    """A figure or an execution needs what a run file leaves out."""


class InputMistakesError(InputError):
    """Several mistakes in one input, each with a line of its own."""

    def __init__(self, errors: Iterable[InputError]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(map(str, self.errors)))
        self.where = self.errors[0].where

    @property
    def lines(self) -> tuple[str, ...]:
        """One line for each mistake."""
        return tuple(line for error in self.errors for line in error.lines)


class Mistakes:
    """Collects what is wrong with an input, so that it is reported at once."""

    def __init__(self, errors: Iterable[InputError] = ()) -> None:
        self.errors = list(errors)

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """A context whose refusal is collected; it ends the context, and nothing else."""
        try:
            yield
        except InputMistakesError as several:
            self.errors += several.errors
        except InputError as error:
            self.errors.append(error)

    def refuse(self) -> None:
        """Raise what was collected.

        Raises:
            InputError: anything was.
        """
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise InputMistakesError(self.errors)


def belonging_mistakes(
    section: str, record: object, names: Iterable[str], to: str, *, is_needed: bool, where: str
) -> Iterator[InputError]:
    """One mistake that names all keys which belong `to` something else than the record is, or miss where it is that."""
    wrong = [name for name in names if (getattr(record, name) is not None) != is_needed]
    if wrong:
        keys = ", ".join(f"{section}.{name}" for name in wrong)
        are = "missing, needed with" if is_needed else "only for"
        yield InputError(f"{keys}: {are} {to}", where=where)
