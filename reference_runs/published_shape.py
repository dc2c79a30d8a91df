"""What the cells of a published row say of a model's shape, over that of a recorded run."""

from __future__ import annotations

import msgspec

from reference_runs.architecture import RotaryScaling
from reference_runs.published_columns import EXPERTS
from reference_runs.published_run import Cells, UnusableError
from reference_runs.run import Activation, Architecture, Balancing, Gate, Mask, Norm, Position, Residual

MOST_LAYERS = 10_000
_UNSCALED = {
    **dict.fromkeys(name for name in Architecture.__struct_fields__ if name.startswith("rotary_scaling_")),
    "rotary_scaling": RotaryScaling.BANDS,
}
_BIASES_OF_PARTS = ("attention_bias", "projection_bias", "feed_forward_bias", "norm_bias")


def architecture_of(cells: Cells, base: Architecture, *, recorded: bool) -> Architecture:
    """The row's shape; what it leaves open is the recorded run's, or assumed.

    Args:
        recorded: what no column states is as in `base`; else columns that are blank are assumed.
    """
    shape = _sizes(cells, base)
    if recorded:
        for name, column in (("kv_heads", "kv_heads"), ("ffn_hidden", "ffn_hidden"), ("padded_vocabulary", "vocab")):
            if cells.stated.get(column):
                shape[name] = cells.count(column)
        shape["vocabulary"] = min(base.vocabulary, int(str(shape.get("padded_vocabulary", base.vocabulary))))
        return msgspec.structs.replace(base, **shape | _experts(cells, base))
    if cells.said("mean_document"):
        shape |= {"mask": Mask.DOCUMENTS, "mean_document": cells.count("mean_document")}
    named = bool(cells.of_run)
    vocabulary = cells.count("vocab")
    return msgspec.structs.replace(
        base,
        **shape | _positions(cells, base, shape["head_dim"]) | _biases(cells) | _experts(cells, base),
        kv_heads=cells.count("kv_heads"),
        ffn_hidden=cells.count("ffn_hidden"),
        vocabulary=base.vocabulary if named and not cells.stated.get("vocab") else vocabulary,
        padded_vocabulary=cells.count("padded_vocab"),
        norm=cells.choice("norm", Norm),
        activation=cells.choice("activation", Activation),
        residual=cells.choice("residual", Residual),
        tied_embeddings=cells.claim("tied_embeddings"),
    )


def _sizes(cells: Cells, base: Architecture) -> dict[str, object]:
    """Layers, sequence and heads.

    Heads are as wide as the row says, else hidden / heads; where those of `base` are not, they stay as wide.
    """
    hidden, heads = cells.count("hidden"), cells.count("heads")
    shape: dict[str, object] = {"hidden": hidden, "heads": heads}
    shape |= {"layers": cells.count("layers", most=MOST_LAYERS), "sequence": cells.count("seq_len")}
    stated = bool(cells.stated.get("head_dim"))
    if stated and base.key_value_rank is not None and cells.count("head_dim") != base.head_dim:
        what = f"head_dim: expected {base.head_dim}, {base.rotary_dim} of them rotated, of latent attention"
        raise UnusableError(f"{what}; got {cells.text('head_dim')!r}")
    if not stated and base.heads * base.head_dim != base.hidden:
        return shape | {"head_dim": base.head_dim}
    if not stated and hidden % heads:
        raise UnusableError(f"heads = {heads} does not divide hidden = {hidden}")
    head_dim = cells.count("head_dim") if stated else hidden // heads
    if head_dim != base.head_dim and base.rotary_dim is not None:
        shape["rotary_dim"] = head_dim
    return shape | {"head_dim": head_dim}


def _experts(cells: Cells, base: Architecture) -> dict[str, object]:
    """The row's mixture of experts: nothing where it has none, or says nothing beyond that of `base`.

    Neither time nor memory depends on how gates are computed, or on what keeps experts equally busy.
    """
    if not any(cells.stated.get(column) for column in EXPERTS):
        return {}
    if base.experts is None and not cells.stated.get("experts"):
        of_experts = [column for column in EXPERTS if cells.stated.get(column) and cells.count(column, least=0)]
        if of_experts:
            raise UnusableError(f"experts is blank, but {of_experts[0]} is {cells.text(of_experts[0])}")
    experts = cells.count("experts", least=0) if cells.stated.get("experts") else base.experts or 0
    if experts <= 1:
        if base.experts is not None:
            raise UnusableError(f"experts = {experts}, but {cells.of_run} has {base.experts}")
        return {}
    shape: dict[str, object] = {"experts": experts}
    if base.experts is None:
        shape |= {"gate": Gate.SOFTMAX_OF_CHOSEN, "balancing": Balancing.NONE}
    if base.experts is None or cells.stated.get("experts_per_token"):
        shape["experts_per_token"] = cells.count("experts_per_token")
    for column, least in (("expert_ffn_hidden", 1), ("shared_experts", 0), ("dense_layers", 0)):
        if cells.stated.get(column):
            shape[column] = cells.count(column, least=least)
    return shape


def _positions(cells: Cells, base: Architecture, head_dim: object) -> dict[str, object]:
    """Positions; the part of a head that rotates is the whole, but that of `base` where its heads are as wide."""
    position = cells.choice("position", Position)
    if position is not Position.ROTARY:
        return {"position": position, "rotary_dim": None, "rotary_base": None, **_UNSCALED}
    as_wide = base.rotary_dim is not None and base.head_dim == head_dim
    rotary_dim = base.rotary_dim if as_wide else head_dim
    return {"position": position, "rotary_dim": rotary_dim, "rotary_base": cells.positive("rotary_base")}


def _biases(cells: Cells) -> dict[str, object]:
    """Whether there are biases: in all parts alike where the row says so, else in those that have them in the run."""
    biases: dict[str, object] = {"biases": cells.claim("biases")}
    if cells.stated.get("biases"):
        biases |= dict.fromkeys(_BIASES_OF_PARTS) | {"head_bias": False}
    return biases
