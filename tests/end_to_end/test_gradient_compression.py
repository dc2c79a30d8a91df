"""Other ways of averaging than DistributedDataParallel's: counted beside their prediction, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reference_runs.catalog import miniatures
from reference_runs.errors import InputError
from reference_runs.run import Precision
from suite.job.events import Status
from suite.job.options import Averaging
from suite.metrics.figures import Quantity
from suite.reproduce.plan import Plan, plan
from suite.reproduce.request import Request
from tests.end_to_end.layouts.table import Case, small_run
from tests.support.launches import FP32_WITHOUT_DROPOUT, exact_rows, failed_rows, launched, small_plan

EXACT_STEPS = 3
STEPS = 9


def averaged(averaging: Averaging, *, ranks: int = 2, exact_steps: int = EXACT_STEPS, **more: Any) -> Plan:
    layout = {"zero_stage": 0} | more.pop("layout", {})
    small = small_plan(ranks=ranks, layout=layout, **more)
    exact_steps = exact_steps if averaging.exact_at_first else 0
    return msgspec.structs.replace(small, averaging=averaging, exact_steps=exact_steps, steps=STEPS)


def in_one_bit(case: Case) -> Plan:
    return msgspec.structs.replace(small_run(case), averaging=Averaging.ONE_BIT, exact_steps=EXACT_STEPS, steps=STEPS)


def kinds(record: str) -> list[str]:
    """The kinds of the steps of rank 0."""
    end = json.loads(Path(record.replace("begin", "end")).read_text())
    return [step["kind"] for step in end["ranks"][0]["steps"]]


pytestmark = pytest.mark.usefixtures("warm_ranks")

SCALED = {"precision": Precision.FP16, "initial_loss_scale": 65536.0, "loss_scale_window": 1000}


CASES = {
    "one-bit": averaged(Averaging.ONE_BIT),
    "one-bit-compiled": averaged(Averaging.ONE_BIT, compiled=True),
    "one-bit-3": averaged(Averaging.ONE_BIT, ranks=3, recipe=FP32_WITHOUT_DROPOUT | {"global_batch": 12}),
    "one-bit-tp2": in_one_bit(Case("bloom-mini", "16bit", "dp2,tp2")),
    "one-bit-pp2": in_one_bit(Case("gpt2-mini", "fp32", "dp2,pp2,1f1b,interleave2")),
    "fp16": averaged(Averaging.FP16, layout={"bucket_bytes": 100_000}),
}


@pytest.mark.ranks
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name, marks=() if name == "one-bit" else pytest.mark.rare) for name, case in CASES.items()],
)
@pytest.mark.always
def test_what_is_kept_and_sent_equals_the_prediction_exactly(case: Plan, tmp_path: Path) -> None:
    result = launched(case, tmp_path)
    assert result.status is Status.OK, result.message
    assert failed_rows(result) == set()
    sent = {(row.operation, row.left) for row in exact_rows(result.rows) if row.axis == "dp" and row.rank is None}
    if case.averaging is Averaging.ONE_BIT:
        assert {operation for operation, _ in sent} >= {"all_to_all", "all_gather", "all_reduce"}
        assert kinds(result.record)[: EXACT_STEPS + 2] == ["warm-up"] * (EXACT_STEPS + 1) + ["counted"]
    assert all(row.right == row.left for row in exact_rows(result.rows))


@pytest.mark.ranks
@pytest.mark.rare
def test_before_the_switch_losses_are_those_of_exact_adam_and_then_they_are_not(tmp_path: Path) -> None:
    recipe = FP32_WITHOUT_DROPOUT
    exact = launched(msgspec.structs.replace(averaged(Averaging.EXACT, recipe=recipe), steps=STEPS), tmp_path).losses
    one_bit = launched(averaged(Averaging.ONE_BIT, recipe=recipe), tmp_path).losses
    # the update is the same, of each tensor rather than of all in one: losses know it in their last digits alone
    assert one_bit[: EXACT_STEPS + 1] == pytest.approx(exact[: EXACT_STEPS + 1], rel=1e-6)
    later = zip(exact[EXACT_STEPS + 1 :], one_bit[EXACT_STEPS + 1 :], strict=True)
    assert all(abs(theirs - ours) > 1e-4 for theirs, ours in later)


@pytest.mark.ranks
@pytest.mark.rare
def test_an_overflow_in_the_warm_up_makes_it_a_step_longer(tmp_path: Path) -> None:
    scaled = SCALED | {"initial_loss_scale": 2.0**32}  # overflows, and some of its halves too
    case = msgspec.structs.replace(averaged(Averaging.ONE_BIT, exact_steps=2, recipe=scaled), steps=30)
    result = launched(case, tmp_path)
    assert result.status is Status.OK, result.message
    assert result.skipped
    assert result.skipped[0] == 0
    counted = kinds(result.record).index("counted")
    # a scale that has grown again overflows again, where a processor rounds so: those steps are not of the warm-up
    assert counted == sum(step < counted for step in result.skipped) + 3
    assert failed_rows(result) == set()


@pytest.mark.ranks
@pytest.mark.rare
def test_powersgd_trains_and_its_messages_are_not_judged(tmp_path: Path) -> None:
    case = averaged(Averaging.POWER_SGD, layout={"bucket_bytes": 2**30})
    result = launched(case, tmp_path)
    assert result.status is Status.OK, result.message
    assert failed_rows(result) == set()
    judged = {(row.quantity, row.axis) for row in exact_rows(result.rows)}
    assert ("payload_bytes", "dp") not in judged
    assert any(row.quantity == Quantity.SENT_BYTES and row.left for row in result.rows)


def test_every_miniature_takes_one_bit_adam(tmp_path: Path) -> None:
    plans = {name: plan(Request(name=name, optimizer="one-bit-adam", results=tmp_path)) for name in miniatures()}
    found = {name: (made.averaging, made.exact_steps, made.layout.zero_stage) for name, made in plans.items()}
    assert found == dict.fromkeys(miniatures(), (Averaging.ONE_BIT, 4, 0))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"optimizer": "adagrad"}, "unknown optimizer; got 'adagrad', allowed: adam, one-bit-adam"),
    ({"gradient_compression": "zip"}, "unknown gradient compression; got 'zip', allowed: none, fp16, bf16, powersgd"),
    ({"optimizer": "one-bit-adam", "gradient_compression": "fp16"}, "got fp16, allowed: none"),
    ({"optimizer": "one-bit-adam", "layout": "dp2,zero1"}, "sharded over ranks; got zero1, allowed: zero0"),
    ({"optimizer": "one-bit-adam", "ranks": 1}, "got dp1, allowed: dp2 or more"),
    ({"optimizer": "one-bit-adam", "exact_steps": 1}, "got 1, allowed: 2 or more, and fewer than --steps"),
    ({"optimizer": "one-bit-adam", "exact_steps": 30, "steps": 30}, "got 30, allowed: 2 or more, and fewer"),
    ({"renewal": True}, "nothing to renew; got exact, allowed: --optimizer one-bit-adam"),
    ({"optimizer": "one-bit-adam", "renewal": True, "exact_steps": 3}, "too few exact steps to renew; got 3, .* 4"),
    ({"exact_steps": 3}, "got 3, allowed: with --optimizer one-bit-adam or --gradient-compression powersgd"),
    ({"optimizer": "one-bit-adam", "steps": 6}, "too few steps: 3 warm up, 3 are counted, .* allowed: 7 or more"),
    ({"gradient_compression": "bf16", "device": "cpu"}, "bf16 without NCCL .* got cpu, allowed: cuda"),
    ({"gradient_compression": "powersgd", "name": "glm-mini"}, "got fp16, allowed: bf16, fp32"),
]


def test_what_cannot_be_averaged_so_is_refused_in_one_line(tmp_path: Path) -> None:
    for asked, words in REFUSED:
        with pytest.raises(InputError, match=words):
            plan(Request(**({"name": "gpt2-mini", "results": tmp_path} | asked)))
