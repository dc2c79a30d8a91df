"""Readings of GPUs and of what stands around them: counters, samples under load, messages of the kernel."""

from __future__ import annotations

import msgspec

from suite.acceptance.node_state import HostReading, LogEvent


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """Reading of a GPU; None or empty where the driver did not answer in time, or the GPU has no such thing.

    Args:
        corrected, uncorrected: ECC errors since the driver was loaded; `lifetime_uncorrected` since the GPU was made.
        used_bytes: memory that is allocated, whoever did it.
        sram_threshold_exceeded: whether so many errors of its static memory occurred that it should be replaced.
        spare_rows: banks of memory by how many spare rows they have left: "max", "high", "partial", "low", "none".
        nvlinks: of each NVLink, whether it is active.
        nvlink_errors: by kind, over all links, since the driver was loaded.
        fabric: how far the GPU is registered with the switches' manager.
        fabric_problems: what that manager reports of it, by the names in `suite.acceptance.fabric`.
        fabric_summary: the driver's own summary of them: "healthy", "unhealthy", "limited capacity".
        fabric_unread: fields of the fabric's health that this driver does not offer.
        recovery: number of the recovery that the driver asks for, see `suite.acceptance.xid_table`; 0: none.
        most_mhz: highest clock of the multiprocessors; `most_memory_celsius` the highest temperature of the memory.
        pcie_replays: since the driver was loaded.
    """

    ecc: bool | None = None
    mig: bool | None = None
    watts_limit: float | None = None
    watts_default: float | None = None
    pcie_generation: int | None = None
    pcie_most_generation: int | None = None
    pcie_width: int | None = None
    pcie_most_width: int | None = None
    corrected: int | None = None
    uncorrected: int | None = None
    remapped_corrected: int | None = None
    remapped_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    processes: list[int] = []
    used_bytes: int | None = None
    lifetime_uncorrected: int | None = None
    sram_threshold_exceeded: bool | None = None
    spare_rows: dict[str, int] = {}
    nvlinks: list[bool] = []
    nvlink_errors: dict[str, int] = {}
    fabric: str = ""
    fabric_problems: list[str] = []
    fabric_summary: str = ""
    fabric_unread: list[str] = []
    recovery: int | None = None
    most_memory_mhz: float | None = None
    most_mhz: float | None = None
    persistence: bool | None = None
    pcie_replays: int | None = None
    most_memory_celsius: float | None = None


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """Sample of a GPU under load."""

    second: float
    mhz: float | None
    watts: float | None
    celsius: float | None
    reasons: list[str] | None
    pcie_generation: int | None
    pcie_width: int | None
    memory_mhz: float | None = None
    utilisation: float | None = None
    memory_celsius: float | None = None


class GpuHealth(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU before, during and after the load; `pci` its address, as in "0000:0a:00.0"."""

    index: int
    model: str
    driver: str
    firmware: str
    before: GpuState
    after: GpuState
    samples: list[GpuSample]
    xids: list[int]
    unanswered: list[str] = []
    uuid: str = ""
    pci: str = ""


class EarlierXid(msgspec.Struct, frozen=True, kw_only=True):
    """An XID since the machine started.

    Args:
        gpu: number of the GPU; -1 where no GPU of today has the address.
        message: the driver's text after the number; empty in records before 8.4.
        resolved: how the GPU recovered from it; empty where no line of the log says so.
    """

    gpu: int
    pci: str
    xid: int
    message: str = ""
    resolved: str = ""


class Health(msgspec.Struct, frozen=True, kw_only=True, tag="health"):
    """All GPUs, or why none was read; XIDs before the battery and other messages of the kernel, or why none is known.

    Args:
        log: messages about other devices since the machine started.
        load_xids: XIDs in the log since the battery began; those of `GpuHealth` come from the library, without message.
        host_before, host_after: error counters of the host, its network ports and disks; None in records before 8.4.
    """

    gpus: list[GpuHealth]
    why_none: str = ""
    earlier_xids: list[EarlierXid] = []
    why_no_xids: str = "not read"
    load_xids: list[EarlierXid] = []
    log: list[LogEvent] = []
    host_before: HostReading | None = None
    host_after: HostReading | None = None


class HangReadings(msgspec.Struct, frozen=True, kw_only=True, tag="hang"):
    """Readings of every GPU while a launch hung, before its ranks were ended; by the GPU's number."""

    phase: str
    samples: dict[int, list[GpuSample]]
