"""Messages between GPUs of one node through its network cards: NCCL without NVLink, PCIe and shared memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from suite.acceptance.node_state import NicPort

# without them NCCL has only the network left, also between GPUs of one node
VARIABLES = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
VERBS = {"NCCL_NET": "IB"}  # otherwise NCCL falls back to TCP, and the rate is that of another card
EFA = "efa"  # how the names of cards begin that NCCL reaches by a plugin of its own
DEVICES = Path("/dev/infiniband")
ACTIVE = "ACTIVE"


def why_not(device: str, ranks: int, ports: Sequence[NicPort]) -> str:
    """Why messages cannot go through this node's network cards; empty where they can."""
    if device != "cuda":
        return "only GPUs exchange messages through network cards"
    if not ports:
        return "no RDMA network card"
    if not any(port.state == ACTIVE for port in ports):
        return "no port of an RDMA network card is active"
    return "" if ranks > 1 else "one rank alone"


def why_no_access() -> str:
    """Why this process may not use the cards, as in a container that was given none; empty where it may."""
    verbs = sorted(DEVICES.glob("uverbs*"))
    if not verbs:
        return f"{DEVICES} has no card: was it given to the container?"
    closed = [path.name for path in verbs if not os.access(path, os.R_OK | os.W_OK)]
    return f"no permission to use {DEVICES}/{closed[0]}" if closed else ""


def variables(ports: Sequence[NicPort]) -> dict[str, str]:
    """Variables of a launch whose messages go through these cards."""
    return VARIABLES | ({} if any(port.name.startswith(EFA) for port in ports) else VERBS)


@contextmanager
def through_nics(ports: Sequence[NicPort]) -> Iterator[None]:
    """Launches within send their messages through these cards."""
    wanted = variables(ports)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
