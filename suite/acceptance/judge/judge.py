"""Turns all evidence of a battery into findings, rule by rule; an invalid environment then invalidates timed checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from reference_runs.accelerator import known_gpu
from suite.acceptance import check_table as check
from suite.acceptance.evidence import (
    Evidence,
    Load,
    MicroMeasurements,
    MiniatureLaunch,
    NicLoopback,
    PhaseTiming,
    ProbeResult,
    Surroundings,
)
from suite.acceptance.findings import guard_findings, joined_evidence, not_run, rests_on_clocks, unmeasured_findings
from suite.acceptance.gpu_evidence import Health
from suite.acceptance.judge.bit_errors import replay_finding, soak_finding
from suite.acceptance.judge.environment import OTHERS_BYTES, environment_findings, share_of_others
from suite.acceptance.judge.expected_rates import IMPOSSIBLE
from suite.acceptance.judge.gpu_health import gpu_findings, with_gpus
from suite.acceptance.judge.launch_errors import IN_A_LAUNCH, launch_error_findings
from suite.acceptance.judge.launches import exact_findings, jitter_findings, loss_findings, time_findings
from suite.acceptance.judge.loopback import SUBJECT, loopback_findings
from suite.acceptance.judge.node_health import node_findings
from suite.acceptance.judge.noninferiority import LOOKS
from suite.acceptance.judge.pulsed_load import load_findings
from suite.acceptance.judge.rates import exchange_findings, micro_findings
from suite.acceptance.judge.step_time import at_cpu_speed
from suite.acceptance.judge.verified_products import product_findings
from suite.acceptance.judge.virtual_machines import beside_guests, borne_out, open_of_guests, steady_beside_guests
from suite.acceptance.nic_loopback import why_not
from suite.acceptance.past_batteries import History
from suite.job.events import Status
from suite.records.battery import CheckFinding, CheckVerdict


class JudgedBattery:
    """Evidence of one battery by kind, and the history that it is compared with."""

    def __init__(
        self,
        evidence: Sequence[Evidence],
        history: History,
        others: float,
        looks: Sequence[int],
        looks_of: Mapping[str, Sequence[int]],
    ) -> None:
        self.others, self.looks, self.looks_of = others, looks, looks_of
        self.micro = [item for item in evidence if isinstance(item, MicroMeasurements)]
        virtual = history.virtual or any(micro.virtual for micro in self.micro)
        self.history = msgspec.structs.replace(history, virtual=virtual)
        self.launches = [item for item in evidence if isinstance(item, MiniatureLaunch)]
        self.probes = [item for item in evidence if isinstance(item, ProbeResult)]
        self.phases = [item for item in evidence if isinstance(item, PhaseTiming)]
        self.around = next((item for item in evidence if isinstance(item, Surroundings)), None)
        self.loopbacks = [item for item in evidence if isinstance(item, NicLoopback)]
        self.health = next((item for item in evidence if isinstance(item, Health)), None)
        self.loads: list[Load] = [*self.micro, *self.launches, *self.probes]
        self.gpu = known_gpu(self.around.gpus) if self.around and self.around.gpus else None
        ended_well = any(load.status is Status.OK for load in self.loads)
        self.busy_gpus = self.around.busy_gpus if self.around else []
        ranks_on = self.around.gpus_with_ranks if self.around and ended_well else []
        self.loaded_gpus = self.busy_gpus or ranks_on
        self.environment = environment_findings(
            self.around, self.health, [*self.micro, *self.launches], others=others, loaded=self.loaded_gpus
        )
        self.disturbed = any(finding.verdict is CheckVerdict.INVALID for finding in self.environment)

    @property
    def timed_launches(self) -> list[MiniatureLaunch]:
        """Launches whose clocks count: those that other processes did not disturb."""
        return [launch for launch in self.launches if not launch.set_aside]

    def probes_with(self, part: str) -> list[ProbeResult]:
        """Probes that were to run this part; of those that do not say, those that ran it, and those that ran none."""
        return [
            probe
            for probe in self.probes
            if part in probe.asked
            or (not probe.asked and (getattr(probe, part) or not (probe.replays or probe.exchanges or probe.soaks)))
        ]

    @property
    def others_hold_memory(self) -> bool:
        """Whether others held memory of a GPU when the battery began, or when all ranks had ended."""
        states = [state for gpu in (self.health.gpus if self.health else []) for state in (gpu.before, gpu.after)]
        return any(state.processes or (state.used_bytes or 0) > OTHERS_BYTES for state in states)

    @property
    def exchange_probes(self) -> list[ProbeResult]:
        """Probes with exchanges; with one rank all of them, to say that it has no other rank."""
        alone = self.around is not None and self.around.ranks == 1
        return self.probes if alone else self.probes_with("exchanges")

    @property
    def why_idle(self) -> str:
        """Why no load ended well on a GPU."""
        if self.busy_gpus:
            return "others use other GPUs of the node, and nothing was executed"
        if self.loads and all(load.status is not Status.OK for load in self.loads):
            return "no load ended well"
        if self.loads and self.around is not None and self.around.device == "cuda" and not self.around.gpus_with_ranks:
            return "not known on which GPUs ranks ran: their PCI addresses are none that the driver's library reports"
        return "no rank ran on it"


class Rule(NamedTuple):
    """A rule that makes findings of some checks.

    Args:
        checks: their numbers.
        findings: of the battery, given the findings of earlier rules; none without measurements.
    """

    checks: tuple[int, ...]
    findings: Callable[[JudgedBattery, Sequence[CheckFinding]], list[CheckFinding]]


def _rates(battery: JudgedBattery, _: Sequence[CheckFinding]) -> list[CheckFinding]:
    undisturbed = [micro for micro in battery.micro if not micro.set_aside]
    findings = []
    for micro in undisturbed:
        of_micro = micro_findings(micro, battery.history, battery.gpu)
        findings += [borne_out(finding, micro, of_micro, battery.timed_launches) for finding in of_micro]
    return findings


def _exchanges(battery: JudgedBattery, _: Sequence[CheckFinding]) -> list[CheckFinding]:
    gpus = battery.around.devices if battery.around and battery.around.device == "cuda" else 0
    findings = [
        _invalid_when_disturbed(finding, probe, limit=battery.others)
        for probe in battery.exchange_probes
        for finding in exchange_findings(probe, battery.history, battery.gpu, gpus)
    ]
    return [beside_guests(finding) for finding in findings] if battery.history.virtual else findings


def _jitter(battery: JudgedBattery, _: Sequence[CheckFinding]) -> list[CheckFinding]:
    findings = jitter_findings(battery.timed_launches) if battery.launches else []
    return [steady_beside_guests(finding) for finding in findings] if battery.history.virtual else findings


def _health(battery: JudgedBattery, _: Sequence[CheckFinding]) -> list[CheckFinding]:
    """GPUs, the errors that ended launches on them, and the node beside them."""
    of_gpus = gpu_findings(battery.health, loaded=battery.loaded_gpus, why_idle=battery.why_idle)
    return [*of_gpus, *launch_error_findings(battery.loads), *node_findings(battery.health)]


def _loopback(battery: JudgedBattery) -> list[CheckFinding]:
    """Exchanges through the node's network cards; where none were made, why."""
    if battery.loopbacks:
        return [found for item in battery.loopbacks for found in loopback_findings(item, battery.history)]
    around, health = battery.around, battery.health
    if around is None or health is None or health.host_after is None or not battery.exchange_probes:
        return []
    why = why_not(around.device, around.ranks, health.host_after.nics) or "left out"
    return [not_run(check.PEER, why, SUBJECT)]


