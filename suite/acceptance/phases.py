"""The phases of a battery: what each runs, what it should take, and the checks that it serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from suite.acceptance import battery_record, measurements, nvml
from suite.acceptance.battery_record import NO_GPUS
from suite.acceptance.check_table import (
    ALL_REDUCE,
    ATTRIBUTION,
    ENVIRONMENT,
    ERRORS,
    EXACT_FIGURES,
    HOST_DEVICE,
    JITTER,
    LOSS_CURVE,
    MATRIX,
    MEMORY,
    PEER,
    REPLAYS,
    SOAK,
    SPREAD,
    STEP_TIME,
    STRAGGLER,
    THROTTLE,
)
from suite.acceptance.context import Battery, Phase
from suite.acceptance.evidence import Evidence, Launched, Micro, Probing, Surroundings
from suite.acceptance.presets import EXACT_STEPS, JITTER_STEPS, TIMED_STEPS
from suite.job.events import Event, Status
from suite.machine.competing_processes import competitors
from suite.machine.devices import cuda_devices, usable_cores

# Of seven miniatures with 6 steps each on 2 cores of a Zen 4 (2026-11-23): the launch took 6.0 to 7.7 s more than its
# steps, these as long as 7 to 10 timed ones, and a timed one 0.9 s at most
START_SECONDS = 8.0
COUNTING_STEPS = 4.0
STEP_SECONDS = 0.9  # of a miniature that nothing predicts
FROM_MICRO = frozenset({MATRIX, SPREAD, MEMORY, HOST_DEVICE})
OF_MICRO = FROM_MICRO | {STEP_TIME, ATTRIBUTION}  # predictions rest on them
FROM_TIMES = frozenset({STEP_TIME, ATTRIBUTION, STRAGGLER, LOSS_CURVE})
UNDER_LOAD = frozenset({THROTTLE, ERRORS})
EXCHANGES = frozenset({PEER, ALL_REDUCE})
FROM_PROBE = EXCHANGES | {REPLAYS, SOAK}
# Of 15 probes of one or more parts on the same machine (2026-11-24): 5.2 s before the soak, 0.1 s a replayed step, 2.5
# to 4 s of exchanges, of which two may go on for 2 s each
PROBE_START_SECONDS = 5.5
REPLAYED_STEP_SECONDS = 0.15
EXCHANGE_SECONDS = 1.0


def environment_phase(battery: Battery) -> Phase:
    """What else the node does, and whether it is the node that was meant."""
    settings, known = battery.settings, battery.known

    def run(_on_event: Callable[[int, Event], None]) -> list[Evidence]:
        busy, share = competitors()
        devices = cuda_devices() if settings.device == "cuda" else usable_cores()
        here = battery.opened.opening
        uuids = battery.watch.uuids() if settings.device == "cuda" and battery.watch is not None else []
        lost = settings.device == "cpu" and not settings.device_named and here.hardware["gpus"] == NO_GPUS
        return [
            Surroundings(
                device=settings.device,
                ranks=settings.ranks,
                devices=devices,
                devices_expected=settings.devices,
                others_share=share,
                competitors=busy,
                fleet_problems=known.fleet_problems,
                past_problems=known.past_problems,
                gpus=here.hardware["gpus"] if settings.device == "cuda" else "",
                gpus_with_ranks=nvml.gpus_with_ranks(settings.device, settings.ranks, uuids),
                gpus_before=battery_record.gpus_before(settings.results, here.node) if lost else "",
            )
        ]

    return Phase(name="environment", predicted_seconds=3.0, serves=frozenset({ENVIRONMENT}), run=run)


def micro_phase(battery: Battery) -> Phase:
    """A calibration, whose profile the battery keeps."""
    settings = battery.settings

    def run(on_event: Callable[[int, Event], None]) -> list[Evidence]:
        where = battery_record.directory(settings.results)
        found, battery.profile = measurements.micro(settings.device, settings.ranks, settings.effort, where, on_event)
        return [found]

    return Phase(
        name="micro-measurements",
        predicted_seconds=settings.effort.micro_seconds[settings.device],
        serves=OF_MICRO,
        run=run,
    )


def launch_phases(battery: Battery) -> list[Phase]:
    """One for each miniature; those whose time is judged are launched as often as the first look needs."""
    settings, effort = battery.settings, battery.settings.effort
    planned = []
    times = settings.selected & FROM_TIMES
    for name in settings.miniatures:
        timed = bool(times) and name in settings.timed
        if timed:
            planned.append(launches_phase(battery, name, "times", TIMED_STEPS, effort.looks[0]))
        elif EXACT_FIGURES in settings.selected:
            planned.append(launches_phase(battery, name, "exact", EXACT_STEPS, 1))
    if effort.jitter is not None and JITTER in settings.selected:
        planned.append(launches_phase(battery, effort.jitter, "jitter", JITTER_STEPS, 1))
    return planned


def launches_phase(battery: Battery, name: str, purpose: str, steps: int, count: int) -> Phase:
    """`count` launches of a miniature."""
    settings = battery.settings

    def run(on_event: Callable[[int, Event], None]) -> Iterator[Evidence]:
        for _ in range(count):
            one = measurements.launched(
                name,
                purpose,
                device=settings.device,
                ranks=settings.ranks,
                steps=steps,
                results=settings.results,
                profile=battery.profile,
                on_event=on_event,
            )
            yield one
            if one.status is not Status.OK:
                break

    serves = {"times": FROM_TIMES | {EXACT_FIGURES}, "jitter": {JITTER, LOSS_CURVE}, "exact": {EXACT_FIGURES}}[purpose]
    predicted = measurements.predicted_step_seconds(
        name, settings.device, settings.ranks, settings.results, battery.profile
    )
    seconds = count * (START_SECONDS + (steps + COUNTING_STEPS) * (predicted or STEP_SECONDS))
    return Phase(name=f"{name} {purpose}", predicted_seconds=seconds, serves=frozenset(serves), run=run)


def probe_phase(battery: Battery, parts: frozenset[int] = FROM_PROBE) -> Phase | None:
    """All parts of the probe that are asked for, or those of them that measure these checks."""
    settings, effort = battery.settings, battery.settings.effort
    wanted = settings.selected & parts
    counted = settings.selected & UNDER_LOAD and settings.device == "cuda"
    if not wanted and counted and not any(is_load(one) for one in battery.evidence()):
        wanted = frozenset({SOAK})  # counters are read under load: idle, a bad GPU shows none
    if not wanted:
        return None

    def run(on_event: Callable[[int, Event], None]) -> list[Evidence]:
        return [
            measurements.probed(
                settings.device,
                settings.ranks,
                effort,
                replays=REPLAYS in wanted,
                exchanges=bool(wanted & EXCHANGES),
                soak=SOAK in wanted,
                on_event=on_event,
            )
        ]

    seconds = PROBE_START_SECONDS
    seconds += effort.replays * effort.replay_steps * REPLAYED_STEP_SECONDS if REPLAYS in wanted else 0.0
    seconds += (EXCHANGE_SECONDS + 2 * effort.exchange_seconds if wanted & EXCHANGES else 0.0) + (
        effort.soak_seconds if SOAK in wanted else 0.0
    )
    serves = FROM_PROBE if parts == FROM_PROBE else wanted | (EXCHANGES if wanted & EXCHANGES else frozenset())
    return Phase(name="probe", predicted_seconds=seconds, serves=serves, run=run)


def is_load(one: Evidence) -> bool:
    """Whether it kept the node busy."""
    return isinstance(one, Micro | Launched | Probing)
