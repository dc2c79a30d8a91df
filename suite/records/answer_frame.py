"""Answers of `predict`, `plan` and `fit` with --json as a pandas frame, a row an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from reference_runs.errors import InputError
from reference_runs.regular_file import file_text
from suite.metrics.figures import Quantity

if TYPE_CHECKING:
    import pandas

Answer = Mapping[str, Any]
Source = str | Path | Answer | Iterable[Answer]
LIKELY_FROM = 0.5  # probability to fit from which it does, as `fit` and `predict` say
MOST_BYTES = 1 << 28  # of a file of answers
_COMMON = ("run", "accelerator", "accelerators", "stack", "layout", "fits", "probability_fits", "edition")
_FIGURES = (
    *(Quantity.STEP_SECONDS, Quantity.TOKENS_PER_SECOND, Quantity.MFU, Quantity.PEAK_BYTES, Quantity.PARAMETERS),
    *(Quantity.MODEL_FLOP, Quantity.HARDWARE_FLOP, Quantity.BUBBLE_FRACTION, Quantity.TRAINING_SECONDS),
    *(Quantity.ACCELERATOR_SECONDS, Quantity.ENERGY_JOULES, Quantity.COST),
)
_OF_INTERVALS = ("step_seconds_low", "step_seconds_high", "peak_bytes_low", "peak_bytes_high")
_OTHERS = (
    *("usable_bytes", "largest_fitting_peak_bytes", "tokens", "layouts_considered", "layouts_fitting"),
    *("published_step_seconds", "assumed"),
)
_OF_FILES = ("file", "read_as", "model", "verdict", "why")
COLUMNS = ("answer", *_COMMON, *(quantity.value for quantity in _FIGURES), *_OF_INTERVALS, *_OTHERS, *_OF_FILES)
_TEXTS = ("answer", "run", "accelerator", "stack", "layout", "edition", "assumed", *_OF_FILES)


def answers(source: Source) -> pandas.DataFrame:
    """A row an answer: of `predict` its prediction, of `plan` and `fit` the fastest layout, of `fit DIRECTORY` a file.

    Columns end in their unit: `_seconds`, `_bytes`, `_joules`, `_per_second`; shares and probabilities are of 1. Values
    that an answer does not have are missing. Lines that are no such answer are left out: `attrs["left_out"]` says why.

    Args:
        source: a file of what commands printed, a line an answer; an answer, or several, as `refruns.predict` returns.

    Raises:
        InputError: the file cannot be read.
    """
    import pandas

    rows, left_out = [], []
    for number, answer in enumerate(_objects(source), 1):
        kind = next(
            (name for name, keys in _KINDS.items() if isinstance(answer, Mapping) and keys <= answer.keys()), ""
        )
        if not kind:
            left_out.append(f"line {number}: no answer of predict, plan or fit")
            continue
        try:
            rows.append({"answer": kind, **_READERS[kind](answer)})
        except (TypeError, AttributeError, KeyError):
            left_out.append(f"line {number}: not as `{kind} --json` prints it")
    columns = {name: [row.get(name) for row in rows] for name in COLUMNS}
    frame = pandas.DataFrame({name: _column(name, cells) for name, cells in columns.items()})
    frame.attrs["left_out"] = left_out
    return frame


def _column(name: str, cells: list[Any]) -> Any:
    """Texts as objects, `fits` as a nullable truth value, all else as 64-bit floats."""
    import pandas

    if name in _TEXTS:
        return pandas.Series(cells, dtype=object)
    if name == "fits":
        return pandas.array(cells, dtype="boolean")
    numbers = [cell if isinstance(cell, int | float) and not isinstance(cell, bool) else None for cell in cells]
    return pandas.Series(numbers, dtype="float64")


_KINDS = {  # Kind of answer -> keys that it alone has
    "audit": {"file", "read_as", "verdict"},
    "plan": {"run", "best", "layouts"},
    "fit": {"run", "fits", "fastest"},
    "predict": {"run", "figures", "edition"},
}


def _objects(source: Source) -> Iterable[Any]:
    if isinstance(source, Mapping):
        return [source]
    if not isinstance(source, str | Path):
        return source
    try:
        text = file_text(Path(source), most=MOST_BYTES)
    except OSError as error:
        raise InputError(f"cannot read the answers: {error.strerror}", got=str(source)) from error
    except UnicodeDecodeError as error:
        raise InputError("not UTF-8", where=str(source)) from error
    return [_decoded(line) for line in text.split("\n") if line.strip()]


def _decoded(line: str) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _predicted(answer: Answer) -> dict[str, Any]:
    row: dict[str, Any] = {"run": answer["run"], "edition": answer["edition"], "assumed": _assumed(answer)}
    row["stack"] = _table(answer, "stack").get("name")
    row["probability_fits"] = answer.get("probability_fits")
    if (verdict := answer.get("memory_verdict")) is not None:
        row["fits"] = verdict != "does not fit"
    row["usable_bytes"] = _table(answer, "memory").get("usable")
    for figure in answer["figures"]:
        whole = not any(figure.get(part) is not None for part in ("axis", "operation", "rank", "stage", "term"))
        if whole and figure.get("quantity") in _FIGURES and row.get(figure["quantity"]) is None:
            row[figure["quantity"]] = figure.get("left")
            if figure["quantity"] == Quantity.STEP_SECONDS:
                row["published_step_seconds"] = figure.get("right")
    row["accelerators"] = _accelerators(row)
    for name in (Quantity.STEP_SECONDS, Quantity.PEAK_BYTES):
        interval = _table(answer, "intervals").get(name)
        if isinstance(interval, list) and len(interval) == 2:
            row[f"{name}_low"], row[f"{name}_high"] = interval
    return row


def _accelerators(row: Mapping[str, Any]) -> int | None:
    """How many accelerators a prediction is of: accelerator-seconds over seconds of the training; None: unknown."""
    whole, each = row.get(Quantity.ACCELERATOR_SECONDS), row.get(Quantity.TRAINING_SECONDS)
    return round(whole / each) if whole and each else None


def _searched(answer: Answer, first: Any) -> dict[str, Any]:
    """The row of a search: counts of layouts, and the fastest."""
    layout = first if isinstance(first, Mapping) else {}
    row = {name: answer.get(name) for name in ("run", "accelerator", "accelerators", "stack", "edition", "tokens")}
    row |= {name: layout.get(name) for name in ("layout", "probability_fits")}
    row |= {quantity.value: layout.get(quantity.value) for quantity in _FIGURES}
    row |= {"training_seconds": layout.get("seconds"), "energy_joules": layout.get("joules")}
    counts = _table(answer, "layouts")
    row |= {"layouts_considered": counts.get("considered"), "layouts_fitting": counts.get("fitting")}
    row |= {"fits": bool(layout), "largest_fitting_peak_bytes": answer.get("memory_bytes")}
    return row | {"assumed": _assumed(answer)}


def _planned(answer: Answer) -> dict[str, Any]:
    best = answer["best"]
    return _searched(answer, best[0] if isinstance(best, list) and best else None)


def _audited(answer: Answer) -> dict[str, Any]:
    row = {name: answer.get(name) for name in COLUMNS if name in answer}
    probability = answer.get("probability_fits")
    return row | {"fits": None if probability is None else probability >= LIKELY_FROM, "run": None}


_READERS: dict[str, Callable[[Answer], dict[str, Any]]] = {
    "audit": _audited,
    "plan": _planned,
    "fit": lambda answer: _searched(answer, answer["fastest"]),
    "predict": _predicted,
}


def _table(answer: Answer, name: str) -> Answer:
    value = answer.get(name)
    return value if isinstance(value, Mapping) else {}


def _assumed(answer: Answer) -> str:
    """Assumptions with the options that change them, in one text."""
    return "; ".join(f"{each[0]} ({each[1]})" for each in answer.get("assumed") or () if len(each) == 2)
