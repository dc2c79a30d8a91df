from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.accelerator import (
    ACCELERATORS,
    accelerator,
    accelerator_names,
    accelerator_within,
    dense_peak_flop_per_second,
    known_gpu,
    near_accelerator,
    product_peak_flop_per_second,
    worded_accelerator,
)
from reference_runs.accelerator_words import gpu_words, name_words
from reference_runs.errors import InputError
from reference_runs.floors import FloorKind
from reference_runs.run import ProductFormat
from reference_runs.sourced import Kind
from tests.support.recorded_entries import entries

FILES = sorted(ACCELERATORS.glob("*.toml"))
RECORDED = [name for name in accelerator_names() if name != "this-cpu"]
DEVICES = {name: accelerator(name) for name in RECORDED}
ALIASES = [(alias, name) for name, device in DEVICES.items() for alias in (name, *device.aliases)]


def test_every_file_is_an_accelerator_of_its_name() -> None:
    assert len(FILES) == len(accelerator_names()) >= 48
    for name, device in DEVICES.items():
        assert device.name == name
        assert (ACCELERATORS / f"{name.replace('-', '_')}.toml").samefile(ACCELERATORS.parent / device.where)


def test_a_number_without_a_document_is_assumed() -> None:
    kinds = {e["kind"] for path in FILES for _, e in entries(path) if e["source"].split()[0] == "general"}
    assert kinds <= {Kind.ASSUMED, Kind.NOT_PUBLISHED}
    floors = {floor.kind for device in DEVICES.values() for floor in device.floors if floor.source == "general"}
    assert floors == {FloorKind.ASSUMED}


# Multiprocessors or compute units, flop of one in a cycle of dense bf16 or fp16 products accumulated in fp32, and
# the boost clock in GHz of such products, each from the architecture's description.
ARITHMETIC = {
    "v100-sxm-16gb": (80, 1024, 1.530),
    "v100-sxm-32gb": (80, 1024, 1.530),
    "a100-sxm-40gb": (108, 2048, 1.410),
    "a100-sxm-80gb": (108, 2048, 1.410),
    "a100-pcie-40gb": (108, 2048, 1.410),
    "a100-pcie-80gb": (108, 2048, 1.410),
    "h100-sxm": (132, 4096, 1.830),
    "h100-pcie": (114, 4096, 1.620),
    "h200-sxm": (132, 4096, 1.830),
    "rtx-4090": (128, 512, 2.520),
    "l40s": (142, 1024, 2.520),
    "mi300x": (304, 2048, 2.100),
    "mi350x": (256, 4096, 2.200),
    "mi355x": (256, 4096, 2.400),
    "a800-sxm": (108, 2048, 1.410),
    "gh200-96gb": (132, 4096, 1.830),
    "h20-sxm": (78, 1024, 1.830),
    "h100-sxm-96gb": (132, 4096, 1.830),
    "rtx-3090": (82, 512, 1.695),
    "rtx-a6000": (84, 1024, 1.800),
    "rtx-5090": (170, 512, 2.407),
    "rtx-pro-6000": (188, 1024, 2.617),
    "l4": (58, 1024, 2.040),
    "t4": (40, 1024, 1.590),
    "mi250x": (110, 1024, 1.700),
    "mi325x": (304, 2048, 2.100),
}
# Two printed figures of at least three digits each are off by at most 0.5 % each; the L40S's sheet contradicts itself
# by 1.2 % (362.05 dense beside 733 sparse). A sparse or a half-rate figure would be off by a factor of 2.
PRINTED = 0.015


def test_a_16_bit_peak_is_units_times_dense_flop_times_clock() -> None:
    computed = {name: units * flop * gigahertz * 1e9 for name, (units, flop, gigahertz) in ARITHMETIC.items()}
    assert {name: DEVICES[name].peak_flop_per_second["fp16"] for name in ARITHMETIC} == pytest.approx(
        computed, rel=PRINTED
    )


