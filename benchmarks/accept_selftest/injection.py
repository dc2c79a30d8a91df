"""An injection: the fault, the options of the battery, and the finding that it must have."""

from __future__ import annotations

import enum
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple


class InjectionDirectories(NamedTuple):
    """Directories of one injection: results with an accepted battery, and scratch."""

    results: Path
    scratch: Path


class Prepared(NamedTuple):
    """Changes that an injection makes: arguments, environment and prefix of the command."""

    arguments: list[str]
    environment: dict[str, str]
    prefix: list[str]


Prepare = Callable[[InjectionDirectories], AbstractContextManager[Prepared]]


class AcceptedBefore(enum.Enum):
    """Checks of a battery that must be accepted before a fault; memory is apart, because it takes a minute more."""

    LINKS = "0,5,6"
    MEMORY = "0,3,5,6"


class Injection(NamedTuple):
    """One fault.

    Args:
        only: arguments of `accept` that select what the fault concerns.
        code: expected exit code.
        check, verdict: of the finding that must name it, with `part` and `words` in its part and evidence. A check of
            None: no report, and `words` in the output of the command.
        prepare: a context that makes the fault.
        past: what must have been accepted before, in the same results directory, as the past of the battery; None: the
            battery has no past.
        stacks_of: ranks whose stacks the record of the phase that hangs must have.
        passes: checks that must pass nevertheless, because the rest of the battery goes on.
        or_verdict: another verdict that the finding may have; empty: none.
        needs: why it cannot be made here; None where it can.
    """

    name: str
    only: list[str]
    code: int
    check: int | None
    verdict: str
    part: str
    words: str
    prepare: Prepare
    needs: Callable[[], str | None] = lambda: None
    past: AcceptedBefore | None = None
    stacks_of: tuple[int, ...] = ()
    passes: tuple[int, ...] = ()
    or_verdict: str = ""
