"""State of GPUs from NVIDIA's management library, every call with a timeout."""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from suite.acceptance.fabric import SUMMARIES, problems_in, unread_in
from suite.acceptance.gpu_evidence import GpuSample, GpuState
from suite.acceptance.kernel_log import pci_address
from suite.machine.bounded_calls import BlockedError, BoundedCalls
from suite.machine.devices import cuda_device_list

CALL_SECONDS = 2.0  # timeout of a call: a lost GPU can block it for ever
IDLE = "idle"
# the library's name of a reason -> ours
REASONS = {
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "software thermal slowdown",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
    "nvmlClocksThrottleReasonSwPowerCap": "software power cap",
    "nvmlClocksThrottleReasonApplicationsClocksSetting": "application clocks",
    "nvmlClocksThrottleReasonSyncBoost": "sync boost",
    "nvmlClocksThrottleReasonDisplayClockSetting": "display clocks",
    "nvmlClocksThrottleReasonGpuIdle": IDLE,
}

# counters over all links: of NVLink 4 and older, and of NVLink 5
NVLINK_ERRORS = {
    "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": "CRC errors of flits",
    "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": "CRC errors of data",
    "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": "replays",
    "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": "recoveries",
    "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS": "recoveries",
    "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS": "failed recoveries",
    "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS": "effective errors",
}
FABRIC_STATES = {
    "NVML_GPU_FABRIC_STATE_NOT_STARTED": "not started",
    "NVML_GPU_FABRIC_STATE_IN_PROGRESS": "in progress",
    "NVML_GPU_FABRIC_STATE_COMPLETED": "completed",
}
# with the driver's own summary of the fabric's health, and as older drivers fill it
FABRIC_STRUCTURES = ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfoV_t")
SPARE_ROWS = ("max", "high", "partial", "low", "none")


