"""A process that runs one command of the suite on a node with made-up GPUs, as gates start it.

python -m tests.support.gpu_node STATE accept --device cuda --devices 8

NVIDIA's library is the stand-in of the self-test, torch's answer is made up, and so are the ends of probes; nothing is
launched. A broken image has no working torch, whatever its GPUs are.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from suite.paths import ROOT

GPUS = 8
FIRST_BUS = 0x18  # of the stand-in
ECC = "rank 3: AcceleratorError: CUDA error: uncorrectable ECC error encountered"
# state of a node -> what the stand-in reports of GPU 3
STATES: dict[str, dict[str, object]] = {
    "healthy": {},
    "busy": {"processes": [4711], "used_bytes": 30 * 2**30},
    "ECC": {},
    "missing GPU": {},
    "broken image": {},
    "no image": {},
}


def run(state: str, arguments: list[str]) -> int:
    """The exit code of the command on a node in this state."""
    present = GPUS - (state == "missing GPU")
    os.environ["FAKE_NVML"] = json.dumps({"gpus": present, "faults": {"3": STATES[state]}})
    sys.path.insert(0, str(ROOT / "benchmarks" / "accept_selftest" / "nvml"))
    if state == "no image":
        sys.modules["torch"] = None  # type: ignore[assignment]  # as Python marks what is not to be found
    if state == "broken image":
        place = tempfile.mkdtemp()
        Path(place, "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open')\n", encoding="utf-8")
        sys.path.insert(0, place)
        os.environ["PYTHONPATH"] = place

    from suite.__main__ import main
    from suite.acceptance import measurements
    from suite.acceptance.evidence import ProbeResult, ReplayHashes
    from suite.job.events import Status
    from suite.machine import devices

    listed = tuple(
        devices.CudaDevice(
            name="NVIDIA H100 80GB HBM3",
            uuid=str(number),
            pci=f"0000:{FIRST_BUS + number:02x}:00.0",
            memory_bytes=8 * 10**10,
        )
        for number in range(present)
    )
    usable = devices.CudaState(driver_devices=present, driver_error=0, torch="2", built_for="CUDA", devices=listed)
    replays = [
        ReplayHashes(rank=rank, replay=replay, step=0, loss="a", gradients="b", parameters="c")
        for rank in range(present)
        for replay in range(3)
    ]
    good = ProbeResult(status=Status.OK, message="", ranks_at_fault=[], seconds=1.0, replays=replays)
    ecc = ProbeResult(status=Status.CRASHED, message=ECC, ranks_at_fault=[3], seconds=1.0)
    devices._state = lambda _visible: usable  # type: ignore[assignment]
    measurements.probe_result = lambda *_arguments, **_options: ecc if state == "ECC" else good  # type: ignore[assignment]
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
