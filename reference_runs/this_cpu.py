"""The CPU of this machine as an accelerator: what /proc says of it, and the peaks that follow."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import msgspec

from reference_runs.errors import InputError

THIS_CPU = "this-cpu"  # as an accelerator
CPUINFO = Path("/proc/cpuinfo")
FIRMWARE = Path("/sys/class/dmi/id")
HYPERVISORS = (Path("/proc/device-tree/hypervisor"), Path("/sys/hypervisor/type"))  # of ARM's KVM, and of Xen
_VIRTUAL = re.compile(
    r"\b(KVM|QEMU|OpenStack|KubeVirt|VMware|VirtualBox|innotek|Xen|Bochs|Parallels|BHYVE|Virtual Machine|"
    r"Google Compute Engine|Apple Virtualization|Amazon EC2)\b(?!.*\.metal\b)"
)
MEMINFO = Path("/proc/meminfo")
HIGHEST_KHZ = "/sys/devices/system/cpu/cpu{}/cpufreq/cpuinfo_max_freq"

MACHINE_SOURCES = {
    "cpuinfo": f"{CPUINFO} and cpufreq of the machine that the command ran on",
    "meminfo": f"{MEMINFO} of the machine that the command ran on",
}
_OWN_FILE = "a file ending in .toml that records the machine"
_HALVES = "_halves"  # after a flag: its instructions pass through units of half their width
# Vendor and family, and the flags: of this family Zen 4 alone has them
_IN_HALVES = {("AuthenticAMD", "25"): ("avx512f", "avx512_bf16")}
_Amount = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "flop"})]


class FlopPerCycle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Flop of one CPU core and cycle, as DTYPE_FLAG with the flag in /proc/cpuinfo, the widest of a dtype first.

    DTYPE_FLAG_halves is of cores that execute the instructions in two halves.
    """

    fp32_avx512f_halves: _Amount | None = None
    fp32_avx512f: _Amount | None = None
    fp32_avx2: _Amount | None = None
    fp32_sse2: _Amount | None = None
    fp32_asimd: _Amount | None = None
    bf16_amx_bf16: _Amount | None = None
    bf16_avx512_bf16_halves: _Amount | None = None
    bf16_avx512_bf16: _Amount | None = None
    fp16_avx512_fp16: _Amount | None = None


class Cpu(msgspec.Struct, frozen=True):
    """The part of this machine's CPU that the process may use.

    Args:
        hertz: the highest clock that the system reports.
        flags: of /proc/cpuinfo; FLAG_halves too where the core is known to execute those instructions in two halves.
    """

    model: str
    cores: int
    hertz: float
    clock_source: str
    flags: frozenset[str]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        what = f"cannot read the CPU of this machine: {error.strerror}"
        raise InputError(what, allowed=f"Linux, or {_OWN_FILE}", where=str(path)) from error


def this_cpu() -> Cpu:
    """The CPU of this machine.

    Raises:
        InputError: /proc/cpuinfo cannot be read, or names no usable CPU or no clock.
    """
    text = _text(CPUINFO)
    usable = os.sched_getaffinity(0)
    highest = Path(HIGHEST_KHZ.format(min(usable)))
    return cpu_of(text, usable, 1e3 * float(_text(highest)) if highest.exists() else None)


def is_virtual_machine() -> bool:
    """Whether the CPU or the firmware says that this is a virtual machine, whose processors others may share.

    Of CPUs only those of x86 have a flag for it, which a hypervisor can hide. Firmware names the machine's maker and
    model; Amazon's models that are not virtual end with ".metal".

    Source of the names: systemd, src/basic/virt.c, dmi_vendor_table and detect_vm_device_tree.
    """

    def text(path: Path) -> str:
        with contextlib.suppress(InputError):
            return _text(path)
        return ""

    if re.search(r"^flags\s*:.*\bhypervisor\b", text(CPUINFO), re.MULTILINE):
        return True
    firmware = " ".join(text(FIRMWARE / name).strip() for name in ("sys_vendor", "bios_vendor", "product_name"))
    return _VIRTUAL.search(firmware) is not None or any(path.exists() for path in HYPERVISORS)


def cpu_of(cpuinfo: str, usable: Collection[int], highest_hertz: float | None) -> Cpu:
    """The CPU that /proc/cpuinfo describes; threads that share a core share its arithmetic and count once."""
    threads: list[dict[str, str]] = []
    for block in cpuinfo.split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        thread = {key.strip(): value.strip() for key, _, value in pairs}
        if thread.get("processor", "").isdecimal() and int(thread["processor"]) in usable:
            threads.append(thread)
    if not threads:
        raise InputError("lists no CPU that this process may use", got=sorted(usable), where=str(CPUINFO))
    clock_source = "highest clock of cpufreq"
    if highest_hertz is None:
        clocks = [1e6 * float(thread["cpu MHz"]) for thread in threads if "cpu MHz" in thread]
        if not clocks:
            raise InputError(
                "tells no clock of this CPU, so its peak is unknown", allowed=_OWN_FILE, where=str(CPUINFO)
            )
        highest_hertz = max(clocks)
        clock_source = "clock at the moment of reading; a virtual machine may tell less than its cores reach"
    cores = {
        (thread.get("physical id"), thread["core id"]) if "core id" in thread else thread["processor"]
        for thread in threads
    }
    first = threads[0]
    flags = set(first.get("flags", first.get("Features", "")).split())
    halved = _IN_HALVES.get((first.get("vendor_id", ""), first.get("cpu family", "")), ())
    flags |= {flag + _HALVES for flag in halved if flag in flags}
    return Cpu(
        model=first.get("model name", "model not told"),
        cores=len(cores),
        hertz=highest_hertz,
        clock_source=clock_source,
        flags=frozenset(flags),
    )


def cpu_peaks(cpu: Cpu, amounts: FlopPerCycle, where: str) -> tuple[dict[str, Any], list[str]]:
    """Entries of [peak_flop_per_second], and the labels of the amounts that they rest on.

    cores * hertz * flop per core and cycle, the amount being that of the dtype's widest extension in the CPU's flags.
    """
    entries: dict[str, Any] = {}
    used: list[str] = []
    for key, amount in msgspec.structs.asdict(amounts).items():
        dtype, _, flag = key.partition("_")
        if amount is None or flag not in cpu.flags or dtype in entries:
            continue
        formula = f"{cpu.cores} cores * {cpu.hertz / 1e9:.4g} GHz * {amount:g} flop per core and cycle ({flag})"
        entries[dtype] = {
            "value": cpu.cores * cpu.hertz * amount,
            "unit": "flop/s",
            "kind": "derived",
            "source": f"cpuinfo {formula}",
            "note": cpu.clock_source,
        }
        used.append(f"flop_per_cycle.{key}")
    if not entries:
        flags = [key.partition("_")[2] for key in FlopPerCycle.__struct_fields__]
        what = f"no vector extension of {cpu.model} has a flop_per_cycle"
        raise InputError(what, allowed=", ".join(flags), where=where)
    return entries, used


def memory_entry() -> dict[str, Any]:
    """The entry board.memory_bytes of this machine; /proc/meminfo writes kB and means KiB."""
    sizes = [line.split()[1] for line in _text(MEMINFO).splitlines() if line.startswith("MemTotal:")]
    if not sizes:
        raise InputError("tells no MemTotal", where=str(MEMINFO))
    return {"value": int(sizes[0]), "unit": "KiB", "kind": "derived", "source": "meminfo MemTotal"}
