from __future__ import annotations

import pytest

from suite.report.explore.words import in_controls


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("no accelerator is recorded: give one with --on", "no accelerator is recorded: choose an accelerator"),
        ("no network is known: give the --network of a node", "no network is known: enter the Gbit/s out of a node"),
        ("--layout: given twice; got 'dp8'", "layout: given twice; got 'dp8'"),
        ("software: PyTorch (`--stack`; pytorch)", "software: PyTorch (pytorch)"),
        ("not recorded: give --layout or --gpus", "not recorded: enter the layout or number of accelerators"),
        (
            "the run names no accelerator; allowed: --on ACCELERATOR",
            "the run names no accelerator; allowed: accelerator",
        ),
        ("--micro-batch: too large", "micro batch: too large"),
        (
            "--layout: layout.tensor_parallel does not divide architecture.heads = 112; got 5",
            "tensor parallel does not divide heads = 112; got 5",
        ),
        (
            "accelerators/v100_sxm_32gb.toml: v100-sxm-32gb has no peak_flop_per_second for the dtype; got 'bf16'",
            "v100-sxm-32gb has no peak for the dtype; got 'bf16'",
        ),
        ("unknown run; got 'x', allowed: a, b, or a file ending in .toml", "unknown run; got 'x', allowed: a, b"),
        ("my.recipe.toml: layout.dp.x", "my.recipe.toml: layout.dp.x"),
        ("dp8,tp4 - nothing -- here", "dp8,tp4 - nothing -- here"),
    ],
)
def test_options_are_said_as_controls(said: str, shown: str) -> None:
    assert in_controls(said) == shown
