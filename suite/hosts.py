"""One launch with a rank on each of several network namespaces: python -m suite.hosts JOB.json NAMESPACE NAMESPACE."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress

from suite.network_namespaces import INTERFACE, address
from suite.processes import die_with_parent

PORT = 29500
POLL_SECONDS = 0.1


def main() -> int:
    """Start torchrun in every namespace and wait for all; the first that fails ends the others with its exit code.

    torchrun needs the static rendezvous there: the dynamic one does not know its host by a namespace's address.
    """
    job, names = sys.argv[1], sys.argv[2:]
    variables = os.environ | {"GLOO_SOCKET_IFNAME": INTERFACE}
    processes = [
        subprocess.Popen(
            torchrun(["suite.execute", job], name, number=number, hosts=len(names)),
            env=variables,
            preexec_fn=die_with_parent,
        )
        for number, name in enumerate(names)
    ]
    try:
        while any(process.poll() is None for process in processes):
            if failed := [process.returncode for process in processes if process.returncode]:
                return int(failed[0])
            time.sleep(POLL_SECONDS)
        return next((int(process.returncode) for process in processes if process.returncode), 0)
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                process.terminate()  # torchrun ends its rank
        for process in processes:
            process.wait()


def torchrun(module: list[str], name: str, *, number: int, hosts: int) -> list[str]:
    """The command that runs a module, with its arguments, as the one rank of host `number`, in its namespace."""
    return [
        *("ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run"),
        *(f"--nnodes={hosts}", f"--node-rank={number}", "--nproc-per-node=1", "--max-restarts=0"),
        *(f"--master-addr={address(0)}", f"--master-port={PORT}"),
        *("-m", *module),
    ]


if __name__ == "__main__":
    sys.exit(main())
