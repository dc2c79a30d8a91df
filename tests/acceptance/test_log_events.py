"""Each line of the kernel that an operator looks for is found, with its device; a line of another kind is not."""

from __future__ import annotations

from suite.acceptance.log_events import log_events
from suite.acceptance.node_state import LogEvent, LogSubject

S = LogSubject
# lines as kernels and drivers write them; subject, device, kind, whether it is fatal
LINES = {
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up": (
        *(S.SWITCH, "0000:c1:00.0", "fatal SXid 20034", True),
    ),
    "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)": (
        *(S.SWITCH, "0000:c1:00.0", "non-fatal SXid 12028", False),
    ),
    "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0": (
        *(S.PCIE, "0000:01:00.0", "fatal error", True),
    ),
    "pcieport 0000:00:01.0: AER: Multiple Uncorrectable (Non-Fatal) error message received from 0000:02:00.0": (
        *(S.PCIE, "0000:02:00.0", "uncorrected error", False),
    ),
    "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0": (
        *(S.PCIE, "0000:01:00.0", "corrected error", False),
    ),
    "nvidia 0000:18:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)": (
        *(S.PCIE, "0000:18:00.0", "corrected error", False),
    ),
    "nvidia 0000:18:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)": (
        *(S.PCIE, "0000:18:00.0", "fatal error", True),
    ),
    "mlx5_core 0000:5e:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer": (
        *(S.PCIE, "0000:5e:00.0", "uncorrected error", False),
    ),
    "pcieport 0000:00:01.0: AER: device recovery failed": (
        *(S.PCIE, "0000:00:01.0", "recovery from an error failed", True),
    ),
    "pcieport 0000:40:01.1: pciehp: Slot(2): Link Down": (S.PCIE, "0000:40:01.1", "device lost", True),
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x0)": (
        *(S.MEMORY, "MC0 CPU_SrcID#0_MC#0_Chan#1_DIMM#0", "uncorrected error of memory", True),
    ),
    "EDAC MC3: 12 CE memory scrubbing error on CPU_SrcID#1_MC#3_Chan#0_DIMM#0 (channel:0 slot:0)": (
        *(S.MEMORY, "MC3 CPU_SrcID#1_MC#3_Chan#0_DIMM#0", "corrected error of memory", False),
    ),
    "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 8: cc00008000010090": (
        *(S.MEMORY, "CPU 2", "corrected machine check", False),
    ),
    "mce: [Hardware Error]: CPU 40: Machine Check Exception: 5 Bank 1: be00000000800400": (
        *(S.MEMORY, "CPU 40", "uncorrected machine check", True),
    ),
    "{1}[Hardware Error]: event severity: recoverable": (S.MEMORY, "host", "recoverable error", True),
    "{1}[Hardware Error]: event severity: corrected": (S.MEMORY, "host", "corrected error", False),
    "mce: Uncorrected hardware memory error in user-access at 3f4a1c0": (
        *(S.MEMORY, "host", "uncorrected error of memory", True),
    ),
    "Memory failure: 0x3f4a1: recovery action for dirty LRU page: Recovered": (
        *(S.MEMORY, "host", "page of memory lost", True),
    ),
    "mlx5_core 0000:0c:00.0: poll_health:801:(pid 0): device's health compromised - reached miss count": (
        *(S.NETWORK, "0000:0c:00.0", "health", True),
    ),
    "mlx5_core 0000:0c:00.0: print_health_info:431:(pid 0): Health issue observed, firmware internal error, severity(3)"
    " ERROR:": (S.NETWORK, "0000:0c:00.0", "health", True),
    "mlx5_core 0000:0c:00.0: print_health_info:431:(pid 0): Health issue observed, High temperature, severity(4)": (
        *(S.NETWORK, "0000:0c:00.0", "health issue", False),
    ),
    "mlx5_core 0000:0c:00.0: wait_func:1157: ACCESS_REG(0x805) timeout. Will cause a leak of a command resource": (
        *(S.NETWORK, "0000:0c:00.0", "a command timed out", True),
    ),
    "mlx5_core 0000:0c:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)": (
        *(S.NETWORK, "0000:0c:00.0", "error of the cable or its module", False),
    ),
    "mlx5_core 0000:0c:00.0: mlx5_pcie_event:301:(pid 5): Detected insufficient power on the PCIe slot (25W).": (
        *(S.NETWORK, "0000:0c:00.0", "too little power of the slot", False),
    ),
    "mlx5_core 0000:0c:00.0 ens1np0: Link down": (S.NETWORK, "0000:0c:00.0", "link down", False),
    "nvme nvme1: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff": (
        *(S.DISK, "nvme1", "controller down", True),
    ),
    "nvme nvme1: Disabling device after reset failure: -19": (S.DISK, "nvme1", "lost", True),
    "nvme nvme0: I/O tag 12 (100c) opcode 0x2 (Read) QID 3 timeout, aborting": (
        *(S.DISK, "nvme0", "a command timed out", False),
    ),
    "critical medium error, dev nvme0n1, sector 123456 op 0x0:(READ)": (S.DISK, "nvme0n1", "medium error", True),
    "I/O error, dev nvme0n1, sector 123456 op 0x0:(READ) flags 0x0": (S.DISK, "nvme0n1", "I/O error", False),
}
OTHERS = [
    "Linux version 6.8.0",
    "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Severity 0 Engine instance 46 Sub-engine instance 00",
    "pcieport 0000:00:01.0: AER: enabled with IRQ 32",
    "mlx5_core 0000:0c:00.0 ens1np0: Link up",
    "EDAC MC: Ver: 3.0.0",
    "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0",
    "mce: CPU0: Thermal monitoring enabled (TM1)",
    "nvme nvme0: 64/0/0 default/read/poll queues",
]


def only(line):
    """The one event of a line of /dev/kmsg and of the journal; what each has else is the same."""
    both = [
        log_events([form], earlier=()) for form in (f"4,7,56789000,-;{line}", f"[   56.789000] host kernel: {line}")
    ]
    assert both[0] == both[1], line
    return [(one.subject, one.device, one.what, one.fatal) for one in both[0]]


def test_each_line_is_an_event_of_its_device_and_other_lines_are_none():
    wrong = {line: found for line, event in LINES.items() if (found := only(line)) != [event]}
    wrong |= {line: found for line in OTHERS if (found := only(line))}
    assert wrong == {}


def test_lines_of_one_kind_are_one_event_and_those_under_load_another():
    line = "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0"
    lines = [f"4,{number},{number}000000,-;{line}" for number in range(5)]
    usual = {"subject": S.PCIE, "device": "0000:01:00.0", "what": "corrected error", "fatal": False}
    assert log_events(lines, earlier=lines[:3]) == [
        LogEvent(**usual, under_load=False, times=3, second=2.0),
        LogEvent(**usual, under_load=True, times=2, second=4.0),
    ]
    assert log_events([line], earlier=()) == [LogEvent(**usual, under_load=True, times=1, second=None)]


def test_a_driver_that_was_loaded_since_mends_a_switch_and_no_memory():
    lines = [line for line in LINES if "20034" in line or "UE" in line]
    loaded = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.104.05"
    found = {event.subject: event.fatal for event in log_events([*lines, loaded], earlier=())}
    assert found == {S.SWITCH: False, S.MEMORY: True}
