"""Which configurations below a directory can run: a row a file, whatever is wrong with it."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from reference_runs.accelerator import Accelerator, accelerator
from reference_runs.catalog import load
from reference_runs.configurations.configuration import ComputedError, Framework, TrainingConfiguration
from reference_runs.configurations.document import SUFFIXES, NoDocumentError
from reference_runs.configurations.kinds import UnknownWord, configuration, model_named, read_file
from reference_runs.configurations.models import UnknownModelError, asked_model, has_model, model_of
from reference_runs.errors import InputError
from reference_runs.hugging_face.configuration import NotDescribedError
from reference_runs.layout import Layout, layout_text
from reference_runs.regular_file import typed_text
from reference_runs.run import ReferenceRun
from reference_runs.stack import stack
from suite.predict.analytic.memory_uncertainty import Fitting, MemoryVerdict, PeakKind, peak_uncertainty
from suite.predict.plan.asked import USUAL_ACCELERATOR, AskedTraining
from suite.predict.plan.configured_training import (
    Judged,
    configured_layout,
    configured_run,
    judged,
    recomputations,
    rising_ranks,
)

MOST_FILES = 20_000
GIB = 2**30
LOGIT_BYTES = 12  # of a logit, at most: in 16 bits and in fp32, and the gradient of each
LEAST_LIKELY = 0.05  # to fit: what is less likely is not said
SHORT = 512  # tokens of a sample of instructions that is not packed: most are shorter
_WITHOUT_MODEL = (Framework.DEEPSPEED, Framework.ACCELERATE, Framework.TRAINER)  # whose files need not name one


class AuditVerdict(enum.StrEnum):
    """Outcome for one file, in the order of the table.

    cannot run: the file has a key of a training and is broken, its software refuses it, its layout does not divide, it
        names no model, or it does not fit.
    not judged: its model is not known here, or nothing here describes it.
    runs: it divides, and it fits or is likely to.
    not a configuration: of no training that is known here, broken or not.
    """

    CANNOT = "cannot run"
    NOT_JUDGED = "not judged"
    RUNS = "runs"
    NONE = "not a configuration"


class Filling(NamedTuple):
    """Values for what a file does not say; None: what is usual.

    Args:
        network: Gbit/s out of a node.
    """

    on: str | None = None
    ranks: int | None = None
    network: float | None = None
    stack: str | None = None
    model: str | None = None
    training: AskedTraining = AskedTraining()


class Audited(msgspec.Struct, frozen=True):
    """Row of a file.

    Args:
        file: its path below the directory.
        read_as: software whose configuration it is; empty: none.
        accelerators: None where it did not come so far.
        accelerators_assumed: whether neither file nor option says how many.
        why: the reason; of one that runs what that rests on.
        peak_bytes: peak of the fullest rank.
        usable_bytes: memory of an accelerator that a training can use.
        probability_fits: probability that the peak fits.
        step_seconds: None where no time is predicted.
    """

    file: str
    read_as: str
    model: str
    accelerator: str
    accelerators: int | None
    accelerators_assumed: bool
    layout: str
    verdict: AuditVerdict
    why: str
    peak_bytes: float | None = None
    usable_bytes: float | None = None
    probability_fits: float | None = None
    step_seconds: float | None = None


def audit(directory: Path, filling: Filling) -> Iterator[Audited]:
    """A row for each file below `directory` that may be a configuration, in the order of their paths.

    Raises:
        InputError: no directory, or no accelerator, stack or model of a name that options say.
    """
    device = accelerator(filling.on or USUAL_ACCELERATOR)
    if filling.stack is not None:
        stack(filling.stack)
    if filling.model is not None:
        try:
            filling = filling._replace(model=asked_model(filling.model))
        except InputError as error:
            raise InputError("; ".join(error.lines), where="--model") from error
    for path in configuration_files(directory):
        yield audited(path, str(path.relative_to(directory)), filling, device)


def configuration_files(directory: Path) -> list[Path]:
    """Files below a directory whose suffix a configuration may have, in order; hidden ones and links are left out.

    Raises:
        InputError: it cannot be read, or has too many files.
    """

    def refuse(error: OSError) -> None:
        raise InputError(f"cannot read the directory: {error.strerror}", got=str(error.filename)) from error

    found: list[Path] = []
    for place, below, names in os.walk(directory, onerror=refuse):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in names:
            path = Path(place, name)
            if path.suffix.casefold() in SUFFIXES and not name.startswith(".") and not path.is_symlink():
                found.append(path)
        if len(found) > MOST_FILES:
            raise InputError(f"more than {MOST_FILES:,} files", got=str(directory))
    return sorted(found)


def audited(path: Path, name: str, filling: Filling, device: Accelerator) -> Audited:
    """The row of one file; whatever is wrong with it is the row's."""
    row = Audited(name, "", "", device.name, None, False, "", AuditVerdict.NONE, "")
    try:
        if _is_run_file(path):
            return replace(
                row, read_as="run file", why=f"a run file of this suite: `fit {name}`", model=load(path).title
            )
        read = read_file(path)
        if isinstance(read, str):
            return replace(row, why=read)
        row = replace(row, read_as=read.software.value)
        row = replace(row, model=model_named(read))
        if read.unknown:
            why = "; ".join(_unknown_words(each) for each in read.unknown)
            return replace(row, verdict=AuditVerdict.CANNOT, why=why)
        filled = _filled(configuration(read), filling, path.parent)
    except NoDocumentError as error:
        return replace(row, why=_words(error))
    except (ComputedError, NotDescribedError) as error:
        return replace(row, verdict=AuditVerdict.NOT_JUDGED, why=_words(error))
    except InputError as error:
        return replace(row, verdict=AuditVerdict.CANNOT, why=_words(error))
    return _judged(row, filled, path.parent, filling, device)


