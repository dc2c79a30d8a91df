"""The phases of a battery: what each runs, its predicted seconds, and the checks that it serves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from suite.acceptance import battery_record, measurements, nic_loopback, nvml
from suite.acceptance import check_table as check
from suite.acceptance.battery_record import NO_GPUS
from suite.acceptance.context import BatteryPhase, LaunchesPhase, RunningBattery, Settings
from suite.acceptance.evidence import Evidence, LaunchPurpose, Load, NicLoopback, Surroundings
from suite.acceptance.judge.environment import others_gpus
from suite.acceptance.presets import EXACT_STEPS, JITTER_STEPS, TIMED_STEPS
from suite.acceptance.starts import STATED, stated_launches
from suite.job.events import Event, Status
from suite.launch.interruption import OutOfTimeError
from suite.machine.cpu_contention import competitors
from suite.machine.devices import cuda_state, usable_cores
from suite.machine.host_state import host_state, thread_ticks
from suite.machine.lost_gpus import LostGpus, lost_gpus
from suite.records.battery import battery_directory

MICRO = "micro-measurements"
MEASURED_BY_MICRO = frozenset({check.MATRIX, check.SPREAD, check.MEMORY, check.HOST_DEVICE})
PREDICTED = frozenset({check.STEP_TIME, check.ATTRIBUTION})  # by micro-measurements
NEEDS_MICRO = MEASURED_BY_MICRO | PREDICTED
MEASURED_BY_TIMES = frozenset({check.STEP_TIME, check.ATTRIBUTION, check.STRAGGLER, check.LOSS_CURVE})
# by purpose of a launch: its steps, and the checks that it serves
PURPOSES = {
    LaunchPurpose.TIMES: (TIMED_STEPS, MEASURED_BY_TIMES | {check.EXACT_FIGURES}),
    LaunchPurpose.JITTER: (JITTER_STEPS, frozenset({check.JITTER, check.LOSS_CURVE})),
    LaunchPurpose.EXACT: (EXACT_STEPS, frozenset({check.EXACT_FIGURES})),
}
UNDER_LOAD = frozenset({check.THROTTLE, check.ERRORS})
EXCHANGES = frozenset({check.PEER, check.ALL_REDUCE})
COUNTERS_SECONDS = 5.0  # ten samples of a GPU that others use
MEASURED_BY_PROBE = EXCHANGES | {check.REPLAYS, check.SOAK}


def planned(battery: RunningBattery) -> list[BatteryPhase]:
    """All phases that the selected checks need, without repetitions and further looks."""
    micro = [micro_phase(battery)] if measures_machine(battery.settings) else []
    loads: list[BatteryPhase] = [*micro, *launch_phases(battery), *exact_phases(battery)]
    # under them GPUs' counters are read, so that no soak needs to be a load
    probe = None if loads and not battery.settings.selected & MEASURED_BY_PROBE else probe_phase(battery)
    loopback = loopback_phase(battery)
    return [environment_phase(battery), *loads, *(phase for phase in (probe, loopback) if phase is not None)]


def measures_machine(settings: Settings) -> bool:
    """Whether the selected checks need micro-measurements; without a GPU there are none of host links."""
    needs = NEEDS_MICRO if settings.device == "cuda" else NEEDS_MICRO - {check.HOST_DEVICE}
    return bool(settings.selected & needs)


def environment_phase(battery: RunningBattery) -> BatteryPhase:
    """Devices, other processes, and records of other batteries that were left out."""
    settings, history = battery.settings, battery.history

    def run(_on_event: Callable[[int, Event], None]) -> list[Evidence]:
        ticks = thread_ticks()
        busy, share = competitors()
        begin, watch, on_gpus = battery.record.opening, battery.gpu_watch, settings.device == "cuda"
        known = begin.hardware["gpus"] if on_gpus else NO_GPUS
        addresses = [] if watch is None else watch.addresses
        lost = not on_gpus and not settings.device_named and begin.hardware["gpus"] == NO_GPUS
        gone = _lost(battery) if lost else None
        return [
            Surroundings(
                device=settings.device,
                ranks=settings.ranks,
                devices=len(cuda_state().devices) if on_gpus else usable_cores(),
                devices_expected=settings.devices,
                others_share=share,
                competitors=busy,
                fleet_problems=history.fleet_problems,
                past_problems=history.past_problems,
                gpus="" if known == NO_GPUS else known,
                gpus_with_ranks=nvml.gpus_with_ranks(settings.device, settings.ranks, addresses),
                host=host_state(settings.results, ticks),
                cores=usable_cores(),
                now=time.time(),
                newest_past=max((past.finished for past, _ in history.judged), default=0.0),
                gpus_before=gone.gpus if gone else "",
                seen_by=gone.seen_by if gone else "",
                driver_gpus=watch.gpus.answering if on_gpus and watch is not None else None,
                why_fewer=watch.why_fewer if on_gpus and watch is not None else "",
                why_gone=cuda_state().why_gone if on_gpus else gone.why_gone if gone else "",
                busy_gpus=others_gpus(watch.so_far().gpus) if on_gpus and watch is not None else [],
            )
        ]

    stated = STATED[settings.device]
    seconds = stated.question + stated.surroundings
    return BatteryPhase(name="environment", predicted_seconds=seconds, serves=frozenset({check.ENVIRONMENT}), run=run)


def _lost(battery: RunningBattery) -> LostGpus | None:
    """GPUs that this node had or has while no driver reports one."""
    return lost_gpus(battery_record.gpus_before(battery.settings.results, battery.record.opening.node))


def counters_phase(_battery: RunningBattery) -> BatteryPhase:
    """Wait while the watch samples GPUs under the load of others; nothing is executed."""

    def run(_on_event: Callable[[int, Event], None]) -> list[Evidence]:
        time.sleep(COUNTERS_SECONDS)
        return []

    return BatteryPhase(name="counters", predicted_seconds=COUNTERS_SECONDS, serves=UNDER_LOAD, run=run)


def micro_phase(battery: RunningBattery) -> BatteryPhase:
    """A calibration; the battery takes its machine profile."""
    settings = battery.settings

    def run(on_event: Callable[[int, Event], None]) -> list[Evidence]:
        where = battery_directory(settings.results)
        micro, battery.profile = measurements.micro_measurements(
            settings.device, settings.ranks, settings.effort, where, on_event
        )
        return [micro]

    return BatteryPhase(
        name=MICRO, predicted_seconds=settings.effort.micro_seconds[settings.device], serves=NEEDS_MICRO, run=run
    )


def rates_phase(battery: RunningBattery) -> BatteryPhase:
    """The phase that measures only the rates again; predictions stay as they are."""
    settings = battery.settings

    def run(on_event: Callable[[int, Event], None]) -> list[Evidence]:
        return [measurements.rates_again(settings.device, settings.ranks, settings.effort, on_event)]

    seconds = STATED[settings.device].rates
    return BatteryPhase(name=MICRO, predicted_seconds=seconds, serves=MEASURED_BY_MICRO, run=run)


def launch_phases(battery: RunningBattery) -> list[LaunchesPhase]:
    """One phase for each miniature whose time is judged, of as many launches as the first look needs; and jitter's."""
    settings, effort = battery.settings, battery.settings.effort
    planned = [launches_phase(battery, name, LaunchPurpose.TIMES, effort.looks[0]) for name in _timed(settings)]
    if effort.jitter is not None and check.JITTER in settings.selected:
        planned.append(launches_phase(battery, effort.jitter, LaunchPurpose.JITTER, 1))
    return planned