class Gpus:
    """The node's GPUs through nvidia-ml-py (module pynvml), every call with a timeout.

    Attributes:
        why_none: why nothing is read; empty where something is.
    """

    def __init__(self) -> None:
        self.why_none = ""
        self._handles: list[Any] = []
        self._unanswered: dict[int, set[str]] = {}
        self._calls = BoundedCalls(CALL_SECONDS)
        self._blocked: dict[tuple[int, str], Future[Any]] = {}
        self._library: Any = None
        try:
            self._library = importlib.import_module("pynvml")
        except ImportError:
            self.why_none = "nvidia-ml-py is not installed"
            return
        self._call(-1, "nvmlInit")
        if self._unanswered:
            self.why_none = "no NVIDIA driver answers"
            return
        count = self._call(-1, "nvmlDeviceGetCount")
        if not count:
            self.why_none = "the driver knows no GPU"
            return
        self._handles = [self._call(number, "nvmlDeviceGetHandleByIndex", number) for number in range(count)]
        self._events = self._call(-1, "nvmlEventSetCreate")
        if self._events is not None:
            for number, handle in enumerate(self._handles):
                kind = self._constant("nvmlEventTypeXidCriticalError")
                self._call(number, "nvmlDeviceRegisterEvents", handle, kind, self._events)

    @property
    def count(self) -> int:
        """GPUs that the driver knows."""
        return len(self._handles)

    @property
    def answering(self) -> int | None:
        """GPUs that the driver knows and that answer; None without its library: then nothing is known."""
        if self._library is None:
            return None
        return sum(self._answer(number, "nvmlDeviceGetUUID") is not None for number in range(self.count))

    def names(self) -> list[tuple[str, str, str]]:
        """Model, driver and firmware of every GPU; "not reported" without an answer."""
        driver = _text(self._call(-1, "nvmlSystemGetDriverVersion"))
        return [
            (
                _text(self._answer(number, "nvmlDeviceGetName")),
                driver,
                _text(self._answer(number, "nvmlDeviceGetVbiosVersion")),
            )
            for number in range(self.count)
        ]

    def uuids(self) -> list[str]:
        """UUID of every GPU; empty without an answer."""
        return [_text(self._answer(number, "nvmlDeviceGetUUID"), unknown="") for number in range(self.count)]

    def addresses(self) -> list[str]:
        """PCI address of every GPU; empty without an answer."""
        found = [self._answer(number, "nvmlDeviceGetPciInfo") for number in range(self.count)]
        return ["" if pci is None else pci_address(pci.domain, pci.bus, pci.device) for pci in found]

    def state(self, number: int) -> GpuState:
        """One reading of everything that changes rarely."""
        ask = partial(self._answer, number)

        ecc, mig, rows = ask("nvmlDeviceGetEccMode"), ask("nvmlDeviceGetMigMode"), ask("nvmlDeviceGetRemappedRows")
        limit, default = ask("nvmlDeviceGetEnforcedPowerLimit"), ask("nvmlDeviceGetPowerManagementDefaultLimit")
        volatile = self._constant("NVML_VOLATILE_ECC")
        running = ask("nvmlDeviceGetComputeRunningProcesses") or []
        sram = self._filled(number, "nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t")
        spare = self._answer(number, "nvmlDeviceGetRowRemapperHistogram", optional=True)
        persistence = self._answer(number, "nvmlDeviceGetPersistenceMode", optional=True)
        fields = self._fields(number, ["NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", *NVLINK_ERRORS])
        return GpuState(
            ecc=None if ecc is None else bool(ecc[0]),
            mig=None if mig is None else bool(mig[0]),
            watts_limit=None if limit is None else limit / 1000,
            watts_default=None if default is None else default / 1000,
            pcie_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            pcie_most_generation=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
            pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
            pcie_most_width=ask("nvmlDeviceGetMaxPcieLinkWidth"),
            corrected=ask("nvmlDeviceGetTotalEccErrors", self._constant("NVML_MEMORY_ERROR_TYPE_CORRECTED"), volatile),
            uncorrected=ask(
                "nvmlDeviceGetTotalEccErrors", self._constant("NVML_MEMORY_ERROR_TYPE_UNCORRECTED"), volatile
            ),
            remapped_corrected=None if rows is None else int(rows[0]),
            remapped_uncorrected=None if rows is None else int(rows[1]),
            remap_pending=None if rows is None else bool(rows[2]),
            remap_failed=None if rows is None else bool(rows[3]),
            processes=[int(process.pid) for process in running],
            used_bytes=self._used_bytes(number),
            lifetime_uncorrected=ask(
                "nvmlDeviceGetTotalEccErrors",
                self._constant("NVML_MEMORY_ERROR_TYPE_UNCORRECTED"),
                self._constant("NVML_AGGREGATE_ECC"),
                optional=True,
            ),
            sram_threshold_exceeded=None if sram is None else bool(sram.bThresholdExceeded),
            spare_rows={} if spare is None else {left: int(getattr(spare, left)) for left in SPARE_ROWS},
            nvlinks=self._nvlinks(number),
            nvlink_errors={words: fields[name] for name, words in NVLINK_ERRORS.items() if name in fields},
            **self._fabric(number),
            recovery=fields.get("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"),
            most_memory_mhz=ask("nvmlDeviceGetMaxClockInfo", self._constant("NVML_CLOCK_MEM"), optional=True),
            most_mhz=ask("nvmlDeviceGetMaxClockInfo", self._constant("NVML_CLOCK_SM"), optional=True),
            persistence=None if persistence is None else bool(persistence),
            pcie_replays=ask("nvmlDeviceGetPcieReplayCounter", optional=True),
            most_memory_celsius=ask(
                "nvmlDeviceGetTemperatureThreshold", self._constant("NVML_TEMPERATURE_THRESHOLD_MEM_MAX"), optional=True
            ),
        )

    def _used_bytes(self, number: int) -> int | None:
        """Allocated memory, without what the driver keeps for itself."""
        version = getattr(self._library, "nvmlMemory_v2", None)
        memory = self._answer(number, "nvmlDeviceGetMemoryInfo", version, optional=True)
        return None if memory is None else int(memory.used)

    def _nvlinks(self, number: int) -> list[bool]:
        """Whether each link is active, up to the first that the GPU does not have."""
        active: list[bool] = []
        for link in range(self._constant("NVML_NVLINK_MAX_LINKS")):
            answer = self._answer(number, "nvmlDeviceGetNvLinkState", link, optional=True)
            if answer is None:
                break
            active.append(bool(answer))
        return active

    def _fields(self, number: int, names: Sequence[str]) -> dict[str, int]:
        """Values of the fields that this library, driver and GPU have."""
        name_of = {self._constant(name): name for name in names if hasattr(self._library, name)}
        values = self._answer(number, "nvmlDeviceGetFieldValues", list(name_of), optional=True) or []
        known = [value for value in values if value.nvmlReturn == self._constant("NVML_SUCCESS")]
        # values of 32 bits lie in the lower half of the union
        return {name_of[value.fieldId]: int(value.value.ullVal) for value in known}

    def _fabric(self, number: int) -> dict[str, Any]:
        """Fields of a state: registration with the switches' manager, and what it reports; none without switches."""
        filled = (self._filled(number, "nvmlDeviceGetGpuFabricInfoV", structure) for structure in FABRIC_STRUCTURES)
        info = next((one for one in filled if one is not None), None)
        if info is None:
            return {}
        states = {self._constant(name): words for name, words in FABRIC_STATES.items()}
        state = states.get(info.state, "")
        if state and info.status != self._constant("NVML_SUCCESS"):
            state += f" with error {info.status}"
        if not state and not info.healthMask:  # no fabric
            return {}
        summary = getattr(info, "healthSummary", 0)
        unread = [] if summary else ["summary"]
        return {
            "fabric": state,
            "fabric_problems": problems_in(info.healthMask),
            "fabric_summary": SUMMARIES.get(summary, ""),
            "fabric_unread": [*unread_in(info.healthMask), *unread],
        }

    def _filled(self, number: int, name: str, structure: str) -> Any:
        """The structure that a call fills; None where this library or GPU has none."""
        make = getattr(self._library, structure, None)
        if make is None:
            return None
        filled = make()
        answer = self._answer(number, name, ctypes.byref(filled), optional=True)
        return None if answer is None else filled

    def sample(self, number: int, start: float) -> GpuSample:
        """One reading of what changes under load."""
        ask = partial(self._answer, number)

        bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        watts = ask("nvmlDeviceGetPowerUsage")
        return GpuSample(
            second=time.monotonic() - start,
            mhz=ask("nvmlDeviceGetClockInfo", self._constant("NVML_CLOCK_SM")),
            watts=None if watts is None else watts / 1000,
            celsius=ask("nvmlDeviceGetTemperature", self._constant("NVML_TEMPERATURE_GPU")),
            reasons=None if bits is None else [word for name, word in REASONS.items() if bits & self._constant(name)],
            pcie_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
            memory_mhz=ask("nvmlDeviceGetClockInfo", self._constant("NVML_CLOCK_MEM"), optional=True),
            utilisation=None if (used := ask("nvmlDeviceGetUtilizationRates", optional=True)) is None else used.gpu,
            memory_celsius=self._fields(number, ["NVML_FI_DEV_MEMORY_TEMP"]).get("NVML_FI_DEV_MEMORY_TEMP"),
        )

    def _answer(self, number: int, name: str, *arguments: Any, optional: bool = False) -> Any:
        """The answer of a call about one GPU; None after an error or the timeout."""
        return self._call(number, name, self._handles[number], *arguments, optional=optional)

    def xids(self) -> list[tuple[int, int]]:
        """GPU and number of every XID since the last call."""
        xids: list[tuple[int, int]] = []
        while self._handles and self._events is not None:
            event = self._call(-1, "nvmlEventSetWait_v2", self._events, 0)
            if event is None:  # a timeout is an exception of the library: nothing is waiting
                break
            uuid = self._call(-1, "nvmlDeviceGetUUID", event.device)
            known = (n for n, handle in enumerate(self._handles) if self._call(-1, "nvmlDeviceGetUUID", handle) == uuid)
            xids.append((next(known, -1), int(event.eventData)))
        return xids

    def unanswered(self, number: int) -> list[str]:
        """Calls about this GPU that failed or timed out; calls about events concern all GPUs."""
        names = set(self._unanswered.get(number, set()))
        if self._events is None:
            names.add("nvmlEventSetCreate")
        if (-1, "nvmlEventSetWait_v2") in self._blocked:  # otherwise there is no event
            names.add("nvmlEventSetWait_v2")
        return sorted(names)

    def _constant(self, name: str) -> int:
        return int(getattr(self._library, name))

    def _call(self, number: int, name: str, *arguments: Any, optional: bool = False) -> Any:
        """The answer, or None after an error or the timeout.

        A call that blocks is not made again while it does.

        Args:
            optional: an error is no gap: not every GPU and driver has it.
        """
        blocked = self._blocked.get((number, name))
        if blocked is not None and not blocked.done():
            return None
        try:
            return self._calls.answer(lambda: getattr(self._library, name)(*arguments))
        except BlockedError as error:
            self._blocked[number, name] = error.call
        except Exception:  # NVMLError is defined at run time; any error is no answer
            if optional:
                return None
        self._unanswered.setdefault(number, set()).add(name)
        return None


def _text(answer: Any, unknown: str = "not reported") -> str:
    if answer is None:
        return unknown
    return answer.decode() if isinstance(answer, bytes) else str(answer)


def gpus_with_ranks(device: str, ranks: int, addresses: Sequence[str]) -> list[int]:
    """Numbers, as the library counts them, of the GPUs on which ranks run, in the order of ranks.

    The library orders GPUs by PCI address, CUDA by speed or as CUDA_VISIBLE_DEVICES says. So each rank's device is
    found by its address. Empty where one is not found, or there are fewer devices than ranks.

    Args:
        addresses: of all GPUs, in the library's order.
    """
    if device != "cuda" or not ranks:
        return []
    used = [torch_device.pci for torch_device in cuda_device_list()[:ranks]]
    if len(used) < ranks or not set(used) <= set(addresses):
        return []
    return [addresses.index(pci) for pci in used]
