"""GPUs described by a JSON object, with the names and signatures of nvidia-ml-py.

FAKE_NVML holds the object: {"gpus": 2, "with_ranks": true, "faults": {"1": {"throttle": 64, "uncorrected": 3, ...}}}.
With ranks, the battery takes its ranks to run on these GPUs, wherever they do. Counters move with the number of
readings, as under load. Units are the library's: MHz, milliwatts, degrees Celsius.
tests/acceptance/test_nvml.py holds every function's signature and every constant to the real library's.
"""

# ruff: noqa: ARG001, D103, N802, N816  # the library's names and signatures

from __future__ import annotations

import ctypes
import json
import os
import time
from types import SimpleNamespace
from typing import Any

NVML_CLOCK_SM = 1
NVML_CLOCK_MEM = 2
NVML_TEMPERATURE_GPU = 0
NVML_TEMPERATURE_THRESHOLD_MEM_MAX = 2
NVML_SUCCESS = 0
NVML_VOLATILE_ECC = 0
NVML_AGGREGATE_ECC = 1
NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_ERROR_TIMEOUT = 10
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25
nvmlEventTypeXidCriticalError = 0x0000000000000008
nvmlClocksThrottleReasonGpuIdle = 0x0000000000000001
nvmlClocksThrottleReasonApplicationsClocksSetting = 0x0000000000000002
nvmlClocksThrottleReasonSyncBoost = 0x0000000000000010
nvmlClocksThrottleReasonDisplayClockSetting = 0x0000000000000100
nvmlClocksThrottleReasonSwPowerCap = 0x0000000000000004
nvmlClocksThrottleReasonHwSlowdown = 0x0000000000000008
nvmlClocksThrottleReasonSwThermalSlowdown = 0x0000000000000020
nvmlClocksThrottleReasonHwThermalSlowdown = 0x0000000000000040
nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 0x0000000000000080
NVML_NVLINK_MAX_LINKS = 36
NVML_FI_DEV_MEMORY_TEMP = 82
NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
nvmlMemory_v2 = 33554472
NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL = 38
NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL = 45
NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL = 52
NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL = 59
NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS = 214
NVML_GPU_FABRIC_STATE_NOT_SUPPORTED = 0
NVML_GPU_FABRIC_STATE_NOT_STARTED = 1
NVML_GPU_FABRIC_STATE_IN_PROGRESS = 2
NVML_GPU_FABRIC_STATE_COMPLETED = 3
# no degraded bandwidth, no recovery of routes, routes healthy, no access timeouts; a good configuration, a partition,
# a connected manager
FABRIC_HEALTHY = 0b01_01_0001_10_10_10_10
FABRIC_SUMMARY_HEALTHY = 1
LINKS = 18  # of an H100


