"""Structs with some fields of another one: their decoders read what is needed of a record, and skip the rest."""

from __future__ import annotations

from typing import Any

import msgspec


def partial(kind: type[msgspec.Struct], *names: str, array_like: bool = False, **replaced: Any) -> Any:
    """A struct with the fields `names` of `kind`, with their types, defaults and encoded names.

    Args:
        array_like: encoded as an array of the fields in the order of `names`; then none has a default.
        replaced: more fields of `kind`, each decoded as the type that is given: a `partial` of its own, or msgspec.Raw;
            [type] is a list of it.

    Raises:
        KeyError: `kind` has no field of that name.
    """
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    kept = []
    for name in dict.fromkeys([*names, *replaced]):
        field, asked = fields[name], replaced.get(name, fields[name].type)
        asked = list.__class_getitem__(asked[0]) if isinstance(asked, list) else asked
        default = {} if array_like else {"default": field.default, "default_factory": field.default_factory}
        kept.append((name, asked, msgspec.field(name=field.encode_name, **default)))
    title = f"Partial{kind.__name__}"
    return msgspec.defstruct(title, kept, frozen=True, kw_only=not array_like, array_like=array_like, gc=False)


def shared_fields(kind: type[msgspec.Struct], other: type[msgspec.Struct], *but: str) -> tuple[str, ...]:
    """Names of fields that both have, in the order of `kind`; those that are named are left out."""
    return tuple(name for name in kind.__struct_fields__ if name in other.__struct_fields__ and name not in but)
