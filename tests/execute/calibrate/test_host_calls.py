"""Calls that stand for the host's work of a step are that work: a sharded unit is one as a block is."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from suite.execute.calibrate import host_calls
from suite.execute.calibrate.operators import TINY, Inputs
from suite.job.calibration_job import WEIGHTS_OF_BLOCK
from suite.machine.timing_tables import Subject

CPU = torch.device("cpu")


@pytest.mark.parametrize("units", [1, 3])
def test_a_sharded_unit_gathers_and_reduces_a_block_s_weights_in_mixed_precision(
    alone: dist.ProcessGroup, units: int
) -> None:
    work = host_calls.sharded_units(Subject(operation="sharded_unit"), (units,), Inputs(CPU), alone)
    work()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        work()
    events = profiled.events()
    assert events is not None
    named = Counter(event.name.partition(" (")[0] for event in events)
    assert named["FSDP::root_pre_forward"] == 1
    for once_a_unit in ("FSDP::pre_forward", "FSDP::post_forward", "FSDP::pre_backward", "FSDP::post_backward_reduce"):
        assert named[once_a_unit] == units, once_a_unit
    reduced = [event.input_shapes[3] for event in events if event.name == "fsdp::chunk_cat"]
    flat = [WEIGHTS_OF_BLOCK * TINY]
    assert reduced == [[1, *flat]] * units  # the gradients of all weights together
    cast = [event for event in events if event.name == "aten::_to_copy" and event.input_shapes[0] == [TINY]]
    assert len(cast) == 2 * WEIGHTS_OF_BLOCK * units  # each weight by itself, for each pass
    assert not [event for event in events if event.name == "aten::_to_copy" and event.input_shapes[0] == flat]
