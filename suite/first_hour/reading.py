"""Reads the output of a part's command: one line, and every difference from what was expected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from reference_runs.accelerator import dense_peak_flop_per_second, known_gpu
from reference_runs.floors import NO_FLOOR, REJECTED_BELOW, FloorKind, FloorQuantity, RateFloor, floors_for
from suite.first_hour.part import HourPart, PartKind, StepOnPaper
from suite.metrics.difference_words import Direction, difference_in_words, direction_of
from suite.metrics.figures import OF_DATASHEET, Quantity
from suite.paths import program
from suite.records.kernel_runs import BASE_FORMS, STEP_PART, TimedCase, kernel_run

OF_FLOOR, MOST = 0.93, 1.02  # of the lower end of a floor that is measured, and of the data sheet
OF_COPY = {"forward": 0.90, "backward": 0.80}  # of the bandwidth of a copy, for kernels
STEP_ERROR = 0.15  # of a predicted step time, where its own uncertainty is not known: what is asked on GPUs
INTERPOLATION_ERROR = 0.10
LISTED = 12  # differences of one part


class PartReading(NamedTuple):
    """The result in a line, the differences, and what to do about them.

    Args:
        readable: whether the command got to print its result.
        next_steps: where the command itself says what to do.
    """

    says: str
    differences: list[str]
    readable: bool = True
    next_steps: Sequence[str] = ()


def reading(part: HourPart, exit_code: int | None, output: str, errors: str, files: list[Path]) -> PartReading:
    """The reading of a part's command that has ended, `files` being what it wrote below results/kernels."""
    if part.kind is PartKind.KERNELS:
        found = _kernels(files)
    elif part.kind is PartKind.TESTS:
        found = _tests(output)
    else:
        try:
            found = _READERS[part.kind](part, msgspec.json.decode(output.strip().splitlines()[-1]))
        except (IndexError, KeyError, TypeError, msgspec.MsgspecError):
            found = PartReading(
                last_line(errors) or last_line(output) or f"exit code {exit_code}, no output", [], False
            )
    kept, more = found.differences[:LISTED], len(found.differences) - LISTED
    return found._replace(differences=[*kept, f"{more} more"] if more > 0 else kept)


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip()[:300] for line in reversed(text.splitlines()) if line.strip()), "")


def _apart(row: Any) -> str:
    """The difference of a row's measured value from the predicted one, in words."""
    return difference_in_words(row["right"], row["left"], direction_of(row["quantity"]), than="predicted")


def _environment(_part: HourPart, found: Any) -> PartReading:
    software = found["fingerprint"]["software"]
    names = [device["name"] for device in found["devices"]] or [found["fingerprint"]["hardware"]["cpu"]]
    says = f"{len(names)} x {names[0]}; torch {software['torch']}, triton {software['triton']}"
    differences = [f"missing: {missing}" for missing in [found["compilation_missing"]] if missing]
    if found["lacking"]:
        names = [f"{name} ({needed_by})" for _, name, needed_by, *_ in found["lacking"]]
        differences.append(f"missing: {', '.join(names)}: {found['installing']}")
    return PartReading(says, differences)


def _rates(_part: HourPart, found: Any) -> PartReading:
    copy, product = found["copy_bytes_per_second"], found["product_flop_per_second"]
    if copy is None or product is None:
        return PartReading("the device's clock stood still", [])
    says = f"copy {copy / 1e9:,.4g} GB/s, {found['product_dtype']} product {product / 1e12:,.4g} Tflop/s"
    known = known_gpu(found["device"])
    if known is None:
        return PartReading(f"{says}; no data sheet of {found['device']}", [])
    peak = dense_peak_flop_per_second(known, found["product_dtype"])
    differences, floorless, warned = [], [], []
    for name, rate, quantity, sheet, unit, scale in (
        ("copy", copy, FloorQuantity.COPY, known.board.memory_bytes_per_second, "GB/s", 1e9),
        ("product", product, f"{found['product_dtype']}_gemm", peak, "Tflop/s", 1e12),
    ):
        floors = [floor for wanted in FloorQuantity if wanted == quantity for floor in floors_for(known.floors, wanted)]
        rests_on = [floor for floor in floors if floor.kind is not FloorKind.ASSUMED]
        lowest = max(map(_least, rests_on), default=0.0)
        floorless += [] if floors else [name]
        assumed = max((floor.lower for floor in floors if floor.kind is FloorKind.ASSUMED), default=0.0)
        warned += [f"{name}: below the {assumed / scale:,.4g} {unit} assumed of it"] if lowest <= rate < assumed else []
        if not lowest <= rate <= MOST * sheet:
            expected = f"{lowest / scale:,.4g} to {MOST * sheet / scale:,.4g} {unit} expected"
            differences.append(f"{name}: {rate / scale:,.4g} {unit}, {expected} of {known.title}")
    unknown = f"; no floor is known of: {', '.join(floorless)}" if floorless else ""
    return PartReading("; ".join([f"{says}{unknown}", *warned]), differences)


