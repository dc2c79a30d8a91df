"""The shape of a miniature: the widths of a recorded one divided, and layers up to a number of parameters."""

from __future__ import annotations

import math

import msgspec

from reference_runs.errors import InputError
from reference_runs.run import Architecture


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """How small a miniature becomes on one kind of device.

    Args:
        hidden: the hidden size aimed at; the recorded one is divided by the power of two that comes nearest.
        parameters: the parameter count aimed at; it decides the number of layers.
        head_dim: divisor of the recorded head size.
        most_experts: of a layer, so that each still sees several tokens of a step.
        sequence: divisor of the recorded sequence, doubled until at most `most_sequence` tokens are left: scores are
            stored, and grow with the square of it.
        micro_batch: factor on the recorded micro-batch.
        most_samples: of a micro-batch where steps accumulate several, so that its logits stay small.
        most_samples_alone: of a micro-batch where steps have one.
        most_micro_batches: in a step over all ranks (12 divides by 1, 2, 3, 4, 6 and 12 ranks).
        bucket_bytes: so that gradients still travel in several messages.
        most_loss_scale: that of the first step: fp16 then holds gradients of up to 65504 / 4096 = 16. At 65536 the
            gradient of codegeex-mini overflowed in a counted step (CPU, 2026-11-21).
    """

    hidden: int
    parameters: int
    head_dim: int
    most_experts: int
    sequence: int
    most_sequence: int
    micro_batch: int
    most_samples: int
    most_samples_alone: int
    most_micro_batches: int
    bucket_bytes: int
    most_loss_scale: float


SCALES = {
    "cpu": Scale(
        hidden=200,
        parameters=4_000_000,
        head_dim=8,
        most_experts=8,
        sequence=32,
        most_sequence=256,
        micro_batch=1,
        most_samples=2,
        most_samples_alone=8,
        most_micro_batches=12,
        bucket_bytes=4_000_000,
        most_loss_scale=4096.0,
    ),
    "cuda": Scale(
        hidden=900,
        parameters=130_000_000,
        head_dim=2,
        most_experts=16,
        sequence=2,
        most_sequence=2048,
        micro_batch=8,
        most_samples=32,
        most_samples_alone=32,
        most_micro_batches=48,
        bucket_bytes=25_000_000,
        most_loss_scale=4096.0,
    ),
}


def sequence_divisor(architecture: Architecture, scale: Scale) -> int:
    """Divisor of the sequence, of a sliding window, and of the wavelengths of scaled rotary positions."""
    divisor = scale.sequence
    while architecture.sequence // divisor > scale.most_sequence:
        divisor *= 2
    return divisor


