"""The node's GPUs over a battery: before, twice a second under load, and after."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Sequence

import msgspec

from suite.acceptance import kernel_log
from suite.acceptance.findings import joined_evidence
from suite.acceptance.gpu_evidence import GpuHealth, GpuSample, GpuState, Health
from suite.acceptance.host_faults import host_reading
from suite.acceptance.log_events import log_events
from suite.acceptance.node_state import LogEvent
from suite.acceptance.nvml import CALL_SECONDS, Gpus

SAMPLE_SECONDS = 0.5  # two samples a second, because reasons last at least one
HANG_SAMPLES = 7  # over three seconds: utilisation is that of up to the last second
# fields of a state: counters that only grow, and flags of rows that wait to be remapped
COUNTERS = ("corrected", "uncorrected", "remapped_corrected", "remapped_uncorrected", "lifetime_uncorrected")
REMAPPING = ("remap_pending", "remap_failed")


def joined(parts: Sequence[Health]) -> Health:
    """Readings of several parts of a battery as one: the first state before, the last one after.

    A reloaded driver counts errors from 0 again, so that the growth of counters is added up. A row that waited to be
    remapped, or failed to be, remains reported, and so do processes at the start of each part.
    """
    whole = msgspec.structs.replace(
        parts[-1],
        load_xids=list(dict.fromkeys(xid for part in parts for xid in part.load_xids)),
        log=_joined_log(parts),
        host_before=next((part.host_before for part in parts if part.host_before), None),
    )
    read = [part for part in parts if part.gpus]
    if not read:
        return whole
    return msgspec.structs.replace(
        whole,
        gpus=[_joined_gpu(gpu.index, read) for gpu in read[-1].gpus],
        earlier_xids=list(dict.fromkeys(xid for part in read for xid in part.earlier_xids)),
    )


def _joined_log(parts: Sequence[Health]) -> list[LogEvent]:
    """The messages of all parts; each part has those of the parts before it, too, unless the machine restarted."""
    newest = {
        (event.subject, event.device, event.what, event.under_load): event for part in parts for event in part.log
    }
    return list(newest.values())


def _joined_gpu(index: int, parts: Sequence[Health]) -> GpuHealth:
    readings = [gpu for part in parts for gpu in part.gpus if gpu.index == index]
    states = [state for gpu in readings for state in (gpu.before, gpu.after)]
    # within one watch, each part begins with the reading that ended the part before it
    starts = [states[0], *(later.before for gpu, later in itertools.pairwise(readings) if later.before != gpu.after)]
    processes = sorted({pid for state in starts for pid in state.processes})
    after = msgspec.structs.replace(
        readings[-1].after,
        **{name: _without_resets([getattr(state, name) for state in states]) for name in COUNTERS},
        nvlink_errors={
            kind: count
            for kind in readings[-1].after.nvlink_errors
            if (count := _without_resets([state.nvlink_errors.get(kind) for state in states])) is not None
        },
        **{name: True for name in REMAPPING if any(getattr(gpu.after, name) for gpu in readings)},
    )
    return msgspec.structs.replace(
        readings[-1],
        before=msgspec.structs.replace(states[0], processes=processes),
        after=after,
        samples=[sample for gpu in readings for sample in gpu.samples],
        xids=[xid for gpu in readings for xid in gpu.xids],
        unanswered=sorted({name for gpu in readings for name in gpu.unanswered}),
    )


def _without_resets(readings: Sequence[int | None]) -> int | None:
    """The last reading of a counter without its resets: the first one plus all growth; None where an end is unknown."""
    if readings[0] is None or readings[-1] is None:
        return readings[-1]
    known = [reading for reading in readings if reading is not None]
    return known[0] + sum(max(0, later - earlier) for earlier, later in itertools.pairwise(known))


class HealthWatch:
    """Reads all GPUs at its start, in a thread of its own under load, and at its end.

    Attributes:
        addresses: PCI address of every GPU, in the library's order.
        host: the host before the load.
    """

    def __init__(self) -> None:
        self.gpus = Gpus()
        self._start = time.monotonic()
        self.addresses, self._uuids = self.gpus.addresses(), self.gpus.uuids()
        self._lines, self._why_no_log = kernel_log.log_lines()
        self.host = host_reading()
        self._before = [self.gpus.state(number) for number in range(self.gpus.count)]
        self._samples: list[list[GpuSample]] = [[] for _ in self._before]
        self._xids: list[tuple[int, int]] = []
        self._last_part = self._before, [0] * len(self._before), 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        if self._before:
            self._thread.start()

    @property
    def why_fewer(self) -> str:
        """Reason for which torch may use fewer GPUs than the driver has; empty where none is known."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        divided = [str(number) for number, state in enumerate(self._before) if state.mig]
        return joined_evidence(
            "" if visible is None else f"CUDA_VISIBLE_DEVICES={visible}",
            f"MIG on GPU {' '.join(divided)}" if divided else "",
        )

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            for number, samples in enumerate(self._samples):
                samples.append(self.gpus.sample(number, self._start))
            self._xids += self.gpus.xids()

    def while_hanging(self) -> dict[int, list[GpuSample]]:
        """Samples of every GPU over some seconds, read at once."""
        samples: dict[int, list[GpuSample]] = {number: [] for number in range(self.gpus.count)}
        for reading in range(HANG_SAMPLES if samples else 0):
            if reading:
                time.sleep(SAMPLE_SECONDS)
            for number, of_gpu in samples.items():
                of_gpu.append(self.gpus.sample(number, self._start))
        return samples

    def finished(self) -> Health:
        """All readings; the watch ends."""
        self._over.set()
        if self._before:
            self._thread.join(CALL_SECONDS * 10)
            self._xids += self.gpus.xids()
        return self.so_far()

    def so_far(self) -> Health:
        """All readings until now, with another state of every GPU; the watch goes on."""
        return self._read(self._before, self._samples, self._xids)

    def since_last(self) -> Health:
        """Readings since the last call, or since the start; the watch goes on."""
        before, first_samples, first_xid = self._last_part
        samples = [of_gpu[first:] for of_gpu, first in zip(self._samples, first_samples, strict=True)]
        xids = self._xids[first_xid:]
        health = self._read(before, samples, xids)
        after_samples = [first + len(new) for first, new in zip(first_samples, samples, strict=True)]
        self._last_part = [gpu.after for gpu in health.gpus], after_samples, first_xid + len(xids)
        return health

    def _read(self, before: list[GpuState], samples: list[list[GpuSample]], xids: list[tuple[int, int]]) -> Health:
        """Every GPU now, with these states before, samples and XIDs."""
        gpus = [
            GpuHealth(
                index=number,
                model=model,
                driver=driver,
                firmware=firmware,
                before=before[number],
                after=self.gpus.state(number),
                samples=list(samples[number]),
                xids=[xid for gpu, xid in xids if gpu in (number, -1)],
                unanswered=self.gpus.unanswered(number),
                uuid=self._uuids[number],
                pci=self.addresses[number],
            )
            for number, (model, driver, firmware) in enumerate(self.gpus.names())
        ]
        now, _ = kernel_log.log_lines()
        earlier = frozenset(self._lines)
        fresh = [line for line in now if line not in earlier]
        return Health(
            gpus=gpus,
            why_none=self.gpus.why_none,
            earlier_xids=kernel_log.xids_of(self._lines, self.addresses, self._uuids),
            why_no_xids=self._why_no_log,
            load_xids=kernel_log.xids_of(fresh, self.addresses, self._uuids),
            log=log_events([*self._lines, *fresh], earlier=earlier),  # the kernel overwrites its oldest
            host_before=self.host,
            host_after=host_reading(),
        )
