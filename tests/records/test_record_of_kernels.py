"""Which kernels a recorded launch used, as its ranks reported them."""

from __future__ import annotations

from typing import Any

import msgspec

from suite.machine.gpu import H100
from suite.records.record import THROUGH_FP32, RankOutcome, Record, recorded_kernels
from tests.support.record_halves import begin, end


def record(device: str, *ranks: dict[str, Any]) -> Record:
    first = begin()
    first = msgspec.structs.replace(first, job=msgspec.structs.replace(first.job, device=device))
    outcomes = [RankOutcome(rank=rank, steps=[], last="finished", **said) for rank, said in enumerate(ranks)]
    return Record(path="r", begin=first, end=end(first.id, ranks=outcomes))


def test_kernels_are_those_of_the_device() -> None:
    for device, cuda in (("cpu", False), ("cuda", True)):
        kernels = recorded_kernels(record(device, {"arithmetic": "bf16"}))
        assert (kernels.cuda, kernels.products_through_fp32, kernels.gpu) == (cuda, False, H100)


def test_one_rank_whose_products_go_through_fp32_is_enough() -> None:
    arithmetic = [{"arithmetic": "bf16"}, {"arithmetic": f"bf16, {THROUGH_FP32}"}]
    assert recorded_kernels(record("cpu", *arithmetic)).products_through_fp32


def test_the_gpu_is_the_first_rank_s() -> None:
    def said(processors: int) -> dict[str, Any]:
        facts = {"gpu_capability": "8.0", "gpu_processors": str(processors), "gpu_threads": "2048"}
        return {"environment": facts | {"cudnn": "91002", "torch": "2.13.0"}}

    assert recorded_kernels(record("cuda", said(108), said(64))).gpu.processors == 108


def test_a_launch_that_has_not_ended_or_has_no_ranks_reported_nothing() -> None:
    ended = record("cuda")
    for each in (ended, msgspec.structs.replace(ended, end=None)):
        kernels = recorded_kernels(each)
        assert (kernels.cuda, kernels.products_through_fp32, kernels.gpu) == (True, False, H100)