def _step_times(battery: JudgedBattery, earlier: Sequence[CheckFinding]) -> list[CheckFinding]:
    """Forward and backward passes are products and memory: checks 1 and 3 help to say which of them is slow.

    Rates that cannot be make what is predicted from them invalid. Processors of a virtual machine that are slower than
    in its micro-measurements decide nothing, nor do steps that are late because of it: other guests may have come.
    """
    rates = [finding for finding in earlier if finding.check in (check.MATRIX, check.MEMORY)]
    findings = _times(battery, battery.timed_launches, rates)
    if battery.history.virtual:
        at_speed = {one.key: one for one in _times(battery, at_cpu_speed(battery.timed_launches), rates)}
        findings = [open_of_guests(finding, at_speed[finding.key]) for finding in findings]
    if all(finding.part != IMPOSSIBLE for finding in rates):
        return findings
    why = "from micro-measurements that cannot be"
    return [_invalid(finding, why) if finding.check == check.STEP_TIME else finding for finding in findings]


def _times(
    battery: JudgedBattery, launches: Sequence[MiniatureLaunch], rates: Sequence[CheckFinding]
) -> list[CheckFinding]:
    return time_findings(launches, battery.history, looks=battery.looks, looks_of=battery.looks_of, rates=rates)


def _soaks(battery: JudgedBattery, _: Sequence[CheckFinding]) -> list[CheckFinding]:
    findings = []
    for probe in battery.probes_with("soaks"):
        findings += [soak_finding(probe), *load_findings(probe)]
        findings += product_findings(probe, battery.history, battery.gpu)
    return findings


