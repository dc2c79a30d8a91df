"""The least time that a launch takes on an H100, on paper, as a share of a copy's bandwidth; nothing is measured.

The share is the time in which the least bytes move at 3.35 TB/s over the longest of three times. P programs of W warps,
k of which a processor holds at once, on 132 processors of f = 1.83 GHz:

    bandwidth   bytes moved / 3.35 TB/s
    issue       P W i / (132 f), i the cycles of one warp's instructions in the busiest unit of a processor:
                    schedulers                    1/4 an instruction, over 0.8
                    loads, stores, exchanges      1 for every 4 bytes of a thread
                    exponential, root, quotient   2 an instruction
    latency     ceil(P / (132 k)) times one program alone, which has
                    L = 0.7 us for each round of loads that it waits for: those between two barriers or branches, again
                    in each pass of a loop; but a loop of S stages waits only where L / (S - 1) is longer than its pass
                    max(W / 4, 2) / f an instruction: a lone warp issues in every second cycle
                    30 cycles a barrier and 25 a shuffle, one after the other

Latency has Little's law (bytes on the way = bandwidth times latency) and the tail (a last round of few programs) in it.
Left out, for a copy too: the start of a launch, misses of address translation, the memory's turns between reads and
writes, conflicts of banks. So a share is what the code allows, not what will be measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.kernel_inspection.hopper import (
    BYTES_PER_SECOND,
    CYCLES_PER_SECOND,
    LATENCY_SECONDS,
    MOST_WARPS,
    PROCESSORS,
    SCHEDULERS,
    resident_programs,
)
from benchmarks.kernel_inspection.launches import KernelLaunch
from benchmarks.kernel_inspection.machine_code import EXCHANGES, GLOBAL, MachineCode, loops, weights
from benchmarks.kernel_inspection.walks import walk

BARRIER_CYCLES, SHUFFLE_CYCLES, LONE_WARP_CYCLES, SPECIAL_CYCLES = 30, 25, 2, 2
ISSUED_SHARE = 0.8  # of a scheduler's cycles that have an instruction to issue, at best: assumed


class Forecast(NamedTuple):
    """What a launch is predicted to do.

    Args:
        resident: programs on a processor at once.
        occupancy: warps on a processor over the most.
        load_bytes, store_bytes: widths of a thread's loads and stores that carry a tenth of the bytes or more.
        in_flight: bytes that a processor has on the way, over those that Little's law asks for.
        rounds: P / (132 k): 1.1 wastes nearly half of the last round.
        seconds: by what limits.
        share: of a copy's bandwidth.
    """

    resident: int
    occupancy: float
    load_bytes: tuple[int, ...]
    store_bytes: tuple[int, ...]
    in_flight: float
    rounds: float
    seconds: Mapping[str, float]
    share: float

    @property
    def binding(self) -> str:
        """What takes longest."""
        return max(self.seconds, key=lambda name: self.seconds[name])


def forecast(launch: KernelLaunch, code: MachineCode, latency: float = LATENCY_SECONDS) -> Forecast:
    """What the machine code and the arguments of a launch let expect."""
    moved = walk(launch)
    resident = resident_programs(registers=code.registers, shared_bytes=code.shared_bytes, warps=launch.warps)
    often = weights(code.instructions, moved.passes, streams=moved.streams, pass_bytes=moved.pass_bytes)
    slots = PROCESSORS * min(resident, math.ceil(launch.programs / PROCESSORS))
    seconds = {
        "bandwidth": (moved.read_bytes + moved.written_bytes) / BYTES_PER_SECOND,
        "issue": launch.programs * launch.warps * _cycles(code, often) / PROCESSORS / CYCLES_PER_SECOND,
        "latency": math.ceil(launch.programs / slots) * _alone(launch, code, often, latency),
    }
    asked = BYTES_PER_SECOND / PROCESSORS * latency * moved.read_bytes / (moved.read_bytes + moved.written_bytes)
    return Forecast(
        resident=resident,
        occupancy=resident * launch.warps / MOST_WARPS,
        load_bytes=_widths(code, often, ("LDG", "LDGSTS")),
        store_bytes=_widths(code, often, ("STG",)),
        in_flight=slots / PROCESSORS * launch.warps * 32 * _ahead(launch, code, often) / asked,
        rounds=launch.programs / slots,
        seconds=seconds,
        share=moved.least_bytes / BYTES_PER_SECOND / max(seconds.values()),
    )


def _cycles(code: MachineCode, often: Mapping[int, float]) -> float:
    """Of a processor, for one warp's way through the program."""
    issued = moved = special = 0.0
    for place, weight in often.items():
        one = code.instructions[place]
        issued += weight / SCHEDULERS / ISSUED_SHARE
        if one.kind in (*GLOBAL, *EXCHANGES):
            moved += weight * max(1, one.bytes / 4)
        elif one.kind == "MUFU":
            special += weight * SPECIAL_CYCLES
    return max(issued, moved, special)


