"""A host's settings are judged with the part named; settings that leave no doubt of times are nothing unusual."""

from __future__ import annotations

import msgspec
import pytest

from suite.acceptance.judge.host import host_findings
from suite.machine.host_state import HostState
from tests.support.batteries import surroundings

SOUND = HostState(
    governors={"performance": 2},
    governor_driver="acpi-cpufreq",
    clock_share=1.0,
    huge_pages="madvise",
    quota_cores=2.0,
    siblings_share=0.01,
    written_bytes_per_second=1e8,
)


def judged(around=None, **changes):
    host = msgspec.structs.replace(SOUND, **changes)
    return host_findings(surroundings(**({"host": host, "cores": 2} | (around or {}))), others=0.05)


def test_a_sound_host_passes_and_an_older_record_says_nothing():
    (found,) = judged()
    assert (found.verdict, found.part) == ("PASS", "")
    assert host_findings(surroundings(), others=0.05) == []


@pytest.mark.parametrize(
    ("changes", "verdict", "part", "words"),
    [
        ({"governors": {"powersave": 2}}, "WARN", "clock governor", "powersave on 2"),
        ({"governors": {"performance": 1, "ondemand": 1}}, "WARN", "clock governor", "ondemand on 1, performance on 1"),
        ({"clock_share": 0.97}, "WARN", "clock limit", "97%"),
        ({"quota_cores": 1.5}, "INVALID", "cgroup quota", "1.5 processors, and 2 are usable"),
        ({"siblings_share": 0.06}, "INVALID", "SMT sibling", "6%"),
        ({"numa_absent": [1]}, "WARN", "NUMA node 1", "the system has not"),
        ({"numa_without_memory": [0, 3]}, "WARN", "NUMA node 0, 3", "no memory"),
        ({"huge_pages": "never"}, "WARN", "huge pages", "off"),
        (
            {"written_bytes_per_second": 4.9e6},
            "WARN",
            "disk of the results",
            "written at 4.9 MB/s, 5 expected at least",
        ),
    ],
)
def test_what_is_unusual_is_named_with_its_part(changes, verdict, part, words):
    (found,) = judged(**changes)
    assert (found.verdict, found.part) == (verdict, part)
    assert words in found.evidence


@pytest.mark.parametrize(
    "changes",
    [
        {"governors": {"powersave": 2}, "governor_driver": "intel_pstate"},
        {"governors": {"ondemand": 2}},
        {"governors": {}},  # of a virtual machine
        {"clock_share": 0.98},
        {"siblings_share": 0.05},
        {"huge_pages": "always"},
        {"written_bytes_per_second": 5e6},
        {"clock_share": None, "quota_cores": None, "siblings_share": None, "written_bytes_per_second": None},
    ],
)
def test_what_is_within_its_limit_passes(changes):
    assert [found.verdict for found in judged(**changes)] == ["PASS"]


def test_a_clock_that_is_behind_the_past_is_named():
    (found,) = judged(around={"now": 1000.0, "newest_past": 1000.0 + 61})
    assert (found.verdict, found.part) == ("WARN", "clock")
    assert "61 s in the future, 1970-01-01 00:17 UTC" in found.evidence
    assert [one.verdict for one in judged(around={"now": 1000.0, "newest_past": 1060.0})] == ["PASS"]


def test_a_quota_is_compared_with_the_usable_cores_or_where_they_are_not_known_with_the_ranks_devices():
    assert judged(quota_cores=2.0)[0].verdict == "PASS"
    assert judged(around={"device": "cuda"}, quota_cores=1.0)[0].verdict == "WARN"  # where GPUs compute
    (few,) = judged(around={"cores": 0, "devices": 4}, quota_cores=3.0)
    assert few.evidence == "a cgroup allows the time of 3 processors, and 4 are usable"
    assert judged(around={"cores": 3, "devices": 4}, quota_cores=3.0)[0].verdict == "PASS"