# Tflop/s of the tables
BLACKWELLS = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8", "mxfp8", "nvfp4")
PEAKS = {
    "v100-sxm-32gb": {"fp32": 15.7, "fp16": 125},
    "a100-sxm-80gb": {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312, "int8": 624},
    "h100-sxm": {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9, "int8": 1978.9},
    "h100-pcie": {"fp32": 51.2, "tf32": 378, "bf16": 756, "fp16": 756, "fp8": 1513, "int8": 1513},
    "h100-nvl": {"fp32": 60, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5, "fp8": 1670.5, "int8": 1670.5},
    "h200-sxm": {"fp32": 67, "tf32": 494.5, "bf16": 989.5, "fp16": 989.5, "fp8": 1979, "int8": 1979},
    "b200-sxm": dict(zip(BLACKWELLS, (75, 1125, 2250, 2250, 4500, 4500, 4500, 9000), strict=True)),
    "gb200": dict(zip(BLACKWELLS, (80, 1250, 2500, 2500, 5000, 5000, 5000, 10000), strict=True)),
    "rtx-4090": {"fp32": 82.6, "tf32": 82.6, "bf16": 165.2, "fp16": 165.2, "fp8": 330.3, "int8": 660.6},
    "l40s": {"fp32": 91.6, "tf32": 183, "bf16": 362.05, "fp16": 362.05, "fp8": 733, "int8": 733},
    "mi300x": {"fp32": 163.4, "tf32": 653.7, "bf16": 1307.4, "fp16": 1307.4, "fp8": 2614.9, "int8": 2614.9},
    "mi355x": {"fp32": 157.3, "bf16": 2516.6, "fp16": 2516.6, "fp8": 5033.2, "int8": 5033.2, "mxfp8": 5033.2},
    "ascend-910": {"fp16": 256, "int8": 512},
    "h800-sxm": {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9, "int8": 1978.9},
    "tpu-v4": {"bf16": 275, "int8": 275},
}


def test_peaks_in_teraflop_per_second_are_the_tables() -> None:
    for name, peaks in PEAKS.items():
        # conversion by 10**12 rounds once
        expected = {dtype: peak * 1e12 for dtype, peak in peaks.items()}
        assert DEVICES[name].peak_flop_per_second == pytest.approx(expected, rel=2**-52), name


# Cards whose integer or FP4 products keep the rate of fp16 accumulation, chips with one rate for two dtypes, later
# chips that gave up integers for FP4, and dtypes that are not halves of each other.
OTHER_FACTORS: dict[str, dict[str, float]] = {
    "rtx-3090": {"int8": 4},
    "rtx-4090": {"int8": 4},
    "rtx-5090": {"int8": 4, "nvfp4": 8},
    "tpu-v4": {"int8": 1},
    "mi250x": {"int8": 1},
    "b300-sxm": {"int8": 1 / 12, "nvfp4": 6},
    "gb300": {"int8": 1 / 15, "nvfp4": 6},
    "gaudi3": {"fp8": 1},
    "trainium2": {"tf32": 1, "fp8": 1299 / 667},
    "trainium3": {"tf32": 1, "mxfp8": 2517 / 671},
    "rubin": {"fp8": 4.375, "mxfp8": 4.375, "nvfp4": 8.75, "int8": 1 / 16},
}


def test_peaks_halve_as_the_factors_double() -> None:
    for name, device in DEVICES.items():
        peaks = device.peak_flop_per_second
        bf16 = peaks["bf16"] if "bf16" in peaks else peaks["fp16"]
        assert peaks.get("fp16", bf16) == bf16
        factors = {"fp8": 2, "mxfp8": 2, "nvfp4": 4, "tf32": 0.5, "int8": 2} | OTHER_FACTORS.get(name, {})
        expected = {dtype: factor * bf16 for dtype, factor in factors.items() if dtype in peaks}
        assert {dtype: peaks[dtype] for dtype in expected} == pytest.approx(expected, rel=PRINTED), name


# width of the memory bus in bits, and Gbit/s of one line
BUSES = {
    "v100-sxm-32gb": (4096, 1.754),
    "a100-sxm-40gb": (5120, 2.430),
    "a100-pcie-80gb": (5120, 3.024),
    "a100-sxm-80gb": (5120, 3.186),
    "rtx-4090": (384, 21),
    "l40s": (384, 18),
    "mi300x": (8192, 5.2),
    "mi325x": (8192, 5.86),
    "a10g": (384, 12.5),
    "l4": (192, 12.5),
    "t4": (256, 10),
    "rtx-3090": (384, 19.5),
    "rtx-a6000": (384, 16),
    "rtx-5090": (512, 28),
    "rtx-pro-6000": (512, 28),
    "gb10": (256, 8.533),
}


