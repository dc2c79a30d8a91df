"""A published time implies shares without a network, and is remarked where no machine can be so fast."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from reference_runs.catalog import reference_run, run_names
from reference_runs.run import ReferenceRun, Workload
from suite.metrics.figures import Quantity
from suite.predict.analytic.flop_conventions import causal_half_flop
from suite.predict.recorded_run.prediction import run_prediction
from suite.predict.recorded_run.published import (
    AT_PUBLISHED_RATE,
    AT_PUBLISHED_TIME,
    figures_at_published_times,
    implausible_time,
)
from tests.support.layouts import run_machine_of

BLOOM = reference_run("bloom-176b")


def changed(run: ReferenceRun, **reported: Any) -> ReferenceRun:
    return msgspec.structs.replace(run, reported=msgspec.structs.replace(run.reported, **reported))


def peak_of(run: ReferenceRun):
    found = run_machine_of(run)
    assert found is not None
    return found, found.peak


def implied(run: ReferenceRun, quantity: Quantity, term: str) -> float:
    _, peak = peak_of(run)
    prediction = run_prediction(Workload(run.architecture, run.recipe, run.layout), None)
    computed, _ = figures_at_published_times(run, prediction, peak)
    (value,) = [figure.value for figure in computed if (figure.quantity, figure.term) == (quantity, term)]
    return value


def test_a_published_time_implies_its_mfu_without_a_network() -> None:
    assert BLOOM.cluster is not None
    cluster = msgspec.structs.replace(BLOOM.cluster, accelerator="tpu-v4")  # for which none is usual
    known = msgspec.structs.replace(BLOOM, cluster=cluster)
    alone = msgspec.structs.replace(BLOOM, cluster=msgspec.structs.replace(cluster, network_interface_bandwidth=None))
    found, _ = peak_of(alone)
    assert found.machine is None
    assert found.missing
    assert implied(alone, Quantity.MFU, AT_PUBLISHED_TIME) == implied(known, Quantity.MFU, AT_PUBLISHED_TIME)


def test_published_tokens_per_second_imply_what_their_step_time_does() -> None:
    seconds = 105.0
    tokens = BLOOM.recipe.global_batch * BLOOM.architecture.sequence / seconds
    by_rate = changed(BLOOM, step_seconds=None, tokens_per_second=tokens)
    by_time = changed(BLOOM, step_seconds=seconds)
    for quantity in (Quantity.MFU, Quantity.HFU, Quantity.MODEL_FLOP_PER_SECOND):
        # a quotient of a quotient: two roundings more
        expected = pytest.approx(implied(by_time, quantity, AT_PUBLISHED_TIME), rel=4 * 2**-53)
        assert implied(by_rate, quantity, AT_PUBLISHED_RATE) == expected


def test_a_time_that_implies_more_of_the_peak_than_any_training_reached_is_remarked() -> None:
    _, peak = peak_of(BLOOM)
    flop = causal_half_flop(BLOOM.architecture, samples=BLOOM.recipe.global_batch)
    for share, remarked in ((0.74, False), (0.76, True), (1.14, True)):
        run = changed(BLOOM, step_seconds=flop / (share * 384 * peak.flop_per_second))
        remark = implausible_time(run, peak)
        assert (remark is not None) == remarked
        if remark is not None:
            assert remark.startswith(f"at the published step time {share:.0%} of the peak")
        assert implausible_time(run, None) is None


def test_no_recorded_run_is_implausible() -> None:
    known = [run for run in map(reference_run, run_names()) if run.recorded_layout is not None and run.cluster]
    assert {run.name: remark for run in known if (remark := implausible_time(run, peak_of(run)[1]))} == {}
