"""Many nodes judged: a battery on each by the engine, pairs and groups of them, and the table that follows."""

from __future__ import annotations

import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from reference_runs.errors import InputError
from suite.acceptance.presets import effort
from suite.fleet import fleet_record, judge, pairs, verdicts
from suite.fleet.commands_at_once import EndedCommand, FleetCommand, public_output, run_all
from suite.fleet.engines.engine import Engine, EngineNode
from suite.fleet.fleet_record import FleetBegin, FleetEnd, FleetRow, GroupResult, NodeAnswer, PairResult
from suite.fleet.judge import NodeFacts
from suite.fleet.siblings import FirstBatteries
from suite.launch.slurm import drain_reason
from suite.machine.devices import cuda_devices
from suite.records.battery import BatteryEnd, battery_directory, decode

PAIR_SECONDS = {"quick": 600.0, "accept": 900.0, "soak": 1800.0}
GROUP_SECONDS = 1800.0
SPARE_FACTOR = 4.0  # over a profile's limit, after which a battery gets no more time
GROUP_STEPS = 6
BAD_USAGE, EXECUTION_FAILED = 2, 4  # exit codes of `accept`
NOT_STARTED = (126, 127)  # exit codes of a shell for a command that is not there, such as Python
_NOT_IMPORTED = re.compile(r"\bImportError\b|No module named")
ATTEMPTS = (1, 2)


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a fleet run.

    Args:
        device: of every node's battery; auto: what it has. Pairs and groups run on GPUs where all their nodes did.
        accept_options: further options of `accept`, for every node.
        at_once: batteries at the same time; pairs half as many.
        miniature: that groups run; None: no groups.
        drain: whether nodes that are bad are drained.
        battery_seconds: after which a node has not answered; None: four times the profile's limit.
    """

    profile: str
    results: Path
    device: str
    accept_options: tuple[str, ...] = ()
    at_once: int = 64
    miniature: str | None = "gpt2-mini"
    resume: bool = False
    drain: bool = False
    battery_seconds: float | None = None


class FleetReport(NamedTuple):
    """The table, and where its record is."""

    end: FleetEnd
    directory: Path


class _Running(NamedTuple):
    """A fleet that runs: its directory, engine and settings, and whoever hears of its progress."""

    directory: Path
    engine: Engine
    settings: FleetSettings
    progress: Callable[[str], None]

    def command(self, key: str, command: Sequence[str], seconds: float, node: str | None = None) -> FleetCommand:
        """A command of this fleet, on a node by the engine or here."""
        label = f"suite-fleet-{secrets.token_hex(6)}"
        words = list(command) if node is None else self.engine.command_on(node, command, label)
        return FleetCommand(key, label, words, self.directory / f"{key}.log", seconds)

    def run(
        self, commands: Sequence[FleetCommand], at_once: int, ended: Callable[[FleetCommand, EndedCommand], None]
    ) -> None:
        """All of them, so many at the same time."""
        run_all(commands, max(1, at_once), cancel=self.engine.cancel, ended=ended)


def run_fleet(settings: FleetSettings, engine: Engine, progress: Callable[[str], None]) -> FleetReport:
    """Judge the engine's nodes; what an interrupted fleet has measured is not measured again.

    Raises:
        InputError: no nodes, an unwritable directory, or options that `accept` refuses.
        KeyboardInterrupt: by the user.
    """
    nodes = engine.nodes()
    if passed_on := engine.passed_on():
        progress(f"variables passed on to the nodes: {', '.join(passed_on)}")
    running = _Running(_opened(settings, engine, nodes, progress), engine, settings, progress)
    facts = _batteries(running, nodes)
    compared = judge.first_batteries(facts)
    partners = [name for name, known in facts.items() if known.answers and not _is_bad(name, known, compared)]
    measured = _pairs(running, partners, facts)
    rows, links = judge.rows(facts, measured)
    groups = _groups(running, [row.node for row in rows if row.verdict == verdicts.ACCEPTED], facts)
    drained = _drained(running, rows) if settings.drain else []
    end = FleetEnd(
        schema=fleet_record.SCHEMA,
        id=running.directory.name,
        finished=time.time(),
        rows=rows,
        links=links,
        groups=groups,
        drained=drained,
    )
    fleet_record.keep(running.directory / "end.json", end)
    return FleetReport(end, running.directory)


def _opened(
    settings: FleetSettings, engine: Engine, nodes: Sequence[EngineNode], progress: Callable[[str], None]
) -> Path:
    options = {
        "engine": engine.name,
        "profile": settings.profile,
        "device": settings.device,
        "options": " ".join(settings.accept_options),
        "miniature": settings.miniature or "",
        "nodes": ",".join(sorted(node.name for node in nodes)),
    }
    earlier = fleet_record.unfinished(settings.results, options) if settings.resume else None
    if earlier is not None:
        progress(f"resumed {earlier.name}")
        for output in earlier.glob("*.log"):  # of commands that were killed
            public_output(output)
        return earlier
    if settings.resume:
        kept, allowed = str(fleet_record.fleets(settings.results)), "a fleet with the same options that has no table"
        raise InputError("nothing to resume", got=kept, allowed=allowed, where="--resume")
    return fleet_record.opened(
        settings.results, options, {node.name: node.why_not for node in nodes}, engine.passed_on()
    )


def _batteries(running: _Running, nodes: Sequence[EngineNode]) -> dict[str, NodeFacts]:
    """Facts of every node after its battery, and after a second one where the first needs it."""
    refused: dict[str, NodeFacts] = {}
    first = ATTEMPTS[0]
    begin = fleet_record.kept(running.directory / "begin.json", FleetBegin)
    for node in nodes:
        answered = fleet_record.node_file(running.directory, node.name, first).exists()
        why = node.why_not or ""
        if why and not answered:
            asked_before = begin is not None and not begin.nodes.get(node.name, "")
            lost = node.name in running.engine.lost([node.name])
            refused[node.name] = NodeFacts(why_none=why) if asked_before and lost else NodeFacts(not_run=why)
    names = [node.name for node in nodes]
    _attempt(running, [name for name in names if name not in refused], first, refused)
    facts = {name: refused.get(name) or _facts(running, name) for name in names}
    answers = [answer for known in facts.values() for answer in known.answers]
    if answers and all(answer.exit_code == BAD_USAGE for answer in answers):  # of one node alone it may be the image
        raise InputError(f"accept refuses on every node: {answers[0].words.splitlines()[-1]}", where=answers[0].node)
    compared = judge.first_batteries(facts)
    again = [name for name, known in facts.items() if known.answers and _needs_second(name, known, compared)]
    if again:
        running.progress(f"a second battery on {', '.join(again)}: a failure counts if it is seen twice")
        failed: dict[str, NodeFacts] = {}
        _attempt(running, again, ATTEMPTS[1], failed)
        facts |= {name: failed.get(name) or _facts(running, name) for name in again}
    return facts


def _needs_second(name: str, known: NodeFacts, compared: FirstBatteries) -> bool:
    """Whether the execution failed, or a figure stands out from the siblings'; `accept` repeats its own failures."""
    stands_out = any(compared.failures(name, battery) for battery in known.batteries[:1])
    return known.answers[0].exit_code == EXECUTION_FAILED or stands_out


