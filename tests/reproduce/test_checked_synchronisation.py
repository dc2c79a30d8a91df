from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reference_runs.errors import InputError
from suite.job.synchronisation import SlowRank, Synchronisation, Waiting
from suite.reproduce.plan import Plan, plan
from suite.reproduce.request import Request
from suite.reproduce.slice_plan import slice_plan


def planned(**options: Any) -> Plan:
    usual = {"name": "gpt2-mini", "device": "cpu", "results": Path(), "synchronisation": "ssp:3"}
    return plan(Request(**(usual | options)))


def test_a_store_takes_the_usual_layout_without_sharded_state() -> None:
    asked = planned(slow_rank="1:2:10")
    assert planned(synchronisation=None).layout.zero_stage == 1
    assert planned(layout="dp2").layout.zero_stage == 0
    assert (asked.layout.data_parallel, asked.layout.zero_stage, asked.layout.ranks) == (2, 0, 2)
    assert asked.synchronisation == Synchronisation(Waiting.SSP, 3)
    assert asked.slow_ranks == (SlowRank(1, 2.0, 10),)


def test_a_plan_without_it_has_no_store() -> None:
    asked = planned(synchronisation=None)
    assert (asked.synchronisation, asked.slow_ranks) == (None, ())


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"ranks": 1}, ["dp1, a worker without others"]),
        ({"layout": "dp2,tp2,pp2,1f1b,zero1"}, ["tp2", "pp2", "zero1"]),
        ({"layout": "dp2,zero3"}, ["zero3"]),
        ({"layout": "dp2,cp2"}, ["cp2"]),
        ({"layout": "dp2,zero1,reduce-scatter"}, ["zero1"]),
        ({"layout": "dp2,zero3,offload"}, ["zero3", "offload"]),
        (
            {"name": "mixtral-mini", "layout": "ep2,dp1"},
            ["dp1, a worker without others", "ep2", "a mixture of experts"],
        ),
        ({"optimizer": "one-bit-adam"}, ["one-bit-adam"]),
        ({"layout": "dp2,tp2,zero1", "gradient_compression": "fp16"}, ["tp2", "zero1", "fp16"]),
        ({"name": "opt-mini", "layout": "dp2,pp1,tp1,zero0"}, ["the loss scale of fp16-no-master"]),
    ],
)
def test_what_does_not_go_together_is_named_whole(options: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        planned(**options)
    line = str(refused.value)
    assert line.startswith("--synchronisation: this does not go together with a parameter store; got ")
    got = line.split("; got ")[1].split(", allowed: ")[0]
    assert got == " and ".join(names)


def test_a_slow_rank_needs_a_store_and_is_one_of_its_ranks() -> None:
    with pytest.raises(InputError, match=r"--slow-rank: a rank that is slowed on purpose.*with --synchronisation"):
        planned(synchronisation=None, slow_rank="1:2")
    with pytest.raises(InputError, match=r"--slow-rank: no such rank; got 2, allowed: 0 to 1"):
        planned(slow_rank="2:2")


def test_a_slice_has_none() -> None:
    options: dict[str, Any] = {"synchronisation": "asp", "slow_rank": "0:2"}
    with pytest.raises(InputError, match=r"got --synchronisation, --slow-rank"):
        slice_plan(Request(name="gpt2-124m-slice", device="cpu", results=Path(), **options))
