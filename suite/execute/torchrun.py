"""torchrun of a job's first node, whose store listens on the job's address; torchrun's own listens on every interface.

python -m suite.execute.torchrun ADDRESS PORT OPTIONS-OF-TORCHRUN. Port 0: any that is free.

The static rendezvous of torchrun makes the store in its own process, and takes one that this process already has on the
port ("multi-tenant"). Ranks and other nodes are clients of that store, so nothing else listens for a rendezvous.
"""

from __future__ import annotations

import errno
import gc
import ipaddress
import socket
import sys


def main() -> None:
    """Listen, then be torchrun."""
    address, port, *options = sys.argv[1:]
    listening = listening_socket(address, int(port))
    gc.disable()  # the import leaves no garbage: looking for it takes 0.3 of 2.3 s of a processor
    from torch.distributed import TCPStore, run  # type: ignore[attr-defined]  # torch lists no such names

    gc.enable()

    stores = []  # until torchrun has ended
    if listening is None:
        print(f"{address} is not known to be an address of this node: torchrun listens on all", file=sys.stderr)
    else:
        port = listening.getsockname()[1]
        store = TCPStore(
            address,
            int(port),
            is_master=True,
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=listening.detach(),
        )
        stores.append(store)
    run.main([f"--master-addr={address}", f"--master-port={port}", *options])


def listening_socket(address: str, port: int) -> socket.socket | None:
    """A socket that listens on this address of this machine alone; None where the machine is not known to have it.

    A name may mean the loopback here and something else on other nodes (127.0.1.1 in Debian's /etc/hosts): then it is
    not known under which address they come.

    Raises:
        OSError: the port is taken.
    """
    is_name = not _is_number(address)
    for family, kind, _, _, where in socket.getaddrinfo(address, port, type=socket.SOCK_STREAM):
        found = ipaddress.ip_address(str(where[0]).partition("%")[0])
        if found.is_loopback and is_name:
            continue
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier job may still end
        try:
            listening.bind(where)
            listening.listen(socket.SOMAXCONN)
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            continue
        return listening
    return None


def _is_number(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    main()