def _attempt(running: _Running, names: Sequence[str], attempt: int, refused: dict[str, NodeFacts]) -> None:
    """A battery on each node that has not answered yet; into `refused` goes who gives no answer, and why."""
    settings, directory = running.settings, running.directory
    seconds = settings.battery_seconds or SPARE_FACTOR * effort(settings.profile).limit_seconds
    commands = []
    for name in names:
        answer = fleet_record.node_file(directory, name, attempt)
        if not answer.exists():
            options = ["--profile", settings.profile, "--device", settings.device, "--fleet", str(settings.results)]
            module = [sys.executable, "-m", "suite.fleet.node_battery", str(answer), name, str(settings.results)]
            command = [*module, *options, *settings.accept_options]
            commands.append(running.command(f"node.{name}.{attempt}", command, seconds, node=name))
    if commands:
        running.progress(f"batteries on {len(commands)} nodes, {min(settings.at_once, len(commands))} at once")

    def ended(command: FleetCommand, how: EndedCommand) -> None:
        name = command.key.split(".", 1)[1].rpartition(".")[0]
        answer = fleet_record.kept(fleet_record.node_file(directory, name, attempt), NodeAnswer)
        if answer is not None:
            running.progress(f"{name}: {answer.words.splitlines()[-1] if answer.words else answer.exit_code}")
            return
        last = how.words.splitlines()[-1] if how.words else f"ended with code {how.code}, and said nothing"
        if running.engine.did_not_get(how.words):
            refused[name] = NodeFacts(not_run=f"{running.engine.name} gave it not: {last}")
        elif how.code in NOT_STARTED or _NOT_IMPORTED.search(how.words):
            refused[name] = NodeFacts(not_run=f"no battery was started: {last}")
        else:
            late = f"no answer within {seconds:.0f} s" if how.code is None else "its battery ended without an answer"
            refused[name] = NodeFacts(why_none=f"{late}: {last}")
        running.progress(f"{name}: {refused[name].why_none or refused[name].not_run}")

    running.run(commands, settings.at_once, ended)


