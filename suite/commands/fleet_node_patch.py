"""fleet node-patch: a battery's verdict as a patch of a Kubernetes Node."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from reference_runs.errors import InputError
from reference_runs.regular_file import file_bytes
from suite.fleet.node_patch import node_patches, read_node

STDIN = Path("-")


def node_patch_command(
    what: Annotated[str, typer.Argument(help="condition or taints.", metavar="WHAT")],
    node: Annotated[Path, typer.Argument(help="The Node, as `kubectl get node NAME -o json` prints it; - is stdin.")],
    code: Annotated[int, typer.Option("--code", help="The exit code of `accept`.", min=0, max=255)],
    words: Annotated[str, typer.Option(help="The line of `accept --summary`.")] = "",
    release: Annotated[
        bool, typer.Option("--release", help="An accepted battery makes a bad node good again: after a repair.")
    ] = False,
) -> None:
    """Print the patch that puts a battery's verdict on a Kubernetes Node; {} where nothing changes.

    Exit codes 1 and 4 of `accept` set the condition BatteryRejected and a taint that keeps new pods away. An accepted
    battery takes both back with --release alone. What is not decided changes no taint. Nothing is sent: kubectl
    applies what is printed. See docs/kubernetes.md.

    Example: python -m suite fleet node-patch taints node.json --code 1 --words "quick: rejected: GPU 3"

    Exit codes: 0 printed, 2 bad input.
    """
    if what not in ("condition", "taints"):
        raise InputError("unknown patch", got=repr(what), allowed="condition, taints", where="WHAT")
    try:
        data = sys.stdin.buffer.read() if node == STDIN else file_bytes(node)
    except OSError as error:
        raise InputError(f"cannot read the Node: {error.strerror}", got=str(node), where="NODE") from error
    where = "stdin" if node == STDIN else str(node)
    patches = node_patches(read_node(data, where), code, words, release=release, now=time.time())
    print(msgspec.json.encode(patches.condition if what == "condition" else patches.taints).decode())
