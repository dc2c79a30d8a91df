"""The part at fault is a GPU that an operator can find."""

from __future__ import annotations

import msgspec
import pytest

from suite.acceptance.evidence import GpuHealth, GpuState, Health
from suite.acceptance.judge.judge import battery_findings
from suite.acceptance.judge.named_gpus import with_gpus
from suite.records.battery import CheckFinding, CheckVerdict
from tests.support.batteries import NOTHING, surroundings
from tests.support.batteries import micro as made_up_micro

STATE = GpuState()
HEALTH = Health(
    gpus=[
        GpuHealth(
            index=number,
            model="NVIDIA H100 80GB HBM3",
            driver="d",
            firmware="f",
            before=STATE,
            after=STATE,
            samples=[],
            xids=[],
            pci=f"0000:{0x18 + number:02x}:00.0",
        )
        for number in range(3)
    ]
)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("matrix rate of rank 1", "matrix rate of rank 1 (GPU 0 at 0000:18:00.0)"),
        ("link 0-1", "link 0-1 (GPU 2 at 0000:1a:00.0, GPU 0 at 0000:18:00.0)"),
        ("rank 0, rank 1", "rank 0 (GPU 2 at 0000:1a:00.0), rank 1 (GPU 0 at 0000:18:00.0)"),
        ("rank 7: compute", "rank 7: compute"),  # not known
        ("host", "host"),
    ],
)
def test_each_rank_of_a_part_has_the_name_of_its_gpu(part, named):
    finding = CheckFinding(check=1, subject="s", verdict=CheckVerdict.FAIL, part=part)
    assert with_gpus(finding, [2, 0], HEALTH).part == named
    assert with_gpus(finding, [], HEALTH) == finding
    assert with_gpus(finding, [2, 0], None).part.startswith(named.split(" at ")[0])


def test_a_slow_gpu_is_named_by_the_drivers_number_also_where_cuda_counts_otherwise():
    """Rank 0 runs on GPU 2, the fastest; rank 1, the slow one, on GPU 0."""
    gpus = "NVIDIA H100 80GB HBM3"
    around = surroundings(device="cuda", gpus=gpus, gpus_with_ranks=[2, 0])
    micro = made_up_micro(matrix=[780e12, 400e12], copy=[3e12] * 2, triad=[3e12] * 2, peak=989.4e12, others_share=0.0)
    found = battery_findings([around, micro, HEALTH], NOTHING, others=0.05, selected={1})
    failed = [finding for finding in found if finding.verdict is CheckVerdict.FAIL]
    assert [finding.part for finding in failed] == ["matrix rate of rank 1 (GPU 0 at 0000:18:00.0)"]
    unknown = msgspec.structs.replace(around, gpus_with_ranks=[])
    found = battery_findings([unknown, micro, HEALTH], NOTHING, others=0.05, selected={1})
    assert "matrix rate of rank 1" in [finding.part for finding in found]