def _least(floor: RateFloor) -> float:
    """The rate from which on a device agrees with a floor that somebody measured."""
    return floor.lower * (REJECTED_BELOW if floor.kind is FloorKind.PUBLISHED else OF_FLOOR)


def _calibrate(_part: HourPart, found: Any) -> PartReading:
    if found["status"] != "ok":
        return PartReading(f"{found['status']}: {found['message']}", [])
    error = found["interpolation_error"]
    says = f"profile {Path(found['path']).name}"
    if error is None:
        return PartReading(says, [])
    over = error > INTERPOLATION_ERROR
    words = f"sizes between the measured ones are {error:.1%} off in the median"
    return PartReading(f"{says}; {words}", [f"{words}, at most {INTERPOLATION_ERROR:.0%} expected"] if over else [])


def _reproduce(part: HourPart, found: Any) -> PartReading:
    if found["status"] != "ok":
        return PartReading(f"{found['status']}: {found['message']}; record {found['record']}", [])
    figures = found["figures"]
    differences = [
        f"{_figure(row)}: measured {row['right']:,}, {_apart(row)} ({row['left']:,})"
        for row in figures
        if row["verdict"] == "fail" and row["left"] is not None and row["right"] is not None
    ]
    if found["message"]:
        differences.append(found["message"])
    says = [found["verdict"]]
    step = _of_job(figures, Quantity.STEP_SECONDS)
    if step is not None:
        says.append(f"step {step['right']:.4g} s")
        if step["left"] is not None:
            allowed = found["step_uncertainty"] or STEP_ERROR
            words = f"{_apart(step)} ({step['left']:.4g} s)"
            says.append(words)
            if abs(step["left"] / step["right"] - 1) > allowed:
                differences.append(f"step time: {step['right']:.4g} s, {words}, within {allowed:.0%} asked")
        if part.expected is not None:
            says.append(_expected(part.expected, step["right"]))
    shares = {row["term"]: row["right"] for row in figures if row["quantity"] == Quantity.MFU and row["right"]}
    reached = shares.pop(OF_DATASHEET, None)
    if reached is not None:
        says.append(f"mfu {reached:.1%}")
    says += [f"{share:.1%} {term}" for term, share in shares.items()]
    if part.asked_mfu is not None and reached is not None and reached < part.asked_mfu:
        differences.append(f"mfu {reached:.1%}, at least {part.asked_mfu:.0%} asked")
    return PartReading(", ".join(says), differences)


def _expected(expected: StepOnPaper, seconds: float) -> str:
    """The step that was written down before, and how far off the measured one is."""
    milliseconds = expected.milliseconds
    apart = difference_in_words(1e3 * seconds, milliseconds, Direction.TIME, than="expected of an H100")
    return f"{apart} ({milliseconds:,.0f} ms; {expected.bound_by})"


def _of_job(figures: list[Any], quantity: Quantity) -> Any:
    return next(
        (row for row in figures if row["quantity"] == quantity and row["rank"] is None and row["term"] is None), None
    )


def _figure(row: Any) -> str:
    keys = (row["quantity"], row["axis"], row["operation"], row["term"])
    rank = "" if row["rank"] is None else f" of rank {row['rank']}"
    return " ".join(str(key) for key in keys if key is not None) + rank


def _accept(_part: HourPart, found: Any) -> PartReading:
    worse = [
        row
        for row in found["findings"]
        if row["verdict"] not in ("PASS", "NOT RUN") and not (row["verdict"] == "WARN" and _without_evidence(row))
    ]
    differences = [f"{row['verdict']} {row['name']}, {row['subject']}: {row['evidence']}" for row in worse]
    steps = [(row["name"], row["part"] or row["subject"], row["to_do"], row["command"]) for row in worse]
    return PartReading(
        found["summary"],
        differences,
        next_steps=list(dict.fromkeys(": ".join(filter(None, step)) for step in steps if step[2]))[:LISTED],
    )


