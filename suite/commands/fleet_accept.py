"""fleet accept and fleet show: many nodes judged by an engine, and their table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from reference_runs.catalog import miniatures, run_names
from reference_runs.errors import InputError
from suite.acceptance.presets import effort
from suite.commands import exit_codes
from suite.commands.options import JsonWithProgress, print_json
from suite.fleet.accept import FleetReport, FleetSettings, run_fleet, shared_results
from suite.fleet.engines.engine import Engine
from suite.fleet.engines.hosts_engine import HostsEngine
from suite.fleet.engines.reframe_engine import ReframeEngine, reframe_program
from suite.fleet.engines.slurm_engine import SlurmEngine
from suite.fleet.fleet_record import FleetEnd, latest
from suite.fleet.verdicts import ACCEPTED, BAD, FAILED, NO_ANSWER, REJECTED
from suite.launch import slurm
from suite.launch.interruption import check_minutes, end_as_interrupted
from suite.machine.devices import cuda_device_list, resolved_device
from suite.machine.packages import require
from suite.paths import RESULTS
from suite.report.terminal.fleet import print_fleet
from suite.report.terminal.tables import console, print_refusal
from suite.reproduce.request import Device

MOST_AT_ONCE = 10_000  # each has a thread here
ENGINES = ("slurm", "reframe", "hosts")
Results = Annotated[Path, typer.Option(help="A directory that all nodes share: batteries, records and the fleet's.")]


def accept_command(  # noqa: PLR0913  # the command's options
    context: typer.Context,
    engine: Annotated[
        str, typer.Option(help="What starts batteries: slurm, reframe, or hosts (named ones, by ssh).")
    ] = "slurm",
    partition: Annotated[str | None, typer.Option(help="Partition of Slurm whose nodes alone are judged.")] = None,
    nodes: Annotated[str | None, typer.Option(help="Nodes to judge: n[1-4],n7 of Slurm; a,b,c of hosts.")] = None,
    profile: Annotated[
        str, typer.Option(help="Profile of each node's battery, and of pairs: quick, accept or soak.")
    ] = "quick",
    device: Device = "auto",
    at_once: Annotated[int, typer.Option(help="Batteries at the same time.")] = 64,
    groups: Annotated[str, typer.Option(help="Miniature that groups of nodes run, or none.")] = "gpt2-mini",
    node_minutes: Annotated[
        float | None,
        typer.Option(help="Minutes after which a node counts as silent (default: four times the profile's limit)."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the newest interrupted fleet like this.")
    ] = False,
    drain: Annotated[
        bool, typer.Option("--drain", help="Drain what is bad in Slurm, with the part as reason.")
    ] = False,
    results: Results = RESULTS,
    json: JsonWithProgress = False,
) -> None:
    """Judge many nodes: a battery on each, pairs of them, groups of them, and one table.

    The engine starts everything. Each node is measured with two partners: their link, their clocks, and products of
    both at the same time. This distinguishes a bad node from a bad link, and from its partner. What a battery or a pair
    finds counts if it is found twice. A node that gives no answer has a verdict of its own; nodes that are busy,
    drained or down are listed as not run. Options after -- go to `accept` on every node.

    Examples: python -m suite fleet accept --partition main --results /shared/results --drain;
    python -m suite fleet accept --nodes "n[1-16]" --profile accept -- --devices 8

    Exit codes: 0 all nodes that ran are accepted, 1 one is rejected or a link is, 2 bad input, 3 not decidable or
    nothing ran, 4 an execution failed or a node gave no answer, 128 + n ended by signal n.
    """
    effort(profile)
    require("torch")  # the nodes run this Python too
    if not 1 <= at_once <= MOST_AT_ONCE:
        allowed = f"1 to {MOST_AT_ONCE:,}"
        raise InputError("batteries at the same time", got=at_once, allowed=allowed, where="--at-once")
    if groups not in ("none", *miniatures(), *run_names()) and not groups.endswith(".toml"):
        raise InputError("unknown run", got=repr(groups), allowed=f"none, {', '.join(miniatures())}", where="--groups")
    check_minutes(node_minutes, "--node-minutes")
    settings = FleetSettings(
        profile=profile,
        results=shared_results(results),
        device=_device_of_nodes(device),
        accept_options=tuple(context.args),
        at_once=at_once,
        miniature=None if groups == "none" else groups,
        resume=resume,
        drain=drain,
        battery_seconds=None if node_minutes is None else 60 * node_minutes,
    )
    chosen = _engine(engine, partition, nodes, settings.results)
    if drain and not chosen.drains:
        raise InputError("nothing drains hosts", got=engine, allowed="nodes of Slurm", where="--drain")
    report = _run(settings, chosen)
    _print(report.end, json=json, where=str(report.directory))


def show_command(
    fleet: Annotated[str | None, typer.Argument(help="The beginning of its id (default: the newest).")] = None,
    results: Results = RESULTS,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Print the table of a fleet that was judged.

    Example: python -m suite fleet show --results /shared/results

    Exit codes: those of `fleet accept`.
    """
    _print(latest(results, fleet), json=json, where=str(results))


