"""The machine model as data: parameters with unit, meaning and uncertainty, and how well they fit published tables.

Each fit is an edition with a name. The current one is read unless a block chooses an earlier one: `edition_chosen`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from reference_runs.errors import InputError, nearest
from reference_runs.recorded_file import record_of
from reference_runs.run import ProductFormat
from reference_runs.stack import AttentionKernel

MACHINE_MODEL = Path(__file__).parent / "machine_model.toml"
FIT_SCORES = Path(__file__).parent / "fit_scores.toml"  # what the fit reached: written by `refit`
EDITIONS = Path(__file__).parent / "editions"  # earlier fits, NAME/ with two files of the same names


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number of the machine model.

    Args:
        least: no fit goes below it, and `most` not above: what is physically possible.
        expected: what general knowledge says before any fit; the fit is drawn to it, weakly, within a factor of
            `spread`.
        uncertainty: relative standard error of the fit; None: not fitted.
        rows: measurements that depend on it.
        tables: published tables that those rows come from.
    """

    value: Annotated[float, msgspec.Meta(gt=0)]
    unit: str
    meaning: str
    source: str
    least: float
    most: float
    expected: float
    spread: Annotated[float, msgspec.Meta(ge=1)]
    uncertainty: float | None = None
    rows: int | None = None
    tables: tuple[str, ...] = ()

    @property
    def fitted(self) -> bool:
        """Whether the parameter is free in the fit."""
        return self.spread > 1

    @property
    def at_bound(self) -> bool:
        """Whether the value is one of its bounds, where the rows say nothing of its uncertainty."""
        return not 1.001 * self.least < self.value < 0.999 * self.most


