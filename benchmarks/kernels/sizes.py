"""Sizes of the seven runs: hidden sizes, tokens of a micro-batch, parameters of a layer."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from reference_runs.catalog import reference_run
from suite.predict.analytic.parameters import layer_elements

RUNS = ("gpt2-124m", "gpt2-1558m", "codegeex-13b", "gpt-neox-20b", "glm-130b", "opt-175b", "bloom-176b", "mt-nlg-530b")
CUDA_ROWS = 4096  # tokens: enough to fill a GPU at the smallest hidden size
CPU_ROWS = 64
MOST_PARAMETERS = 500_000_000  # of a layer: with masters, moments, copies and rotation 16 GB


def hidden_sizes(device: torch.device) -> list[int]:
    """Hidden sizes of the seven runs, each once, sorted; on a CPU the least, one between and the largest."""
    every = sorted({reference_run(name).architecture.hidden for name in RUNS})
    return every if device.type == "cuda" else [every[0], every[len(every) // 2], every[-1]]


def rows(device: torch.device) -> int:
    """Tokens of a micro-batch."""
    return CUDA_ROWS if device.type == "cuda" else CPU_ROWS


def layers(device: torch.device) -> list[list[int]]:
    """Elements of every parameter tensor of one layer, of each run whose layer is not too large.

    On a CPU of the smallest run alone: the attention's projection with its bias, and all of the attention.
    """
    every = [layer_elements(reference_run(name).architecture) for name in RUNS]
    if device.type == "cuda":
        return [layer for layer in every if sum(layer) <= MOST_PARAMETERS]
    smallest = min(every, key=sum)
    attention = smallest[: len(smallest) // 2]
    return [attention[-2:], attention]


def buffers(device: torch.device) -> Iterator[tuple[str, list[int]]]:
    """Of each of `layers`, its tensors, and one flat buffer of them; on a CPU the tensors of the last one alone."""
    every = layers(device)
    for layer in every:
        if device.type == "cuda" or layer is every[-1]:
            yield "tensors", layer
        yield "flat", [sum(layer)]
