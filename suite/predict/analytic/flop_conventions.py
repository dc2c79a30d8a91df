"""Floating-point operations of one training step under every named convention, which published rates are counted in."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from reference_runs.run import Architecture, FlopConvention, Recipe
from suite.predict.analytic.flop import forward_flop, head_forward_flop, layer_forward_flop, model_flop
from suite.predict.analytic.parameters import active_parameter_count, parameter_counts


def six_n_flop(*, parameters: float, tokens: float) -> float:
    """Flop of training `parameters` on `tokens` tokens: 6 N D.

    2 N D   forward: a multiplication and an addition per parameter and token
    4 N D   backward: twice that

    Source: Kaplan et al. 2020, arXiv 2001.08361, section 2.1 (where N leaves the embedding out).
    Differs from `model_flop` by the attention square and, with untied embeddings, by the embedding, which is looked up
    and not multiplied.
    """
    return 6 * parameters * tokens


def palm_flop(architecture: Architecture, *, tokens: int) -> int:
    """Flop of training on `tokens` tokens: (6 N + 12 L H Q T) a token, H heads of size Q, T the sequence.

    N are the parameters that a token passes; where values have another size than queries, Q is the mean of both.

    Source: Chowdhery et al. 2022, arXiv 2204.02311, appendix B.
    Differs from `model_flop` by counting biases, norms and a learned position table as multiplied.
    """
    widths = architecture.query_width + architecture.context_width
    layers = architecture.layers if architecture.linear_heads is None else architecture.full_layers
    attention = 6 * layers * widths * architecture.sequence
    return (6 * active_parameter_count(architecture) + attention) * tokens


def nanogpt_flop(architecture: Architecture, *, tokens: int) -> int:
    """Flop of training on `tokens` tokens: (6 (N - U) + 12 L H Q T) a token, with the attention of `palm_flop`.

    U are the tables that are looked up and not multiplied: learned positions, and the embedding where the head is one
    of its own.

    Source: Karpathy, nanoGPT, model.py, estimate_mfu (tied tables: N without positions); torchtitan, tools/utils.py,
    get_num_flop_per_token (untied tables: N without the embedding).
    Differs from `model_flop` by counting biases and norms as multiplied, from `palm_flop` by 6 U. torchtitan's count of
    a model with tied tables leaves the head out too.
    """
    counts = parameter_counts(architecture)
    looked_up = counts["position"] + (0 if architecture.tied_embeddings else counts["embedding"])
    return palm_flop(architecture, tokens=tokens) - 6 * looked_up * tokens


def megatron_flop(architecture: Architecture, *, samples: int, recomputed: bool) -> int:
    """Flop of one step on `samples` sequences by equation 3 of Megatron-LM, with or without full recomputation.

    96 B s L h^2 (1 + s / 6h + V / 16 L h)   recomputed: four forward passes of the layers, three of the head
    72 B s L h^2 (1 + s / 6h + V / 12 L h)   three forward passes

    Source: Narayanan et al. 2021, arXiv 2104.04473, equation 3. It supposes f = 4 h (or 8/3 h gated) and as many
    key-value heads as heads, and counts V with its padding.
    """
    h, s, layers = architecture.hidden, architecture.sequence, architecture.layers
    tokens = samples * s
    forward = tokens * layers * (24 * h * h + 4 * s * h)
    return (4 if recomputed else 3) * forward + 6 * tokens * h * architecture.padded_vocabulary


def attended_share(architecture: Architecture) -> Fraction:
    """Share of the attention square that a causal mask leaves: w / s - w^2 / 2 s^2 with a window of w positions.

    1/2 without a window, w = s. Where some layers alone have one, the mean over the layers of `attended_shares`.
    Counted as areas: the diagonal, s of the s^2 pairs, counts half. With documents of m tokens on average, where each
    token may be its document's last with equal chance, the expected share:
        (m (s - (m - 1) (1 - (1 - 1 / m)^s)) - s / 2) / s^2
    as the token at place i sees m (1 - (1 - 1 / m)^i) tokens, itself included.

    Source: Dao 2023, arXiv 2307.08691, section 4.1 (FlashAttention-2 halves attention flop for a causal mask).
    """
    return sum((part * share for part, share in attended_shares(architecture)), Fraction(0))


@lru_cache(maxsize=256)
def attended_shares(architecture: Architecture) -> tuple[tuple[Fraction, Fraction], ...]:
    """Part of the layers, and `attended_share` of each of them: first those without a window, where there are both."""
    if architecture.mean_document is not None:
        s, m = architecture.sequence, architecture.mean_document
        others = 0.0 if m == 1 else (m - 1) * -math.expm1(s * math.log1p(-1 / m))
        return ((Fraction(1), (Fraction(m * (s - others)) - Fraction(s, 2)) / s**2),)
    full = Fraction(architecture.full_layers, architecture.layers)
    part = Fraction(min(architecture.sliding_window or 0, architecture.sequence), architecture.sequence)
    shares = [(full, Fraction(1, 2)), (1 - full, part - part * part / 2)]
    return tuple((layers, share) for layers, share in shares if layers)


def frozen_flop(architecture: Architecture, recipe: Recipe, *, samples: int) -> int:
    """Flop of weight gradients that a step on `samples` sequences lacks: 0, but where adapters alone are trained.

    A forward pass of all products but attention's scores and context: 2 N of 6 N. Adapters' own products, r / h of
    theirs with rank r, are not counted.
    Source: Hu et al. 2021, arXiv 2106.09685, section 4.2 (frozen weights have no gradients).
    """
    if recipe.adapter_rank is None:
        return 0
    return sum(
        flop for part, flop in forward_flop(architecture, samples=samples).items() if not part.startswith("attention")
    )


def causal_half_flop(architecture: Architecture, *, samples: int) -> int:
    """Model flop of one step on `samples` sequences where the attention skips what its mask leaves out of its square.

    Half of it under a plain causal mask, see `attended_share`.
    """
    full = architecture.first_kind if architecture.first_kind_layers and not architecture.dense_layers else architecture
    layer = layer_forward_flop(full, samples=samples)
    layers = architecture.layers if full is architecture else architecture.full_layers
    square = layers * (layer["attention scores"] + layer["attention context"])
    skipped = 1 - attended_share(full)
    return model_flop(architecture, samples=samples) - 3 * square * skipped.numerator // skipped.denominator


def without_head_flop(architecture: Architecture, *, samples: int) -> int:
    """Model flop of one step on `samples` sequences without the head's three products."""
    return model_flop(architecture, samples=samples) - 3 * head_forward_flop(architecture, samples=samples)


