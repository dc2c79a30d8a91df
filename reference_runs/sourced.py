"""A published value with its unit, kind and source: it refuses to exist without them."""

from __future__ import annotations

import enum

import msgspec


class Kind(enum.StrEnum):
    """How a value is known."""

    STATED = "stated"
    READ_FROM_FIGURE = "read from figure"
    DERIVED = "derived"
    ASSUMED = "assumed"
    NOT_PUBLISHED = "not published"


Value = int | float | str | bool | tuple[int | str, ...]


class Reading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reading of the same quantity by another source, in the unit of the value that was chosen."""

    value: Value
    source: str
    note: str = ""


class Sourced(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One recorded value.

    Args:
        value: absent where `kind` is "not published".
        unit: for numbers; texts, choices, claims and lists of counts have none.
        source: document, and the place in it; its first word is a key of the file's `[sources]`.
        why: why this reading was chosen where sources disagree (required with `readings`), or the reason for an
            assumption (required with kind "assumed").
        effect: what an assumption changes in the results (required with kind "assumed").
        readings: what other sources say.
    """

    kind: Kind
    source: str
    value: Value | None = None
    unit: str | None = None
    note: str = ""
    why: str = ""
    effect: str = ""
    readings: tuple[Reading, ...] = ()

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise ValueError("source is empty; a recorded value needs one")
        if (self.value is None) != (self.kind is Kind.NOT_PUBLISHED):
            raise ValueError(f"kind {self.kind.value!r} and value {self.value!r} exclude each other")
        if self.kind is Kind.ASSUMED and not (self.why and self.effect):
            raise ValueError("an assumed value needs `why` and `effect`")
        if self.readings and not self.why:
            raise ValueError("conflicting readings need `why` this value was chosen")
