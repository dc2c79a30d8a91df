"""Each field of the fabric's health, as NVIDIA's library numbers it, has a meaning, a part and an action."""

from __future__ import annotations

import re

import pynvml

from suite.acceptance.fabric import FIELDS, PROBLEMS, SUMMARIES, fabric_problem, problems_in, unread_in
from suite.records.battery import RecoveryAction

MASK = "NVML_GPU_FABRIC_HEALTH_MASK_"
GOOD = {"FALSE", "NONE", "CONNECTED"}


def library(pattern):
    """Constants of the library by the groups of their names."""
    found = {name: re.fullmatch(pattern, name) for name in dir(pynvml)}
    return {match.groups(): getattr(pynvml, name) for name, match in found.items() if match}


def test_fields_lie_where_the_library_has_them():
    shifts, widths = library(f"{MASK}SHIFT_(.*)"), library(f"{MASK}WIDTH_(.*)")
    assert {(name,): field.shift for name, field in FIELDS.items()} == shifts
    assert {(name,): field.width for name, field in FIELDS.items()} == widths
    assert set(SUMMARIES) | {0} == set(library("NVML_GPU_FABRIC_HEALTH_SUMMARY_(.*)").values())


def test_each_bad_value_of_the_library_is_one_problem_and_no_good_value_is():
    names = "|".join(FIELDS)
    values = library(f"{MASK}({names})_(.*)")
    wrong = {}
    for (name, meaning), value in values.items():
        good = meaning == "TRUE" if name == "PARTITION_ASSIGNED" else meaning in GOOD
        found = problems_in(value << FIELDS[name].shift)
        expected = 0 if good or meaning == "NOT_SUPPORTED" else 1
        if len(found) != expected or any(one not in PROBLEMS for one in found):
            wrong[name, meaning] = found
    assert wrong == {}
    assert len(values) > 7 * 3


def test_fields_that_a_driver_does_not_offer_are_unread():
    assert len(unread_in(0)) == len(FIELDS) == 7
    assert unread_in(0b10) == [field.name for name, field in FIELDS.items() if name != "DEGRADED_BW"]
    assert problems_in(0) == []
    assert problems_in(15 << 8) == ["configuration 15"]  # of a driver to come
    assert not fabric_problem("configuration 15").fatal


def test_each_problem_has_an_action_of_ours():
    assert {problem.action for problem in PROBLEMS.values()} <= {*RecoveryAction}
    assert all(problem.meaning for problem in PROBLEMS.values())