def test_memory_bandwidth_is_bus_width_times_line_rate() -> None:
    computed = {name: bits / 8 * gigabits * 1e9 for name, (bits, gigabits) in BUSES.items()}
    # the coarsest figure, 5.3 TB/s, is rounded by up to 0.05 / 5.3
    assert {name: DEVICES[name].board.memory_bytes_per_second for name in BUSES} == pytest.approx(
        computed, rel=0.05 / 5.3
    )


# MiB that the driver's tool (nvidia-smi, rocm-smi) lists as the total of one device
DRIVER_MIB = {
    "v100-sxm-32gb": 32510,
    "a100-sxm-40gb": 40536,
    "a100-sxm-80gb": 81251,
    "h100-sxm": 81559,
    "h100-pcie": 81559,
    "h100-nvl": 95830,
    "h200-sxm": 143771,
    "b200-sxm": 183359,
    "gb200": 189471,
    "rtx-4090": 24564,
    "mi300x": 196592,
}


def test_printed_gigabytes_of_memory_are_gibibytes() -> None:
    for name, mebibytes in DRIVER_MIB.items():
        size = DEVICES[name].board.memory_bytes
        assert size % 2**30 == 0, name
        # drivers keep up to 1.1 % for themselves; decimal gigabytes would lie 7 % lower, below what the driver lists
        assert 0.989 * size <= mebibytes * 2**20 <= size, name


def test_error_correction_takes_a_sixteenth_of_the_l40s() -> None:
    fact = DEVICES["l40s"].facts["board.memory_bytes"]
    assert DEVICES["l40s"].board.memory_bytes == 48 * 2**30
    assert [reading.value for reading in fact.readings] == [48 * 15 / 16]


def test_a_link_carries_half_of_the_printed_rate_each_way() -> None:
    one_way = {"v100-sxm-32gb": 150e9, "a100-sxm-80gb": 300e9, "a100-pcie-80gb": 32e9, "h100-sxm": 450e9}
    one_way |= {"h100-pcie": 64e9, "b200-sxm": 900e9, "mi300x": 7 * 64e9, "mi355x": 7 * 76.8e9}
    assert {name: DEVICES[name].board.link_bytes_per_second for name in one_way} == one_way
    for name, rate in one_way.items():
        printed = DEVICES[name].facts["board.link_bytes_per_second_both_ways"].value
        assert printed in (2 * rate / 1e9, 2 * rate / 1e12), name


def test_rates_fall_from_memory_over_link_to_host() -> None:
    for name, device in DEVICES.items():
        board = device.board
        assert board.memory_bytes_per_second > board.link_bytes_per_second_both_ways, name
        if board.host_bytes_per_second is not None:
            assert board.link_bytes_per_second_both_ways >= 2 * board.host_bytes_per_second, name


def test_conflicting_readings_are_kept() -> None:
    readings = {
        ("b200-sxm", "board.memory_bytes"): {192},
        ("b200-sxm", "board.memory_bytes_per_second"): {7.7},
        ("gb200", "board.memory_bytes"): {192},
        ("rtx-4090", "peak_flop_per_second.fp16"): {330.3},
        ("h100-nvl", "peak_flop_per_second.bf16"): {989.5},
        ("l40s", "peak_flop_per_second.bf16"): {366.5},
        ("a100-pcie-80gb", "board.link_bytes_per_second_both_ways"): {600},
        ("ascend-910", "peak_flop_per_second.fp16"): {320},
    }
    found = {(name, key): {each.value for each in DEVICES[name].facts[key].readings} for name, key in readings}
    assert found == readings


def test_a_pair_of_eight_without_a_switch_has_a_seventh_of_the_links() -> None:
    board = DEVICES["mi300x"].board
    assert board.pair_share * board.link_bytes_per_second == pytest.approx(128e9 / 2, rel=1e-5)
    assert {name for name, device in DEVICES.items() if device.board.pair_share == 1} == {
        *("a100-sxm-40gb", "a100-sxm-80gb", "a800-sxm", "h100-sxm", "h100-sxm-96gb", "h20-sxm", "h200-sxm"),
        *("b200-sxm", "b300-sxm"),
    }


def test_accelerators_joined_by_pcie_alone_do_not_reach_each_others_memory() -> None:
    copied = {name for name, device in DEVICES.items() if "PCIe" in device.board.link}
    assert not accelerator("this-cpu").board.direct_link
    assert {name for name, device in DEVICES.items() if not device.board.direct_link} == copied


