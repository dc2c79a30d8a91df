"""The machine model as data: parameters with unit, meaning and uncertainty, and how well they fit published tables."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from reference_runs.recorded_file import record_of
from reference_runs.stack import AttentionKernel

MACHINE_MODEL = Path(__file__).parent / "machine_model.toml"
FIT_SCORES = Path(__file__).parent / "fit_scores.toml"  # what the fit reached: written by `refit`


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
        uncertainty: relative standard error of a step time on an accelerator of this family that no row measured.
    """

    accelerators: tuple[str, ...]
    measured: tuple[str, ...]
    why: str
    attention: dict[AttentionKernel, float]
    attention_source: str
    uncertainty: float


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
    """All parameters by name, and the families; a parameter `NAME.FAMILY` holds for that family alone.

    Args:
        unmeasured_stack: relative error that a stack without any published row adds; `why_unmeasured` says why.
        unnamed_accelerator: relative standard error of a step time on an accelerator that no family names, in place of
            its family's `uncertainty`; `why_unnamed` says why.
        unfitted_products: relative error that products in a format of 8 or 4 bits add; `why_unfitted` says why.
        residual: relative standard deviation of published step times around the fit, tables weighted equally.
        spreads: by which step times differ from row to row, and together.
    """

    title: str
    residual: float
    unmeasured_stack: float
    why_unmeasured: str
    unnamed_accelerator: float
    why_unnamed: str
    unfitted_products: float
    why_unfitted: str
    spreads: Spreads
    parameters: dict[str, Parameter]
    families: dict[str, Family]

    def is_later(self, accelerator: str) -> bool:
        """Whether it is later than those of the family "ampere", which V100 and A100 belong to."""
        return accelerator not in self.families["ampere"].accelerators

    def values(self) -> dict[str, float]:
        """The parameters' values by name."""
        return {name: parameter.value for name, parameter in self.parameters.items()}


@cache
def machine_model(path: Path = MACHINE_MODEL) -> MachineModel:
    """The machine model that the TOML file at `path` records.

    Raises:
        InputError: unreadable file, broken TOML, missing, unknown or wrongly typed key.
    """
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


class FitScores(msgspec.Struct, frozen=True, kw_only=True):
    """Scores by table; of each term, the error without it after a new fit of the others.

    Args:
        free_parameters: that the fit determined.
        all_terms: mean over the tables of their mean absolute errors, in percent.
        half_width: by regime, the distance of the logarithms of predicted and measured step time within which 80 % of
            rows lie whose table the fit has not seen; tables weigh alike.
        coverage: by what was left out, percent of rows inside the interval that the other tables' errors give.
        peak_excess: logarithm of the factor up to which 80 % of published peaks are above the predicted tensors; rows
            weigh alike.
        peak_coverage: percent of the peaks on each number of accelerators inside the interval that the others give.
        peak_bytes: mean absolute error of the predicted peaks by table, in percent, of tables that have measured ones;
            no parameter of the fit enters them.
        without_term: the same by term.
        without_term_by_table: term -> table -> mean absolute error.
    """

    free_parameters: int
    all_terms: float
    half_width: dict[str, float]
    coverage: dict[str, float]
    peak_excess: float
    peak_coverage: float
    peak_bytes: dict[str, float]
    tables: dict[str, LeftOutScore]
    without_term: dict[str, float]
    without_term_by_table: dict[str, dict[str, float]]


@cache
def fit_scores(path: Path = FIT_SCORES) -> FitScores:
    """The scores that the TOML file at `path` records.

    Raises:
        InputError: unreadable file, broken TOML, missing, unknown or wrongly typed key.
    """
    return record_of(path, FitScores, what="scores of the fit")
