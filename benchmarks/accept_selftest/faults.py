"""The injections: the fault, the options of the battery, and the finding that it must have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from benchmarks.accept_selftest.host_faults import HOST_INJECTIONS
from benchmarks.accept_selftest.injection import AcceptedBefore, Injection, InjectionDirectories, Prepare, Prepared
from benchmarks.accept_selftest.interruptions import INTERRUPTIONS
from suite.acceptance.battery_record import PhaseEvidence
from suite.acceptance.evidence import MicroMeasurements
from suite.commands import exit_codes
from suite.job.events import Status
from suite.launch import network_namespaces
from suite.machine.devices import cuda_devices, resolved_device, usable_cores
from suite.machine.fingerprint import Fingerprint, fingerprint
from suite.machine.profile import Conditions, Profile, encode, machines_directory
from suite.records.battery import SCHEMA, battery_directory
from suite.records.battery import encode as encode_battery

HERE = Path(__file__).parent
ABSURD_BYTES_PER_SECOND = 1.0
LINK_BITS_PER_SECOND = 100e6  # a thousandth of what a loopback carries
BUSY = "import ctypes\nctypes.CDLL(None).prctl(15, b'{name}')\n{work}"
LOOP = "while True: pass"
EARLIER_XID = "NVRM: Xid (PCI:0000:19:00): {}, pid=1"  # of the second GPU of the stand-in
SWITCH_ERROR = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
COPY = "a = bytearray(2**28)\nb = memoryview(bytearray(2**28))\nwhile True: a[:] = b"


def _in_ranks(fault: str) -> Prepare:
    """Ranks import ranks/sitecustomize.py at their start."""
    environment = {"SUITE_FAULT": fault, "PYTHONPATH": str(HERE / "ranks")}
    return lambda _directories: nullcontext(Prepared([], environment, []))


def _fake_gpus(*kernel_log: str, **faults: Any) -> Prepare:
    """Two GPUs of a stand-in for the management library, and the kernel's log; the second one has the faults."""
    scene = json.dumps({"gpus": 2, "with_ranks": True, "kernel_log": kernel_log, "faults": {"1": faults}})
    environment = {"FAKE_NVML": scene, "PYTHONPATH": str(HERE / "nvml")}
    return lambda _directories: nullcontext(Prepared([], environment, []))


def _hang_of_a_gpu(_directories: InjectionDirectories) -> AbstractContextManager[Prepared]:
    """A rank that hangs, on a node of four GPUs whose second one is idle meanwhile."""
    idle = {"utilisation": 0, "watts_drawn": 90, "mhz": 345}
    scene = json.dumps({"gpus": 4, "with_ranks": True, "faults": {"1": idle}})
    paths = os.pathsep.join(str(HERE / name) for name in ("ranks", "nvml"))
    return nullcontext(Prepared([], {"SUITE_FAULT": "hang", "FAKE_NVML": scene, "PYTHONPATH": paths}, []))


def _arguments(*arguments: str) -> Prepare:
    return lambda _directories: nullcontext(Prepared(list(arguments), {}, []))


def _with_processes(name: str, work: str, count: int) -> Prepare:
    """Other processes with this name, while the battery runs."""

    @contextmanager
    def running(_directories: InjectionDirectories) -> Iterator[Prepared]:
        code = BUSY.format(name=name, work=work)
        started = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(count)]
        try:
            yield Prepared([], {}, [])
        finally:
            for process in started:
                process.kill()
                process.wait()

    return running


@contextmanager
def _slow_loopback(_directories: InjectionDirectories) -> Iterator[Prepared]:
    """A network namespace whose loopback carries 100 Mbit/s."""
    name = f"suiteslow{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        tc = ["tc", "-n", name]
        rate = [f"{LINK_BITS_PER_SECOND:.0f}bit", "burst", str(network_namespaces.BURST_BYTES)]
        subprocess.run(
            [*tc, "qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb", "default", "1"],
            check=True,
            capture_output=True,
        )
        parent = ["parent", "1:", "classid", "1:1", "htb", "rate"]
        subprocess.run([*tc, "class", "add", "dev", "lo", *parent, *rate], check=True, capture_output=True)
        yield Prepared([], {}, ["ip", "netns", "exec", name])
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def _no_tmpfs() -> str | None:
    return None if os.geteuid() == 0 else "needs root to mount a small tmpfs"


