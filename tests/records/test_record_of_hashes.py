"""Hashes of a launch's policy stay what earlier versions stored, whatever fields have been added since."""

from __future__ import annotations

from typing import Any

import msgspec

from reference_runs.architecture import QueryKeyNorm
from reference_runs.layout import Layout
from reference_runs.run import ProductFormat
from suite.job.checkpoints import Checkpoints
from suite.job.options import DEFAULT_OPTIONS, Texts
from suite.job.slice import Slice, SliceStage
from suite.job.synchronisation import SlowRank, Synchronisation, Waiting
from suite.paths import ROOT
from suite.records.record import Begin, decode, policy
from tests.support.record_halves import begin

EARLIER = sorted((ROOT / "tests/records/earlier_records/records").rglob("*.begin.json"))
RECORDED = sorted((ROOT / "results/recorded/records").rglob("*.begin.json"))


def test_the_architecture_of_an_earlier_launch_has_its_stored_hash() -> None:
    begins = [decode(path.read_bytes(), Begin, path.name) for path in (*EARLIER, *RECORDED)]
    names = ("architecture", "layout", "recipe")
    other = [(one.id, name) for one in begins for name in names if policy(one.job)[name] != one.policy[name]]
    assert other == []
    assert len(begins) > 20


def test_another_value_of_a_later_field_is_another_hash() -> None:
    begin = decode(EARLIER[0].read_bytes(), Begin, "here")
    architecture = msgspec.structs.replace(begin.job.architecture, query_key_norm=QueryKeyNorm.HEAD)
    job = msgspec.structs.replace(begin.job, architecture=architecture)
    assert policy(job)["architecture"] != begin.policy["architecture"]
    recipe = msgspec.structs.replace(begin.job.recipe, product_format=ProductFormat.FP8_CURRENT)
    assert policy(msgspec.structs.replace(begin.job, recipe=recipe))["recipe"] != begin.policy["recipe"]


FILES = Texts(tokenizer_file="/a", text_file="/b", documents_file="/c")
SLICE = Slice(run="bloom", layout=Layout(), stage=SliceStage.LAST, layers=2, sequence=64, micro_batch=1, rank=0)


def test_a_policy_says_what_a_launch_asks_for_and_nothing_more() -> None:
    """Launches are compared by it: a fact more would make all earlier ones incomparable."""
    cases: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({}, {}),
        ({"device": "cuda"}, {"device": "cuda", "deterministic": "False"}),
        ({"interface": "eth1"}, {"interface": "eth1"}),
        ({"shares_devices": True}, {"shares_devices": "True"}),
        ({"synchronisation": Synchronisation(Waiting.SSP, 3)}, {"synchronisation": "ssp:3"}),
        ({"slow_ranks": (SlowRank(0, 2.0), SlowRank(1, 1.5, 4))}, {"slow_ranks": "0:2:1,1:1.5:4"}),
        ({"checkpoints": Checkpoints(directory="/x", every=5)}, {"checkpoint_every": "5"}),
        ({"slice": SLICE}, {"slice": "2 layers, stage last"}),
        ({"slice": msgspec.structs.replace(SLICE, group=(0, 1))}, {"slice": "2 layers, stage last", "processes": "2"}),
    ]
    job = begin().job
    for changes, said in cases:
        assert policy(msgspec.structs.replace(job, **changes)) == policy(job) | said


def test_a_policy_has_a_script_without_the_files_of_its_texts() -> None:
    job = begin().job
    options = [msgspec.structs.replace(DEFAULT_OPTIONS, rung="speed/compile", texts=texts) for texts in (None, FILES)]
    without, with_texts = (policy(msgspec.structs.replace(job, training_options=each)) for each in options)
    assert with_texts == without
    assert "speed/compile" in without["script"]
    assert "script" not in policy(job)
