"""The record of a battery of `accept`: both halves, its findings, what is worst of them, and where batteries lie.

A battery's record is a first half before it starts, a file for each phase, and the verdict at its end:
`suite.acceptance.battery_record` writes them. Who needs few fields decodes a `suite.records.record.partial` of a half.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from reference_runs.errors import InputError
from reference_runs.regular_file import json_of
from suite.job.events import Status
from suite.paths import stores
from suite.records.record import BEGIN, END, contents
from suite.stored_words import BATTERY, in_todays_words

# A major version measures or predicts in another way than those before: their values are not compared.
# 8.3: words of the code (suite/stored_words.py); 8.4: actions
SCHEMA = "8.4"
DIRECTORY = "acceptance"  # of all directories with batteries
_LAUNCHES = "records"  # the directory of up to a million other files


class CheckVerdict(enum.StrEnum):
    """Verdict of one finding. Only PASS and WARN say that something was measured and is good enough."""

    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    INVALID = "INVALID"
    NOT_RUN = "NOT RUN"
    HANG = "HANG"
    INCONCLUSIVE = "INCONCLUSIVE"


NOT_PASSED = (CheckVerdict.FAIL, CheckVerdict.HANG, CheckVerdict.INVALID, CheckVerdict.INCONCLUSIVE)  # worst first
WORST_FIRST = (*NOT_PASSED, CheckVerdict.WARN, CheckVerdict.PASS, CheckVerdict.NOT_RUN)


class RecoveryAction(enum.StrEnum):
    """The next step for an operator; those about hardware are the recovery actions of NVML and of NVIDIA's XID catalog.

    docs/acceptance.md says which of theirs each one is.
    """

    NONE = "none"
    REPEAT = "repeat"
    FREE_NODE = "free the node"  # of other tenants, or ask whoever runs them
    FIX_SETTING = "fix the setting"  # or the software
    RESET_GPU = "reset the GPU"
    REBOOT_NODE = "reboot the node"
    RESEAT = "reseat"  # or check the cable, the module, the cooling
    RETURN = "return"  # to the vendor, who repairs or replaces it


class Decision(enum.StrEnum):
    """Verdict of all findings: what an operator acts on."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNDECIDED = "not decidable"
    EXECUTION_FAILED = "execution failed"


class PastBattery(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier battery of this node: its identity, and when it ended in seconds since 1970."""

    battery: str
    finished: float


class CheckFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One check's verdict on one part of the node.

    Args:
        check: number of the check.
        subject: what was checked: a miniature, a rank, a link.
        measured, expected: in `unit`; None where the check has no number.
        ratio: measured over expected; `warn` and `fail` are thresholds of it.
        source: where the expected value comes from.
        part: the part at fault, which an operator may replace; empty where no part is.
        evidence: what the verdict rests on, in one line.
        status: how the execution ended, apart from the verdict.
        least_detectable: smallest relative slowdown that this check, with as many launches and their spread, would
            reject in 9 of 10 cases; None where the check has no statistics.
        spread: standard deviation of the logarithms of the launches; None likewise.
        terms: by term of a step, measured less predicted seconds as share of the predicted step; empty likewise.
        compared_as: name of the value in other batteries of this node and of the fleet; empty: not compared.
        good_until: the newest battery of this node in which this check passed on this subject; None: none is known, or
            nothing is bad now.
        bad_since: the oldest battery after `good_until` in which it was as bad as now; None: it is bad for the first
            time.
        action: what to do next; None in records before 8.4, and until `suite.acceptance.actions` fills it.
        to_do: the same in words, for this part; `command` that does it or shows more, empty where there is none.
    """

    check: int
    subject: str
    verdict: CheckVerdict
    measured: float | None = None
    expected: float | None = None
    unit: str = ""
    ratio: float | None = None
    warn: float | None = None
    fail: float | None = None
    source: str = ""
    part: str = ""
    evidence: str = ""
    status: Status = Status.OK
    least_detectable: float | None = None
    spread: float | None = None
    terms: dict[str, float] = {}
    compared_as: str = ""
    good_until: PastBattery | None = None
    bad_since: PastBattery | None = None
    action: RecoveryAction | None = None
    to_do: str = ""
    command: str = ""

    @property
    def key(self) -> tuple[int, str]:
        """Equal for a finding and for that of its re-run."""
        return self.check, self.subject


class BatteryBegin(msgspec.Struct, frozen=True, kw_only=True):
    """The first half, written before anything runs, so that a node that crashes leaves a record.

    Args:
        virtual: whether the node is a virtual machine; None in records before 8.1: not known.
    """

    kind: str
    schema: str
    id: str
    node: str
    profile: str
    options: dict[str, str]
    started: float
    hardware: dict[str, str]
    software: dict[str, str]
    hashes: dict[str, str]
    virtual: bool | None = None


class BatteryEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict, with values for comparison by other batteries.

    Args:
        options: see `BatteryBegin`; batteries with other ranks or another device are not compared.
        virtual: see `BatteryBegin`.
    """

    kind: str
    schema: str
    id: str
    node: str
    profile: str
    finished: float
    seconds: float
    decision: Decision
    findings: list[CheckFinding]
    hashes: dict[str, str]
    losses: dict[str, list[float]] = {}
    options: dict[str, str] = {}
    virtual: bool | None = None

    @property
    def shares_cores(self) -> bool:
        """Whether it multiplied on the CPU of a virtual machine, whose processors may be halves of cores."""
        return self.virtual is True and self.options.get("device") == "cpu"


Finding = TypeVar("Finding", bound=Any)  # a CheckFinding, or a partial one with check and verdict
Moment = TypeVar("Moment")
Half = TypeVar("Half", bound=msgspec.Struct)
Begin = TypeVar("Begin", bound=msgspec.Struct)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """The findings by verdict, failures first; those of one verdict in the order of the checks."""
    return sorted(findings, key=lambda finding: (WORST_FIRST.index(finding.verdict), finding.check))


def worst_of(findings: Iterable[Finding]) -> Finding | None:
    """The worst finding that did not pass; None where all did, or did not run."""
    return next(iter(worst_first(finding for finding in findings if finding.verdict in NOT_PASSED)), None)


def compared_values(findings: Iterable[Finding]) -> Iterator[tuple[Finding, float]]:
    """Findings with the values that other batteries of this node and of its siblings are compared with."""
    return ((finding, finding.measured) for finding in findings if finding.compared_as and finding.measured is not None)


def good_until_and_bad_since(history: Iterable[tuple[Moment, bool | None]]) -> tuple[Moment | None, Moment | None]:
    """The newest moment that was good, and the oldest bad one after it; None where there is none.

    Args:
        history: moments, oldest first, and whether each was good; None: neither good nor bad, which breaks nothing.
    """
    good: Moment | None = None
    bad: Moment | None = None
    for moment, is_good in history:
        if is_good:
            good, bad = moment, None
        elif is_good is False and bad is None:
            bad = moment
    return good, bad


def encode(part: msgspec.Struct) -> bytes:
    """One part of the record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(part), indent=1) + b"\n"


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def decode(data: bytes, kind: type[Half], where: str, *, any_version: bool = False) -> Half:
    """One part of a record.

    Args:
        kind: a struct of this module, or a partial one of its fields, `schema` among them.
        any_version: whether other major versions are read too: for fields that mean the same in all of them.

    Raises:
        InputError: not JSON (truncated), fields missing, or a major schema version that this suite does not know.
    """
    data = in_todays_words(data, BATTERY)
    try:
        part = _decoder(kind).decode(data)
        if any_version or _is_known(part.schema):
            return cast("Half", part)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if any_version or _is_known(_schema(data)):
            raise InputError(f"damaged record of a battery: {error}", where=where) from error
    allowed = f"{SCHEMA.split('.')[0]}.x"
    raise InputError("unknown schema version of a battery", got=repr(_schema(data)), allowed=allowed, where=where)


