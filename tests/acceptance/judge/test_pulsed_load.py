"""The soak's load in pulses: a finding for each format, those that a device lacks, and the sums beside them."""

from __future__ import annotations

import msgspec

from suite.acceptance.evidence import PulsedLoad
from suite.acceptance.findings import rests_on_clocks
from suite.acceptance.judge.judge import battery_findings
from suite.acceptance.judge.pulsed_load import load_findings
from suite.job.events import Status
from suite.job.probe_job import FormatLoad
from tests.support.batteries import NOTHING, probing, soaked, surroundings


def loaded(rank, wrong=None, **changes):
    """A rank's load in two formats; `wrong` elements by format."""
    rates = {"bf16": 6e14, "fp64": 5e13}
    usual = {
        "rank": rank,
        "size": 4096,
        "formats": [
            FormatLoad(
                format=name, products=80 + rank, wrong=(wrong or {}).get(name, 0), flop_per_second=rate - rank * 1e12
            )
            for name, rate in rates.items()
        ],
        "missing": {"fp8": "compute capability 8.0, 8.9 needed"},
        "sums": 20,
        "wrong_sums": 0,
        "sum_bytes": 2**28,
        "pulses": 10,
        "pulse_seconds": 1.0,
        "seconds": 10.0,
        "first": f"pulse 3 on cuda:{rank}: 2 elements of bf16 products are wrong" if wrong else "",
    }
    return PulsedLoad(**(usual | changes))


def by_subject(*loads):
    return {one.subject: one for one in load_findings(probing(loads=loads))}


def test_what_ran_is_said_with_its_rate_and_its_pulses_and_what_did_not_with_its_reason():
    found = by_subject(loaded(0), loaded(1))
    assert {subject: one.verdict for subject, one in found.items()} == {
        "pulsed load, bf16": "PASS",
        "pulsed load, fp64": "PASS",
        "pulsed load, fp8": "NOT RUN",
        "pulsed load, sums to the bit": "PASS",
    }
    assert found["pulsed load, bf16"].evidence == (
        "80 products of 4096 x 4096 a rank, all verified; at least 599 Tflop/s a rank while loaded; 10 pulses in step, "
        "0.5 s loaded and 0.5 s idle, beside all-reduces"
    )
    assert found["pulsed load, fp8"].evidence == "compute capability 8.0, 8.9 needed"
    assert found["pulsed load, sums to the bit"].evidence == "20 all-reduces of 256 MiB beside products, all verified"
    assert not any(rests_on_clocks(one) for one in found.values())


def test_a_wrong_product_fails_its_format_and_names_the_rank():
    found = by_subject(loaded(0), loaded(1, wrong={"bf16": 2}))
    bad = found["pulsed load, bf16"]
    assert (bad.verdict, bad.measured, bad.part) == ("FAIL", 2.0, "rank 1: memory or arithmetic")
    assert bad.evidence == "rank 1: 2 wrong, pulse 3 on cuda:1: 2 elements of bf16 products are wrong"
    assert found["pulsed load, fp64"].verdict == "PASS"
    sums = by_subject(loaded(0), loaded(1, wrong_sums=1))["pulsed load, sums to the bit"]
    assert (sums.verdict, sums.part) == ("FAIL", "rank 1: links or arithmetic")


def test_one_rank_has_no_sums_and_says_so():
    found = by_subject(loaded(0, sums=0, sum_bytes=0))
    assert "pulsed load, sums to the bit" not in found
    assert found["pulsed load, bf16"].evidence.endswith("one rank, so beside no all-reduce")


def test_a_load_is_a_part_of_the_soak_and_one_that_hung_hangs_it():
    good = probing(asked=["soaks"], loads=[loaded(0), loaded(1)], soaks=[soaked(0), soaked(1)])
    found = battery_findings([surroundings(), good], NOTHING, others=0.05, selected={15})
    assert {one.verdict for one in found} == {"PASS", "NOT RUN"}
    hung = msgspec.structs.replace(good, status=Status.HANG, message="m", ranks_at_fault=[1], loads=[], soaks=[])
    (one,) = battery_findings([surroundings(), hung], NOTHING, others=0.05, selected={15})
    assert (one.verdict, one.part) == ("HANG", "rank 1")
