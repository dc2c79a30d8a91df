"""Hashes of a launch's policy stay what earlier versions stored, whatever fields have been added since."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs.architecture import QueryKeyNorm
from reference_runs.run import ProductFormat
from suite.paths import ROOT
from suite.records.record import Begin, decode, policy

EARLIER = sorted((ROOT / "tests/records/earlier_records/records").rglob("*.begin.json"))
RECORDED = sorted((ROOT / "results/recorded/records").rglob("*.begin.json"))[::40]


@pytest.mark.parametrize("path", [*EARLIER, *RECORDED], ids=lambda path: path.name)
def test_the_architecture_of_an_earlier_launch_has_its_stored_hash(path: object) -> None:
    begin = decode(path.read_bytes(), Begin, "here")  # type: ignore[attr-defined]
    assert policy(begin.job)["architecture"] == begin.policy["architecture"]
    assert policy(begin.job)["layout"] == begin.policy["layout"]
    assert policy(begin.job)["recipe"] == begin.policy["recipe"]


def test_another_value_of_a_later_field_is_another_hash() -> None:
    begin = decode(EARLIER[0].read_bytes(), Begin, "here")
    architecture = msgspec.structs.replace(begin.job.architecture, query_key_norm=QueryKeyNorm.HEAD)
    job = msgspec.structs.replace(begin.job, architecture=architecture)
    assert policy(job)["architecture"] != begin.policy["architecture"]
    recipe = msgspec.structs.replace(begin.job.recipe, product_format=ProductFormat.FP8_CURRENT)
    assert policy(msgspec.structs.replace(begin.job, recipe=recipe))["recipe"] != begin.policy["recipe"]
