"""Counters of memory and PCIe, disks, network cards and services are read from the kernel's files, made up here."""

from __future__ import annotations

import pytest

from suite.acceptance import host_faults
from suite.acceptance.host_faults import host_reading
from suite.acceptance.node_state import Disk, HostCounter, HostReading, LogSubject, NicPort
from suite.machine import host_state

EDAC, PCI, IB, NVME = "devices/system/edac/mc", "bus/pci/devices", "class/infiniband", "class/nvme"


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A function that writes files below /sys, or with `proc` below /proc."""
    monkeypatch.setattr(host_state, "SYS", tmp_path / "sys")
    monkeypatch.setattr(host_state, "PROC", tmp_path / "proc")

    def write(texts, root="sys"):
        for name, text in texts.items():
            path = tmp_path / root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")

    return write


def test_a_host_that_says_nothing_has_nothing(kernel):
    assert host_reading() == HostReading()


def test_errors_of_memory_are_of_the_module_or_else_of_the_controller(kernel):
    kernel({f"{EDAC}/mc0/ce_count": 9, f"{EDAC}/mc0/ue_count": 1, f"{EDAC}/mc1/ce_count": 4, f"{EDAC}/mc1/ue_count": 0})
    module = f"{EDAC}/mc1/dimm3"
    kernel({f"{module}/dimm_label": "CPU1_DIMM_B2", f"{module}/dimm_ce_count": 4, f"{module}/dimm_ue_count": 0})
    read = host_reading()
    assert read.memory_counted
    assert [(one.device, one.what.split()[0], one.fatal, one.value) for one in read.counters] == [
        ("mc0", "uncorrected", True, 1),
        ("mc0", "corrected", False, 9),
        ("mc1 CPU1_DIMM_B2", "uncorrected", True, 0),
        ("mc1 CPU1_DIMM_B2", "corrected", False, 4),
    ]


def test_errors_of_pcie_are_the_sums_of_their_kinds(kernel):
    where = f"{PCI}/0000:18:00.0"
    kernel({f"{where}/aer_dev_correctable": "RxErr 3\nBadTLP 4\nTOTAL_ERR_COR 7", f"{where}/aer_dev_fatal": "TOTAL 1"})
    assert host_reading().counters == [
        HostCounter(subject=LogSubject.PCIE, device="0000:18:00.0", what="corrected errors", fatal=False, value=7)
    ]


def test_a_port_has_its_state_rate_errors_and_link(kernel, tmp_path):
    device, port = "devices/pci0000:00/0000:0c:00.0", f"{IB}/mlx5_10/ports/1"
    link = {"current_link_speed": "16.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe", "current_link_width": 8}
    kernel({f"{device}/{name}": text for name, text in {**link, "max_link_width": 16}.items()})
    kernel({f"{port}/state": "4: ACTIVE", f"{port}/phys_state": "5: LinkUp", f"{port}/rate": "400 Gb/sec (4X NDR)"})
    kernel({f"{port}/link_layer": "InfiniBand", f"{port}/counters/link_downed": 2, f"{port}/counters/symbol_error": 0})
    kernel(
        {f"{port}/hw_counters/out_of_sequence": 5, f"{IB}/mlx5_10/hca_type": "MT4129", f"{IB}/mlx5_10/fw_ver": "28.1"}
    )
    (tmp_path / f"sys/{IB}/mlx5_10/device").symlink_to(tmp_path / "sys" / device)
    kernel({f"{IB}/mlx5_2/ports/1/state": "1: DOWN", f"{IB}/mlx5_2/ports/1/counters/link_downed": "no number"})
    second, tenth = host_reading().nics
    assert second == NicPort(name="mlx5_2", port=1, state="DOWN")
    assert tenth == NicPort(
        name="mlx5_10",
        port=1,
        kind="MT4129",
        pci="0000:0c:00.0",
        link_layer="InfiniBand",
        state="ACTIVE",
        physical="LinkUp",
        gbits=400.0,
        pcie_gigatransfers=16.0,
        most_pcie_gigatransfers=32.0,
        pcie_width=8,
        most_pcie_width=16,
        firmware="28.1",
        counters={"times the link went down": 2, "symbol errors": 0, "packets out of sequence": 5},
    )


def test_a_disk_has_its_state_and_temperature(kernel):
    where = f"{NVME}/nvme0"
    sensor = {
        f"{where}/hwmon1/temp1_{name}": text for name, text in {"input": 45850, "crit": 84850, "alarm": 0}.items()
    }
    kernel({f"{where}/model": "M  ", f"{where}/state": "live", **sensor, f"{where}/device/current_link_width": 4})
    kernel({f"{NVME}/nvme1/state": "dead"})
    assert host_reading().disks == [
        Disk(name="nvme0", model="M", state="live", celsius=45.85, most_celsius=84.85, alarm=False, pcie_width=4),
        Disk(name="nvme1", state="dead"),
    ]


def test_channels_of_an_imex_domain_are_counted(kernel, tmp_path, monkeypatch):
    monkeypatch.setattr(host_faults, "IMEX_CHANNELS", tmp_path)
    for number in range(2):
        (tmp_path / f"channel{number}").touch()
    assert host_reading().imex_channels == 2


def test_services_are_known_only_where_the_hosts_processes_are_visible(kernel):
    kernel({"1/comm": "python", "9/comm": "nv-fabricmanage"}, root="proc")
    assert host_reading().services is None  # a container
    kernel(
        {"2/comm": "kthreadd", "17/comm": "nvidia-persiste", "driver/nvidia-nvswitch/devices/0000:c1:00.0": ""},
        root="proc",
    )
    read = host_reading()
    assert (read.services, read.switches) == (["fabric manager", "persistence daemon"], 1)