@given(st.sampled_from(ALIASES), st.randoms(use_true_random=False))
def test_names_are_found_in_any_case_and_order_whatever_stands_between_their_words(
    pair: tuple[str, str], random: Any
) -> None:
    alias, name = pair
    spelled = "".join(random.choice((letter.upper(), letter.lower())) for letter in alias)
    assert accelerator(spelled).name == name
    words = re.split(r"[ _-]", spelled)
    random.shuffle(words)
    assert accelerator("".join(word + random.choice((" ", "_", "-", "  ")) for word in words).strip(" _-")).name == name


def test_no_two_accelerators_share_a_name_an_alias_or_the_words_of_one() -> None:
    names = accelerator_names()
    for path in FILES:
        names += tomllib.loads(path.read_text(encoding="utf-8"))["aliases"]
    folded = [name.casefold().replace("_", "-") for name in names]
    assert len(folded) == len(set(folded)) > len(FILES)
    named: dict[tuple[str, ...], set[str]] = {}
    for alias, name in ALIASES:
        named.setdefault(name_words(alias), set()).add(name)
    assert [these for these in named.values() if len(these) > 1] == []


@pytest.mark.parametrize("text", ["H100 94GB 80GB", "A100 SXM 80GB PCIe", "SXM", "80GB", "H20 141GB", "GB200 NVL36"])
def test_words_that_name_no_board_or_several_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="unknown accelerator"):
        accelerator(text)


def worded(text: str) -> str | None:
    found = worded_accelerator(text)
    return found and found.name


@given(
    st.sampled_from(RECORDED), st.sampled_from(["", "8x ", "DGX "]), st.sampled_from(["", " GPU", " HBM3e", " (x8)"])
)
def test_names_of_every_accelerator_are_found_within_words(name: str, before: str, after: str) -> None:
    size = accelerator(name).board.memory_bytes // 2**30
    assert worded(f"{before}{name}{after}") == name
    if f"{size}gb" not in name:
        assert worded(f"{before}{name}{after} {size} GB") == name
    assert worded(f"{name} {size * 1.2:g}GB") is None
    assert worded(f"{name} {size * 0.8:g}GB") is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("1xNVIDIA RTX PRO 6000", "rtx-pro-6000"),
        ("A6000x4", "rtx-a6000"),
        ("XE9680x8H100-SXM-80GB", "h100-sxm"),
        ("config_DGXH100_64x8x128x4x8_mbs1.sh", "h100-sxm"),
        ("BM.GPU.B200.8", "b200-sxm"),
        ("GB300x72_fp4", "gb300"),
        ("g5.48xlarge A10G", "a10g"),
        ("8x H100 NVL 94GB", "h100-nvl"),
        ("A100 64GB", None),
        ("4xRTX 6000 Ada", None),
        ("config_common.sh", None),
    ],
)
def test_an_accelerator_is_found_in_the_name_of_a_system(text: str, name: str | None) -> None:
    found = accelerator_within(text)
    assert (found and found.name) == name


def test_the_vendors_word_does_not_matter_beside_a_size_that_is_not_the_memorys() -> None:
    assert worded("GH200 480GB") == worded("NVIDIA GH200 480GB") == "gh200-96gb"
    assert accelerator("8x GH200 120GB").name == "gh200-96gb"
    assert worded("GH200 200GB") is None


def test_words_of_several_boards_or_sizes_are_of_no_gpu() -> None:
    """Two are enough: 79 and 80 GB are both an H100's, an A100 on SXM and PCIe would be the usual one."""
    assert (gpu_words("A100 SXM PCIe").boards, gpu_words("H100 79 GB 80GB").sizes) == ({"sxm", "pcie"}, {79, 80})
    assert worded("A100 SXM PCIe 80 GB") is None
    assert worded("H100 79 GB 80GB") is None  # each alone is an H100's
    assert worded("H100 79 GB") == worded("H100 80GB") == "h100-sxm"
    assert near_accelerator("DGX B400") is near_accelerator("GB400") is None


def test_people_name_an_accelerator_with_vendor_and_machine_and_drivers_its_board() -> None:
    """The usual board is meant by whoever asks, and none by a driver that does not say it."""
    assert (accelerator("NVIDIA A100").name, accelerator("DGX H100").name) == ("a100-sxm-80gb", "h100-sxm")
    assert known_gpu("NVIDIA A100") is known_gpu("DGX H100") is None


