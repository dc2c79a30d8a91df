"""The measured performance of a machine: the profile, its file, and whether it still holds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from reference_runs.regular_file import file_bytes, json_of
from suite.machine.cpu_speed import SpeedSample
from suite.machine.fingerprint import Fingerprint, checksum
from suite.machine.reference_step import TimedReferenceStep
from suite.machine.timing_tables import Line, Subject, Table
from suite.machine.timings import Timing
from suite.stored_words import PROFILE, in_todays_words

SCHEMA = "10.2"  # results/recorded/LOG.md, "Calibration": what earlier ones lacked
DISTURBED_SHARE = 0.1  # of the processors that other processes use, above which the machine counts as busy
UNSEEN = "unseen"  # sizes between the grid's points: they measure the error of the interpolation
REPEATED = "repeated"  # sizes of the grid measured again at the end: they measure the noise, the least possible error


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One point that was timed separately, and the seconds that its table interpolates for it.

    Args:
        kind: unseen, between the table's points, or repeated, one of them.
    """

    kind: str
    subject: Subject
    sizes: tuple[float, ...]
    predicted_seconds: float
    timing: Timing

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_seconds / self.timing.seconds - 1


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the machine during the measurement.

    Args:
        ranks: the most that measured at once.
        threads: of a rank, by the number of ranks at once.
        load_before, load_after: one-minute load averages; None where the system reports none.
        steal_share: of the processors' time that the host gave to other guests; None where not reported.
        others_share: of the processors' time that processes outside the calibration used; None where not reported.
        facts: texts: governor, processor clock, library versions, how 16-bit products are computed.
        gpus: samples over time of each GPU's clocks, power, temperature and reasons for throttling.
        cpu_speed: mean over ranks, by the number of ranks at once; empty on GPUs.
    """

    ranks: int
    threads: dict[int, int]
    seconds: float
    load_before: float | None
    load_after: float | None
    steal_share: float | None
    others_share: float | None
    facts: dict[str, str]
    gpus: list[dict[str, float | str]]
    cpu_speed: dict[int, SpeedSample] = {}


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one calibration measured.

    Args:
        reference_steps: none on CUDA.
        partial: whether it was measured for the predictions of some runs only.
    """

    measured: float
    fingerprint: Fingerprint
    conditions: Conditions
    tables: list[Table]
    lines: list[Line]
    checks: list[Check]
    reference_steps: list[TimedReferenceStep]
    partial: bool = False

    def seconds(self, subject: Subject, *sizes: float) -> float:
        """Seconds of `subject` at `sizes`, from its line or its nearest table.

        Sizes are in the order of the table's axes. A number of ranks that was not measured has the seconds of the next
        larger measured one.

        Raises:
            InputError: it was not measured, or only with fewer ranks.
        """
        nearest = self._nearest(subject)
        for line in self.lines:
            if line.subject == nearest:
                (size,) = sizes
                return line.seconds(size)
        tables = [table for table in self.tables if table.subject == nearest and len(table.axes) == len(sizes)]
        if not tables:
            raise InputError("the profile's table has other axes", got=f"{len(sizes)} sizes", where=str(subject))
        return min(tables, key=lambda table: table.distance(sizes)).seconds(sizes)

    def line(self, subject: Subject) -> Line:
        """The line of `subject`, or that of the next larger number of ranks.

        Raises:
            InputError: it was not measured as a line.
        """
        nearest = self._nearest(subject)
        for line in self.lines:
            if line.subject == nearest:
                return line
        raise InputError("the profile has a table of it, not a line", where=str(subject))

    def achievable_flop_per_second(self, dtype: str, *, ranks: int = 1) -> float:
        """The most flop a second that one rank's products in `dtype` reached.

        Of the large square products where they were timed, on CUDA in bf16; otherwise of all shapes and transpositions
        of the miniatures.

        Raises:
            InputError: no product was measured so.
        """
        square = Subject(operation="square_product", variant="NT", dtype=dtype, ranks=ranks)
        large = [
            line
            for line in self.lines
            if line.subject.ranks >= ranks and msgspec.structs.replace(line.subject, ranks=ranks) == square
        ]
        if large:
            line = min(large, key=lambda line: line.subject.ranks)
            return max(flop / timing.seconds for flop, timing in zip(line.sizes, line.timings, strict=True))
        rates: list[float] = []
        for variant in ("NN", "NT", "TN"):
            nearest = self._nearest(Subject(operation="product", variant=variant, dtype=dtype, ranks=ranks))
            for table in self.tables:
                if table.subject == nearest:
                    points = product(*(axis.points for axis in table.axes))
                    rates += [2 * m * n * k / t.seconds for (m, n, k), t in zip(points, table.timings, strict=True)]
        return max(rates)

    def memory_bytes_per_second(self, operation: str = "triad", *, ranks: int = 1) -> float:
        """Bytes a second that one rank's copy or triad moves between memory and processor.

        Raises:
            InputError: it was not measured.
        """
        nearest = self._nearest(Subject(operation=operation, ranks=ranks))
        (table,) = (table for table in self.tables if table.subject == nearest)
        return table.axes[0].points[-1] / table.timings[-1].seconds

    def cpu_speed(self, *, ranks: int) -> SpeedSample | None:
        """The CPU speed while `ranks` ranks, or the next larger number, measured at once; None if not known."""
        enough = [count for count in self.conditions.cpu_speed if count >= ranks]
        return self.conditions.cpu_speed[min(enough)] if enough else None

    def _nearest(self, subject: Subject) -> Subject:
        measured = [table.subject for table in self.tables] + [line.subject for line in self.lines]
        alike = {each.ranks for each in measured if msgspec.structs.replace(each, ranks=subject.ranks) == subject}
        enough = [ranks for ranks in alike if ranks >= subject.ranks]
        if not enough:
            with_fewer = f", only with {', '.join(map(str, sorted(alike)))} ranks" if alike else ""
            raise InputError(f"the profile has no measurement of {subject}{with_fewer}", allowed="calibrate again")
        return msgspec.structs.replace(subject, ranks=min(enough))