def _is_known(schema: str | None) -> bool:
    return schema is None or schema.split(".")[0] == SCHEMA.split(".")[0]


def _schema(data: bytes) -> str | None:
    """The schema that the data names, empty where it names none; None where it is no JSON object."""
    try:
        return str(json_of(data, dict[str, object]).get("schema", ""))
    except msgspec.MsgspecError:
        return None


def read_half(path: str | Path, kind: type[Half], *, any_version: bool = False) -> Half:
    """One part of a record from its file, as `decode`.

    Raises:
        InputError: the file cannot be read, or as `decode`.
    """
    return decode(contents(str(path)), kind, str(path), any_version=any_version)


def battery_directory(results: Path) -> Path:
    """Where batteries are stored below the results directory."""
    return results / DIRECTORY


def directories(place: str | Path) -> Iterator[tuple[str, list[str]]]:
    """Every directory below a place that may have batteries or fleets in it, itself first, with its files' names."""
    for path, below, files in os.walk(place):
        below[:] = sorted(name for name in below if name != _LAUNCHES)
        yield path, files


def has_batteries(path: str) -> bool:
    """Whether a directory's name says that batteries are in it."""
    return os.path.basename(path) == DIRECTORY  # noqa: PTH119  # a Path for each of a million records costs seconds


def battery_paths(place: str | Path, half: str = END, *, everywhere: bool = False) -> list[str]:
    """Paths of one half of every battery below a place, oldest first in each directory.

    Args:
        everywhere: whether in directories of other names too, whose files may be of something else.
    """
    return [
        f"{path}/{name}"
        for path, files in directories(place)
        if everywhere or has_batteries(path)
        for name in sorted(files)
        if name.endswith(half)
    ]


class BatteryHalves(NamedTuple):
    """Both halves of a battery as far as they can be read.

    Args:
        begin: None where it is damaged.
        end: None where it is damaged too, or the battery did not end.
        problem: why one of them is missing that is there.
    """

    begin: Any
    end: Any
    problem: InputError | None


def stored_batteries(
    results: Path, begin: type[Begin], end: type[Half], *, any_version: bool = False
) -> list[BatteryHalves]:
    """Every battery in the results directory, with the default one the project's own too, oldest first.

    Args:
        begin, end: as what the halves are read: `BatteryBegin` and `BatteryEnd`, or partial ones.
        any_version: see `decode`.
    """
    found: list[BatteryHalves] = []
    for path in (path for store in stores(results) for path in battery_paths(battery_directory(store), BEGIN)):
        first = last = problem = None
        try:
            first = read_half(path, begin, any_version=any_version)
            end_path = path.removesuffix(BEGIN) + END
            if os.path.lexists(end_path):
                last = read_half(end_path, end, any_version=any_version)
        except InputError as error:
            problem = error
        found.append(BatteryHalves(first, last, problem))
    return sorted(found, key=lambda one: (one.begin.started, one.begin.id) if one.begin else (0.0, ""))
