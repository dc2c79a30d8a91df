"""Measurements of a diagnosed run that its page draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from reference_runs.accelerator import Accelerator
from reference_runs.training_logs.training_log import PrintedStep
from reference_runs.training_traces.products import TimedProduct
from suite.predict.diagnosis.step_timeline import WorkLane


class DiagnosisEvidence(NamedTuple):
    """Measurements of a run, and what else a picture of them needs.

    Args:
        steps: with their seconds, the first ones included.
        expected: seconds of the predicted step by the names of `MeasuredTerm`; empty: nothing is predicted.
        lanes: of a step of a trace; empty: there is no trace.
        products: of that trace.
        accelerator: None: not known, and there is no roofline.
    """

    steps: Sequence[PrintedStep] = ()
    expected: Mapping[str, float] = {}
    lanes: Sequence[WorkLane] = ()
    products: Sequence[TimedProduct] = ()
    accelerator: Accelerator | None = None
