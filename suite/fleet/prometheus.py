"""Last verdicts as metrics in Prometheus's text format, for node_exporter's textfile collector."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from reference_runs.errors import InputError
from suite.fleet.battery_queries import NodeVerdict
from suite.fleet.verdicts import ACCEPTED, BAD

_METRICS: tuple[tuple[str, str, Callable[[NodeVerdict], float | None]], ...] = (
    ("suite_node_accepted", "1 where the node's last verdict is accepted.", lambda node: node.verdict == ACCEPTED),
    (
        "suite_node_bad",
        "1 where the node's last verdict is rejected, execution failed or no answer.",
        lambda node: node.verdict in BAD,
    ),
    ("suite_node_verdict_timestamp_seconds", "When the last verdict was said.", lambda node: node.time),
    ("suite_node_bad_since_timestamp_seconds", "Since when the node has been bad.", lambda node: node.since),
)
_VERDICT = "suite_node_verdict_info"


def metrics(nodes: Sequence[NodeVerdict]) -> str:
    """The text of the file: of one name the newest verdict alone.

    A node that was installed anew has another hash under its old name, and the collector refuses a file that says
    anything twice.
    """
    newest = {_name(node): node for node in sorted(nodes, key=lambda node: node.time)}
    nodes = [newest[name] for name in sorted(newest)]
    lines: list[str] = []
    for name, meaning, value_of in _METRICS:
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
        for node in nodes:
            value = value_of(node)
            if value is not None:
                lines.append(f"{name}{_labels(_identity(node))} {float(value)!r}")
    lines += [f"# HELP {_VERDICT} The last verdict and the part at fault; always 1.", f"# TYPE {_VERDICT} gauge"]
    lines += [
        f"{_VERDICT}{_labels(_identity(node) | {'verdict': node.verdict, 'part': node.part})} 1" for node in nodes
    ]
    return "\n".join(lines) + "\n"


def _name(node: NodeVerdict) -> str:
    return node.name or node.node


def _identity(node: NodeVerdict) -> dict[str, str]:
    return {"node": _name(node), "rack": node.rack}


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(_label(labels)) + "}"


def _label(labels: Mapping[str, str]) -> Iterator[str]:
    for name, value in labels.items():
        plain = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in value)
        escaped = plain.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        yield f'{name}="{escaped}"'


def write_metrics(path: Path, nodes: Sequence[NodeVerdict]) -> None:
    """Write the file by a rename, so that the collector never reads half of it.

    Raises:
        InputError: it cannot be written.
    """
    half = path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # not *.prom: the collector does not read it
    try:
        try:
            half.write_text(metrics(nodes), encoding="utf-8")
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", got=str(path), where="--prometheus") from error