def _without_evidence(row: Any) -> bool:
    """Whether a finding warns for want of a floor, or by an assumed one alone."""
    return row["evidence"].startswith(NO_FLOOR) or (row.get("source") or "").startswith(f"{FloorKind.ASSUMED} of ")


def _ladder(_part: HourPart, found: Any) -> PartReading:
    measured = sum(rung.get("measured") is not None for rung in found["rungs"])
    return PartReading(f"{found['verdict']}: {measured} of {len(found['rungs'])} rungs ran", [*found["failures"]])


def _tests(output: str) -> PartReading:
    failed = [line.strip()[:200] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return PartReading(last_line(output).strip("= "), failed)


def _kernels(files: list[Path]) -> PartReading:
    """The share of a copy's bandwidth that each kernel reaches, and the ways of parts of a step."""
    shares, differences, parts = [], [], []
    for path in files:
        for timed in kernel_run(path).benchmarks:
            case, spent = timed.extra_info, timed.stats.median
            if case.kernel == STEP_PART:
                parts.append((case, spent))
                continue
            if case.form not in BASE_FORMS or not (spent and case.copy_bytes_per_second):
                continue
            share = case.least_bytes / spent / case.copy_bytes_per_second
            shares.append(share)
            if share < (least := OF_COPY.get(case.direction, 0.0)):
                differences.append(f"{timed.case}: {share:.0%} of a copy's bandwidth, {least:.0%} expected")
    says = [f"{len(shares)} passes, {min(shares):.0%} to {max(shares):.0%} of a copy's bandwidth"] if shares else []
    return PartReading("; ".join([*says, *_ways(parts)]) or "nothing was timed", differences)


def _ways(parts: Sequence[tuple[TimedCase, float]]) -> list[str]:
    """The least and most time of each way with optimizations over that of PyTorch's way of the same part, in words."""
    plain = {_part_key(case): spent for case, spent in parts if case.form in BASE_FORMS}
    ratios: dict[str, list[float]] = {}
    for case, spent in parts:
        if case.form not in BASE_FORMS and plain.get(_part_key(case)):
            ratios.setdefault(case.form, []).append(spent / plain[_part_key(case)])
    return [f"{way} {min(of):.2f} to {max(of):.2f} of PyTorch's time" for way, of in ratios.items()]


def _part_key(case: TimedCase) -> tuple[object, ...]:
    return case.variant, case.direction, *case.sizes.items()


# What to do about differences, by kind of part; "{program}" and "{again}" are commands
_NEXT_STEPS = {
    PartKind.ENVIRONMENT: "install what is missing: {again}",
    PartKind.RATES: "judge all devices at once: {program} accept --only 1,3",
    PartKind.TESTS: "run what failed alone, and read its traceback: {again}",
    PartKind.KERNELS: "end other work on the GPU, and time it again: {again}",
    PartKind.CALIBRATE: "end other work on the machine, and calibrate again: {again}",
    PartKind.REPRODUCE: "look at the record: {program} results show latest",
    PartKind.ACCEPT: "judge the node again: {again}",
    PartKind.LADDER: "climb these rungs again: {again}",
}


def next_steps(part: HourPart, found: PartReading, *, failed: bool, errors: Path, again: str) -> list[str]:
    """Orders about a part's differences, or about its failure; nothing where it has neither.

    Args:
        errors: the file of its command's messages.
        again: the command that does the part once more.
    """
    if failed:
        return [f"read {errors}, and run it again: {again}"]
    if not found.differences:
        return []
    return list(found.next_steps) or [_NEXT_STEPS[part.kind].format(program=program(), again=again)]


_READERS: dict[PartKind, Callable[[HourPart, Any], PartReading]] = {
    PartKind.ENVIRONMENT: _environment,
    PartKind.RATES: _rates,
    PartKind.CALIBRATE: _calibrate,
    PartKind.REPRODUCE: _reproduce,
    PartKind.ACCEPT: _accept,
    PartKind.LADDER: _ladder,
}
