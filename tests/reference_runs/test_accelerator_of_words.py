"""Names of accelerators as people write them: words in any order, with anything between them, and no guesses."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.accelerator import accelerator, accelerator_names, name_words
from reference_runs.errors import InputError

DEVICES = [accelerator(name) for name in accelerator_names() if name != "this-cpu"]
ALIASES = [(alias, device.name) for device in DEVICES for alias in (device.name, *device.aliases)]


@given(st.sampled_from(ALIASES), st.randoms(use_true_random=False))
def test_names_are_found_whatever_stands_between_their_words_in_any_order(pair: tuple[str, str], random: Any) -> None:
    alias, name = pair
    words = re.split(r"[ _-]", alias)
    random.shuffle(words)
    assert accelerator("".join(word + random.choice((" ", "_", "-", "  ")) for word in words).strip(" _-")).name == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100 80GB", "a100-sxm-80gb"),
        ("A100 40GB", "a100-sxm-40gb"),
        ("A100_PCIe 40GB", "a100-pcie-40gb"),
        ("H100 SXM5 80GB", "h100-sxm"),
        ("H100 80GB PCIe", "h100-pcie"),
        ("H100 SXM", "h100-sxm"),
        ("RTX 4090", "rtx-4090"),
        ("V100 SXM2 16GB", "v100-sxm-16gb"),
    ],
)
def test_words_with_blanks_name_a_board(text: str, name: str) -> None:
    assert accelerator(text).name == name


def test_names_of_different_accelerators_have_different_words() -> None:
    named: dict[tuple[str, ...], set[str]] = {}
    for alias, name in ALIASES:
        named.setdefault(name_words(alias), set()).add(name)
    assert all(len(names) == 1 for names in named.values())


@pytest.mark.parametrize("text", ["NVIDIA A100", "NVIDIA H100", "H100 94GB 80GB", "A100 SXM 80GB PCIe", "SXM", "80GB"])
def test_words_that_name_no_board_or_several_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="unknown accelerator"):
        accelerator(text)
