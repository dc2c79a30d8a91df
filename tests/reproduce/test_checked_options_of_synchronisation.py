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


def test_a_store_takes_the_usual_layout_without_sharded_state_and_a_plan_without_it_has_none():
    asked, usual = planned(slow_rank="1:2:10"), planned(synchronisation=None)
    assert usual.layout.zero_stage == 1
    assert planned(layout="dp2").layout.zero_stage == 0
    assert (asked.layout.data_parallel, asked.layout.zero_stage, asked.layout.ranks) == (2, 0, 2)
    assert asked.synchronisation == Synchronisation(Waiting.SSP, 3)
    assert asked.slow_ranks == (SlowRank(1, 2.0, 10),)
    assert (usual.synchronisation, usual.slow_ranks) == (None, ())


TOGETHER = [
    ({"ranks": 1}, "dp1, a worker without others"),
    ({"layout": "dp2,tp2,pp2,1f1b,zero1"}, "tp2 and pp2 and zero1"),
    ({"layout": "dp2,zero3"}, "zero3"),
    ({"layout": "dp2,cp2"}, "cp2"),
    ({"layout": "dp2,zero1,reduce-scatter"}, "zero1"),
    ({"layout": "dp2,zero3,offload"}, "zero3 and offload"),
    ({"name": "mixtral-mini", "layout": "ep2,dp1"}, "dp1, a worker without others and ep2 and a mixture of experts"),
    ({"optimizer": "one-bit-adam"}, "one-bit-adam"),
    ({"layout": "dp2,tp2,zero1", "gradient_compression": "fp16"}, "tp2 and zero1 and fp16"),
    ({"name": "opt-mini", "layout": "dp2,pp1,tp1,zero0"}, "the loss scale of fp16-no-master"),
]
OTHERS = [
    (
        {"synchronisation": None, "slow_rank": "1:2"},
        "--slow-rank: a rank that is slowed on purpose; got 1:2, allowed: ",
    ),
    ({"slow_rank": "2:2"}, "--slow-rank: no such rank; got 2, allowed: 0 to 1"),
]


def test_what_does_not_go_together_is_named_whole(not_refused):
    what = "--synchronisation: this does not go together with a parameter store"
    table = [(options, f"{what}; got {names}, allowed: ") for options, names in TOGETHER]
    assert not_refused(planned, table + OTHERS) == []


def test_a_slice_has_none():
    options: dict[str, Any] = {"synchronisation": "asp", "slow_rank": "0:2"}
    with pytest.raises(InputError, match=r"got --synchronisation, --slow-rank"):
        slice_plan(Request(name="gpt2-124m-slice", device="cpu", results=Path(), **options))