def _busy(launch: KernelLaunch, code: MachineCode, often: Mapping[int, float]) -> float:
    """Seconds of a lone program for these instructions, waiting for nothing that is loaded."""
    cycles = 0.0
    for place, weight in often.items():
        kind = code.instructions[place].kind
        cycles += weight * max(launch.warps / SCHEDULERS, LONE_WARP_CYCLES)
        cycles += weight * {"BAR": BARRIER_CYCLES, "SHFL": SHUFFLE_CYCLES}.get(kind, 0)
    return cycles / CYCLES_PER_SECOND


def _stages(launch: KernelLaunch) -> int:
    return int(launch.named.get("STAGES", 3))


def _alone(launch: KernelLaunch, code: MachineCode, often: Mapping[int, float], latency: float) -> float:
    """Seconds of one program that has a processor and the memory for itself."""
    waiting, loaded = 0.0, False
    ahead: dict[tuple[int, int], list[int]] = {}
    for place, weight in often.items():
        one = code.instructions[place]
        around = [loop for loop in loops(code.instructions) if loop[0] <= place < loop[1]]
        if one.kind == "LDGSTS" and around:
            ahead.setdefault(around[-1], []).append(place)
        elif one.kind == "LDG" and not loaded:
            loaded = True
            waiting += weight * latency
        elif one.kind in ("BAR", "BRA"):
            loaded = False
    for loop, places in ahead.items():
        own = {place: often[place] for place in range(*loop) if place in often}
        waiting += latency + max(0.0, often[places[0]] * latency / (_stages(launch) - 1) - _busy(launch, code, own))
    return waiting + _busy(launch, code, often)


def _ahead(launch: KernelLaunch, code: MachineCode, often: Mapping[int, float]) -> float:
    """Bytes of a thread on the way at once: of one pass of a loop, or of those that a pipelined one is ahead."""
    found = [0.0]
    around = loops(code.instructions)
    inside = {place for loop in around for place in range(*loop)}
    for places in [set(often) - inside, *(set(range(*loop)) & set(often) for loop in around)]:
        own = [code.instructions[place] for place in places]
        direct = sum(one.bytes for one in own if one.kind == "LDG")
        found.append(direct)
        if places & inside:
            found.append(sum(one.bytes for one in own if one.kind == "LDGSTS") * (_stages(launch) - 1))
    return max(found)


def _widths(code: MachineCode, often: Mapping[int, float], kinds: tuple[str, ...]) -> tuple[int, ...]:
    """Bytes a thread of the instructions of these kinds, widest first, that carry a tenth or more of all bytes."""
    carried: dict[int, float] = {}
    for place, weight in often.items():
        one = code.instructions[place]
        if one.kind in kinds:
            carried[one.bytes] = carried.get(one.bytes, 0.0) + weight * one.bytes
    whole = sum(carried.values())
    return tuple(sorted((width for width, part in carried.items() if part >= whole / 10), reverse=True))