def _facts(running: _Running, name: str) -> NodeFacts:
    """A node's answers, and the batteries that they name."""
    answers, batteries = [], []
    for attempt in ATTEMPTS:
        answer = fleet_record.kept(fleet_record.node_file(running.directory, name, attempt), NodeAnswer)
        if answer is None:
            continue
        answers.append(answer)
        if answer.record:
            path = battery_directory(running.settings.results) / answer.record
            batteries.append(decode(path.read_bytes(), BatteryEnd, str(path)))
    return NodeFacts(answers, batteries)


def _is_bad(name: str, known: NodeFacts, compared: FirstBatteries) -> bool:
    return any(fault.verdict in verdicts.BAD for fault in judge.battery_faults(name, known, compared))


def _shared_device(running: _Running, names: Sequence[str], facts: Mapping[str, NodeFacts]) -> str:
    """Device on which these nodes run together."""
    if running.settings.device != "auto":
        return running.settings.device
    kinds = {battery.options.get("device") for name in names for battery in facts[name].batteries}
    return "cuda" if kinds == {"cuda"} else "cpu"


def _pairs(running: _Running, names: Sequence[str], facts: Mapping[str, NodeFacts]) -> list[PairResult]:
    """All pairs measured; what one finds is measured again, and the better result stands."""
    rounds = pairs.pairings(names)
    if rounds:
        running.progress(f"{sum(map(len, rounds))} pairs in {len(rounds)} rounds")
    first = [result for pairs_ in rounds for result in _measured(running, pairs_, ATTEMPTS[0], facts)]
    again = pairs.to_repeat(first)
    lost = {name for result in first for name in result.lost}
    again = [pair for pair in again if not lost & set(pair)]
    if not again:
        return first
    running.progress(f"again: {', '.join('-'.join(pair) for pair in again)}: what is found counts if it is found twice")
    second = {result.names: result for pair in again for result in _measured(running, [pair], ATTEMPTS[1], facts)}
    return [better(result, second[result.names]) if result.names in second else result for result in first]


def better(first: PairResult, second: PairResult) -> PairResult:
    """The better of two measurements of a pair: the faster link, the smaller difference of clocks and of products.

    Damaged messages of either stay: bits are not noise.
    """
    ended = [result for result in (first, second) if result.status == "ok"]
    if len(ended) < 2:
        return ended[0] if ended else second
    clock = min(ended, key=lambda result: abs(result.clock_offset or 0.0))
    products = max(ended, key=lambda result: min(result.products) / max(result.products))
    return msgspec.structs.replace(
        max(ended, key=lambda result: result.bytes_per_second or 0.0),
        wrong=max(result.wrong for result in ended),
        clock_offset=clock.clock_offset,
        clock_uncertainty=clock.clock_uncertainty,
        products=products.products,
        product_errors=[max(errors) for errors in zip(first.product_errors, second.product_errors, strict=True)],
    )