def encode(profile: Profile) -> bytes:
    """The profile's file: schema version, checksum of the content, content."""
    content = msgspec.to_builtins(profile, str_keys=True)
    whole = {"schema": SCHEMA, "checksum": checksum(content), "profile": content}
    return msgspec.json.encode(whole) + b"\n"


def decode(data: bytes, where: str) -> Profile:
    """The profile in a file's bytes.

    Raises:
        InputError: not JSON (truncated), a major schema version that this suite does not know, content that is not what
            the checksum says, or fields missing.
    """
    try:
        whole = json_of(data, object)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"damaged machine profile, truncated perhaps: {error}", where=where) from error
    if not isinstance(whole, dict):
        raise InputError("not a machine profile", got=type(whole).__name__, allowed="a JSON object", where=where)
    schema = str(whole.get("schema", ""))
    if schema.split(".")[0] != SCHEMA.split(".")[0]:
        allowed = f"{SCHEMA.split('.')[0]}.x"
        raise InputError("unknown schema version of a machine profile", got=repr(schema), allowed=allowed, where=where)
    if whole.get("checksum") != checksum(whole.get("profile")):
        raise InputError("the machine profile was changed after it was measured: its checksum differs", where=where)
    try:
        whole = json_of(in_todays_words(data, PROFILE), dict[str, object])
        return msgspec.convert(whole["profile"], Profile, str_keys=True)
    except msgspec.MsgspecError as error:
        raise InputError(f"damaged machine profile: {error}", where=where) from error


def read(path: Path) -> Profile:
    """The profile in a file, of whatever machine.

    Raises:
        InputError: it cannot be read, or as `decode`.
    """
    try:
        data = file_bytes(path)
    except OSError as error:
        raise InputError(f"cannot read the machine profile: {error.strerror}", where=str(path)) from error
    return decode(data, str(path))


def check_holds(profile: Profile, fingerprint: Fingerprint, where: str) -> None:
    """Refuse a profile that was not measured on this node with this device, hardware and software.

    Raises:
        InputError: the first fact that differs.
    """
    measured = profile.fingerprint
    if measured.node != fingerprint.node:
        line = "a machine profile of another machine"
        raise InputError(line, got=measured.node, allowed=fingerprint.node, where=where)
    theirs, ours = ({"device": each.device} | each.hardware | each.software for each in (measured, fingerprint))
    for key in sorted(theirs.keys() | ours.keys()):
        if theirs.get(key) != ours.get(key):
            raise InputError(
                f"a stale machine profile: {key} has changed",
                got=theirs.get(key, "nothing"),
                allowed=ours.get(key, "nothing"),
                where=where,
            )


def disturbed(profile: Profile) -> str | None:
    """Why the times in a profile are not those of its machine alone; None where they are.

    Where others have a tenth of the processors, all that computes takes a ninth longer, and what waits for several
    threads far longer. A GPU's times hardly depend on the host's processors.
    """
    others, guests = profile.conditions.others_share or 0.0, profile.conditions.steal_share or 0.0
    if profile.fingerprint.device != "cpu" or others + guests <= DISTURBED_SHARE:
        return None
    return f"measured while other processes took {others:.0%} and other guests {guests:.0%} of the processors"


def machines_directory(results: Path) -> Path:
    """Directory of the profiles below the results directory."""
    return results / "machines"


def unsuitable(profile: Profile) -> str | None:
    """Why a profile has no answer to whatever is asked; None where it has."""
    return "measured for the step time of some runs alone: calibrate measures everything" if profile.partial else None


def current_profile(
    results: Path,
    fingerprint: Fingerprint,
    *,
    ranks: int = 1,
    refused_for: Callable[[Profile], str | None] = unsuitable,
) -> tuple[Profile | None, str]:
    """The newest profile below `results` that holds here and was measured with `ranks` at once or more; its path.

    Where there is none: None, and in one line why.

    Args:
        refused_for: why a profile that holds is not used all the same; None where it is.
    """
    refused: list[str] = []
    valid: list[tuple[float, Profile, str]] = []
    for path in sorted(machines_directory(results).glob("*.json")):
        try:
            profile = read(path)
            check_holds(profile, fingerprint, str(path))
        except InputError as error:
            refused.append(str(error))
            continue
        few = f"measured with {profile.conditions.ranks} ranks at once, {ranks} are needed"
        why = disturbed(profile) or (few if profile.conditions.ranks < ranks else refused_for(profile))
        if why:
            refused.append(f"{path}: {why}")
        else:
            valid.append((profile.measured, profile, str(path)))
    if valid:
        _, profile, where = max(valid, key=lambda entry: entry[0])
        return profile, where
    line = f"no valid machine profile in {machines_directory(results)}: calibrate makes one"
    return None, f"{line} ({'; '.join(refused)})" if refused else line
