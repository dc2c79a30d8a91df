"""A request becomes a plan, which says what the suite chose on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from reference_runs.catalog import RUNS
from reference_runs.errors import InputError
from reference_runs.run import ProductFormat
from suite.reproduce.plan import plan
from suite.reproduce.request import Request


def changes(**options: Any) -> tuple[str, ...]:
    return plan(Request(**({"name": "bloom-mini", "device": "cpu", "results": Path()} | options))).changes


def test_a_batch_that_the_ranks_change_is_named_and_no_other():
    for kept in ({}, {"ranks": 1}, {"ranks": 4}, {"layout": "tp2"}):
        assert changes(**kept) == (), kept
    batch, usual = (plan(Request(name="bloom-mini", device="cpu", results=Path(), ranks=n)) for n in (5, 2))
    assert batch.recipe.global_batch == 30
    for changed in ({"ranks": 5}, {"layout": "dp5"}):
        assert changes(**changed) == (
            f"global batch 30 samples ({usual.recipe.global_batch} with 2 ranks as usual): a multiple of 5 (dp) * 2 "
            "(micro-batch); losses of the two do not compare",
        )


def test_a_recorded_layout_on_fewer_ranks_is_named(monkeypatch):
    monkeypatch.setattr("suite.reproduce.plan.resolved_device", lambda _: ("cuda", 2))
    scaled = changes(name="gpt2-124m", device="cuda", ranks=2)[0]  # a compiler may be missing too
    assert scaled.startswith("layout of 8 ranks scaled to dp2,tp1,pp1,zero1,")


def test_the_miniature_of_a_run_file_is_planned_by_the_same_rules_and_has_a_name_of_its_own(tmp_path):
    path = tmp_path / "my_run.toml"
    text = (RUNS / "bloom_176b.toml").read_text(encoding="utf-8")
    path.write_text(text.replace('miniature = "bloom-mini"\n', "", 1), encoding="utf-8")
    own, recorded = (
        plan(Request(name=name, mini=True, device="cpu", results=Path())) for name in (str(path), "bloom-176b")
    )
    assert (own.name, recorded.name, own.learns) == ("my-run-mini", "bloom-mini", True)
    assert own.workload == recorded.workload
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="would be called bloom-mini, as that of bloom-176b"):
        plan(Request(name=str(path), mini=True, device="cpu", results=Path()))


def test_a_miniature_multiplies_in_another_format_where_that_is_asked_for():
    usual, asked = (
        plan(Request(name="llama3-mini", device="cpu", products=products, results=Path()))
        for products in (None, "fp8-current")
    )
    assert usual.recipe.product_format is ProductFormat.NONE
    assert asked.recipe == msgspec.structs.replace(usual.recipe, product_format=ProductFormat.FP8_CURRENT)
    assert (asked.architecture, asked.layout) == (usual.architecture, usual.layout)


PRODUCTS = [
    ({"products": "fp9"}, "--gemm-dtype: unknown GEMM format; got 'fp9', allowed: none, fp8-delayed, fp8-current"),
    ({"products": "mxfp8"}, "this version does not execute products in that format; got mxfp8"),
    ({"products": "fp8-current", "layout": "tp2"}, "that layout; got tp2 with fp8-current products"),
    ({"products": "fp8-current", "name": "mixtral-mini"}, "experts with products in a format of their own"),
]


def test_products_that_are_not_executed_are_refused_by_name(not_refused):
    assert not_refused(changes, PRODUCTS) == []