RULES = (
    Rule((check.ENVIRONMENT,), lambda battery, _: battery.environment),
    Rule((check.MATRIX, check.SPREAD, check.MEMORY, check.HOST_DEVICE), _rates),
    Rule((check.PEER, check.ALL_REDUCE), lambda battery, earlier: _exchanges(battery, earlier) + _loopback(battery)),
    Rule((check.REPLAYS,), lambda battery, _: [replay_finding(probe) for probe in battery.probes_with("replays")]),
    Rule((check.SOAK,), _soaks),
    Rule((check.EXACT_FIGURES,), lambda battery, _: exact_findings(battery.launches)),
    Rule((check.STEP_TIME, check.ATTRIBUTION, check.STRAGGLER), _step_times),
    Rule((check.JITTER,), _jitter),
    Rule((check.LOSS_CURVE,), lambda battery, _: loss_findings(battery.launches, battery.history)),
    Rule((check.THROTTLE, check.ERRORS), _health),
    Rule((check.HANG_GUARD,), lambda battery, _: guard_findings(battery.phases, disturbed=battery.disturbed)),
)


def battery_findings(
    evidence: Sequence[Evidence],
    history: History,
    *,
    others: float,
    looks: Sequence[int] = LOOKS,
    looks_of: Mapping[str, Sequence[int]] | None = None,
    selected: Collection[int] = range(len(check.CHECKS)),
) -> list[CheckFinding]:
    """Findings of the selected checks; a selected check without any evidence did not run, and says so.

    In an invalid environment every verdict that rests on clocks is invalid, also what passes: a ratio of two times may
    be good by chance when other processes slowed down one of them. Other processes during the exchanges of a probe make
    only low rates invalid: each rate is the fastest of many, which other processes can only lower.

    Args:
        others: largest share of the processors that other processes may use.
        looks: at step times, in launches; `looks_of` those of single miniatures.
    """
    battery = JudgedBattery(evidence, history, others, looks, looks_of or {})
    findings: list[CheckFinding] = []
    for rule in RULES:
        findings += rule.findings(battery, findings)
    findings += unmeasured_findings(battery.phases, findings)
    if why_late := _few_processors(battery.around):
        findings = [_open_of_the_host(finding, why_late) for finding in findings]
    if battery.disturbed:
        findings = [_invalid(finding) for finding in findings]
    if battery.disturbed or battery.others_hold_memory:
        findings = [_out_of_memory_beside_others(finding) for finding in findings]
    reported = [finding for finding in findings if finding.check in selected]
    reported += _invalid_environment(reported, battery, selected)
    reported += _always_reported(findings, selected)
    missing = sorted(set(selected) - {finding.check for finding in reported})
    why = "others use GPUs: nothing was executed" if battery.busy_gpus else "nothing in this battery measures it"
    reported += [not_run(number, why) for number in missing]
    gpus = battery.around.gpus_with_ranks if battery.around else []
    return sorted((with_gpus(finding, gpus, battery.health) for finding in reported), key=lambda finding: finding.check)


