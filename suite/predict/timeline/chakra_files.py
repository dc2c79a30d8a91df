"""Chakra's files of execution traces: a file a rank, and the groups of ranks that ASTRA-sim reads beside them.

Field numbers of et_def.proto, schema 0.0.4 (github.com/mlcommons/chakra, schema/protobuf/et_def.proto; known, no copy
was at hand to read again). A file is a GlobalMetadata, then Nodes, each with its length before it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from suite.predict.timeline.execution_trace import COLLECTIVES, TraceNode, TraceNodeKind, process_groups
from suite.predict.timeline.wire_format import chosen_number, delimited, message, number, packed, text

SCHEMA = "0.0.4"
GROUPS = "comm_groups.json"
_TRACE_NAME = re.compile(r"step\.[0-9]+\.et")
# GlobalMetadata
_VERSION = 1
# Node
_ID, _NAME, _TYPE, _DATA_DEPENDENCIES, _START, _DURATION, _ATTRIBUTE = 1, 2, 3, 5, 6, 7, 10
# AttributeProto: its name, and a oneof of values
_ATTRIBUTE_NAME, _INT32, _INT64, _BOOL, _STRING = 1, 7, 9, 27, 29


def trace_bytes(rank: int, nodes: Sequence[TraceNode], groups: Mapping[tuple[int, ...], int]) -> bytes:
    """A rank's file. Durations are whole microseconds: their sum is rounded once.

    Args:
        groups: number of each group of ranks, of `process_groups`.
    """
    parts = [delimited(text(_VERSION, SCHEMA))]
    now = 0.0
    for node in nodes:
        begin, now = round(1e6 * now), now + node.seconds
        parts.append(delimited(_encoded(rank, node, round(1e6 * now) - begin, groups)))
    return b"".join(parts)


def _encoded(rank: int, node: TraceNode, microseconds: int, groups: Mapping[tuple[int, ...], int]) -> bytes:
    attributes = [_attribute("is_cpu_op", _BOOL, 0)]
    if node.kind is TraceNodeKind.COLLECTIVE:
        attributes.append(_attribute("comm_type", _INT64, COLLECTIVES[node.operation]))
        attributes.append(_attribute("comm_size", _INT64, node.payload_bytes))
        attributes.append(
            message(_ATTRIBUTE, text(_ATTRIBUTE_NAME, "pg_name") + text(_STRING, str(groups[node.group])))
        )
    elif node.kind in (TraceNodeKind.SEND, TraceNodeKind.RECEIVE):
        ends = (rank, node.peer) if node.kind is TraceNodeKind.SEND else (node.peer, rank)
        attributes += [_attribute(name, _INT32, end) for name, end in zip(("comm_src", "comm_dst"), ends, strict=True)]
        attributes.append(_attribute("comm_tag", _INT32, node.tag))
        attributes.append(_attribute("comm_size", _INT64, node.payload_bytes))
    return b"".join(
        [
            number(_ID, node.number),
            text(_NAME, node.name),
            number(_TYPE, node.kind),
            packed(_DATA_DEPENDENCIES, node.waits_for),
            number(_DURATION, microseconds),
            *attributes,
        ]
    )


def _attribute(name: str, field: int, value: int) -> bytes:
    return message(_ATTRIBUTE, text(_ATTRIBUTE_NAME, name) + chosen_number(field, value))


def write_traces(directory: Path, traces: Mapping[int, Sequence[TraceNode]]) -> list[Path]:
    """Write step.RANK.et for each rank, and `GROUPS`: number of each group, and its ranks.

    A new directory appears once it is whole. In one that exists the files are moved into place once all are written;
    traces of an earlier step are removed then, so that no ranks of it stand among the new ones.

    Raises:
        OSError: a file cannot be written or removed.
    """
    exists = directory.is_dir()
    temporary = (directory if exists else directory.parent) / f".{os.urandom(4).hex()}.chakra"
    groups = process_groups(traces)
    try:
        temporary.mkdir()
        for rank, nodes in traces.items():
            (temporary / f"step.{rank}.et").write_bytes(trace_bytes(rank, nodes, groups))
        named = {str(number): list(ranks) for ranks, number in groups.items()}
        (temporary / GROUPS).write_text(json.dumps(named) + "\n", encoding="utf-8")
        written = [directory / path.name for path in temporary.iterdir()]
        if exists:
            _remove_traces(directory)
            for path in written:
                (temporary / path.name).replace(path)
        else:
            temporary.rename(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return written


def _remove_traces(directory: Path) -> None:
    """Remove the traces of an earlier step."""
    for path in [*directory.iterdir()]:
        if _TRACE_NAME.fullmatch(path.name) and not path.is_dir():
            path.unlink()