class c_nvmlGpuFabricInfoV_t(ctypes.Structure):  # noqa: N801
    """As the library has it."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("clusterUuid", ctypes.c_uint8 * 16),
        ("status", ctypes.c_uint),
        ("cliqueId", ctypes.c_uint32),
        ("state", ctypes.c_uint),
        ("healthMask", ctypes.c_uint32),
    )


class c_nvmlGpuFabricInfo_v3_t(ctypes.Structure):  # noqa: N801
    """As the library has it."""

    _fields_ = (*c_nvmlGpuFabricInfoV_t._fields_, ("healthSummary", ctypes.c_uint8))


class c_nvmlEccSramErrorStatus_v1_t(ctypes.Structure):  # noqa: N801
    """As the library has it."""

    _fields_ = (
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("aggregateUncParity", "aggregateUncSecDed", "aggregateCor")),
        *((name, ctypes.c_ulonglong) for name in ("volatileUncParity", "volatileUncSecDed", "volatileCor")),
        *((f"aggregateUncBucket{name}", ctypes.c_ulonglong) for name in ("L2", "Sm", "Pcie", "Mcu", "Other")),
        ("bThresholdExceeded", ctypes.c_uint),
    )


class NVMLError(Exception):
    """As the library raises it, with its error code as `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


_SCENE: dict[str, Any] = json.loads(os.environ.get("FAKE_NVML", '{"gpus": 2}'))
_READINGS: dict[tuple[int, str], int] = {}
_PENDING = [
    SimpleNamespace(device=int(gpu), eventType=nvmlEventTypeXidCriticalError, eventData=xid)
    for gpu, faults in _SCENE.get("faults", {}).items()
    for xid in faults.get("xids", ())
]


if _SCENE.get("with_ranks"):
    from suite.acceptance import nvml

    def _all(device: str, ranks: int, addresses: object = ()) -> list[int]:  # as the patched one
        return list(range(_SCENE["gpus"]))

    nvml.gpus_with_ranks = _all

if "kernel_log" in _SCENE:
    from suite.acceptance import kernel_log

    kernel_log.log_lines = lambda: (_SCENE["kernel_log"], "")


def _fault(handle: int, name: str, usual: Any) -> Any:
    return _SCENE.get("faults", {}).get(str(handle), {}).get(name, usual)


def _grown(handle: int, name: str) -> int:
    """The fault's amount from the second reading on: none before the load."""
    readings = _READINGS.get((handle, name), 0)
    _READINGS[handle, name] = readings + 1
    return int(_fault(handle, name, 0)) if readings else 0


def nvmlInit() -> None:
    """A driver answers."""


def nvmlDeviceGetCount() -> int:
    return int(_SCENE["gpus"])


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetHandleByUUID(uuid: str) -> int:
    return int(uuid.removeprefix("GPU-"))


def nvmlDeviceGetName(handle: int) -> str:
    return str(_fault(handle, "model", "NVIDIA H100 80GB HBM3"))


def nvmlDeviceGetUUID(handle: int) -> str:
    return f"GPU-{handle}"


def nvmlSystemGetDriverVersion() -> str:
    return "570.00"


def nvmlDeviceGetVbiosVersion(handle: int) -> str:
    return str(_fault(handle, "firmware", "96.00.74.00.01"))


def nvmlDeviceGetClockInfo(handle: int, type: int) -> int:
    if type == NVML_CLOCK_MEM:
        return int(_fault(handle, "memory_mhz", 2619))
    return int(_fault(handle, "mhz", 1200 if _fault(handle, "throttle", 0) else 1980))


def nvmlDeviceGetMaxClockInfo(handle: int, type: int) -> int:
    return 2619 if type == NVML_CLOCK_MEM else 1980


def nvmlDeviceGetPowerUsage(handle: int) -> int:
    return 1000 * int(_fault(handle, "watts_drawn", 650))


def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:
    return SimpleNamespace(gpu=int(_fault(handle, "utilisation", 100)), memory=30)


def nvmlDeviceGetEnforcedPowerLimit(handle: int) -> int:
    return 1000 * int(_fault(handle, "watts", 700))


def nvmlDeviceGetPowerManagementDefaultLimit(handle: int) -> int:
    return 700_000


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> int:
    return 92 if _fault(handle, "throttle", 0) & 0x68 else int(_fault(handle, "celsius", 61))


def nvmlDeviceGetTemperatureThreshold(handle: int, threshold: int) -> int:
    if _fault(handle, "old_driver", False):
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return 95


def nvmlDeviceGetPersistenceMode(handle: int) -> int:
    return int(_fault(handle, "persistence", 1))


def nvmlDeviceGetPcieReplayCounter(handle: int) -> int:
    if _fault(handle, "old_driver", False):
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return _grown(handle, "pcie_replays")


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: int) -> int:
    while _fault(handle, "lost", False):
        time.sleep(3600)
    return int(_fault(handle, "throttle", 0))


def nvmlDeviceGetEccMode(handle: int) -> list[int]:
    return [int(_fault(handle, "ecc_on", 1)), 1]


def nvmlDeviceGetMigMode(device: int) -> list[int]:
    return [int(_fault(device, "mig", 0)), 0]


def nvmlDeviceGetTotalEccErrors(handle: int, errorType: int, counterType: int) -> int:
    if counterType == NVML_AGGREGATE_ECC:
        return int(_fault(handle, "lifetime", 0))
    if errorType == NVML_MEMORY_ERROR_TYPE_UNCORRECTED and _fault(handle, "uncorrected_before", 0):
        return int(_fault(handle, "uncorrected_before", 0))
    return _grown(handle, "uncorrected" if errorType == NVML_MEMORY_ERROR_TYPE_UNCORRECTED else "corrected")


def nvmlDeviceGetRemappedRows(device: int) -> tuple[int, int, int, int]:
    if _fault(device, "no_rows", False):
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    remapped = _grown(device, "remapped") + int(_fault(device, "remapped_before", 0))
    return 0, remapped, int(_fault(device, "remap_pending", 0)), int(_fault(device, "remap_failed", 0))


def nvmlDeviceGetRowRemapperHistogram(device: int) -> SimpleNamespace:
    """Banks by spare rows that are left, of 640."""
    if _fault(device, "no_rows", False):
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    used = {"none": int(_fault(device, "no_spare_rows", 0)), "low": int(_fault(device, "few_spare_rows", 0))}
    return SimpleNamespace(max=640 - sum(used.values()), high=0, partial=0, **used)


def nvmlDeviceGetSramEccErrorStatus(device: int, status: Any) -> int:
    status._obj.bThresholdExceeded = int(_fault(device, "sram_threshold", 0))
    return NVML_SUCCESS


def nvmlDeviceGetPciInfo(handle: int) -> SimpleNamespace:
    return SimpleNamespace(domain=0, bus=_SCENE.get("first_bus", 0x18) + handle, device=0)


def nvmlDeviceGetNvLinkState(device: int, link: int) -> int:
    if link >= LINKS or _fault(device, "no_nvlink", False):
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    went_down = link == 3 and _grown(device, "link_goes_down")
    return int(link not in _fault(device, "links_down", ()) and not went_down)


def nvmlDeviceGetFieldValues(handle: int, fieldIds: list[int]) -> list[SimpleNamespace]:
    """Counts replays and failed recoveries of links; this library lacks the other counters."""
    newer = {
        NVML_FI_DEV_MEMORY_TEMP: lambda: int(_fault(handle, "memory_celsius", 70)),
        NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: lambda: int(_fault(handle, "recovery", 0)),
    }
    counters = {
        **({} if _fault(handle, "old_driver", False) else newer),
        NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: lambda: _grown(handle, "replays"),
        NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS: lambda: int(_fault(handle, "failed_recoveries", 0)),
    }
    return [
        SimpleNamespace(
            fieldId=field,
            nvmlReturn=NVML_SUCCESS if field in counters else NVML_ERROR_NOT_SUPPORTED,
            value=SimpleNamespace(ullVal=counters[field]() if field in counters else 0),
        )
        for field in fieldIds
    ]


def nvmlDeviceGetGpuFabricInfoV(device: int, gpuFabricInfo: Any) -> int:
    info = gpuFabricInfo._obj
    if isinstance(info, c_nvmlGpuFabricInfo_v3_t):
        if _fault(device, "old_driver", False):
            raise NVMLError(NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        info.healthSummary = int(_fault(device, "fabric_summary", FABRIC_SUMMARY_HEALTHY))
    info.state = int(_fault(device, "fabric", NVML_GPU_FABRIC_STATE_COMPLETED))
    info.status = int(_fault(device, "fabric_error", NVML_SUCCESS))
    info.healthMask = int(_fault(device, "fabric_health", FABRIC_HEALTHY))
    return NVML_SUCCESS


def nvmlDeviceGetCurrPcieLinkGeneration(handle: int) -> int:
    return int(_fault(handle, "pcie_generation", 5))


def nvmlDeviceGetMaxPcieLinkGeneration(handle: int) -> int:
    return 5


def nvmlDeviceGetCurrPcieLinkWidth(handle: int) -> int:
    return int(_fault(handle, "pcie_width", 16))


def nvmlDeviceGetMaxPcieLinkWidth(handle: int) -> int:
    return 16


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=0) for pid in _fault(handle, "processes", [])]


def nvmlDeviceGetMemoryInfo(handle: int, version: int | None = None) -> SimpleNamespace:
    return SimpleNamespace(used=int(_fault(handle, "used_bytes", 0)))


def nvmlEventSetCreate() -> object:
    return object()


def nvmlDeviceRegisterEvents(handle: int, eventTypes: int, eventSet: object) -> None:
    if _fault(handle, "no_events", False):
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)


def nvmlEventSetWait_v2(eventSet: object, timeoutms: int) -> SimpleNamespace:
    if not _PENDING:
        raise NVMLError(NVML_ERROR_TIMEOUT)
    return _PENDING.pop(0)
