"""Rotation of queries and keys, softmax of scores under the masks of the runs, and the whole attention.

Masks: causal; ALiBi; a prefix of half the positions; two samples in one row, each with such a prefix (GLM's rows).
The functions of an `attention` variant all compute the same from queries, keys and values: products, mask and softmax
one after the other, as in the recorded runs, with the kernel, PyTorch's or a compiled softmax between the products; and
fused, PyTorch's `scaled_dot_product_attention` and FlexAttention, whose weights are nowhere in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.kernels.case import FLEX, SDPA, Case, Draw, Function, compiled, dtypes
from kernels import rotary
from kernels.masked_softmax import masked_softmax, reference
from suite.execute.model.position import alibi_slopes, prefix_bias, rotated

HEADS = {"cuda": 16, "cpu": 4}
HEAD_SIZE = 64
SCALE = 0.125  # 1 / sqrt(HEAD_SIZE)
LENGTHS = {"cuda": (1024, 2048, 4096), "cpu": (64, 256)}
ATTENTION_LENGTHS = {"cuda": (1024, 2048, 4096), "cpu": (256, 1024)}
# and the kernel's argument that makes the mask, where it is not causal alone
MASKS = {"causal": "", "alibi": "slopes_H", "prefix": "prefix_B", "packed": "seen_B2S"}
FUSED_MASKS = ("causal", "alibi", "prefix")
ROTATED_BATCH, ROTATED_LENGTH = {"cuda": 2, "cpu": 1}, {"cuda": 2048, "cpu": 128}
# heads of queries and of keys and head size of runs that rotate, and the share of the head that turns
ROTATIONS = {"glm": (96, 96, 128, 1.0), "neox": (64, 64, 96, 0.25), "llama": (64, 8, 128, 1.0)}
ROTATED_CPU_HEADS = 8


def _mask(variant: str, heads: int, length: int, device: torch.device) -> Tensor | None:
    """The kernel's arguments for the mask, where it is not causal alone."""
    if variant == "alibi":
        return torch.tensor(alibi_slopes(heads), dtype=torch.float32, device=device)
    if variant == "prefix":
        return torch.tensor([length // 2], device=device)
    if variant == "packed":
        place = torch.arange(length, device=device)
        start = place // (length // 2) * (length // 2)  # of the sample
        first = torch.where(place - start < length // 4, start, place)
        return torch.stack([first, start + length // 2])[None]
    return None


@lru_cache(maxsize=2)
def _bias(variant: str, heads: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The mask as what it adds to the scaled scores, [1, 1 or H, T, S]; made once, as in a model."""
    mask = _mask(variant, heads, length, device)
    places = torch.arange(length, device=device)
    distance = places[:, None] - places[None, :]
    if variant == "packed":
        assert mask is not None
        return prefix_bias(mask).to(dtype)
    bias = torch.zeros(1, 1, length, length, device=device)
    if variant == "alibi":
        assert mask is not None
        bias = -mask[:, None, None] * distance[None]
    hidden = distance < 0
    if variant == "prefix":
        assert mask is not None
        hidden = hidden & (places >= mask)
    return bias.masked_fill(hidden, float("-inf")).view(1, -1, length, length).to(dtype)


def _by(function: Function, variant: str, scores: Tensor, mask: Tensor | None = None) -> Tensor:
    masks = {MASKS[variant]: mask} if MASKS[variant] else {}
    weights: Tensor = function(scores, SCALE, causal=variant != "packed", **masks)
    return weights


def _eager(variant: str, scores: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: ARG001  # in the bias
    _, heads, length, _ = scores.shape
    bias = _bias(variant, heads, length, torch.float32, scores.device)
    return torch.softmax(scores.float() * SCALE + bias, dim=-1).to(scores.dtype)


def _attention(softmax: Function, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2))
    return torch.matmul(softmax(scores) if mask is None else softmax(scores, mask), v)


def _sdpa(variant: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: ARG001  # in the bias
    if variant == "causal":
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE)
    _, heads, length, _ = q.shape
    bias = _bias(variant, heads, length, q.dtype, q.device)
    return scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=SCALE)


def _flex(variant: str, heads: int, length: int, device: torch.device) -> Function:
    """FlexAttention, compiled, with the blocks of its mask made once; on a CPU without gradients, for it has none."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = _mask(variant, heads, length, device)

    def causal(_: Tensor, __: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return s <= t

    def prefix(batch: Tensor, _: Tensor, t: Tensor, s: Tensor) -> Tensor:
        assert mask is not None
        return (s <= t) | (s < mask[batch])

    def penalised(score: Tensor, _: Tensor, head: Tensor, t: Tensor, s: Tensor) -> Tensor:
        assert mask is not None
        return score - mask[head] * (t - s)

    seen, batch = (prefix, 1) if variant == "prefix" else (causal, None)
    blocks = create_block_mask(seen, batch, None, length, length, device=str(device))
    changed = penalised if variant == "alibi" else None
    fused = compiled(partial(flex_attention, score_mod=changed, block_mask=blocks, scale=SCALE))

    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: ARG001  # in `seen`
        if device.type == "cpu":
            q, k, v = q.detach(), k.detach(), v.detach()
        out: Tensor = fused(q, k, v)
        return out

    return attention


def _inputs(
    shapes: list[tuple[int, ...]], variant: str, heads: int, length: int, dtype: torch.dtype, draw: Draw
) -> tuple[Any, ...]:
    mask = _mask(variant, heads, length, draw.device)
    floats = tuple(draw.normal(*shape, dtype=dtype) for shape in shapes)
    return floats if mask is None else (*floats, mask)


def _read(variant: str, length: int) -> dict[str, int]:
    """The mask as the formula takes it: of packed samples the kernel reads every score."""
    if variant == "packed":
        return {}
    return {"causal": 1, "prefix": length // 2} if variant == "prefix" else {"causal": 1}


def _eager_rotation(q: Tensor, k: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor]:
    return rotated(q, rotation), rotated(k, rotation)


def _rotation_inputs(
    heads: int, groups: int, size: int, turning: int, dtype: torch.dtype, draw: Draw
) -> tuple[Any, ...]:
    """Queries and keys; with fewer keys than queries group by group, as they lie in one projection's output."""
    batch, length = ROTATED_BATCH[draw.device.type], ROTATED_LENGTH[draw.device.type]
    if groups == heads:
        q, k = (draw.normal(batch, heads, length, size, dtype=dtype) for _ in range(2))
    else:
        share = heads // groups
        fused = draw.normal(batch, length, groups, share + 2, size, dtype=dtype).permute(0, 2, 3, 1, 4)
        q, k, _ = fused.split((share, 1, 1), dim=2)
    angles = draw.normal(length, turning, dtype=torch.float32)
    return q, k, torch.stack([angles.cos(), angles.sin()])


def _rotations(device: torch.device) -> Iterator[Case]:
    """Each shape in each dtype, forward and backward; all dims count, as those that pass are copied too."""
    for variant, (recorded, keys, size, share) in ROTATIONS.items():
        heads = recorded if device.type == "cuda" else ROTATED_CPU_HEADS
        groups = heads * keys // recorded
        for dtype, torchs in dtypes(device).items():
            elements = ROTATED_BATCH[device.type] * (heads + groups) * ROTATED_LENGTH[device.type] * size
            yield Case(
                kernel="rotary",
                variant=variant,
                dtype=dtype,
                sizes={"elements": elements, "element_bytes": torchs.itemsize},
                over="elements",
                inputs=partial(_rotation_inputs, heads, groups, size, round(share * size), torchs),
                ours=rotary.rotary,
                plain=rotary.reference,
                eager=_eager_rotation,
                differentiated=2,
            )


def cases(device: torch.device) -> Iterator[Case]:
    """Rotations; the softmax and the attention under each mask at each length in each dtype, forward and backward."""
    yield from _rotations(device)
    heads = HEADS[device.type]
    for variant in MASKS:
        for dtype, torchs in dtypes(device).items():
            for length in LENGTHS[device.type]:
                sizes = {"rows": heads * length, "columns": length, "element_bytes": torchs.itemsize}
                plain = partial(_by, reference, variant)
                yield Case(
                    kernel="masked_softmax",
                    variant=variant,
                    dtype=dtype,
                    sizes=sizes | _read(variant, length),
                    over="columns",
                    inputs=partial(_inputs, [(1, heads, length, length)], variant, heads, length, torchs),
                    ours=partial(_by, masked_softmax, variant),
                    plain=plain,
                    eager=partial(_eager, variant),
                    compilable=plain,
                    differentiated=1,
                )
    for variant, (dtype, torchs) in product(FUSED_MASKS, dtypes(device).items()):
        for length in ATTENTION_LENGTHS[device.type]:
            yield _attention_case(variant, dtype, torchs, heads, length, device)


def _attention_case(
    variant: str, dtype: str, torchs: torch.dtype, heads: int, length: int, device: torch.device
) -> Case:
    plain = partial(_attention, partial(_by, reference, variant))
    return Case(
        kernel="masked_softmax",
        formula="attention",
        variant=f"attention-{variant}",
        dtype=dtype,
        sizes={"heads": heads, "length": length, "head_size": HEAD_SIZE, "element_bytes": torchs.itemsize},
        over="length",
        inputs=partial(_inputs, [(1, heads, length, HEAD_SIZE)] * 3, variant, heads, length, torchs),
        ours=partial(_attention, partial(_by, masked_softmax, variant)),
        plain=plain,
        eager=partial(_attention, partial(_eager, variant)),
        compilable=plain,
        fused={SDPA: lambda: partial(_sdpa, variant), FLEX: lambda: _flex(variant, heads, length, device)},
        forward_alone=() if device.type == "cuda" else (FLEX,),
        differentiated=3,
    )
