"""Readings of the node beside its GPUs: messages of the kernel, error counters of the host, network ports."""

from __future__ import annotations

import enum

import msgspec


class LogSubject(enum.StrEnum):
    """Part of the node that a message of the kernel is about."""

    SWITCH = "NVSwitch"
    PCIE = "PCIe"
    MEMORY = "host memory and processors"
    NETWORK = "network"
    DISK = "disks"


class LogEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one kind that the kernel wrote about one device since the machine started.

    Args:
        device: PCI address, memory controller or disk, as the kernel names it.
        what: the kind of message, in words.
        fatal: whether the device lost data or stopped working.
        under_load: whether they came after the battery began.
        times: number of messages.
        second: of the newest one, since the machine started; None: not known.
    """

    subject: LogSubject
    device: str
    what: str
    fatal: bool
    under_load: bool
    times: int
    second: float | None = None


class HostCounter(msgspec.Struct, frozen=True, kw_only=True):
    """A counter of errors since the machine started.

    Args:
        device: PCI address, or memory module.
        what: is counted, in the plural.
        fatal: whether each of them lost data.
    """

    subject: LogSubject
    device: str
    what: str
    fatal: bool
    value: int

    @property
    def key(self) -> tuple[LogSubject, str, str]:
        """Equal for two readings of one counter."""
        return self.subject, self.device, self.what


class NicPort(msgspec.Struct, frozen=True, kw_only=True):
    """Port of an RDMA network card, by the names that the kernel gives; None or empty where it does not say.

    Args:
        kind: the card's model; ports of one kind are alike.
        state, physical: "ACTIVE", "LinkUp".
        gbits: rate in 10^9 bit/s.
        pci: address of the card's function.
        pcie_gigatransfers, pcie_width: of its link now, and `most_` the highest that it can have.
        counters: of errors, since the driver was loaded.
    """

    name: str
    port: int
    kind: str = ""
    pci: str = ""
    link_layer: str = ""
    state: str = ""
    physical: str = ""
    gbits: float | None = None
    pcie_gigatransfers: float | None = None
    most_pcie_gigatransfers: float | None = None
    pcie_width: int | None = None
    most_pcie_width: int | None = None
    firmware: str = ""
    counters: dict[str, int] = {}

    @property
    def label(self) -> str:
        """Name of the card, with the port's number where it is not the first."""
        return self.name if self.port == 1 else f"{self.name} port {self.port}"


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """NVMe controller, as far as it is readable without root.

    Args:
        state: "live" where it works.
        celsius, most_celsius: of its sensor, and the temperature that its maker calls critical.
        alarm: whether it reports that its temperature is critical.
    """

    name: str
    model: str = ""
    state: str = ""
    celsius: float | None = None
    most_celsius: float | None = None
    alarm: bool | None = None
    pcie_gigatransfers: float | None = None
    most_pcie_gigatransfers: float | None = None
    pcie_width: int | None = None
    most_pcie_width: int | None = None


class HostReading(msgspec.Struct, frozen=True, kw_only=True):
    """Reading of the host.

    Args:
        services: of NVIDIA's, that run; None where other processes of the host are not visible.
        switches: NVSwitches of this node that its driver knows.
        imex_channels: devices of the IMEX domain that the node is in.
        memory_counted: whether the system counts errors of its memory (EDAC).
    """

    counters: list[HostCounter] = []
    nics: list[NicPort] = []
    disks: list[Disk] = []
    services: list[str] | None = None
    switches: int = 0
    imex_channels: int = 0
    memory_counted: bool = False