def exact_phases(battery: RunningBattery, *, timed: bool = False) -> list[LaunchesPhase]:
    """One launch of each miniature whose time is not judged, for its exact figures; `timed`: of the others too."""
    settings = battery.settings
    if check.EXACT_FIGURES not in settings.selected:
        return []
    others = [name for name in settings.miniatures if timed or name not in _timed(settings)]
    return [launches_phase(battery, name, LaunchPurpose.EXACT, 1) for name in others]


def _timed(settings: Settings) -> list[str]:
    """Miniatures whose time is judged."""
    judged = settings.selected & MEASURED_BY_TIMES
    return [name for name in settings.miniatures if name in settings.timed and judged]


def launches_phase(battery: RunningBattery, name: str, purpose: LaunchPurpose, count: int) -> LaunchesPhase:
    """`count` launches of a miniature. Those for exact figures are not compiled: uncompiled steps count them."""
    settings = battery.settings
    steps, serves = PURPOSES[purpose]
    compiled = settings.device == "cuda" and settings.effort.compiled and purpose is not LaunchPurpose.EXACT

    def run(on_event: Callable[[int, Event], None]) -> Iterator[Evidence]:
        for _ in range(count):
            launch = measurements.miniature_launch(
                name,
                purpose,
                device=settings.device,
                ranks=settings.ranks,
                steps=steps,
                compiled=compiled,
                results=settings.results,
                profile=battery.profile,
                on_event=on_event,
            )
            yield launch
            if launch.status is not Status.OK:
                break

    where = (settings.device, settings.ranks, settings.results)
    step_seconds = measurements.predicted_step_seconds(name, *where, battery.profile, compiled=compiled)
    tokenised = measurements.is_tokenised(name, *where)
    return LaunchesPhase(
        name=f"{name} {purpose}",
        predicted_seconds=stated_launches(
            settings.device, count, steps, step_seconds, compiled=compiled, tokenised=tokenised
        ),
        serves=serves,
        run=run,
        miniature=name,
        purpose=purpose,
        launches=count,
        compiled=compiled,
    )


