"""What the machine goes through while it is measured: processor time, clocks, power and temperature."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from suite.machine.cpu_contention import Shared

CALL_SECONDS = 2.0  # a call to the driver's library that takes longer is given up: a lost GPU can block it for ever
_BUSY = ("user", "nice", "system", "irq", "softirq")
_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


class ProcessorTime(NamedTuple):
    """Seconds since boot, summed over processors: computing, taken by other guests of the host, and all."""

    busy: float
    steal: float
    all: float


def processor_time() -> ProcessorTime | None:
    """The system's processor time so far; None where it does not say. (Containers see the whole host's.)"""
    try:
        times = psutil.cpu_times()._asdict()
    except (OSError, RuntimeError):  # no /proc
        return None
    busy = sum(times.get(name, 0.0) for name in _BUSY)
    return ProcessorTime(busy, times.get("steal", 0.0), sum(times.get(name, 0.0) for name in _FIELDS))


def own_seconds() -> float:
    """Processor time of this process and of all that it started, ended or not: compilers and their workers too."""
    seconds = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            seconds += sum(child.cpu_times()[:4])  # user, system, and both of children that were waited for
    return seconds


class SharedProcessors:
    """Processor time of this process and of the whole system between `start` and the last `update`.

    Attributes:
        since_start: None before the first update, and where the system does not report it.
    """

    def __init__(self) -> None:
        self.since_start: Shared | None = None
        self._begun: tuple[ProcessorTime | None, float] = (None, 0.0)

    def start(self) -> None:
        """Begin to count."""
        self._begun = processor_time(), time.process_time()

    def update(self) -> None:
        """Set `since_start` to the counts until now."""
        (before, own), after = self._begun, processor_time()
        if before is not None and after is not None:
            busy, steal, whole = (b - a for a, b in zip(before, after, strict=True))
            self.since_start = Shared(own=time.process_time() - own, busy=busy, steal=steal, whole=whole)


def processor_facts() -> dict[str, str]:
    """Governor and clock of the first processor, as texts; "not told" where the system does not."""
    governor = _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    clock = "not told"
    for line in _text("/proc/cpuinfo").splitlines():
        if line.startswith("cpu MHz"):
            clock = line.partition(":")[2].strip()
            break
    return {"governor": governor.strip(), "processor_mhz": clock}


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "not told"


class GpuLog:
    """Samples of one GPU through nvidia-ml-py, each call given up after 2 s; says why where there are none.

    Not tested here: no GPU was at hand.
    """

    def __init__(self, uuid: str | None) -> None:
        self.samples: list[dict[str, float | str]] = []
        self.why_none = "" if uuid is not None else "no GPU"
        self._handle: Any = None
        if uuid is None:
            return
        try:
            import pynvml
        except ImportError:
            self.why_none = "nvidia-ml-py is not installed"
            return
        self._library: Any = pynvml
        self._start = time.monotonic()
        if self._asked(pynvml.nvmlInit) is _GIVEN_UP:
            self.why_none = "the driver's library does not answer"
            return
        handle = self._asked(lambda: pynvml.nvmlDeviceGetHandleByUUID(uuid))
        self._handle = None if handle is _GIVEN_UP else handle

    def sample(self) -> None:
        """Add one sample; what the driver does not tell, or not in time, is left out."""
        if self._handle is None:
            return
        library, handle = self._library, self._handle
        asked: dict[str, Callable[[], float]] = {
            "sm_mhz": lambda: library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM),
            "memory_mhz": lambda: library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_MEM),
            "watts": lambda: library.nvmlDeviceGetPowerUsage(handle) / 1000,
            "celsius": lambda: library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU),
            "throttle_reasons": lambda: library.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        }
        answers: dict[str, float | str] = {"seconds": time.monotonic() - self._start}
        for name, question in asked.items():
            answer = self._asked(question)
            if answer is _GIVEN_UP:
                continue
            answers[name] = hex(answer) if name == "throttle_reasons" else float(answer)
        self.samples.append(answers)

    @staticmethod
    def _asked(question: Callable[[], Any]) -> Any:
        """The answer, or `_GIVEN_UP` after the timeout or an error; a thread that never returns is left behind."""
        answers: list[Any] = []

        def ask() -> None:
            try:
                answers.append(question())
            except Exception:  # NVMLError is made at run time; whatever it is, this sample has no such value
                answers.append(_GIVEN_UP)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(CALL_SECONDS)
        return answers[0] if answers else _GIVEN_UP


_GIVEN_UP = object()
