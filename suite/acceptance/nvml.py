"""GPUs as NVIDIA's management library tells of them: before, twice a second under load, and after."""

from __future__ import annotations

import importlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from suite.acceptance.evidence import GpuHealth, GpuSample, GpuState, Health

CALL_SECONDS = 2.0  # a call that takes longer is given up: a lost GPU can block it for ever
SAMPLE_SECONDS = 0.5  # twice the rate at which reasons are to be seen
# reason's name in the library -> how it is called here
REASONS = {
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "software thermal slowdown",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
    "nvmlClocksThrottleReasonSwPowerCap": "software power cap",
}
# of a state: what only grows, and what is told of rows until they are remapped
COUNTERS = ("corrected", "uncorrected", "remapped_corrected", "remapped_uncorrected")
REMAPPING = ("remap_pending", "remap_failed")


class _Lost:
    """What a call that failed or did not answer gives."""


LOST = _Lost()


class Gpus:
    """The node's GPUs through nvidia-ml-py (module pynvml), every call with a timeout.

    Attributes:
        why_none: why nothing is read; empty where something is.
    """

    def __init__(self) -> None:
        self.why_none = ""
        self._handles: list[Any] = []
        self._unanswered: dict[int, set[str]] = {}
        self._given_up: dict[tuple[int, str], threading.Thread] = {}
        try:
            self._library: Any = importlib.import_module("pynvml")
        except ImportError:
            self.why_none = "nvidia-ml-py is not installed"
            return
        if self._call(-1, "nvmlInit") is LOST:
            self.why_none = "no NVIDIA driver answers"
            return
        count = self._call(-1, "nvmlDeviceGetCount")
        if not isinstance(count, int) or count == 0:
            self.why_none = "the driver knows no GPU"
            return
        self._handles = [self._call(number, "nvmlDeviceGetHandleByIndex", number) for number in range(count)]
        self._events = self._call(-1, "nvmlEventSetCreate")
        if self._events is not LOST:
            for number, handle in enumerate(self._handles):
                kind = self._constant("nvmlEventTypeXidCriticalError")
                self._call(number, "nvmlDeviceRegisterEvents", handle, kind, self._events)

    @property
    def count(self) -> int:
        """GPUs that the driver knows."""
        return len(self._handles)

    def names(self) -> list[tuple[str, str, str]]:
        """Model, driver and firmware of every GPU; "not told" where that is so."""
        driver = self._call(-1, "nvmlSystemGetDriverVersion")
        return [
            tuple(
                "not told" if answer is LOST else _text(answer)
                for answer in (
                    self._call(number, "nvmlDeviceGetName", handle),
                    driver,
                    self._call(number, "nvmlDeviceGetVbiosVersion", handle),
                )
            )  # type: ignore[misc]  # of three
            for number, handle in enumerate(self._handles)
        ]

    def uuids(self) -> list[str]:
        """UUID of every GPU; empty where it is not told."""
        answers = [self._call(number, "nvmlDeviceGetUUID", handle) for number, handle in enumerate(self._handles)]
        return ["" if answer is LOST else _text(answer) for answer in answers]

    def state(self, number: int) -> GpuState:
        """One reading of everything that changes rarely."""
        handle = self._handles[number]

        def ask(name: str, *arguments: Any) -> Any:
            answer = self._call(number, name, handle, *arguments)
            return None if answer is LOST else answer

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
            processes=[int(one.pid) for one in running],
        )

    def sample(self, number: int, start: float) -> GpuSample:
        """One reading of what changes under load."""
        handle = self._handles[number]

        def ask(name: str, *arguments: Any) -> Any:
            answer = self._call(number, name, handle, *arguments)
            return None if answer is LOST else answer

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

    def xids(self) -> list[tuple[int, int]]:
        """GPU and number of every XID since the last call."""
        found: list[tuple[int, int]] = []
        while self._handles and self._events is not LOST:
            event = self._call(-1, "nvmlEventSetWait_v2", self._events, 0)
            if event is LOST:  # a timeout is an exception of the library: nothing is waiting
                break
            uuid = self._call(-1, "nvmlDeviceGetUUID", event.device)
            known = [
                number
                for number, handle in enumerate(self._handles)
                if self._call(-1, "nvmlDeviceGetUUID", handle) == uuid
            ]
            found.append((known[0] if known else -1, int(event.eventData)))
        return found

    def unanswered(self, number: int) -> list[str]:
        """Calls about this GPU that failed or were given up; those about events are about all GPUs."""
        names = set(self._unanswered.get(number, set()))
        if self._events is LOST:
            names.add("nvmlEventSetCreate")
        if (-1, "nvmlEventSetWait_v2") in self._given_up:  # otherwise nothing waits
            names.add("nvmlEventSetWait_v2")
        return sorted(names)

    def _constant(self, name: str) -> int:
        return int(getattr(self._library, name))

    def _call(self, number: int, name: str, *arguments: Any) -> Any:
        """The answer, or `LOST` after an error or the timeout.

        A thread that never returns is left behind, one for each call about a GPU: as long as it waits, that call is not
        made again.
        """
        return self._asked(number, name, lambda: getattr(self._library, name)(*arguments))

    def _asked(self, number: int, name: str, question: Callable[[], Any]) -> Any:
        answers: list[Any] = []
        before = self._given_up.get((number, name))
        if before is not None and before.is_alive():
            return LOST

        def ask() -> None:
            try:
                answers.append(question())
            except Exception:  # NVMLError is made at run time; whatever it is, there is no answer
                answers.append(LOST)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(CALL_SECONDS)
        if not answers:
            self._given_up[number, name] = thread
        if not answers or answers[0] is LOST:
            self._unanswered.setdefault(number, set()).add(name)
        return answers[0] if answers else LOST