class Family(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Accelerators that share an efficiency surface.

    Args:
        accelerators: names in the catalog; the last family takes what none names.
        measured: of these, the ones that published rows determined it with.
        why: what speaks for sharing.
        attention: share of the dense peak that each fused attention kernel reaches here.
        exponential_flop: dense flop of 16-bit products in the time of one exponential, both at their peaks.
        uncertainty: relative standard error of a step time on an accelerator of this family that no row measured.
    """

    accelerators: tuple[str, ...]
    measured: tuple[str, ...]
    why: str
    attention: dict[AttentionKernel, float]
    attention_source: str
    uncertainty: float
    exponential_flop: float = 0.0


class Spreads(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Standard deviations of the logarithm of measured over predicted step time: what no column tells.

    Args:
        laboratory: common to a table's rows: machines, their health, containers.
        size: common to a table's rows of one model's size.
        part: common to the rows of a composed table that are made of one measured layer, in place of `size`.
        row: of each row alone; `composed_row`: of each row of a composed table.
    """

    laboratory: Annotated[float, msgspec.Meta(gt=0)]
    size: Annotated[float, msgspec.Meta(gt=0)]
    part: Annotated[float, msgspec.Meta(gt=0)]
    row: Annotated[float, msgspec.Meta(gt=0)]
    composed_row: Annotated[float, msgspec.Meta(gt=0)]
    why: str


class MachineModel(msgspec.Struct, frozen=True, kw_only=True):
    """All parameters by name, and the families.

    A parameter `NAME.FAMILY` holds for that family alone, `NAME.FORMAT` for products in that format.

    Args:
        edition: name of this fit, for `--edition`.
        unmeasured_stack: relative error that a stack without any published row adds; `why_unmeasured` says why.
        unnamed_accelerator: relative standard error of a step time on an accelerator that no family names, in place of
            its family's `uncertainty`; `why_unnamed` says why.
        unfitted_products: relative error that products in a format of 8 or 4 bits add of which no table measured a
            step; `why_unfitted` says why.
        measured_products: the formats of which one did.
        residual: relative standard deviation of published step times around the fit, tables weighted equally.
        spreads: by which step times differ from row to row, and together.
    """

    title: str
    edition: str
    residual: float
    unmeasured_stack: float
    why_unmeasured: str
    unnamed_accelerator: float
    why_unnamed: str
    unfitted_products: float
    why_unfitted: str
    measured_products: tuple[ProductFormat, ...] = (ProductFormat.FP8_DELAYED,)
    spreads: Spreads
    parameters: dict[str, Parameter]
    families: dict[str, Family]

    def is_later(self, accelerator: str) -> bool:
        """Whether it is later than those of the family "ampere", which V100 and A100 belong to."""
        return accelerator not in self.families["ampere"].accelerators

    def basis(self, family: str, accelerator: str) -> str:
        """The grounds of the efficiencies of an accelerator of that family, in words."""
        of_family, gemms = self.families[family], self.parameters.get(f"matrix_efficiency.{family}")
        if not of_family.measured and gemms:
            return f"from no step time, as none of {family} accelerators is published: {gemms.meaning}"
        known = accelerator in of_family.measured
        like = accelerator if known else f"{family} accelerators, as none of {accelerator} is published"
        return f"fitted to published step times of {like}"

    def values(self) -> dict[str, float]:
        """The parameters' values by name."""
        return {name: parameter.value for name, parameter in self.parameters.items()}


def machine_model(path: Path | None = None) -> MachineModel:
    """The machine model that the TOML file at `path` records; None: that of the chosen edition.

    Raises:
        InputError: unreadable file, broken TOML, missing, unknown or wrongly typed key.
    """
    return _model(path or edition_files(_chosen).model)


@cache
def _model(path: Path) -> MachineModel:
    return record_of(path, MachineModel, what="machine model")


class LeftOutScore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mean absolute errors of a table's step times, in percent.

    Args:
        fitted: with every row in the fit.
        table_left_out: with the whole table left out.
        cluster_left_out: with every table of the same cluster left out.
        size_left_out: of each row, with all rows of its model's size left out, in every table.
        run_left_out: of each row of the recorded runs, with the run left out; None in other tables.
        run_left_out_max: the largest of these.
    """

    rows: int
    fitted: float
    table_left_out: float
    cluster_left_out: float
    size_left_out: float
    run_left_out: float | None = None
    run_left_out_max: float | None = None


class LaterScore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mean absolute errors in percent of rows whose table determines parameters alone: dense models, or mixtures.

    Args:
        fitted: with every row in the fit of these parameters.
        expected: with these parameters as they were expected before any fit.
        release_left_out: of each row, with the rows of its software's release left out.
        accelerator_left_out: with those of its accelerator; `size_left_out`: with those of its model.
        half_width: distance of the logarithms of predicted and measured step time within which 80 % of the rows lie,
            releases left out.
        coverage: percent of the rows inside the half-width that the other releases give.
    """

    rows: int
    fitted: float
    expected: float
    release_left_out: float
    accelerator_left_out: float
    size_left_out: float
    half_width: float
    coverage: float


class PeakSpread(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured over predicted peaks of one kind of stack.

    Args:
        spread: standard deviation of the logarithm of measured over predicted peak.
        rows: measured peaks of the kind; few: the spread is that of kinds without one of their own.
    """

    spread: Annotated[float, msgspec.Meta(gt=0)]
    rows: int


class FitScores(msgspec.Struct, frozen=True, kw_only=True):
    """Scores by table; of each term, the error without it after a new fit of the others.

    Args:
        free_parameters: that the fit determined.
        all_terms: mean over the tables of their mean absolute errors, in percent.
        half_width: by regime, the distance of the logarithms of predicted and measured step time within which 80 % of
            rows lie whose table the fit has not seen; tables weigh alike.
        coverage: by what was left out, percent of rows inside the interval that the other tables' errors give.
        peaks: uncertainty of predicted peaks by kind of stack; no parameter of the fit enters them.
        peak_coverage: percent of the published peaks inside the 80 % interval that those on other numbers of
            accelerators give.
        later: by table that determines parameters alone, of its dense models and of its mixtures.
        without_term: the same by term.
        without_term_by_table: term -> table -> mean absolute error.
    """

    free_parameters: int
    all_terms: float
    half_width: dict[str, float]
    coverage: dict[str, float]
    peak_coverage: float
    peaks: dict[str, PeakSpread]
    tables: dict[str, LeftOutScore]
    without_term: dict[str, float]
    without_term_by_table: dict[str, dict[str, float]]
    later: dict[str, dict[str, LaterScore]] = {}


def fit_scores(path: Path | None = None) -> FitScores:
    """The scores that the TOML file at `path` records; None: those of the chosen edition.

    Raises:
        InputError: unreadable file, broken TOML, missing, unknown or wrongly typed key.
    """
    return _scores(path or edition_files(_chosen).scores)


@cache
def _scores(path: Path) -> FitScores:
    return record_of(path, FitScores, what="scores of the fit")


class EditionFiles(NamedTuple):
    """Where an edition's parameters and scores are stored."""

    model: Path
    scores: Path


def edition_files(name: str | None = None) -> EditionFiles:
    """The files of the earlier edition of that name; None: of the current one."""
    if name is None:
        return EditionFiles(MACHINE_MODEL, FIT_SCORES)
    return EditionFiles(EDITIONS / name / MACHINE_MODEL.name, EDITIONS / name / FIT_SCORES.name)


def current_edition() -> str:
    """The name of the edition that is read where none is chosen."""
    return _model(MACHINE_MODEL).edition


def editions() -> tuple[str, ...]:
    """The names of all editions, the current one last."""
    earlier = {path.parent.name for path in EDITIONS.glob(f"*/{MACHINE_MODEL.name}")}
    return (*sorted(earlier - {current_edition()}), current_edition())


# Of the process, not of a context: the page with controls answers in threads of its own.
_chosen: str | None = None


def chosen_edition() -> str | None:
    """The name of the earlier edition that is chosen; None: the current one is read."""
    return _chosen


@contextmanager
def edition_chosen(name: str | None) -> Iterator[None]:
    """Everything in the block is predicted with the edition of that name; None: with the current one.

    Raises:
        InputError: there is none of that name.
    """
    global _chosen
    if name is not None and name not in (known := editions()):
        raise InputError(
            "no such edition", got=name, meant=nearest(name, known), allowed=", ".join(known), where="--edition"
        )
    before, _chosen = _chosen, None if name == current_edition() else name
    try:
        yield
    finally:
        _chosen = before


def read_again() -> None:
    """Forget what was read, after files have been written."""
    _model.cache_clear()
    _scores.cache_clear()
