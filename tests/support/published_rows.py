"""Rows of the published tables."""

from __future__ import annotations

ROWS_AND_USED = {
    "megatron_sc21_table1": (10, 10),
    "megatron_readme_2021_01": (10, 10),
    "megatron_sc21_table2": (12, 12),
    "korthikanti2022_table5": (8, 8),
    "real_runs": (7, 7),
    "vtrain_multi_small": (41, 41),
    "vtrain_single_h1024": (720, 720),
    "mosaicml_a100_40gb": (78, 78),
    "playbook_h100_1b": (807, 195),
    "dgxc_24_11_bf16": (45, 35),
    "mlperf_gpt3_h100_fp8": (20, 15),
    "nemo_24_07_fp8": (17, 13),
    "mosaicml_h100_fp8": (7, 7),
    "megascale_megatron_lm": (11, 11),
    "dgxc_25_02_grok1_moe": (18, 18),
    "torchtitan_202412": (12, 12),
    "torchtitan_202412_405b": (6, 6),
    "megatron_bridge_25_09_26_02": (87, 79),
}
