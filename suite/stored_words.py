"""Today's words in place of those that earlier versions of the suite wrote into files: one table for all files."""

from __future__ import annotations

import re
from collections.abc import Mapping

Words = Mapping[bytes, bytes]  # JSON as earlier versions wrote it -> as it is written today


def _keys(**words: str) -> Words:
    """Keys of JSON objects: a colon follows, so that no text of a user is taken for one."""
    return {f'"{old}":'.encode(): f'"{new}":'.encode() for old, new in words.items()}


def _quantities(**words: str) -> Words:
    """Values of the key "quantity", in compact JSON and in indented JSON."""
    return {
        f'"quantity":{space}"{old}"'.encode(): f'"quantity":{space}"{new}"'.encode()
        for old, new in words.items()
        for space in ("", " ")
    }


PROFILE = _keys(pace="cpu_speed", trials="reference_steps", trial="step")
RECORD: Words = {
    **_quantities(pace="cpu_slowdown", step_seconds_at_pace="step_seconds_at_cpu_speed"),
    b'"script": {': b'"training_options": {',  # of the job: the policy's "script" is a text
    b'"script":{': b'"training_options":{',
}
BATTERY = _keys(pace="cpu_slowdown", paces="cpu_slowdowns", siblings="compared_as")
FLEET: Words = {}
LADDER = _keys(
    heights="rungs",
    walk="track",
    in_walk="in_track",
    broken="ablated",
    twins_failed="leave_one_out_failed",
    pace="cpu_slowdown",
)
DOCUMENTS = _keys(**{"byte_places": "byte_offsets", "token_places": "token_offsets"})

_NAME_BEFORE = b', pace"'  # the end of a name under which batteries of a node and of a fleet are compared
_NAME = re.compile(rb'(?:(?<="compared_as":)|(?<="compared_as": ))("[^"\\]*), pace"|("[^"\\]*), pace"(?=\s*:)')


def in_todays_words(data: bytes, words: Words) -> bytes:
    """The JSON of a file in today's words.

    Quotation marks within JSON's strings are escaped, so that a key within a text is left as it is.
    """
    for old, new in words.items():
        data = data.replace(old, new)
    if words in (BATTERY, FLEET) and _NAME_BEFORE in data:
        data = _NAME.sub(lambda found: (found[1] or found[2]) + b', cpu_slowdown"', data)
    return data
