"""Types of what commands print with --json, a JSON object a line; their JSON schemas are generated.

Where a command prints a structure of its own, that is the type. Others are described here by their keys; a key with a
default is printed by some calls only. Keys may be added; none goes without a line in CHANGELOG.md.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from reference_runs.floors import RateFloor
from suite.commands.model_schemas import Section, ServingAnswer, TiersAnswer, TracedAnswer, TracedFitAnswer
from suite.fleet.fleet_record import FleetEnd
from suite.fleet.health_events import HealthEvent
from suite.fleet.node_patch import NodeCondition
from suite.fleet.references import FleetReferences
from suite.machine.profile import Profile
from suite.metrics.comparison import Row
from suite.predict.analytic.memory_uncertainty import MemoryVerdict
from suite.predict.diagnosis.compared import ComparedRuns
from suite.predict.diagnosis.diagnosis import RunDiagnosis
from suite.predict.plan.audit import Audited
from suite.predict.plan.published_layouts import RankedLayout
from suite.predict.validation.proxies import ProxyPair
from suite.predict.validation.published_tables import Score
from suite.predict.validation.worked_examples import FormulaResult
from suite.records.battery import CheckFinding
from suite.records.merge import Merged
from suite.regression.check import Comparison


class ListedRun(msgspec.Struct, kw_only=True):
    """A published run; `reproduce` is the name of its miniature."""

    run: str
    title: str
    parameters: int
    reproduce: str | None


class Shown(msgspec.Struct, kw_only=True):
    """A run, its miniature, or an accelerator: its facts by section, and where each is from.

    An accelerator has `floors`, rates that working ones reached, and `no_floor`, why there is none of a quantity.
    """

    name: str
    title: str | UnsetType = UNSET
    architecture: Section | UnsetType = UNSET
    recipe: Section | UnsetType = UNSET
    layout: Section | UnsetType | None = UNSET
    board: Section | UnsetType = UNSET
    facts: Section | UnsetType = UNSET
    sources: Section | UnsetType = UNSET
    floors: list[RateFloor] | UnsetType = UNSET
    no_floor: dict[str, str] | UnsetType = UNSET


class ImportedRun(msgspec.Struct, kw_only=True):
    """The run file that was written, what it does not describe, and keys of the configuration that are not used."""

    run: str
    title: str
    parameters: int
    notes: list[str]
    not_used: list[str]


class PredictAnswer(msgspec.Struct, kw_only=True):
    """Figures of a run beside published ones: `left` is predicted, `right` published.

    What was assumed has its words, and the option that changes it.
    """

    run: str
    status: str
    verdict: str
    record: str | None
    edition: str
    figures: list[Row]
    stack: Section | UnsetType | None = UNSET
    assumed: list[tuple[str, str]] | UnsetType = UNSET
    notes: list[str] | UnsetType = UNSET
    step_seconds_uncertainty: float | UnsetType | None = UNSET
    intervals: Section | UnsetType = UNSET
    memory: Section | UnsetType | None = UNSET
    memory_verdict: MemoryVerdict | UnsetType = UNSET
    probability_fits: float | UnsetType = UNSET
    answered_by: Literal["formula"] | UnsetType = UNSET


class FitAnswer(msgspec.Struct, kw_only=True):
    """Whether a run fits on so many accelerators; layouts are null where none does."""

    run: str
    answered_by: Literal["formula"] | UnsetType = UNSET
    accelerator: str
    accelerators: int
    stack: str
    edition: str
    assumed: list[tuple[str, str]]
    fits: bool
    memory_bytes: float
    layouts: Section
    fastest: Section | None
    smallest: Section | None


class PlanAnswer(msgspec.Struct, kw_only=True):
    """The fastest layouts, `best` first, and how many there are of which kind."""

    run: str
    status: str
    accelerator: str
    accelerators: int
    stack: str | None
    edition: str
    assumed: list[tuple[str, str]]
    tokens: int | None
    memory_bytes: float
    step_seconds_uncertainty: float | None
    layouts: Section
    best: list[Section]
    smallest: Section | None
    goodput: Any = None


class LaunchAnswer(msgspec.Struct, kw_only=True):
    """A launch: `left` of a figure is predicted, `right` measured."""

    run: str
    status: str
    verdict: str | None
    record: str
    figures: list[Row]
    message: str
    losses: list[float]
    step_uncertainty: float | None


class Launches(msgspec.Struct, kw_only=True):
    """The last line of several launches: times over all of them."""

    run: str
    launches: int
    summary: list[Section]


class DryRunAnswer(msgspec.Struct, kw_only=True):
    """A layout whose ranks were executed without memory: `left` of a figure is predicted, `right` counted."""

    run: str
    layout: str
    verdict: str
    changes: Any
    micro_batches: int
    executed_micro_batches: Any
    classes: list[Section]
    figures: list[Row]
    accelerator: str | None
    fits: bool | None
    probability_fits: float | None


class CalibratedMachine(msgspec.Struct, kw_only=True):
    """The stored profile of this machine, and the median error of times between its sizes."""

    status: str
    message: str
    path: str | None
    interpolation_error: float | None
    reference_steps: list[Section]
    profile: Profile | None


class AcceptFinding(CheckFinding, frozen=True, kw_only=True):
    """A finding, with the name of its check."""

    name: str


class AcceptedNode(msgspec.Struct, kw_only=True):
    """A battery: its decision, and a finding a check.

    Args:
        condition: of a Kubernetes Node.
        health_events: of findings that warn or did not pass, in NVSentinel's form.
    """

    id: str
    profile: str
    decision: str
    exit_code: int
    summary: str
    condition: NodeCondition
    health_events: list[HealthEvent]
    seconds: float
    record: str
    notes: list[str]
    findings: list[AcceptFinding]


class Regressions(msgspec.Struct, kw_only=True):
    """Every comparison with a baseline; `failed` says why there is none, `accepted` what became a baseline."""

    exit_code: int
    failed: str
    accepted: list[str]
    comparisons: list[Comparison]


class LadderAnswer(msgspec.Struct, kw_only=True):
    """Rungs from the slowest on, with measured and expected gains."""

    run: str
    rungs: list[Section]
    interactions: list[Section]
    failures: list[Any]
    verdict: str
    plot: str


class WrittenReport(msgspec.Struct, kw_only=True):
    """Files that were written: tables, and the page."""

    file: str | None
    page: str | None


class FirstHour(msgspec.Struct, kw_only=True):
    """Parts that have run, and those that are left."""

    parts: list[Section]
    left: Any
    page: str


class ListedLaunch(msgspec.Struct, kw_only=True):
    """A recorded launch."""

    id: str
    run: str
    status: str
    started: float
    node: str
    ranks: int
    layout: str
    compiled: bool
    suite: str
    path: str
    step_seconds: float | None


class ShownRecord(msgspec.Struct, kw_only=True):
    """A record with both its halves, as docs/records.md describes them."""

    path: str
    status: str
    begin: Section
    end: Section | None


class ComparedRecords(msgspec.Struct, kw_only=True):
    """Two records, figure by figure."""

    left: Any
    right: Any
    facts: Any
    figures: list[Row]
    agree: bool


class CheckedRecords(msgspec.Struct, kw_only=True):
    """How many records are whole, and which are not."""

    whole: int
    damaged: list[str]


class Exported(msgspec.Struct, kw_only=True):
    """The file that was written, and its columns."""

    file: str
    launches: int
    columns: list[str]


class Pruned(msgspec.Struct, kw_only=True):
    """Records that are removed, or would be; `failed` could not be."""

    removed: bool
    records: list[str]
    failed: list[str]


class FleetTable(msgspec.Struct, kw_only=True):
    """Nodes of a fleet over time."""

    nodes: list[Section]
    history: list[Section]
    outliers: list[Section]
    common: list[Section]
    left_out: list[Any]


class DiagnosedRun(msgspec.Struct, kw_only=True):
    """The diagnosis of a measured run."""

    log: str | None
    run: str | None
    diagnosis: RunDiagnosis


class DiagnosedRecordings(msgspec.Struct, kw_only=True):
    """Findings from flight recorders of several ranks.

    Args:
        missing: ranks that did not come to a collective in which others wait.
        late_rank: the rank that comes last to most collectives, and costs the others time by that.
    """

    missing: list[int]
    lines: list[str]
    late_rank: int | None
    waited_seconds: float | None


class PrintedMfu(msgspec.Struct, kw_only=True):
    """A printed MFU above 1: what it is by the dense peak, by the peak that it may divide by."""

    accelerator: str
    mfu: float
    dense_mfu: dict[str, float]


# Command -> types of the lines that it prints
TYPES: dict[str, tuple[type, ...]] = {
    "runs": (ListedRun,),
    "show": (Shown,),
    "import": (ImportedRun,),
    "predict": (PredictAnswer, TracedAnswer),
    "plan": (PlanAnswer,),
    "fit": (FitAnswer, TracedFitAnswer, ServingAnswer, TiersAnswer, Audited),
    "diagnose": (DiagnosedRun, ComparedRuns, PrintedMfu, DiagnosedRecordings),
    "validate": (Score, ProxyPair, RankedLayout),
    "formulas": (FormulaResult,),
    "reproduce": (LaunchAnswer, Launches),
    "dry-run": (DryRunAnswer, Audited),
    "calibrate": (CalibratedMachine,),
    "accept": (AcceptedNode,),
    "regress": (Regressions,),
    "ladder": (LadderAnswer,),
    "report": (WrittenReport,),
    "first-hour": (FirstHour,),
    "results list": (ListedLaunch,),
    "results show": (ShownRecord,),
    "results diff": (ComparedRecords,),
    "results check": (CheckedRecords,),
    "results export": (Exported,),
    "results merge": (Merged,),
    "results prune": (Pruned,),
    "fleet accept": (FleetEnd,),
    "fleet show": (FleetEnd,),
    "fleet references": (FleetReferences,),
    "fleet report": (FleetTable,),
}


def schema(command: str) -> dict[str, Any]:
    """The JSON schema (2020-12) of every line that a command prints with --json."""
    types = TYPES[command]
    schemas, definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    described = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"refruns {command} --json"}
    return {**head, **described, "$defs": definitions}
