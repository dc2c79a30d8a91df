"""Which launches may be compared: one setup, one code, one machine's identical launches."""

from __future__ import annotations

from suite.regression.comparability import commit_of, comparable_hardware, floor_of, is_modified, setup, setup_of
from tests.support.histories import HARDWARE, launch_of, normal_launches

OTHERS = "other machines of the same hardware"


def test_memory_counts_in_gib_and_what_is_no_number_of_kb_stays():
    rounded = {
        "8388608 kB": "8 GiB",
        f"{8 * 2**20 + 2**19 + 1} kB": "9 GiB",
        f"{8 * 2**20 - 2**19 + 1} kB": "8 GiB",
        **{text: text for text in ("8 GB", "some kB", "8388608 zB")},
    }
    assert {text: comparable_hardware({"cpu": "x", "memory": text})["memory"] for text in rounded} == rounded
    assert comparable_hardware({"cpu": "x"}) == {"cpu": "x"}


def test_a_setup_is_run_hardware_policy_steps_and_seed_and_nothing_else():
    usual = {"run": "r", "hardware": HARDWARE, "policy": {"p": "1"}, "steps": 30, "seed": 1}
    first = setup(**usual)
    assert len(first) == 16
    assert int(first, 16) >= 0
    other_boot = HARDWARE | {"memory": "8000100 kB"}
    assert setup(**usual | {"hardware": other_boot}) == first
    changes = ({"run": "s"}, {"hardware": {}}, {"policy": {"p": "2"}}, {"steps": 31}, {"seed": 2})
    assert len({first, *(setup(**usual | change) for change in changes)}) == 6


def test_a_launch_knows_its_commit():
    expected = {
        "0.1.0 (aaaaaaaaaaaa)": ("aaaaaaaaaaaa", False),
        "0.1.0 (aaaaaaaaaaaa, modified)": ("aaaaaaaaaaaa", True),
        "0.1.0 (no checkout)": ("", False),
        "0.1.0": ("", False),
    }
    launches = {suite: launch_of(1, 1.0, suite=suite) for suite in expected}
    assert {suite: (commit_of(one), is_modified(one)) for suite, one in launches.items()} == expected


def test_a_floor_needs_ten_identical_launches_and_says_whose_and_how_many_there_are():
    def launches(count, **changes):
        return [launch_of(n, value, **changes) for n, value in enumerate(normal_launches(1, count))]

    of, here, there = setup_of(launch_of(0, 1.0)), "00000001", "00000002"
    floor, words = floor_of(of, here, [*launches(9), *launches(7, suite="0.1.0 (bbbbbbbbbbbb)")])
    assert (floor, words) == (None, "9 identical launches are recorded, 10 are needed")
    assert floor_of(of, here, [])[1] == "0 identical launches are recorded, 10 are needed"
    own, others = (
        "10 identical launches on this machine",
        "10 identical launches on other machines of the same hardware",
    )
    for node, known, whose in (
        (here, launches(10), own),
        (here, [*launches(10), *launches(10, node=there)], own),
        (here, [*launches(9), *launches(10, node=there)], others),
        (there, launches(10), others),
    ):
        floor, words = floor_of(of, node, known)
        assert (len(floor.deviations), words) == (10, whose)
    for another in ("", "another setup", "zz"):  # that come before and after all fingerprints
        assert floor_of(another, here, launches(10)) == (None, "0 identical launches are recorded, 10 are needed")