def _text(answer: Any) -> str:
    return answer.decode() if isinstance(answer, bytes) else str(answer)


def gpus_with_ranks(device: str, ranks: int, uuids: Sequence[str] = ()) -> list[int]:
    """Numbers of the GPUs on which ranks run, as the library counts them: those that are visible, in their order.

    Empty where they are not known: some are parts of GPUs (MIG), or begin like the UUID of none, or of several.

    Args:
        uuids: of all GPUs as the library counts them; CUDA_VISIBLE_DEVICES may name one by how its UUID begins.
    """
    if device != "cuda":
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return list(range(ranks))
    found = [_numbers(word.strip(), uuids) for word in visible.split(",")[:ranks]]
    return [numbers[0] for numbers in found] if all(len(numbers) == 1 for numbers in found) else []


def _numbers(word: str, uuids: Sequence[str]) -> list[int]:
    """GPUs that a word of CUDA_VISIBLE_DEVICES may mean: one, or it is not known which."""
    return [int(word)] if word.isdecimal() else [number for number, uuid in enumerate(uuids) if uuid.startswith(word)]


def joined(parts: Sequence[Health]) -> Health:
    """What was read one after the other, as if at once: the first reading before, the last one after.

    A driver that was loaded anew in between counts errors from 0 again: what a counter grew by is added up. A row that
    waited to be remapped, or was not, stays told, and so do processes at the start of each watch.
    """
    told = [part for part in parts if part.gpus]
    if not told:
        return parts[-1]
    gpus = []
    for last in told[-1].gpus:
        own = [gpu for part in told for gpu in part.gpus if gpu.index == last.index]
        readings = [state for one in own for state in (one.before, one.after)]
        # of one watch each lap begins with the reading that ended the one before it
        starts = [own[0].before, *(one.before for other, one in itertools.pairwise(own) if one.before != other.after)]
        after = msgspec.structs.replace(
            last.after,
            **{name: _without_resets([getattr(state, name) for state in readings]) for name in COUNTERS},
            **{name: True for name in REMAPPING if any(getattr(one.after, name) for one in own)},
        )
        gpus.append(
            msgspec.structs.replace(
                last,
                before=msgspec.structs.replace(
                    own[0].before, processes=sorted({pid for state in starts for pid in state.processes})
                ),
                after=after,
                samples=[sample for one in own for sample in one.samples],
                xids=[xid for one in own for xid in one.xids],
                unanswered=sorted({name for one in own for name in one.unanswered}),
            )
        )
    return Health(gpus=gpus)


def _without_resets(readings: Sequence[int | None]) -> int | None:
    """The last reading of a counter, had it never begun anew: the first one, and every growth; None as the ends are."""
    told = [reading for reading in readings if reading is not None]
    if readings[0] is None or readings[-1] is None:
        return readings[-1]
    return told[0] + sum(max(0, later - earlier) for earlier, later in itertools.pairwise(told))


class HealthWatch:
    """Reads all GPUs at its start, in a thread of its own under load, and at its end."""

    def __init__(self) -> None:
        self._gpus = Gpus()
        self._start = time.monotonic()
        self._before = [self._gpus.state(number) for number in range(self._gpus.count)]
        self._samples: list[list[GpuSample]] = [[] for _ in self._before]
        self._xids: list[tuple[int, int]] = []
        self._lapped = self._before, [0] * len(self._before), 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        if self._before:
            self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            for number, own in enumerate(self._samples):
                own.append(self._gpus.sample(number, self._start))
            self._xids += self._gpus.xids()

    def uuids(self) -> list[str]:
        """UUID of every GPU; empty where it is not told."""
        return self._gpus.uuids()

    def finished(self) -> Health:
        """Everything that was read; the last word of this watch."""
        self._over.set()
        if self._before:
            self._thread.join(CALL_SECONDS * 10)
            self._xids += self._gpus.xids()
        return self.so_far()

    def so_far(self) -> Health:
        """What was read until now, with another reading of every GPU; the watch goes on."""
        if not self._before:
            return Health(gpus=[], why_none=self._gpus.why_none)
        return Health(
            gpus=self._read(
                self._before, [0] * len(self._before), 0, [len(own) for own in self._samples], len(self._xids)
            )
        )

    def lap(self) -> Health:
        """What was read since the last lap, or since the start; the watch goes on."""
        if not self._before:
            return Health(gpus=[], why_none=self._gpus.why_none)
        before, first, first_xid = self._lapped
        last, last_xid = [len(own) for own in self._samples], len(self._xids)
        gpus = self._read(before, first, first_xid, last, last_xid)
        self._lapped = [gpu.after for gpu in gpus], last, last_xid
        return Health(gpus=gpus)

    def _read(
        self, before: list[GpuState], first: list[int], first_xid: int, last: list[int], last_xid: int
    ) -> list[GpuHealth]:
        """Every GPU now, with the samples from its first to its last one, and XIDs likewise."""
        return [
            GpuHealth(
                index=number,
                model=model,
                driver=driver,
                firmware=firmware,
                before=before[number],
                after=self._gpus.state(number),
                samples=self._samples[number][first[number] : last[number]],
                xids=[xid for gpu, xid in self._xids[first_xid:last_xid] if gpu in (number, -1)],
                unanswered=self._gpus.unanswered(number),
            )
            for number, (model, driver, firmware) in enumerate(self._gpus.names())
        ]
