"""Shares of a data sheet's peaks: of the precision's, of a format's, and of a slice's layers alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.run import ProductFormat
from suite.job.slice import SlicePart, SliceTimes
from suite.reproduce.request import Request
from suite.reproduce.sheet_shares import layer_model_flop, sheet_peaks, slice_shares
from suite.reproduce.slice_plan import slice_plan

H100 = "NVIDIA H100 80GB HBM3"
RECIPE = reference_run("gpt2-124m").recipe


def test_gemms_in_8_bits_have_both_peaks_and_neither_is_called_the_data_sheet_s() -> None:
    (plain,) = sheet_peaks(f"{H100} (simulated)", RECIPE)
    assert (plain.name, round(plain.flop_per_second / 1e12)) == ("of the data sheet's peak", 989)
    in_8_bits = msgspec.structs.replace(RECIPE, product_format=ProductFormat.FP8_CURRENT)
    wide, narrow = sheet_peaks(f"{H100}, {H100}", in_8_bits)
    assert wide.name == "16-bit equivalent, of the data sheet's bf16 peak"
    assert wide.flop_per_second == plain.flop_per_second
    assert narrow.name == "of the data sheet's FP8 peak"
    assert narrow.flop_per_second == pytest.approx(2 * wide.flop_per_second, rel=1e-3)


def test_unknown_gpus_several_models_and_formats_without_a_peak_have_no_share() -> None:
    assert sheet_peaks("NVIDIA of tomorrow", RECIPE) == []
    assert sheet_peaks(f"{H100}, NVIDIA A100-SXM4-80GB", RECIPE) == []
    in_8_bits = msgspec.structs.replace(RECIPE, product_format=ProductFormat.FP8_CURRENT)
    assert sheet_peaks("NVIDIA A100-SXM4-80GB", in_8_bits) == []


def test_a_layer_s_share_is_its_flop_over_the_median_of_both_passes(tmp_path: Path) -> None:
    """Llama 3 8B: 6 flop a token for each of a layer's weights without norms, and attention's 12 h T, causal or not."""
    asked = Request(name="llama3.1-8b-slice", layers=2, sequence=128, device="cpu", results=tmp_path)
    workload = slice_plan(asked).workload
    flop = layer_model_flop(workload, stage=0)
    weights = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    assert flop == 128 * (6 * weights + 12 * 4096 * 128)
    seconds = {SlicePart.LAYER_FORWARD: [1.0, 2.0, 9.0], SlicePart.LAYER_BACKWARD: [4.0], SlicePart.UPDATE: [99.0]}
    rank: Any = SimpleNamespace(slice_times=SliceTimes(seconds=seconds, updated_parameters=1))
    (peak,) = sheet_peaks(H100, RECIPE)
    (share,) = slice_shares(workload, [rank], [peak], rank_stage=0)
    assert share.term == "layers alone, of the data sheet's peak"
    assert share.value == pytest.approx(flop / 6.0 / peak.flop_per_second)
    whole: Any = SimpleNamespace(slice_times=None)
    assert slice_shares(workload, [whole], [peak], rank_stage=0) == []
