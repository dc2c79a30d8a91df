"""Today's words in place of those that earlier versions of the suite wrote into files: one table for all files."""

from __future__ import annotations

from collections.abc import Mapping

Words = Mapping[bytes, bytes]  # JSON as earlier versions wrote it -> as it is written today

PROFILE: Words = {b'"pace"': b'"cpu_speed"', b'"trials"': b'"reference_steps"', b'"trial"': b'"step"'}
RECORD: Words = {
    b'"pace"': b'"cpu_slowdown"',
    b'"step_seconds_at_pace"': b'"step_seconds_at_cpu_speed"',
    b'"script": {': b'"training_options": {',  # of the job: the policy's "script" is a text
    b'"script":{': b'"training_options":{',
}
BATTERY: Words = {
    b'"pace"': b'"cpu_slowdown"',
    b'"paces"': b'"cpu_slowdowns"',
    b'"siblings"': b'"compared_as"',
    b', pace"': b', cpu_slowdown"',  # the end of such a name
}
FLEET: Words = {b', pace"': b', cpu_slowdown"'}
LADDER: Words = {
    b'"heights"': b'"rungs"',
    b'"walk"': b'"track"',
    b'"in_walk"': b'"in_track"',
    b'"broken"': b'"ablated"',
    b'"twins_failed"': b'"leave_one_out_failed"',
    b'"pace"': b'"cpu_slowdown"',
}
DOCUMENTS: Words = {b'"byte_places"': b'"byte_offsets"', b'"token_places"': b'"token_offsets"'}


def in_todays_words(data: bytes, words: Words) -> bytes:
    """The JSON of a file in today's words.

    Quotation marks within JSON's strings are escaped, so that what is replaced is a whole key or value.
    """
    for old, new in words.items():
        data = data.replace(old, new)
    return data