def conventional_flop(architecture: Architecture, *, samples: int, convention: FlopConvention) -> float:
    """Flop of one step on `samples` sequences as `convention` counts it: what a published rate is compared under."""
    tokens = samples * architecture.sequence
    if convention is FlopConvention.SIX_N:
        return six_n_flop(parameters=active_parameter_count(architecture), tokens=tokens)
    if convention is FlopConvention.PALM:
        return palm_flop(architecture, tokens=tokens)
    if convention is FlopConvention.NANOGPT:
        return nanogpt_flop(architecture, tokens=tokens)
    if convention is FlopConvention.ALL_PRODUCTS:
        return model_flop(architecture, samples=samples)
    if convention is FlopConvention.CAUSAL_HALF:
        return causal_half_flop(architecture, samples=samples)
    recomputed = convention is FlopConvention.MEGATRON_RECOMPUTED
    return megatron_flop(architecture, samples=samples, recomputed=recomputed)


def model_convention(convention: FlopConvention) -> FlopConvention:
    """The convention of the MFU of a source whose rates count as `convention`: without recomputation."""
    recomputed = convention is FlopConvention.MEGATRON_RECOMPUTED
    return FlopConvention.MEGATRON_MODEL if recomputed else convention


def needed_flop(architecture: Architecture, recipe: Recipe, *, convention: FlopConvention | None) -> float:
    """Flop of one step that an MFU counts where rates were published under `convention`.

    None: as `model_flop`, less `frozen_flop`.
    """
    samples = recipe.global_batch
    if convention is None:
        return model_flop(architecture, samples=samples) - frozen_flop(architecture, recipe, samples=samples)
    return conventional_flop(architecture, samples=samples, convention=model_convention(convention))


def flop_conventions(architecture: Architecture, *, samples: int) -> dict[str, float]:
    """Flop of one step on `samples` sequences under every named convention, side by side."""
    named = {
        convention.value: conventional_flop(architecture, samples=samples, convention=convention)
        for convention in FlopConvention
    }
    return named | {"without head": without_head_flop(architecture, samples=samples)}
