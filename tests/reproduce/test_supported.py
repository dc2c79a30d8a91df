"""Copies of key-value heads and dealt positions go with some options alone; moments are predicted only."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs.errors import InputError
from reference_runs.layout import Layout, Schedule
from reference_runs.run import Moments, Workload
from suite.job.options import Averaging
from suite.reproduce.supported import check_averaging, check_executable, check_fused_attention, check_replicas
from tests.support.strategies import BLOOM


def workload(kv_heads: int) -> Workload:
    shape = msgspec.structs.replace(BLOOM.architecture, kv_heads=kv_heads)
    return Workload(shape, BLOOM.recipe, Layout(data_parallel=2, tensor_parallel=4))


def test_compression_by_rank_would_set_copies_of_heads_apart_and_rounding_by_element_keeps_them_equal():
    for averaging in (Averaging.ONE_BIT, Averaging.POWER_SGD):
        check_averaging(averaging, workload(4), "cuda")
        with pytest.raises(InputError, match=r"copies of key-value heads.*tp4.*tp2"):
            check_averaging(averaging, workload(2), "cuda")
    for averaging in (Averaging.EXACT, Averaging.FP16, Averaging.BF16):
        check_averaging(averaging, workload(2), "cuda")


def test_fused_attention_of_dealt_positions_is_refused_on_a_gpu():
    recipe = msgspec.structs.replace(BLOOM.recipe, attention_dropout=0.0)
    layout = Layout(context_parallel=2, fused_attention=True)
    check_fused_attention(recipe, layout, "cpu", "")
    check_fused_attention(recipe, msgspec.structs.replace(layout, context_parallel=1), "cuda", "")
    with pytest.raises(InputError, match=r"takes no mask of dealt positions; got cp2"):
        check_fused_attention(recipe, layout, "cuda", "")


def test_moments_in_16_bit_are_refused_by_name():
    check_executable(BLOOM.architecture, BLOOM.recipe, "run.toml")
    narrow = msgspec.structs.replace(BLOOM.recipe, moments=Moments.BF16)
    with pytest.raises(
        InputError, match=r"moments of the optimizer in that dtype; got bf16 recipe.moments, allowed: fp32"
    ):
        check_executable(BLOOM.architecture, narrow, "run.toml")


def test_stages_with_different_numbers_of_replicas_are_refused_on_gpus():
    layout = Layout(pipeline_stages=2, schedule=Schedule.PIPEDREAM, stage_replicas=(2, 1))
    check_replicas(layout, "cpu", "--layout")
    check_replicas(Layout(data_parallel=2), "cuda", "--layout")
    with pytest.raises(InputError, match="got replicas2-1, allowed: dpN, or --device cpu"):
        check_replicas(layout, "cuda", "--layout")