def _filled(of: TrainingConfiguration, filling: Filling, directory: Path) -> TrainingConfiguration:
    """The configuration with what options say of what it leaves out."""
    training = filling.training
    said = of.model or of.shape is not None or has_model(directory)
    return of._replace(
        ranks=of.ranks or filling.ranks,
        stack=filling.stack or of.stack,
        model=of.model if said else filling.model or "",
        sequence=of.sequence or training.sequence,
        precision=of.precision or training.precision,
        batch=of.batch or (training.batch if of.accumulation is None else None),
    )


def _judged(row: Audited, of: TrainingConfiguration, directory: Path, filling: Filling, device: Accelerator) -> Audited:
    """The row of a configuration: its model first, then its layout and its memory.

    Where nothing says how many accelerators there are, they are the fewest that do, doubled from a node on.
    """
    row = replace(row, model=of.model, accelerators=of.ranks, accelerators_assumed=of.ranks is None)
    network = None if filling.network is None else filling.network * 1e9 / 8
    try:
        if of.refused:
            raise InputError("; ".join(of.refused))
        if not of.model and of.shape is None and of.software in _WITHOUT_MODEL and not has_model(directory):
            raise UnknownModelError(
                "missing model: its program loads one; put its config.json beside it, or say --model"
            )
        model, called = model_of(of.model, of.shape, directory, sequence=of.sequence)
        row = replace(row, model=called)
        for ranks in [of.ranks] if of.ranks is not None else rising_ranks(of):
            row = replace(row, accelerators=ranks)
            layout = configured_layout(of, model.architecture, ranks)
            row = replace(row, layout=layout_text(layout))
            before, row = row, _with_memory(row, of, layout, model, device, network)
            if row.verdict is AuditVerdict.RUNS or not _less(row, before):
                break
    except (UnknownModelError, NotDescribedError) as error:
        return replace(row, verdict=AuditVerdict.NOT_JUDGED, why=_words(error))
    except InputError as error:
        return replace(row, verdict=AuditVerdict.CANNOT, why=_words(error))
    except ArithmeticError:
        return replace(row, verdict=AuditVerdict.NOT_JUDGED, why="numbers that are too large to compute with")
    return replace(row, why="; ".join(part for part in (row.why, *of.notes) if part))


def _less(row: Audited, before: Audited) -> bool:
    """Whether more accelerators left each less to hold."""
    if row.peak_bytes is None or before.peak_bytes is None:
        return row.peak_bytes is not None
    return row.peak_bytes < 0.95 * before.peak_bytes


