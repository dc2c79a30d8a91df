"""What a row says of its network: words, the accelerators that a link joins across hosts, and what is assumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.accelerator import accelerator
from reference_runs.published import PublishedRow, PublishedTable, load_table
from reference_runs.published_columns import STEP
from reference_runs.published_network import worded_rate

CELLS = {
    **{"model": "Llama-3.1-8B", "gpu": "gb200", "gpus": "128", "dp": "128", "tp": "1", "pp": "1"},
    **{"global_batch": "128", "micro_batch": "1", STEP: "1"},
}


def table(tmp_path: Path, cells: dict[str, str]) -> PublishedTable:
    stated = CELLS | cells
    path = tmp_path / "own.csv"
    path.write_text("\n".join("\t".join(each) for each in (stated, stated.values())), encoding="utf-8")
    return load_table(path)


def row(tmp_path: Path, **cells: str) -> PublishedRow:
    (found,) = table(tmp_path, cells).rows
    return found


def network(tmp_path: Path, **cells: str) -> tuple[int, float | None]:
    found = row(tmp_path, **cells)
    return found.accelerators_per_node, found.network_bytes_per_second


@pytest.mark.parametrize(
    ("words", "gigabytes"),
    [
        ("8x HDR InfiniBand 200Gb/s per node (Selene)", 200),
        ("4x Omni-Path 100Gb/s per node", 50),
        ("EFA 3.2Tb/s per node (AWS p5; unverified)", 400),
        ("vTrain config: 800 Gbps per node", 100),
        ("RoCE 1600Gbps", 200),
        ("8x400 Gbit/s", 400),
        ("25 GB/s", 25),
        ("NVLink 1.8TB/s, 4x ConnectX-7 400Gb/s", 200),
        ("4 x 400 Gb/s per tray; NVL72 switch 130TB/s", 200),
        ("NVSwitch 900GB/s", None),
        ("3,200 Gbps", 400),
        ("EFA 3,200 Gbps", 400),
        ("400 Gb/s per GPU", 400),
        ("400Gbps/GPU", 400),
        ("400 Gb/s NIC/GPU", 400),
        ("50GB/s per GPU", 400),
        ("ConnectX-7 400 Gb/s x8", 400),
        ("Omni-Path 100Gb/s x4", 50),
        ("8 400Gb/s", 400),
        ("4 NIC of 100Gb/s", 50),
        ("8 NICs, 400 Gb/s per NIC", 400),
        ("NDR 400Gb/s per port, 8 ports", 400),
        ("8x100gb/s", 100),
        ("4x100G", 50),
        ("100GbE", 12.5),
        ("8x HDR", 200),
        ("8 x NDR InfiniBand", 400),
        ("PCIe Gen5 128 GB/s; IB 400Gb/s x8", 400),
        ("PCIe Gen5 64 GB/s", 64),
        ("1x Ethernet 100Gb/Sec, 8x NVIDIA Quantum-2 CX7 InfiniBand (400Gb/s)", 400),
        ("Slingshot-11", None),
        ("NDR400 x8", 400),
        ("NDR200 x4", 100),
        ("8x NDR200", 200),
        ("8x HDR100", 100),
        ("InfiniBand 4X EDR", None),
        ("1,6 Tbit/s", 200),
        ("12,5 GB/s", 12.5),
        ("intra 900 GB/s, inter 400 Gb/s", 50),
        ("8 NICs, 400 Gb/s each", 400),
        ("400 Gb/s (8 per node)", 400),
        ("ConnectX-7 x8 400Gb/s", 400),
        ("8-rail 400G", 400),
        ("8 x 200 Gb/s RDMA per node", 200),
        ("2x 100 Gb/s", 25),
        ("NDR", None),
        ("", None),
    ],
)
def test_words_for_a_network_are_read_as_bytes_out_of_a_node(words: str, gigabytes: float | None) -> None:
    found = worded_rate(words, 8)
    assert (found and found.bytes_per_second) == (None if gigabytes is None else pytest.approx(gigabytes * 1e9))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({}, (72, 3600e9)),
        ({"gpus_per_node": "72"}, (72, 3600e9)),
        ({"gpus_per_node": "4"}, (72, 3600e9)),
        ({"gpus_per_node": "72", "inter_link": "72x 400 Gb/s"}, (72, 3600e9)),
        ({"gpus_per_node": "4", "inter_link": "4x 400 Gb/s per node"}, (72, 3600e9)),
        ({"gpus_per_node": "4", "inter_link": "NVLink 1.8TB/s; 4x ConnectX-7 200Gb/s"}, (72, 1800e9)),
        ({"gpus_per_node": "4", "network_bytes_per_second": "1e11"}, (72, 1800e9)),
        ({"gpus_per_node": "36", "network_bytes_per_second": "1e12"}, (36, 1e12)),
        ({"gpus_per_node": "36"}, (36, 1800e9)),
        ({"inter_link": "4x ConnectX-7 400Gb/s"}, (72, 3600e9)),
        ({"gpus_per_node": "72", "inter_link": "4x ConnectX-7 400Gb/s"}, (72, 3600e9)),
        ({"inter_link": "72x 400Gb/s"}, (72, 3600e9)),
        ({"inter_link": "28.8 Tb/s"}, (72, 3600e9)),
        ({"inter_link": "3.6 TB/s per rack"}, (72, 3600e9)),
        ({"inter_link": "400Gb/s per GPU"}, (72, 3600e9)),
        ({"gpus_per_node": "72", "inter_link": "400Gb/s per GPU"}, (72, 3600e9)),
        ({"gpus_per_node": "4", "inter_link": "200Gb/s per GPU"}, (72, 1800e9)),
        ({"gpu": "h100", "inter_link": "400Gb/s per GPU"}, (8, 400e9)),
        ({"gpu": "h100", "inter_link": "Slingshot"}, (8, 400e9)),
        ({"gpu": "h100"}, (8, 400e9)),
        ({"gpu": "h100", "gpus_per_node": "4", "inter_link": "4x 200 Gb/s"}, (4, 100e9)),
    ],
)
def test_what_the_link_of_a_board_joins_is_one_node(
    tmp_path: Path, cells: dict[str, str], expected: tuple[int, float]
) -> None:
    assert network(tmp_path, **cells) == expected


def test_a_count_of_one_host_of_several_is_said(tmp_path: Path) -> None:
    assert "gpus_per_node 4 = 72" in row(tmp_path, gpus_per_node="4").assumed
    assert not any(words.startswith("gpus_per_node 72") for words in row(tmp_path, gpus_per_node="72").assumed)


def test_what_words_are_read_as_is_said(tmp_path: Path) -> None:
    assert "inter_link 4x 400 Gb/s = 28,800 Gbit/s a node" in row(tmp_path, inter_link="4x 400 Gb/s").assumed
    assert "inter_link Slingshot = no rate" in row(tmp_path, gpu="h100", inter_link="Slingshot").assumed


def test_no_rate_is_needed_where_the_link_joins_all(tmp_path: Path) -> None:
    assert network(tmp_path, gpus="72", dp="8", pp="9", gpus_per_node="4", layers="36") == (72, None)


def test_more_than_one_node_without_a_rate_is_refused(tmp_path: Path) -> None:
    (skipped,) = table(tmp_path, {"gpu": "l40s", "inter_link": "NDR"}).skipped
    words = "inter_link and network_bytes_per_second are blank, or name no rate, for more than one node"
    assert skipped.reason == words


@pytest.mark.parametrize("name", ["gb200", "h100-sxm"])
@pytest.mark.parametrize("counted", [1, 2, 4, 8, 36, 72])
def test_only_the_accelerators_of_one_host_of_several_become_all(name: str, counted: int) -> None:
    joined = accelerator(name).board.joined(counted)
    assert joined == (72 if (name, counted) == ("gb200", 4) else counted)


@pytest.mark.parametrize(
    ("cells", "gigabytes"),
    [
        ({"gpu": "H800"}, 400),
        ({"gpu": "V100", "dtype": "fp16"}, 50),
        ({"gpu": "V100", "dtype": "fp16", "gpus_per_node": "16"}, 100),
    ],
)
def test_a_blank_network_is_that_of_the_vendors_reference_design(
    tmp_path: Path, cells: dict[str, str], gigabytes: float
) -> None:
    (found,) = table(tmp_path, cells).rows
    assert found.network_bytes_per_second == gigabytes * 1e9
    assert f"network_bytes_per_second = {gigabytes * 1e9:g}" in found.assumed


@pytest.mark.parametrize(
    "cells",
    [
        *({"gpu": gpu} for gpu in ("H100 PCIe", "H100 NVL", "A100-PCIe-80GB", "L40S")),
        {"gpu": "V100", "dtype": "fp16", "gpus_per_node": "4"},
    ],
)
def test_a_network_without_a_reference_design_is_not_assumed(tmp_path: Path, cells: dict[str, str]) -> None:
    (skipped,) = table(tmp_path, cells).skipped
    assert "inter_link and network_bytes_per_second are blank" in skipped.reason