@contextmanager
def _small_disk(directories: InjectionDirectories) -> Iterator[Path]:
    disk = directories.scratch / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@contextmanager
def _full_disk(directories: InjectionDirectories) -> Iterator[Prepared]:
    with _small_disk(directories) as disk:
        with (disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        yield Prepared(["--results", str(disk / "results")], {}, [])


@contextmanager
def _disk_that_fills(directories: InjectionDirectories) -> Iterator[Prepared]:
    """Full as soon as the battery has begun."""
    code = (
        "import pathlib, sys, time\ndisk = pathlib.Path(sys.argv[1])\n"
        "while not list(disk.glob('results/acceptance/*.begin.json')): time.sleep(0.01)\n"
        "file = (disk / 'filler').open('wb', buffering=0)\n"
        "try:\n    while True: file.write(b'x' * 1024)\nexcept OSError: pass\n"
    )
    with _small_disk(directories) as disk:
        filler = subprocess.Popen([sys.executable, "-S", "-c", code, str(disk)])
        try:
            yield Prepared(["--results", str(disk / "results")], {}, [])
        finally:
            filler.kill()
            filler.wait()


def _records(results: Path, part: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """File names and contents of the "begin" or "end" halves of all batteries below `results`."""
    for path in sorted(battery_directory(results).glob(f"*.{part}.json")):
        yield path.name, json.loads(path.read_bytes())


def _store(results: Path, name: str, text: str) -> Path:
    directory = battery_directory(results)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(text)
    return directory


@contextmanager
def _stale_past(directories: InjectionDirectories) -> Iterator[Prepared]:
    """The accepted battery of this node was measured with other software."""
    results = directories.scratch / "results"
    for name, closed in _records(directories.results, "end"):
        closed["hashes"]["software"] = "0" * 16
        _store(results, name, json.dumps(closed))
    yield Prepared(["--results", str(results)], {}, [])


@contextmanager
def _truncated_fleet(directories: InjectionDirectories) -> Iterator[Prepared]:
    """Two other nodes, of which one left half a record."""
    fleet = directories.scratch / "fleet"
    for name, closed in _records(directories.results, "end"):
        text = json.dumps(closed | {"node": f"f{closed['node']}"})
        _store(fleet, name, text)
        _store(fleet, f"half-{name}", text[: len(text) // 2])
    yield Prepared(["--fleet", str(fleet)], {}, [])


@contextmanager
def _stale_resume(directories: InjectionDirectories) -> Iterator[Prepared]:
    """An interrupted battery of other hardware."""
    results = directories.scratch / "results"
    for name, opening in _records(directories.results, "begin"):
        opening["hashes"]["hardware"] = "0" * 16
        opening["options"]["checks"] = "0"
        _store(results, name, json.dumps(opening))
    yield Prepared(["--results", str(results), "--resume"], {}, [])


@contextmanager
def _stale_profile(directories: InjectionDirectories) -> Iterator[Prepared]:
    """An interrupted battery with its micro-measurements, whose machine profile is another machine's."""
    results = directories.scratch / "results"
    here = fingerprint(resolved_device("auto")[0])
    other = Fingerprint(node="0" * 8, device=here.device, hardware=here.hardware, software=here.software)
    name, began = next(_records(directories.results, "begin"))
    began["options"]["checks"] = "3"
    ranks = int(began["options"]["ranks"])
    unknown: dict[str, Any] = dict.fromkeys(("load_before", "load_after", "steal_share", "others_share"))
    conditions = Conditions(ranks=ranks, threads={}, seconds=1.0, facts={}, gpus=[], **unknown)
    empty: dict[str, Any] = {"tables": [], "lines": [], "checks": [], "reference_steps": []}
    directory = _store(results, name, json.dumps(began))
    profile = machines_directory(directory) / "other.json"
    profile.parent.mkdir(parents=True)
    profile.write_bytes(encode(Profile(measured=0.0, fingerprint=other, conditions=conditions, **empty)))
    rates = [ABSURD_BYTES_PER_SECOND] * ranks
    micro = MicroMeasurements(
        status=Status.OK, message="", seconds=1.0, matrix=rates, copy=rates, triad=rates, profile=str(profile)
    )
    kept = PhaseEvidence(kind="battery", schema=SCHEMA, id=began["id"], phase="micro-measurements", evidence=[micro])
    (directory / f"{began['id']}.micro-measurements.phase.json").write_bytes(encode_battery(kept))
    yield Prepared(["--results", str(results), "--resume"], {}, [])


_REPLAYS = ["--only", "14"]
_LAUNCHES = ["--only", "7,17", "--miniatures", "gpt2-mini"]
_GPUS = ["--only", "0,12,13,15"]  # on a CPU only what is asked for is a load
_TOO_MANY = str(1 + (usable_cores() if resolved_device("auto")[0] == "cpu" else cuda_devices()))
_FAIL, _STOPPED, _OPEN = exit_codes.FAIL, exit_codes.EXECUTION_FAILED, exit_codes.INCONCLUSIVE
_BAD = exit_codes.BAD_INPUT

INJECTIONS = (
    Injection("undisturbed", ["--only", "0,7", "--miniatures", "gpt2-mini"], 0, 7, "PASS", "", "equal", _arguments()),
    Injection("sound-gpus", _GPUS, 0, 0, "PASS", "", "2 alike, nothing unusual", _fake_gpus()),
    Injection(
        "wrong-devices",
        ["--only", "0"],
        *(_OPEN, 0, "INVALID", f"in place of {_TOO_MANY}", "", _arguments("--devices", _TOO_MANY)),
    ),
    Injection(
        "competing-process",
        ["--only", "0", "--others", "0.05"],
        *(_OPEN, 0, "INVALID", "other processes", "busyloop", _with_processes("busyloop", LOOP, usable_cores())),
    ),
    Injection(
        "competing-copier",
        ["--only", "0", "--others", "0.05"],
        *(_OPEN, 0, "INVALID", "other processes", "copier", _with_processes("copier", COPY, usable_cores())),
    ),
    Injection("stale-past", ["--only", "0"], 0, 0, "WARN", "", "other hardware or software", _stale_past),
    Injection(
        "truncated-fleet-record", ["--only", "0"], 0, 0, "WARN", "", "damaged record of a battery", _truncated_fleet
    ),
    Injection("stale-resume", ["--only", "0"], _BAD, None, "", "", "stale: hardware changed since", _stale_resume),
    Injection(
        "stale-profile", *(["--only", "3"], _OPEN, None, "", "", "a machine profile of another machine", _stale_profile)
    ),
    Injection(
        "full-disk", ["--only", "0"], _STOPPED, None, "", "", "No space left on device", _full_disk, needs=_no_tmpfs
    ),
    Injection(
        "disk-fills-up", *(["--only", "0"], _OPEN, None, "", "", "No space left on device", _disk_that_fills, _no_tmpfs)
    ),
    Injection("thermal-throttling", _GPUS, _FAIL, 12, "FAIL", "clocks of GPU 1", "thermal", _fake_gpus(throttle=0x40)),
    Injection("power-brake", _GPUS, _FAIL, 12, "FAIL", "power brake", "", _fake_gpus(throttle=0x80)),
    Injection("power-cap-is-no-failure", _GPUS, 0, 12, "PASS", "", "software power cap in", _fake_gpus(throttle=0x4)),
    Injection("ecc-uncorrectable", _GPUS, _FAIL, 13, "FAIL", "GPU 1", "uncorrectable", _fake_gpus(uncorrected=3)),
    Injection("ecc-corrected", _GPUS, 0, 13, "WARN", "GPU 1", "corrected", _fake_gpus(corrected=17657)),
    Injection("row-remap-pending", _GPUS, _FAIL, 13, "FAIL", "GPU 1", "waits", _fake_gpus(remap_pending=1)),
    Injection("xid-79", _GPUS, _FAIL, 13, "FAIL", "GPU 1", "XID 79", _fake_gpus(xids=[79])),
    Injection("ecc-before", _GPUS, 0, 13, "WARN", "GPU 1", "since the driver", _fake_gpus(uncorrected_before=2)),
    Injection("no-spare-rows", _GPUS, 0, 13, "WARN", "GPU 1", "no spare row left", _fake_gpus(no_spare_rows=1)),
    Injection("row-remap-failed", _GPUS, _FAIL, 13, "FAIL", "GPU 1", "replace", _fake_gpus(remap_failed=1)),
    Injection("static-memory", _GPUS, _FAIL, 13, "FAIL", "GPU 1", "replace", _fake_gpus(sram_threshold=1)),
    Injection("earlier-xid", _GPUS, _FAIL, 13, "FAIL", "GPU 1", "GPU 1: XID 79", _fake_gpus(EARLIER_XID.format(79))),
    Injection("earlier-xid-64", _GPUS, _FAIL, 13, "FAIL", "GPU 1", "failed", _fake_gpus(EARLIER_XID.format(64))),
    Injection(
        "earlier-xid-driver-loaded",
        *(_GPUS, 0, 13, "WARN", "GPU 1", "but the driver was loaded since"),
        _fake_gpus(EARLIER_XID.format(79), "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.00"),
    ),
    Injection("earlier-xid-of-a-program", _GPUS, 0, 13, "WARN", "GPU 1", "XID 31", _fake_gpus(EARLIER_XID.format(31))),
    Injection("recovery-action", _GPUS, _FAIL, 13, "FAIL", "GPU 1", "asks to reset the GPU", _fake_gpus(recovery=1)),
    Injection("switch-error", _GPUS, _FAIL, 13, "FAIL", "NVSwitch", "fatal SXid 20034", _fake_gpus(SWITCH_ERROR)),
    Injection("capped-clock", _GPUS, 0, 12, "WARN", "clocks of GPU 1", "1200 of 1980 MHz", _fake_gpus(throttle=0x2)),
    Injection("hot-gpu", _GPUS, 0, 12, "WARN", "cooling of GPU 1", "hotter than", _fake_gpus(celsius=85)),
    Injection("hot-gpu-memory", _GPUS, _FAIL, 12, "FAIL", "cooling of GPU 1", "limit", _fake_gpus(memory_celsius=97)),
    Injection("pcie-replays", _GPUS, 0, 13, "WARN", "GPU 1", "PCIe replays under load", _fake_gpus(pcie_replays=4)),
    Injection("nvlink-down", _GPUS, _FAIL, 13, "FAIL", "NVLink of GPU 1", "17 links", _fake_gpus(links_down=[3])),
    Injection("nvlink-replays", _GPUS, 0, 13, "WARN", "NVLink of GPU 1", "replays under load", _fake_gpus(replays=7)),
    Injection("fabric-degraded", _GPUS, _FAIL, 13, "FAIL", "NVLink of GPU 1", "bandwidth", _fake_gpus(fabric_health=1)),
    Injection(
        "fabric-few-links",
        *(_GPUS, _FAIL, 13, "FAIL", "NVLink of GPU 1", "insufficient NVLinks"),
        _fake_gpus(fabric_health=0b01_01_0101_10_10_10_10),
    ),
    Injection(
        "fabric-no-manager",
        *(_GPUS, _FAIL, 13, "FAIL", "fabric manager of GPU 1", "fabric manager disconnected"),
        _fake_gpus(fabric_health=0b10_01_0001_10_10_10_10),
    ),
    Injection("fabric-unhealthy", _GPUS, _FAIL, 13, "FAIL", "NVLink of GPU 1", "summary", _fake_gpus(fabric_summary=2)),
    Injection("fabric-not-ready", ["--only", "0"], _OPEN, 0, "INVALID", "GPU 1", "manager", _fake_gpus(fabric=2)),
    Injection("mixed-firmware", ["--only", "0"], 0, 0, "WARN", "firmware", "1.0 on GPU 1", _fake_gpus(firmware="1.0")),
    Injection(
        "pcie-downgrade", _GPUS, _OPEN, 0, "INVALID", "GPU 1", "generation 1 of 5", _fake_gpus(pcie_generation=1)
    ),
    Injection("pcie-width", _GPUS, _OPEN, 0, "INVALID", "GPU 1", "x4 of x16", _fake_gpus(pcie_width=4)),
    Injection("gpu-memory-clock", _GPUS, _OPEN, 0, "INVALID", "GPU 1", "810 of 2619", _fake_gpus(memory_mhz=810)),
    Injection("link-down-under-load", _GPUS, _FAIL, 13, "FAIL", "NVLink of GPU 1", "", _fake_gpus(link_goes_down=1)),
    Injection("ecc-off", ["--only", "0"], _OPEN, 0, "INVALID", "GPU 1", "ECC off", _fake_gpus(ecc_on=0)),
    Injection("power-limit", ["--only", "0"], _OPEN, 0, "INVALID", "GPU 1", "400 W", _fake_gpus(watts=400)),
    Injection("mixed-models", ["--only", "0"], _OPEN, 0, "INVALID", "GPUs", "A100", _fake_gpus(model="NVIDIA A100")),
    Injection("lost-gpu", _GPUS, 0, 12, "NOT RUN", "", "ThrottleReasons", _fake_gpus(lost=True)),
    Injection("gradient-bit", _REPLAYS, _FAIL, 14, "FAIL", "rank 1", "in the gradients", _in_ranks("gradient-bit")),
    Injection("weight-bit", _REPLAYS, _FAIL, 14, "FAIL", "rank 1", "in the parameters", _in_ranks("weight-bit")),
    Injection(
        "nondeterminism", _REPLAYS, _OPEN, 14, "INVALID", "no rank repeats itself", "", _in_ranks("nondeterminism")
    ),
    Injection("nondeterministic-rank", _REPLAYS, _FAIL, 14, "FAIL", "rank 1", "", _in_ranks("nondeterministic-rank")),
    Injection("some-sizes-bit", _REPLAYS, _FAIL, 14, "FAIL", "rank 1", "", _in_ranks("some-sizes-bit")),
    Injection("message-bit", ["--only", "5"], _FAIL, 5, "FAIL", "link 0-1", "1 wrong", _in_ranks("message-bit")),
    Injection("collective-bit", ["--only", "6"], _FAIL, 6, "FAIL", "rank 1", "1 wrong", _in_ranks("collective-bit")),
    Injection("memory-bit", ["--only", "15"], _FAIL, 15, "FAIL", "rank 1", "memory from", _in_ranks("memory-bit")),
    Injection("product-bit", ["--only", "15"], _FAIL, 15, "FAIL", "rank 1", "product", _in_ranks("product-bit")),
    Injection(
        "slow-link",
        *(["--only", "0,5,6"], _FAIL, 6, "FAIL", "link 0-1", "confirmed", _slow_loopback, network_namespaces.why_not),
        past=AcceptedBefore.LINKS,
    ),
    Injection("nan", _LAUNCHES, _STOPPED, 7, "FAIL", "rank 1", "nan", _in_ranks("nan")),
    Injection("out-of-memory", _LAUNCHES, _STOPPED, 7, "FAIL", "rank 1", "oom", _in_ranks("oom")),
    Injection("crash", _LAUNCHES, _STOPPED, 7, "FAIL", "rank 1", "illegal memory", _in_ranks("crash")),
    Injection("killed-rank", _LAUNCHES, _STOPPED, 7, "FAIL", "rank 1", "SIGKILL", _in_ranks("killed")),
    Injection(
        "stopped-rank", _LAUNCHES, _STOPPED, 17, "HANG", "rank 1", "stacks", _in_ranks("stopped"), stacks_of=(0,)
    ),
    Injection(
        "hang-in-a-collective",
        [*("--only", "7,14,17", "--miniatures", "gpt2-mini")],
        *(_STOPPED, 17, "HANG", "rank 1", "stacks of rank 0, rank 1", _in_ranks("hang")),
        stacks_of=(0, 1),
        passes=(14,),
    ),
    Injection("hung-gpu", _LAUNCHES, _STOPPED, 17, "HANG", "rank 1 (GPU 1", "GPU 1 stands out", _hang_of_a_gpu),
    Injection(
        "extra-message",
        ["--only", "7", "--miniatures", "gpt2-mini"],
        *(_OPEN, 7, "FAIL", "software", "messages", _in_ranks("extra-message")),
    ),
    Injection(
        "slow-rank",
        ["--only", "11", "--miniatures", "gpt2-mini"],
        *(_FAIL, 11, "FAIL", "rank 1", "confirmed", _in_ranks("slow-rank")),
    ),
    Injection("slow-products", ["--only", "2"], _FAIL, 2, "FAIL", "rank 1", "confirmed", _in_ranks("slow-products")),
    Injection(
        "memory-bandwidth",
        ["--only", "0,3"],
        *(_FAIL, 3, "FAIL", "memory bandwidth (rank 1", "confirmed", _in_ranks("memory-bandwidth")),
        past=AcceptedBefore.MEMORY,
    ),
    *HOST_INJECTIONS,
    *INTERRUPTIONS,
)