@pytest.mark.parametrize("name", ["h101", "", "a100-sxm-8", "../runs/bloom_176b"])
def test_another_name_is_refused_with_the_allowed_ones(name: str) -> None:
    with pytest.raises(InputError) as refusal:
        accelerator(name)
    allowed = f"llowed: {', '.join(accelerator_names())}, or a file ending in .toml"
    meant = {"a100-sxm-8": "did you mean a100-sxm? a", "h101": "did you mean h100? a"}.get(name, "a")
    assert str(refusal.value) == f"unknown accelerator; got {name!r}, {meant}{allowed}"


def test_a_dtype_without_a_peak_is_refused_by_name() -> None:
    with pytest.raises(InputError) as refusal:
        dense_peak_flop_per_second(DEVICES["v100-sxm-32gb"], "bf16")
    assert str(refusal.value) == (
        "accelerators/v100_sxm_32gb.toml: v100-sxm-32gb has no peak_flop_per_second for the dtype; "
        "got 'bf16', allowed: fp32, fp16"
    )


def test_a_peak_is_given_exactly_for_the_recorded_dtypes() -> None:
    dtypes = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8", "mxfp8", "nvfp4", "fp4", "FP16", "")
    for device, dtype in itertools.product(DEVICES.values(), dtypes):
        if f"peak_flop_per_second.{dtype}" in device.facts:
            assert dense_peak_flop_per_second(device, dtype) == device.peak_flop_per_second[dtype]
            continue
        with pytest.raises(InputError, match="allowed: (fp|bf)"):
            dense_peak_flop_per_second(device, dtype)


def test_products_that_an_accelerator_has_not_are_refused_with_those_that_have_them() -> None:
    fp8, mxfp8 = "b200-sxm, b300-sxm, gaudi2, ", "b200-sxm, b300-sxm, gb200, gb300, mi350x, "
    own = "none, fp8-delayed, fp8-current, fp8-blockwise"
    for name, made, has, able in (("a100-sxm-80gb", "fp8-current", "none", fp8), ("h100-sxm", "mxfp8", own, mxfp8)):
        words = f"computes no matrix products in this format; got {made}, allowed: {has}, or another accelerator: "
        with pytest.raises(InputError, match=re.escape(words + able)):
            product_peak_flop_per_second(accelerator(name), ProductFormat(made))


def test_products_in_no_format_have_no_peak_of_their_own_and_all_8_bit_formats_that_of_fp8() -> None:
    assert {product_peak_flop_per_second(device, ProductFormat.NONE) for device in DEVICES.values()} == {None}
    formats = (ProductFormat.FP8_DELAYED, ProductFormat.FP8_CURRENT, ProductFormat.FP8_BLOCKWISE)
    assert {product_peak_flop_per_second(DEVICES["h100-sxm"], each) for each in formats} == {1978.9e12}


TOML = (ACCELERATORS / "a100_sxm_80gb.toml").read_text(encoding="utf-8")


def test_a_users_file_is_an_accelerator(tmp_path: Path) -> None:
    path = tmp_path / "my_card.toml"
    path.write_text(TOML.replace("value = 2039", "value = 1900"), encoding="utf-8")
    device = accelerator(str(path))
    assert (device.name, device.where) == ("my-card", str(path))
    assert device.board.memory_bytes_per_second == 1900e9


def test_the_gpus_of_a_node_are_known_by_one_name_also_where_they_are_simulated() -> None:
    h100, h200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
    known = known_gpu(f"{h100}, {h100}")
    assert known is not None
    assert known_gpu(f"{h100} (simulated), {h100} (simulated)") == known == accelerator("h100-sxm")
    assert known_gpu(f"{h100}, {h200}") is None
    assert known_gpu("NVIDIA of tomorrow (simulated)") is None


def test_every_accelerator_says_what_it_computes_holds_sends_and_draws() -> None:
    """Values, or that they are not published; TPUs have no usual network out of the torus that joins a pod."""
    board = {"memory_bytes", "memory_bytes_per_second", "link", "link_bytes_per_second_both_ways", "watts"}
    board |= {"accelerators_per_node", "network_bytes_per_second"}
    lacking = {}
    for name, device in DEVICES.items():
        wanted = board - {"network_bytes_per_second"} if name.startswith("tpu-") else board
        if missing := {f"board.{key}" for key in wanted} - device.facts.keys():
            lacking[name] = missing
        assert any(key.startswith("peak_flop_per_second.") for key in device.facts)
    assert lacking == {}
