"""The machine while it is measured: device and libraries, processor time, clocks, power and temperature."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch

from suite.execute.devices import pci_address
from suite.machine.bounded_calls import BoundedCalls
from suite.machine.cpu_contention import Shared
from suite.machine.gpu import WORKSPACE_VARIABLE
from suite.machine.numa import bind_near

CALL_SECONDS = 2.0  # limit of a call to the GPU's driver
GPU_SAMPLE_SECONDS = 0.5  # between samples of a GPU: the driver renews its values no more often
_BUSY = ("user", "nice", "system", "irq", "softirq")
_FIELDS = (*_BUSY, "idle", "iowait", "steal")


def environment(device: torch.device) -> dict[str, str]:
    """Device and library facts of this rank, as texts."""
    facts = {
        "torch": str(torch.__version__),
        "device": device.type,
        "threads": str(torch.get_num_threads()),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": properties.name,
            "gpu_uuid": str(properties.uuid),
            "gpu_pci": pci_address(properties),
            "gpu_memory_bytes": str(properties.total_memory),
            "cuda": str(torch.version.cuda),
            "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()),
            "cudnn": str(torch.backends.cudnn.version() or 0),
            "gpu_capability": f"{properties.major}.{properties.minor}",
            "gpu_processors": str(properties.multi_processor_count),
            "gpu_threads": str(properties.max_threads_per_multi_processor),
            "numa_node": bind_near_gpu(device),
        }
        if WORKSPACE_VARIABLE in os.environ:
            facts["cublas_workspace_config"] = os.environ[WORKSPACE_VARIABLE]
    return facts


@cache
def bind_near_gpu(device: torch.device) -> str:
    """Bind this process to the processors next to its GPU, once; their NUMA node, or "not bound: WHY"."""
    return bind_near(pci_address(torch.cuda.get_device_properties(device)), threads=torch.get_num_threads())


def own_seconds() -> float:
    """Processor time of this process and its descendants, ended or not: compilers and their workers too."""
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
        self._begun: Shared | None = None

    def start(self) -> None:
        """Begin to count."""
        self._begun = _processor_seconds()

    def update(self) -> None:
        """Set `since_start` to the counts until now."""
        before, after = self._begun, _processor_seconds()
        if before is not None and after is not None:
            fields = Shared.__struct_fields__
            self.since_start = Shared(**{field: getattr(after, field) - getattr(before, field) for field in fields})


def _processor_seconds() -> Shared | None:
    """Seconds since this process and the system started; in a container, those of the whole host."""
    try:
        times = psutil.cpu_times()._asdict()
    except (OSError, RuntimeError):  # no /proc
        return None
    busy, whole = (sum(times.get(name, 0.0) for name in names) for names in (_BUSY, _FIELDS))
    return Shared(own=time.process_time(), busy=busy, steal=times.get("steal", 0.0), whole=whole)


def waited_seconds() -> float:
    """Seconds that this thread was ready to run while others had the processors; 0 where the system does not say.

    Source: Documentation/scheduler/sched-stats.rst of Linux, /proc/PID/schedstat, second field.
    """
    fields = _text("/proc/thread-self/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) == 3 else 0.0


def processor_facts() -> dict[str, str]:
    """Governor and clock of the first processor, as texts; "not reported" where the system does not report them."""
    clock = re.search(r"^cpu MHz\s*:(.*)", _text("/proc/cpuinfo"), re.MULTILINE)
    governor = _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {"governor": governor.strip(), "processor_mhz": clock[1].strip() if clock else "not reported"}


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "not reported"


class GpuLog:
    """Samples of one GPU through nvidia-ml-py, at most two a second: a calibration has 994 tasks on 8 GPUs, and asks
    before each.

    Attributes:
        why_none: why there are no samples; empty where there are.
    """

    def __init__(self, device: torch.device) -> None:
        self.samples: list[dict[str, float | str]] = []
        self.why_none = ""
        self._handle: Any = None
        self._calls, self._next = BoundedCalls(CALL_SECONDS), 0.0
        if device.type != "cuda":
            self.why_none = "no GPU"
            return
        try:
            import pynvml

            self._calls.answer(pynvml.nvmlInit)
        except ImportError:
            self.why_none = "nvidia-ml-py is not installed"
        except Exception:  # NVMLError is made at run time
            self.why_none = "the driver's library does not answer"
        else:
            self._library, self._start = pynvml, time.monotonic()
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            with suppress(Exception):
                self._handle = self._calls.answer(lambda: pynvml.nvmlDeviceGetHandleByUUID(uuid))

    def sample(self) -> None:
        """Add one sample, if one is due, without the values that the driver does not report in time."""
        now = time.monotonic()
        if self._handle is None or now < self._next:
            return
        self._next = now + GPU_SAMPLE_SECONDS
        library, handle = self._library, self._handle
        asked: dict[str, Callable[[], float | str]] = {
            "sm_mhz": lambda: float(library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM)),
            "memory_mhz": lambda: float(library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_MEM)),
            "watts": lambda: float(library.nvmlDeviceGetPowerUsage(handle) / 1000),
            "celsius": lambda: float(library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU)),
            "throttle_reasons": lambda: hex(library.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        }
        answers: dict[str, float | str] = {"seconds": now - self._start}
        for name, question in asked.items():
            with suppress(Exception):
                answers[name] = self._calls.answer(question)
        self.samples.append(answers)
