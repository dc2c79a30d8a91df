"""State of GPUs from NVIDIA's management library, every call with a timeout."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from suite.acceptance.evidence import GpuSample, GpuState
from suite.machine.bounded_calls import BlockedError, BoundedCalls

CALL_SECONDS = 2.0  # timeout of a call: a lost GPU can block it for ever
# the library's name of a reason -> ours
REASONS = {
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "software thermal slowdown",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
    "nvmlClocksThrottleReasonSwPowerCap": "software power cap",
}


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
        try:
            self._library: Any = importlib.import_module("pynvml")
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

    def state(self, number: int) -> GpuState:
        """One reading of everything that changes rarely."""
        ask = partial(self._answer, number)

        ecc, mig, rows = ask("nvmlDeviceGetEccMode"), ask("nvmlDeviceGetMigMode"), ask("nvmlDeviceGetRemappedRows")
        limit, default = ask("nvmlDeviceGetEnforcedPowerLimit"), ask("nvmlDeviceGetPowerManagementDefaultLimit")
        volatile = self._constant("NVML_VOLATILE_ECC")
        running = ask("nvmlDeviceGetComputeRunningProcesses") or []
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
        )

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
        )

    def _answer(self, number: int, name: str, *arguments: Any) -> Any:
        """The answer of a call about one GPU; None after an error or the timeout."""
        return self._call(number, name, self._handles[number], *arguments)

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

    def _call(self, number: int, name: str, *arguments: Any) -> Any:
        """The answer, or None after an error or the timeout.

        A call that blocks is not made again while it does.
        """
        blocked = self._blocked.get((number, name))
        if blocked is not None and not blocked.done():
            return None
        try:
            return self._calls.answer(lambda: getattr(self._library, name)(*arguments))
        except BlockedError as error:
            self._blocked[number, name] = error.call
        except Exception:  # NVMLError is defined at run time; any error is no answer
            pass
        self._unanswered.setdefault(number, set()).add(name)
        return None


def _text(answer: Any, unknown: str = "not reported") -> str:
    if answer is None:
        return unknown
    return answer.decode() if isinstance(answer, bytes) else str(answer)


def gpus_with_ranks(device: str, ranks: int, uuids: Sequence[str] = ()) -> list[int]:
    """Numbers, as the library counts them, of the GPUs on which ranks run: the visible ones, in their order.

    Empty where they are not known: a name in CUDA_VISIBLE_DEVICES is a part of a GPU (MIG), or fits none or several.

    Args:
        uuids: of all GPUs, in the library's order; CUDA_VISIBLE_DEVICES may have the first characters of one.
    """
    if device != "cuda":
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return list(range(ranks))
    matches = [_numbers(word.strip(), uuids) for word in visible.split(",")[:ranks]]
    return [numbers[0] for numbers in matches] if all(len(numbers) == 1 for numbers in matches) else []


def _numbers(word: str, uuids: Sequence[str]) -> list[int]:
    """GPUs that a word of CUDA_VISIBLE_DEVICES may mean."""
    return [int(word)] if word.isdecimal() else [number for number, uuid in enumerate(uuids) if uuid.startswith(word)]