def _few_processors(around: Surroundings | None) -> str:
    """Why ranks on GPUs may be late though these are not: they share too few processors; empty where they do not."""
    if around is None or around.device != "cuda" or not around.cores:
        return ""
    quota = around.host.quota_cores if around.host else None
    processors = min(around.cores, quota or around.cores)
    if processors >= around.ranks:
        return ""
    return f"{around.ranks} ranks share the time of {processors:.3g} processors: a quota or a CPU set may be why"


def _open_of_the_host(finding: CheckFinding, why: str) -> CheckFinding:
    """A failed time, left open."""
    if finding.verdict is not CheckVerdict.FAIL or finding.status is not Status.OK or not rests_on_clocks(finding):
        return finding
    evidence = joined_evidence(finding.evidence, why)
    return msgspec.structs.replace(finding, verdict=CheckVerdict.INCONCLUSIVE, evidence=evidence)


def _invalid_environment(
    reported: Sequence[CheckFinding], battery: JudgedBattery, selected: Collection[int]
) -> list[CheckFinding]:
    """Findings that made others invalid, where check 0 is not selected."""
    invalid = any(rests_on_clocks(finding) and finding.verdict is CheckVerdict.INVALID for finding in reported)
    if check.ENVIRONMENT in selected or not invalid:
        return []
    return [finding for finding in battery.environment if finding.verdict is CheckVerdict.INVALID]


def _always_reported(findings: Sequence[CheckFinding], selected: Collection[int]) -> list[CheckFinding]:
    """Findings of checks that are not selected: bit errors, missing GPUs, and failed measurements, each once.

    A soak also runs as a load for the counters of GPUs. A failed probe is reported as a failed soak: where no check of
    its own is selected, nothing else of it ran.
    """
    seen = {finding.evidence for finding in findings if finding.status is not Status.OK and finding.check in selected}
    reported = []
    for finding in sorted(findings, key=lambda finding: finding.check != check.SOAK):
        if finding.check in selected or finding.check == check.HANG_GUARD:  # what was measured reports a hang too
            continue
        if finding.status is Status.OK:
            wrong = finding.verdict is CheckVerdict.FAIL and not rests_on_clocks(finding)
            counts = finding.check in (check.SOAK, check.ENVIRONMENT) or finding.subject.startswith(IN_A_LAUNCH)
            reported += [finding] if wrong and counts else []
        elif finding.evidence not in seen:
            seen.add(finding.evidence)
            reported.append(finding)
    return reported


def _invalid_when_disturbed(finding: CheckFinding, probe: ProbeResult, *, limit: float) -> CheckFinding:
    """A rate of exchanges that is too low is invalid where other processes used more than `limit` of the processors."""
    share = share_of_others(probe)
    too_low = finding.verdict in (CheckVerdict.WARN, CheckVerdict.FAIL) and finding.status is Status.OK
    if share <= limit or not too_low or not rests_on_clocks(finding):
        return finding
    return _with_verdict_invalid(finding, f"while other processes used {share:.0%} of the processors")


def _out_of_memory_beside_others(finding: CheckFinding) -> CheckFinding:
    """A launch that ran out of memory where others use the machine decides nothing: it may be theirs."""
    if finding.status is not Status.OUT_OF_MEMORY:
        return finding
    evidence = joined_evidence(finding.evidence, "beside other processes, whose memory it may be")
    return msgspec.structs.replace(finding, verdict=CheckVerdict.INCONCLUSIVE, evidence=evidence)


def _invalid(finding: CheckFinding, why: str = "in an invalid environment") -> CheckFinding:
    """A finding of clocks that says nothing, and why; a measurement that failed stays failed."""
    measured = (CheckVerdict.PASS, CheckVerdict.WARN, CheckVerdict.FAIL, CheckVerdict.INCONCLUSIVE)
    if not rests_on_clocks(finding) or finding.verdict not in measured or finding.status is not Status.OK:
        return finding
    return _with_verdict_invalid(finding, why)


def _with_verdict_invalid(finding: CheckFinding, why: str) -> CheckFinding:
    evidence = joined_evidence(f"{finding.verdict.value} {why}", finding.evidence)
    return msgspec.structs.replace(finding, verdict=CheckVerdict.INVALID, evidence=evidence)
