"""Types of what commands print with --json of models that are traced or served."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from suite.job.events import CountedCollective
from suite.job.operators import TracedOperator
from suite.job.served_job import ServedTrace
from suite.job.trace_job import GraphBreak, TracedParameters, TraceJob
from suite.predict.analytic.memory_uncertainty import MemoryVerdict

Section = dict[str, Any]


class TracedAnswer(msgspec.Struct, kw_only=True):
    """A model's step that was executed without memory; seconds are null where the network is needed and not known.

    `no_formula` is the reason why no formula answered.
    """

    run: str
    answered_by: Literal["trace"]
    no_formula: str
    traced: Section
    job: TraceJob
    assumed: list[str]
    accelerator: str
    edition: str
    fits: MemoryVerdict
    probability_fits: float
    usable_bytes: float
    parameters: TracedParameters
    model_flop: int
    hardware_flop: int
    step_seconds: float | None
    tokens_per_second: float | None
    mfu: float | None
    peak_bytes: int
    at_peak: Section
    kept_bytes: dict[str, int]
    graph_breaks: list[GraphBreak]
    collectives: list[CountedCollective]
    operators: list[TracedOperator]


class ServingAnswer(msgspec.Struct, kw_only=True):
    """The memory to serve a model on each of so many accelerators; `traced` is null where formulas answer."""

    run: str
    accelerator: str
    accelerators: int
    assumed: list[str]
    fits: bool
    memory_bytes: float
    serving: Section
    traced: ServedTrace | None


class TiersAnswer(msgspec.Struct, kw_only=True):
    """Memory that models need for each purpose on one card and on a node of 8, and the largest that fits each card."""

    context: int
    sequences: int
    models: list[Section]
    cards: list[Section]


class TracedFitAnswer(msgspec.Struct, kw_only=True):
    """Whether a traced model fits on so many accelerators; `steps` are all that were traced there."""

    run: str
    answered_by: Literal["trace"]
    no_formula: str
    accelerator: str
    accelerators: int
    stack: str
    assumed: list[str]
    fits: bool
    memory_bytes: float
    layouts: Section
    fastest: Section | None
    smallest: Section
    largest_micro_batch: int | None
    accelerators_that_would_do: int | None
    steps: list[Section]
    traces: int
    parameters: TracedParameters