def _device_of_nodes(choice: str) -> str:
    """The device that nodes are asked for: each finds its own GPUs, and this host may have none.

    Raises:
        InputError: an unknown choice, or GPUs of this host that PyTorch cannot use: nodes run this Python too.
    """
    if choice == "cuda":
        cuda_device_list()
    else:
        resolved_device(choice)
    return choice


def _engine(name: str, partition: str | None, nodes: str | None, results: Path) -> Engine:
    if name not in ENGINES:
        raise InputError("unknown engine", got=repr(name), allowed=", ".join(ENGINES), where="--engine")
    if name == "slurm":
        slurm.check_usable()
        return SlurmEngine(partition, nodes)
    if name == "hosts":
        return _hosts(partition, nodes)
    reframe_program()
    base = SlurmEngine(partition, nodes) if slurm.why_not() is None else _hosts(partition, nodes)
    return ReframeEngine(results, base)


def _hosts(partition: str | None, nodes: str | None) -> HostsEngine:
    if partition is not None:
        raise InputError("hosts have no partitions", got=partition, allowed="--nodes", where="--partition")
    names = tuple(dict.fromkeys(word.strip() for word in (nodes or "").split(",") if word.strip()))
    if not names:
        raise InputError("which hosts", got=nodes, allowed="--nodes a,b,c", where="--nodes")
    if wrong := [name for name in names if not re.fullmatch(r"\w[\w.@:%-]*", name, re.ASCII)]:  # of ssh, and of files
        allowed = "letters, digits and . _ - @ : %, the first a letter or digit"
        raise InputError("no host's name", got=repr(wrong[0]), allowed=allowed, where="--nodes")
    return HostsEngine(names)


def _run(settings: FleetSettings, engine: Engine) -> FleetReport:
    end_as_interrupted()
    messages = console(stderr=True)
    try:
        return run_fleet(settings, engine, lambda line: messages.print(f"[dim]{escape(line)}[/]", soft_wrap=True))
    except OSError as error:  # no room or no access
        print_refusal(error)
        raise typer.Exit(exit_codes.EXECUTION_FAILED) from error
    except KeyboardInterrupt:
        messages.print("interrupted: fleet accept --resume goes on with what is left")
        raise typer.Exit(exit_codes.INTERRUPTED) from None


def _print(end: FleetEnd, *, json: bool, where: str) -> None:
    if json:
        print_json(end)
    else:
        print_fleet(console(), end)
        console().print(f"record {escape(where)}", soft_wrap=True)
    raise typer.Exit(exit_code(end))


def exit_code(end: FleetEnd) -> int:
    """Exit code of the worst finding that is certain: 1 before 4, before 3."""
    verdicts = {row.verdict for row in end.rows}
    if REJECTED in verdicts or end.links or any(group.exit_code == exit_codes.FAIL for group in end.groups):
        return exit_codes.FAIL
    if verdicts & {FAILED, NO_ANSWER} or any(group.exit_code != exit_codes.PASS for group in end.groups):
        return exit_codes.EXECUTION_FAILED
    ran = verdicts & {ACCEPTED, *BAD}
    return (
        exit_codes.PASS
        if verdicts == {ACCEPTED} or (ran and "not decidable" not in verdicts)
        else exit_codes.INCONCLUSIVE
    )