def scaled_architecture(architecture: Architecture, scale: Scale) -> tuple[Architecture, int]:
    """The smaller shape and the divisor w of its width.

    w = power of two nearest to hidden / aim by its logarithm, and at least 1. So hidden, feed-forward width and
    vocabulary keep their recorded ratios exactly (the padded vocabulary is rounded up to a multiple of 8). The head
    size shrinks by a fixed divisor, the number of heads by what remains of w, so 112 heads become 14: neither is a
    power of two. The rotated part of a head shrinks with it, to an even number. Layers fill up the parameters. Experts
    and latent attention scale as `_scaled_experts` and `_scaled_ranks` say.

    Raises:
        InputError: a size is too small beside `hidden`, so that nothing would be left of it.
    """
    w = 1 << max(0, round(math.log2(architecture.hidden / scale.hidden)))
    head_divisor = min(scale.head_dim, w)
    _check_sizes(architecture, w, head_divisor)
    hidden, head_dim = architecture.hidden // w, architecture.head_dim // head_divisor
    heads = architecture.query_width // w // head_dim
    padded = -(-architecture.padded_vocabulary // (8 * w)) * 8
    matrices = 3 if architecture.activation.gated else 2
    experts = _scaled_experts(architecture, scale, w)
    width = architecture.ffn_hidden // w
    if architecture.experts is not None:
        stored = (experts["experts"] or 0) + architecture.shared_experts
        width = stored * (experts["expert_ffn_hidden"] or width)
    ranks = _scaled_ranks(architecture, w, head_divisor)
    rotary_dim = architecture.rotary_dim and -(-architecture.rotary_dim // (2 * head_divisor)) * 2
    attention = 4 * hidden * heads * head_dim
    if architecture.key_value_rank is not None:
        attention = _latent_elements(hidden, heads, head_dim, rotary_dim or 0, **ranks)
    block = attention + matrices * hidden * width
    tables = 1 if architecture.tied_embeddings else 2
    layers = max(2, round((scale.parameters - tables * padded * hidden) / block))
    layers = min(layers, architecture.layers)
    dense = architecture.dense_layers and max(1, round(architecture.dense_layers * layers / architecture.layers))
    shorter = sequence_divisor(architecture, scale)
    small = msgspec.structs.replace(
        architecture,
        layers=layers,
        dense_layers=dense,
        **experts,
        **ranks,
        hidden=hidden,
        heads=heads,
        head_dim=head_dim,
        kv_heads=max(1, heads * architecture.kv_heads // architecture.heads),
        ffn_hidden=architecture.ffn_hidden // w,
        vocabulary=min(padded, round(architecture.vocabulary / w)),
        padded_vocabulary=padded,
        sequence=architecture.sequence // shorter,
        mean_document=architecture.mean_document and -(-architecture.mean_document // shorter),
        sliding_window=architecture.sliding_window and -(-architecture.sliding_window // shorter),
        rotary_scaling_sequence=architecture.rotary_scaling_sequence
        and -(-architecture.rotary_scaling_sequence // shorter),
        rotary_dim=rotary_dim,
    )
    return small, w


def _check_sizes(architecture: Architecture, w: int, head_divisor: int) -> None:
    heads = architecture.query_width // w // max(1, architecture.head_dim // head_divisor)
    widths = ("ffn_hidden", "vocabulary", "expert_ffn_hidden", "query_rank", "key_value_rank")
    for name, divisor in {**dict.fromkeys(widths, w), "head_dim": head_divisor, "value_head_dim": head_divisor}.items():
        size = getattr(architecture, name)
        if size is not None and size < divisor:
            what = f"no miniature: architecture.{name} is too small beside hidden = {architecture.hidden}"
            raise InputError(what, got=size, allowed=f"at least {divisor}")
    if heads < 1:
        what = f"no miniature: architecture.heads * head_dim is too small beside hidden = {architecture.hidden}"
        raise InputError(what, got=architecture.query_width, allowed=f"at least {w * architecture.head_dim}")


def _scaled_experts(architecture: Architecture, scale: Scale, w: int) -> dict[str, int | None]:
    """Experts, and how a token chooses among them, of a shape w times narrower; all None where there are none.

    At most `scale.most_experts`, with w times narrower feed-forward parts. A token passes the recorded number, but a
    quarter of them at most, and one at least. Groups have two experts at least; a token uses the recorded share of
    them, as many as its experts need. Shared experts stay.
    """
    if architecture.experts is None:
        return {}
    experts = min(architecture.experts, scale.most_experts)
    chosen = min(architecture.experts_per_token or 1, max(1, experts // 4))
    narrow = None if architecture.expert_ffn_hidden is None else architecture.expert_ffn_hidden // w
    changes: dict[str, int | None] = {"experts": experts, "experts_per_token": chosen, "expert_ffn_hidden": narrow}
    if architecture.expert_groups is not None and architecture.groups_per_token is not None:
        groups = math.gcd(architecture.expert_groups, max(1, experts // 2))
        share = -(-architecture.groups_per_token * groups // architecture.expert_groups)
        changes |= {"expert_groups": groups, "groups_per_token": max(share, -(-chosen * groups // experts))}
    return changes


def _scaled_ranks(architecture: Architecture, w: int, head_divisor: int) -> dict[str, int]:
    """Ranks of latent attention over w, and the size of its values as that of heads; nothing where there is none."""
    changes: dict[str, int] = {}
    if architecture.query_rank is not None:
        changes["query_rank"] = architecture.query_rank // w
    if architecture.key_value_rank is not None and architecture.value_head_dim is not None:
        changes["key_value_rank"] = architecture.key_value_rank // w
        changes["value_head_dim"] = architecture.value_head_dim // head_divisor
    return changes


def _latent_elements(
    hidden: int,
    heads: int,
    head_dim: int,
    rotary_dim: int,
    *,
    key_value_rank: int,
    value_head_dim: int,
    query_rank: int | None = None,
) -> int:
    """Elements of the matrices of a layer's latent attention."""
    queries = heads * head_dim
    asked = hidden * queries if query_rank is None else query_rank * (hidden + queries)
    expanded = heads * (head_dim - rotary_dim + value_head_dim)
    compressed = hidden * (key_value_rank + rotary_dim) + key_value_rank * expanded
    return asked + compressed + heads * value_head_dim * hidden
