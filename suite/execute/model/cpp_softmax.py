"""Scale, mask and softmax of attention's scores as one C++ operator, on CPUs.

The first import compiles it, in about half a minute, and keeps it in the cache directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.cpp_extension import load

from suite.paths import cache_directory

# -ffast-math calls vector exponentials; masked scores are -inf, so infinities stay. The linker does not get the flags:
# the whole process would flush denormal numbers to zero
FLAGS = ["-O3", "-march=native", "-ffast-math", "-fno-finite-math-only"]


def _loaded() -> None:
    directory = cache_directory() / f"operators-torch{torch.__version__}"
    directory.mkdir(exist_ok=True)
    load(
        "ladder_operators",
        str(Path(__file__).with_suffix(".cpp")),
        extra_cflags=FLAGS,
        build_directory=str(directory),
        is_python_module=False,
    )
    torch.library.register_fake("ladder::attention_weights", lambda scores, _mask, _scale: torch.empty_like(scores))
    torch.library.register_autograd("ladder::attention_weights", _backward, setup_context=_kept)


def _kept(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
    ctx.save_for_backward(output)
    ctx.scale = inputs[2]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    (weights,) = ctx.saved_tensors
    return torch.ops.ladder.attention_weights_backward(gradient, weights, ctx.scale), None, None


def attention_weights(scores_BHTS: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Softmax of scale * scores + mask, computed in fp32, in the scores' dtype; mask [1 or H, T, S]."""
    weights: Tensor = torch.ops.ladder.attention_weights(scores_BHTS, mask, scale)
    return weights


_loaded()
