"""A request becomes a plan, which says what the suite chose on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from reference_runs.catalog import RUNS
from reference_runs.errors import InputError
from reference_runs.run import ProductFormat
from suite.__main__ import main
from suite.reproduce.plan import plan
from suite.reproduce.request import Request


def changes(**options: Any) -> tuple[str, ...]:
    return plan(Request(**({"name": "bloom-mini", "device": "cpu", "results": Path()} | options))).changes


@pytest.mark.parametrize("options", [{}, {"ranks": 1}, {"ranks": 4}, {"layout": "tp2"}])
def test_ranks_that_keep_the_batch_change_nothing(options: dict[str, Any]) -> None:
    assert changes(**options) == ()


@pytest.mark.parametrize("options", [{"ranks": 5}, {"layout": "dp5"}])
def test_a_batch_that_the_ranks_change_is_named(options: dict[str, Any]) -> None:
    (change,) = changes(**options)
    batch, usual = (plan(Request(name="bloom-mini", device="cpu", results=Path(), ranks=n)) for n in (5, 2))
    assert batch.recipe.global_batch == 30
    assert change == (
        f"global batch 30 samples ({usual.recipe.global_batch} with 2 ranks as usual): a multiple of 5 (dp) * 2 "
        "(micro-batch); losses of the two do not compare"
    )


def test_a_recorded_layout_on_fewer_ranks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.reproduce.plan.resolved_device", lambda _: ("cuda", 2))
    (change,) = changes(name="gpt2-124m", device="cuda", ranks=2)
    assert change.startswith("layout of 8 ranks scaled to dp2,tp1,pp1,zero1,")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("reproduce", "blom-mini"), "bloom-mini"),
        (("reproduce", "blom-176b"), "bloom-176b"),
        (("predict", "blom-176b"), "bloom-176b"),
        (("show", "gpt2-124"), "gpt2-124m"),
        (("show", "h100-smx"), "h100-sxm"),
        (("predict", "bloom-176b", "--on", "a100-sxm-80"), "a100-sxm-80gb"),
        (("predict", "bloom-176b", "--layout", "dp8,recompute-ful"), "recompute-full"),
        (("predict", "bloom-176b", "--layout", "dp8,no-reshard"), "noreshard"),
        (("predict", "bloom-176b", "--layout", "dp8,micr2"), "micro2"),
        (("reprodce", "bloom-mini"), "reproduce"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_one_that_was_meant(
    arguments: tuple[str, ...], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments]) == 2
    assert f", did you mean {meant}? allowed: " in capsys.readouterr().err


def test_the_miniature_of_a_run_file_is_planned_by_the_rules_of_the_recorded_one(tmp_path: Path) -> None:
    path = tmp_path / "my_run.toml"
    text = (RUNS / "bloom_176b.toml").read_text(encoding="utf-8")
    path.write_text(text.replace('miniature = "bloom-mini"\n', "", 1), encoding="utf-8")
    own, recorded = (
        plan(Request(name=name, mini=True, device="cpu", results=Path())) for name in (str(path), "bloom-176b")
    )
    assert (own.name, recorded.name, own.learns) == ("my-run-mini", "bloom-mini", True)
    assert own.workload == recorded.workload


def test_a_miniature_that_would_have_the_name_of_a_recorded_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "my_run.toml"
    path.write_text((RUNS / "bloom_176b.toml").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(InputError, match="would be called bloom-mini, as that of bloom-176b"):
        plan(Request(name=str(path), mini=True, device="cpu", results=Path()))


def test_a_miniature_multiplies_in_another_format_where_that_is_asked_for() -> None:
    usual, asked = (
        plan(Request(name="llama3-mini", device="cpu", products=products, results=Path()))
        for products in (None, "fp8-current")
    )
    assert usual.recipe.product_format is ProductFormat.NONE
    assert asked.recipe == msgspec.structs.replace(usual.recipe, product_format=ProductFormat.FP8_CURRENT)
    assert (asked.architecture, asked.layout) == (usual.architecture, usual.layout)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"products": "fp9"}, "--products: unknown products; got 'fp9', allowed: none, fp8-delayed, fp8-current"),
        ({"products": "mxfp8"}, "this version does not execute products in that format; got mxfp8"),
        ({"products": "fp8-current", "layout": "tp2"}, "that layout; got tp2 with fp8-current products"),
        ({"products": "fp8-current", "name": "mixtral-mini"}, "experts with products in a format of their own"),
    ],
)
def test_products_that_are_not_executed_are_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as refusal:
        changes(**options)
    assert words in str(refusal.value)