def _with_memory(
    row: Audited,
    of: TrainingConfiguration,
    layout: Layout,
    model: ReferenceRun,
    device: Accelerator,
    network: float | None,
) -> Audited:
    """The row with what the layout needs of each accelerator.

    Where recomputation is not described for such a model, its peak is between those of none and of all.

    Raises:
        InputError: it cannot be divided so.
        NotDescribedError: nothing here describes it, or the peak is near the memory.
    """
    kinds = recomputations(of, model.architecture)
    for kind in kinds:
        run = configured_run(model, of, replace(layout, recomputation=kind))
        found = judged(run, device, stack=of.stack, network=network, adapters=of.adapters)
        verdict, why = _of_memory(found, device)
        if verdict is AuditVerdict.RUNS:
            break
    if verdict is AuditVerdict.RUNS and kind is not kinds[0]:
        verdict, why = AuditVerdict.NOT_JUDGED, "memory: fits if all is computed again, and not if nothing is"
    elif len(kinds) > 1:
        why = "; ".join(part for part in (why, f"as with recompute-{kind}") if part)
    if verdict is AuditVerdict.CANNOT and (unsure := _unsure(of, layout, model, device, found)):
        verdict, why = AuditVerdict.NOT_JUDGED, f"{why}; {unsure}"
    return replace(row, verdict=verdict, why=why, **found._asdict())


def _unsure(of: TrainingConfiguration, layout: Layout, model: ReferenceRun, device: Accelerator, found: Judged) -> str:
    """Why a training of too much memory may run nevertheless: by data, launcher or switches; empty: it cannot."""
    if of.chunked_loss:
        tokens = of.micro_batch * (of.sequence or model.architecture.sequence) // layout.context_parallel
        rows = model.architecture.padded_vocabulary // layout.tensor_parallel
        less = max(1.0, found.peak_bytes - LOGIT_BYTES * tokens * rows)
        spread = peak_uncertainty(PeakKind.FORMULA).fitting(less, found.usable_bytes)
        if spread.verdict is not MemoryVerdict.NOT:
            return "less with its chunked loss, which is not described"
    if of.undescribed:
        return f"less with {', '.join(of.undescribed)}, which is not described"
    changes: dict[str, Any] = (
        {"sequence": SHORT} if of.shorter and (of.sequence or model.architecture.sequence) > SHORT else {}
    )
    ranks = layout.ranks
    if of.launcher_shards and layout.state_ranks > 1:
        changes |= {"zero_stage": 3}
    if not changes:
        return ""
    other = of._replace(**changes)
    run = configured_run(model, other, configured_layout(other, model.architecture, ranks))
    found = judged(run, device, stack=of.stack, network=None, adapters=of.adapters)
    if Fitting(found.probability_fits).verdict is MemoryVerdict.NOT:
        return ""
    ways = {"sequence": f"at {SHORT} tokens a sample, and the data says how long they are"}
    ways["zero_stage"] = "if its launcher shards the state (FSDP, ZeRO-3)"
    return f"fits {', '.join(ways[name] for name in changes)}"


def _of_memory(found: Judged, device: Accelerator) -> tuple[AuditVerdict, str]:
    fitting = Fitting(found.probability_fits)
    needs = f"needs {found.peak_bytes / GIB:,.1f} GiB of {found.usable_bytes / GIB:,.1f} of {device.name}"
    if fitting.verdict is MemoryVerdict.NOT:
        likely = f": {fitting.percent} likely to fit" if fitting.probability >= LEAST_LIKELY else ""
        return AuditVerdict.CANNOT, f"memory: {needs}{likely}"
    return AuditVerdict.RUNS, "" if fitting.verdict is MemoryVerdict.FITS else f"{needs}: {fitting.words}"


def _unknown_words(each: UnknownWord) -> str:
    return f"unknown word {each.word}; did you mean {each.meant}?"


def _is_run_file(path: Path) -> bool:
    """Whether a TOML file has the tables of a run of this suite."""
    if path.suffix.casefold() != ".toml":
        return False
    try:
        text = typed_text(path)
    except (OSError, UnicodeDecodeError):
        return False  # as `read_file` says
    return "\n[architecture]" in text and "\n[sources]" in text


def _words(error: InputError) -> str:
    return "; ".join(dict.fromkeys(line.removeprefix(": ") for line in error.lines))
