from __future__ import annotations

from typing import Any

import msgspec
import pytest

from reference_runs.sourced import Kind, Sourced

STATED = {"value": 70, "unit": "1", "kind": "stated", "source": "slurm"}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in STATED.items() if name != key}


def test_a_value_with_kind_and_source_exists() -> None:
    fact = msgspec.convert(STATED, Sourced)
    assert (fact.value, fact.unit, fact.kind, fact.source) == (70, "1", Kind.STATED, "slurm")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (without("kind"), "kind"),
        (without("source"), "source"),
        (STATED | {"source": "  "}, "source is empty"),
        (STATED | {"kind": "guessed"}, "guessed"),
        (without("value"), "exclude each other"),
        (STATED | {"kind": "not published"}, "exclude each other"),
        (STATED | {"kind": "assumed"}, "needs `why` and `effect`"),
        (STATED | {"kind": "assumed", "why": "default"}, "needs `why` and `effect`"),
        (STATED | {"kind": "assumed", "effect": "none"}, "needs `why` and `effect`"),
        (STATED | {"readings": [{"value": 71, "source": "paper"}]}, "need `why`"),
        (STATED | {"why": "w", "readings": [{"value": 71}]}, "source"),
        (STATED | {"sauce": "slurm"}, "sauce"),
    ],
)
def test_an_incomplete_value_is_refused(entry: dict[str, Any], reason: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=reason):
        msgspec.convert(entry, Sourced)


def test_what_is_not_published_has_no_value() -> None:
    fact = msgspec.convert({"kind": "not published", "source": "readme"}, Sourced)
    assert fact.value is None
