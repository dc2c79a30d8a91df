"""The question of a search for a layout: a training, a machine, abilities of the software, and fixed fields."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from reference_runs.layout import AXES, Layout, Offload, StageAssignment
from reference_runs.run import Architecture, FlopConvention, Recipe
from reference_runs.stack import SEARCHED, SIZES
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.memory_uncertainty import Fitting, PeakUncertainty, peak_kind, peak_uncertainty


class Question(NamedTuple):
    """A search's question.

    Args:
        base: what no search varies: buckets, groups of recomputation; and, where the software has one alone, the order
            of ranks and the assignment of layers.
        ranks: accelerators of the job.
        memory_bytes: that a rank may fill.
        layouts: what the software executes, see `reference_runs.stack.SEARCHED`.
        fused: whether attention is fused; several values are all searched.
        fixed: fields of `Layout` that have one value, whatever the software executes, see
            `reference_runs.layout.named_fields`.
        convention: under which the MFU is counted; None: as model_flop.
    """

    architecture: Architecture
    recipe: Recipe
    base: Layout
    machine: Machine
    ranks: int
    memory_bytes: float
    layouts: tuple[str, ...] = SEARCHED
    fused: tuple[bool, ...] = (False,)
    fixed: Mapping[str, object] = {}
    convention: FlopConvention | None = None

    @property
    def peak_uncertainty(self) -> PeakUncertainty:
        """The uncertainty of a peak, as the machine's stack executes it."""
        return peak_uncertainty(peak_kind(self.machine.stack.keeping))

    def fitting(self, peak: float) -> Fitting:
        """Whether a peak of so many bytes fits into the usable memory."""
        return self.peak_uncertainty.fitting(peak, self.machine.memory_bytes)

    def values(self, field: str, searched: Iterable[Any]) -> tuple[Any, ...]:
        """The fixed value of a field of the layout, or those that are searched."""
        return (self.fixed[field],) if field in self.fixed else tuple(searched)

    def sizes(self, word: str, searched: Iterable[int]) -> tuple[int, ...]:
        """Sizes of an axis, by its word: the fixed one, or those that are searched; 1 where the software has none."""
        return self.values(SIZES[word], searched if word in self.layouts else (1,))

    @property
    def orders(self) -> tuple[str, ...]:
        """Orders of ranks, the one first that is preferred where others are as fast; one where all share a node."""
        own: str = self.values("rank_order", (self.base.rank_order,))[0]
        others: Iterable[str] = ()
        if "rank_order" not in self.fixed and self.ranks > self.machine.accelerators_per_node:
            if "any-order" in self.layouts:
                others = _orders([axis for axis in AXES if axis == "dp" or axis in self.layouts or self._has(axis)])
            elif "stages-first" in self.layouts:
                others = (Layout().rank_order, self.stages_first)
        return (own, *(order for order in others if order != own))

    @property
    def stages_first(self) -> str:
        """Megatron-Core's use_tp_pp_dp_mapping: pipeline stages are nearer than replicas, those of experts nearest."""
        return "tp-cp-pp-dp" if self.architecture.experts is None else "tp-cp-ep-pp-dp"

    def _has(self, axis: str) -> bool:
        return axis in SIZES and self.fixed.get(SIZES[axis], 1) != 1

    @property
    def offloads(self) -> tuple[Offload, ...]:
        """State that may be kept on the host: none, or the optimizer's where the link to the host is known."""
        able = "offload-optimizer" in self.layouts and self.machine.host_bytes_per_second is not None
        return self.values("offload", (Offload.NONE, *([Offload.OPTIMIZER] if able else [])))

    @property
    def assignments(self) -> tuple[StageAssignment, ...]:
        """How layers may be dealt to stages, the run's own way first."""
        own = self.base.stage_assignment
        others = StageAssignment if "layers-and-tables" in self.layouts else ()
        return self.values("stage_assignment", (own, *(each for each in others if each is not own)))


def _orders(several: list[str]) -> Iterator[str]:
    """Every order of the axes that may have several ranks; the others come last."""
    rest = [axis for axis in AXES if axis not in several]
    for order in itertools.permutations(several):
        yield "-".join((*order, *rest))
