"""The machine model's parameters are within their bounds, supported by rows, and explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.accelerator import accelerator, accelerator_names
from reference_runs.errors import InputError
from reference_runs.machine_model import EDITIONS, MACHINE_MODEL, edition_chosen, editions, fit_scores, machine_model
from reference_runs.published_tables import load_tables
from reference_runs.run import ProductFormat
from reference_runs.stack import AttentionKernel
from tests.support.published_rows import ROWS_AND_USED

MODEL = machine_model()
LATER = {name for table in load_tables().tables for name in table.determines}  # fitted to one table, after the others
LEAST_ROWS, LEAST_TABLES = 10, 2  # what a fitted parameter needs: no number that one table alone decides


def test_a_parameter_lies_within_what_is_possible_and_says_what_it_is() -> None:
    for name, parameter in MODEL.parameters.items():
        assert 0 < parameter.least <= parameter.value <= parameter.most, name
        assert parameter.least <= parameter.expected <= parameter.most, name
        assert parameter.unit == ("s" if name.endswith("_seconds") else "1"), name
        assert len(parameter.meaning.split()) > 3, name
        assert parameter.source, name


def test_a_fitted_parameter_stands_on_rows_of_several_tables_and_another_on_what_is_expected() -> None:
    for name, parameter in MODEL.parameters.items():
        if not parameter.fitted:
            assert parameter.value == parameter.expected, name
            assert (parameter.rows, parameter.uncertainty, parameter.tables) == (None, None, ()), name
            continue
        assert parameter.uncertainty > 0, name
        if name in LATER:
            assert len(parameter.tables) == 1, name
            continue
        assert len(set(parameter.tables)) == len(parameter.tables) >= LEAST_TABLES, name
        assert set(parameter.tables) <= set(ROWS_AND_USED), name
        rows = sum(ROWS_AND_USED[table][1] for table in parameter.tables)
        assert LEAST_ROWS <= (parameter.rows or 0) <= rows, name


def test_what_is_a_share_is_never_above_one() -> None:
    shares = [n for n, each in MODEL.parameters.items() if each.meaning.startswith("share") and "network_" not in n]
    assert {name.partition(".")[0] for name in shares} >= {"matrix_efficiency", "memory_efficiency", "overlap_share"}
    assert all(MODEL.parameters[name].most <= 1 for name in shares)


def test_a_parameter_of_a_family_exists_for_every_family() -> None:
    own: dict[str, set[str]] = {}
    for name in MODEL.parameters:
        base, _, family = name.partition(".")
        own.setdefault(base, set()).add(family)
    for base, families in own.items():
        of_formats = families - {""} <= set(ProductFormat)  # beside the one of all others
        assert families == set(MODEL.families) or ("" in families and of_formats), base


def test_families_name_catalogued_accelerators_none_twice_each_with_every_fused_kernel() -> None:
    named = [name for family in MODEL.families.values() for name in family.accelerators]
    assert len(named) == len(set(named))
    assert set(named) <= set(accelerator_names())
    assert [accelerator(name).name for name in named] == named
    for family in MODEL.families.values():
        assert set(family.attention) == set(AttentionKernel) - {AttentionKernel.UNFUSED}
        assert all(0 < share < 1 for share in family.attention.values())
        assert (
            family.attention[AttentionKernel.FLASH_ATTENTION_1] <= family.attention[AttentionKernel.FLASH_ATTENTION_2]
        )
        assert family.why
        assert family.attention_source
        assert 0 < family.uncertainty < 1


def test_a_parameter_without_meaning_is_refused(tmp_path: Path) -> None:
    path, lines = tmp_path / "mine.toml", MACHINE_MODEL.read_text(encoding="utf-8").splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("meaning"))
    path.write_text("\n".join(lines[:first] + lines[first + 1 :]), encoding="utf-8")
    with pytest.raises(InputError, match="mine.toml: machine model: Object missing required field `meaning`"):
        machine_model(path)


def test_every_edition_is_a_whole_fit_under_its_own_name_and_a_choice_ends_with_its_block() -> None:
    assert {path.name for path in EDITIONS.iterdir()} == {*editions()[:-1]}
    current, scores = machine_model(), fit_scores()
    for name in editions():
        with edition_chosen(name):
            model = machine_model()
            assert model.edition == name
            assert model.parameters.keys() | LATER == current.parameters.keys(), name
            assert all(each.least <= each.value <= each.most for each in model.parameters.values()), name
            assert model.families.keys() <= current.families.keys(), name
            free = {each for each, parameter in model.parameters.items() if parameter.fitted}
            assert fit_scores().free_parameters == len(free - LATER), name
            others = {term: found for term, found in model.values().items() if found != current.values()[term]}
            assert bool(others) == (fit_scores() != scores) == (name != current.edition), name
    with pytest.raises(RuntimeError), edition_chosen(editions()[0]):
        raise RuntimeError
    assert (machine_model(), fit_scores()) == (current, scores)


def test_an_amd_accelerator_says_of_which_software_its_gemms_are() -> None:
    model = machine_model()
    assert "with ROCm 6.1 and 6.2 of 2024" in model.basis("cdna", "mi355x")
    assert model.basis("ampere", "a100-sxm-80gb") == "fitted to published step times of a100-sxm-80gb"
    assert model.basis("hopper", "l40s").endswith("of hopper accelerators, as none of l40s is published")
