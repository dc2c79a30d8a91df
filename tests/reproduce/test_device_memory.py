from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from reference_runs.errors import InputError
from reference_runs.layout import Recomputation, parse_layout
from suite.job.options import KernelChoice
from suite.machine.devices import CudaDevice
from suite.predict.analytic.cuda_temporaries import bytes_outside_allocator
from suite.predict.simulation.step_memory import executed_peak_bytes
from suite.reproduce.device_memory import check_device_memory, needed_bytes
from suite.reproduce.plan import Plan, plan
from suite.reproduce.request import Request

GIB = 2**30


def asked(
    memory_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    layout: str | None = None,
    devices: int = 1,
    name: str = "gpt2-mini",
) -> Plan:
    """The plan of a miniature, eager, on GPUs of which the last has so much memory."""
    listed = [
        CudaDevice(
            name="NVIDIA H100 80GB HBM3", uuid=str(n), pci=str(n), memory_bytes=memory_bytes + (devices - n) * GIB
        )
        for n in range(1, devices + 1)
    ]
    monkeypatch.setattr("suite.reproduce.plan.resolved_device", lambda _: ("cuda", devices))
    monkeypatch.setattr("suite.reproduce.plan.cuda_device_list", lambda: tuple(listed))
    return plan(Request(name=name, layout=layout, device="cuda", compiled=False, results=Path()))


def test_what_a_rank_needs_is_its_predicted_peak_and_what_pytorch_does_not_allocate(monkeypatch):
    one = asked(80 * GIB, monkeypatch)
    peak = executed_peak_bytes(one.workload, one.step_options, stage=0, replica=0)
    assert needed_bytes(one.workload, one.step_options) == peak + bytes_outside_allocator(0)
    two = asked(80 * GIB, monkeypatch, layout="dp2,zero1", devices=2)
    peak = executed_peak_bytes(two.workload, two.step_options, stage=0, replica=0)
    assert needed_bytes(two.workload, two.step_options) == peak + bytes_outside_allocator(2)


def test_a_launch_is_refused_from_a_byte_too_much_on_and_the_layout_that_is_offered_fits(monkeypatch):
    needed = needed_bytes(*(lambda p: (p.workload, p.step_options))(asked(80 * GIB, monkeypatch)))
    assert asked(needed, monkeypatch).layout.micro_batch == 32
    with pytest.raises(InputError) as refused:
        asked(needed - 1, monkeypatch)
    (line,) = refused.value.lines
    for part in (f"{needed / GIB:.1f} GiB", f"{bytes_outside_allocator(0) / GIB:.1f} GiB for CUDA", "micro16"):
        assert part in line
    offered = line.partition("--layout ")[2]
    assert asked(needed - 1, monkeypatch, layout=offered).layout.micro_batch == 16


def test_the_offered_layout_keeps_what_was_asked_for_in_place_of_the_runs_own(monkeypatch):
    assert asked(80 * GIB, monkeypatch, name="llama3-mini", devices=2).layout.reduce_scatter
    words = "dp2,zero1,all-reduce,micro4"
    planned = asked(80 * GIB, monkeypatch, name="llama3-mini", layout=words, devices=2)
    needed = needed_bytes(planned.workload, planned.step_options)
    with pytest.raises(InputError) as refused:
        asked(needed - 1, monkeypatch, name="llama3-mini", layout=words, devices=2)
    offered = refused.value.lines[0].partition("--layout ")[2]
    other = asked(needed - 1, monkeypatch, name="llama3-mini", layout=offered, devices=2).layout
    assert other == msgspec.structs.replace(planned.layout, micro_batch=2, accumulation=other.accumulation)


def test_the_smallest_of_several_devices_decides(monkeypatch):
    both = asked(80 * GIB, monkeypatch, layout="dp2,zero1", devices=2)
    needed = needed_bytes(both.workload, both.step_options)
    with pytest.raises(InputError, match="does not fit"):
        asked(needed - 1, monkeypatch, layout="dp2,zero1", devices=2)


def test_recomputation_is_offered_where_a_sample_at_a_time_is_too_much_and_more_ranks_where_nothing_helps(monkeypatch):
    planned = asked(80 * GIB, monkeypatch)
    single, again = (
        planned.workload._replace(layout=parse_layout(words, base=planned.layout))
        for words in ("micro1,recompute-none", "micro1,recompute-full")
    )
    least = needed_bytes(again, planned.step_options)
    assert least < needed_bytes(single, planned.step_options)
    for memory, remedy in ((least, "recompute-full,every1,unfused,micro1"), (least - 1, "more ranks")):
        with pytest.raises(InputError, match=remedy):
            check_device_memory(
                single, planned.step_options, KernelChoice.TORCH, memory_bytes=memory, where="gpt2-mini"
            )


def test_triton_s_kernels_fit_where_pytorch_s_do_not_and_layouts_that_are_not_described_are_not_refused(monkeypatch):
    planned = asked(80 * GIB, monkeypatch)
    options, where = planned.step_options, "gpt2-mini"
    needed = needed_bytes(planned.workload, options)
    check_device_memory(planned.workload, options, KernelChoice.TRITON, memory_bytes=needed // 2, where=where)
    with pytest.raises(InputError, match="does not fit"):
        check_device_memory(planned.workload, options, KernelChoice.TRITON, memory_bytes=needed // 4, where=where)
    layout = msgspec.structs.replace(planned.layout, recomputation=Recomputation.FROM_INPUT)
    unknown = planned.workload._replace(layout=layout)
    check_device_memory(unknown, options, KernelChoice.TORCH, memory_bytes=1, where=where)
