"""GPUs that nobody reports: the kernel's bus and drivers tell a node that lost them from an image that hides them."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.machine import lost_gpus as module
from suite.machine.lost_gpus import lost_gpus

EARLIER = "NVIDIA H100 80GB HBM3, NVIDIA H100 80GB HBM3"


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A function that puts devices on the bus and asks: (class, driver) of each of NVIDIA's, and whether it has files.

    A network card of another maker is always on the bus.
    """
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def asked(*found, earlier="", files=True, library=True, bus=True):
        root = tmp_path / str(len([*tmp_path.iterdir()]))
        cards = [("0x15b3", "0x020700", "mlx5_core"), *(("0x10de", kind, driver) for kind, driver in found)]
        for number, (vendor, kind, driver) in enumerate(cards if bus else []):
            device = root / f"sys/bus/pci/devices/0000:{number:02x}:00.0"
            device.mkdir(parents=True)
            (device / "vendor").write_text(f"{vendor}\n")
            (device / "class").write_text(f"{kind}\n")
            if driver:
                (device / "driver").symlink_to(Path("/sys/bus/pci/drivers") / driver)
        (root / "dev").mkdir(parents=True)
        if files:
            (root / "dev" / "nvidia0").touch()
        monkeypatch.setattr(module, "has_driver", lambda: library)
        return lost_gpus(earlier, root)

    return asked


def test_a_node_is_to_blame_where_its_kernel_says_so(node):
    gpu = "0x030200"
    wrong = []
    for name, lost, words in (
        ("fallen off the bus", node(earlier=EARLIER), "the PCI bus has 1 devices, and no GPU of NVIDIA among them"),
        ("no driver took them", node((gpu, ""), (gpu, "")), "2 of NVIDIA on the PCI bus, and not all have"),
        ("one of two has no driver", node((gpu, "nvidia"), (gpu, "")), "1 with none"),
        ("another driver", node((gpu, "nouveau")), "1 with nouveau"),
        ("driver and files, and none", node((gpu, "nvidia")), "libcuda.so.1 finds none"),
        ("a card with a display", node(("0x030000", "nouveau"), earlier="RTX 4090"), "1 with nouveau"),
    ):
        if lost is None or words not in lost.why_gone:
            wrong.append((name, lost))
    assert wrong == []


def test_a_container_an_image_a_setting_or_a_virtual_machine_may_hide_gpus(node, monkeypatch):
    gpu = ("0x030200", "nvidia")
    hidden = {
        "a container without the devices' files": node(gpu, files=False),
        "an image without the library": node(gpu, library=False),
        "given to a virtual machine": node(("0x030200", "vfio-pci")),
        "no bus is visible": node(earlier=EARLIER, bus=False),
    }
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    hidden["hidden by a variable"] = node(gpu)
    assert {name: lost and lost.why_gone for name, lost in hidden.items()} == dict.fromkeys(hidden, "")


def test_without_any_sign_of_gpus_none_are_lost(node):
    assert node() is None
    assert node(("0x030000", "nouveau")) is None  # a display
    lost = node(earlier=EARLIER)
    assert (lost.gpus, lost.seen_by) == (EARLIER, "an earlier battery of this node")
    lost = node(("0x030200", ""))
    assert (lost.gpus, lost.seen_by) == ("1 of NVIDIA on the PCI bus", "the PCI bus")