def probe_phase(battery: RunningBattery, parts: frozenset[int] = MEASURED_BY_PROBE) -> BatteryPhase | None:
    """The selected parts of the probe, or those of them that measure these checks; None without any."""
    settings, effort = battery.settings, battery.settings.effort
    wanted = settings.selected & parts
    counted = settings.selected & UNDER_LOAD and settings.device == "cuda"
    if not wanted and counted and not any(isinstance(item, Load) for item in battery.evidence()):
        wanted = frozenset({check.SOAK})  # counters are read under load: idle, a bad GPU shows none
    if not wanted:
        return None

    def run(on_event: Callable[[int, Event], None]) -> list[Evidence]:
        return [
            measurements.probe_result(
                settings.device,
                settings.ranks,
                effort,
                replays=check.REPLAYS in wanted,
                exchanges=bool(wanted & EXCHANGES),
                soak=check.SOAK in wanted,
                on_event=on_event,
            )
        ]

    stated = STATED[settings.device]
    seconds = stated.probe
    if check.REPLAYS in wanted:
        seconds += effort.replays * effort.replay_steps * stated.replayed_step
    if wanted & EXCHANGES:
        seconds += stated.exchange_start + _exchange_parts(settings.device, settings.ranks) * effort.exchange_seconds
    if check.SOAK in wanted:
        products = effort.product_seconds[settings.device]
        seconds += effort.soak_seconds[settings.device] + products + (stated.factors if products else 0.0)
        seconds += effort.load_seconds[settings.device]
    serves = (
        MEASURED_BY_PROBE if parts == MEASURED_BY_PROBE else wanted | (EXCHANGES if wanted & EXCHANGES else frozenset())
    )
    return BatteryPhase(name="probe", predicted_seconds=seconds, serves=serves, run=run)


def loopback_phase(battery: RunningBattery) -> BatteryPhase | None:
    """Exchanges through the node's network cards; None where it has none, or messages are not judged."""
    settings = battery.settings
    ports = [] if battery.gpu_watch is None else battery.gpu_watch.host.nics
    if not settings.selected & EXCHANGES or nic_loopback.why_not(settings.device, settings.ranks, ports):
        return None

    def run(on_event: Callable[[int, Event], None]) -> list[Evidence]:
        why = nic_loopback.why_no_access()
        if why:
            return [NicLoopback(why_not=why)]
        try:
            with nic_loopback.through_nics(ports):
                probe = measurements.probe_result(
                    settings.device,
                    settings.ranks,
                    settings.effort,
                    replays=False,
                    exchanges=True,
                    soak=False,
                    on_event=on_event,
                )
        except OutOfTimeError as over:
            over.measured.clear()  # its messages are none of check 5 over the GPUs' own links
            raise
        if probe.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        active = [port for port in ports if port.state == nic_loopback.ACTIVE]
        return [
            NicLoopback(
                **measurements.copied_fields(probe, NicLoopback),
                ports=[port.label for port in active],
                gbits=sum(port.gbits or 0.0 for port in active),
            )
        ]

    stated = STATED[settings.device]
    parts = _exchange_parts(settings.device, settings.ranks)
    seconds = stated.probe + stated.exchange_start + parts * settings.effort.exchange_seconds
    return BatteryPhase(name="network cards", predicted_seconds=seconds, serves=frozenset({check.PEER}), run=run)


def _exchange_parts(device: str, ranks: int) -> int:
    """Pairs, an all-reduce, and an all-to-all of more than two ranks; on GPUs all-reduces by ring and switch too."""
    return 2 + (ranks > 2) + 2 * (device == "cuda")


def probe_seconds(battery: RunningBattery) -> float:
    """Predicted seconds of the probe; 0 where none runs."""
    probe = probe_phase(battery)
    return 0.0 if probe is None else probe.predicted_seconds