def _measured(
    running: _Running, of_round: Sequence[tuple[str, str]], attempt: int, facts: Mapping[str, NodeFacts]
) -> list[PairResult]:
    """The pairs of one round, at the same time: no node is in two of them."""
    settings, directory = running.settings, running.directory
    commands = []
    for pair in of_round:
        path = fleet_record.pair_file(directory, pair, attempt)
        if not path.exists():
            hosts = msgspec.json.encode(running.engine.hosts(pair)).decode()
            words = [
                sys.executable,
                "-m",
                "suite.fleet.pair_probe",
                str(path),
                settings.profile,
                _shared_device(running, pair, facts),
                hosts,
            ]
            key = path.name.removesuffix(".json")
            commands.append(running.command(key, words, PAIR_SECONDS[settings.profile]))
    said: dict[str, str] = {}

    def ended(command: FleetCommand, how: EndedCommand) -> None:
        said[command.key] = how.words.splitlines()[-1] if how.words else f"ended with code {how.code}"

    running.run(commands, settings.at_once // 2, ended)
    results = []
    for pair in of_round:
        path = fleet_record.pair_file(directory, pair, attempt)
        result = fleet_record.kept(path, PairResult)
        if result is None:
            message = said.get(path.name.removesuffix(".json"), "")
            lost = running.engine.lost(pair)
            result = PairResult(first=pair[0], second=pair[1], status="crashed", message=message, lost=lost)
        running.progress(f"{'-'.join(pair)}: {_said(result)}")
        results.append(result)
    return results


def _said(result: PairResult) -> str:
    if result.status != "ok" or result.bytes_per_second is None:
        return f"{result.status}: {result.message}"
    products = " and ".join(f"{rate / 1e9:.2f}" for rate in result.products)
    clock = f", clocks {result.clock_offset:+.3f} s" if result.clock_offset is not None else ""
    return f"{result.bytes_per_second / 1e6:,.1f} MB/s, products {products} Gflop/s{clock}"


def group_sizes(nodes: int) -> list[int]:
    """2, 4, 8, … and all."""
    sizes = [2**power for power in range(1, nodes.bit_length()) if 2**power < nodes]
    return [*sizes, nodes] if nodes > 1 else []


def _groups(running: _Running, names: Sequence[str], facts: Mapping[str, NodeFacts]) -> list[GroupResult]:
    """A miniature over 2, 4, … and all accepted nodes; on GPUs from a host that has some itself."""
    settings, results = running.settings, []
    device = _shared_device(running, names, facts)
    for size in group_sizes(len(names)) if settings.miniature else []:
        group = list(names[:size])
        options = running.engine.group_options(group)
        path = fleet_record.group_file(running.directory, group)
        if options is None or settings.miniature is None:
            return []
        if device == "cuda" and not cuda_devices():
            running.progress("no groups: `reproduce` plans for GPUs of its own host, and this one has none")
            return []
        if not path.exists():
            command = [sys.executable, "-m", "suite", "reproduce", settings.miniature, "--json"]
            command += ["--steps", str(GROUP_STEPS), "--device", device, "--no-compile", *options]
            command += ["--results", str(settings.results)]

            def ended(_command: FleetCommand, how: EndedCommand, group: list[str] = group, path: Path = path) -> None:
                fleet_record.keep(path, _group_result(group, settings.miniature or "", how))

            running.run([running.command(f"group.{size}", command, GROUP_SECONDS)], 1, ended)
        if (result := fleet_record.kept(path, GroupResult)) is not None:
            running.progress(f"{settings.miniature} over {size} nodes: exit code {result.exit_code} {result.message}")
            results.append(result)
    return results


def _group_result(group: list[str], run: str, how: EndedCommand) -> GroupResult:
    """A group's run from the end of its output, whose one line of JSON may be cut at its beginning."""
    code = -1 if how.code is None else how.code
    message = ""
    if code not in (0, 1):
        message = how.words.splitlines()[-1][:400] if how.words else "past its limit" if how.code is None else ""
    return GroupResult(nodes=group, run=run, exit_code=code, message=message)


def _drained(running: _Running, rows: Sequence[FleetRow]) -> list[str]:
    """Drain what is bad, with the part as the reason."""
    drained = []
    for row in rows:
        if row.verdict in verdicts.BAD:
            running.engine.drain(row.node, reason(row))
            running.progress(f"drained {row.node}: {reason(row)}")
            drained.append(row.node)
    return drained


def reason(row: FleetRow) -> str:
    """Why a node is drained, with the part first."""
    return drain_reason(f"suite: {row.part or 'node'}: {row.verdict}: {row.evidence}")


def shared_results(results: Path) -> Path:
    """The directory as every node names it: absolute."""
    return results.absolute()
