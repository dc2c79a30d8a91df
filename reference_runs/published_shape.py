"""A published row's model: its shape by the row's columns, or by a name that the catalog or a shipped table knows."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cache

import msgspec

from reference_runs.architecture import RotaryScaling
from reference_runs.catalog import reference_run
from reference_runs.named_runs import folded_name, named_runs, says_size
from reference_runs.published_cells import EXPERTS, Cells, UnusableError, is_column
from reference_runs.published_tables import PUBLISHED, shipped_tables
from reference_runs.published_words import meanings, names_mixture, other_model, training_words, without_training, words
from reference_runs.run import Activation, Architecture, Balancing, Gate, Mask, Norm, Position, ReferenceRun, Residual

MOST_LAYERS = 10_000
_SIZES = ("layers", "hidden", "heads")
_TABLED = (*_SIZES, "kv_heads", "ffn_hidden", "vocab")
_OF_A_SIZE = re.compile(r"gpt[\d.]+[bmt]")  # "GPT-18B" is any GPT of that size
_GPT_3 = re.compile(r"gpt[ _-]?(\d)[ _-]([\d.]+[bmt])", re.IGNORECASE)  # "GPT3-5B" is GPT-3 with 5B, not with 35B
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
    shape |= {"layers": _layers(cells, base), "sequence": cells.count("seq_len")}
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


def _layers(cells: Cells, base: Architecture) -> int:
    """The row's layers; a model with a pattern may count its feed-forward parts as layers, as its model card does."""
    layers, pattern = cells.count("layers", most=MOST_LAYERS), base.layer_pattern
    if pattern is None or layers == base.layers:
        return layers
    if layers != len(pattern):
        what = f"layers: {cells.of_run} has {base.layers}, or {len(pattern)} with feed-forward parts counted apart"
        raise UnusableError(f"{what}; got {layers}")
    return base.layers


def refuse_other_model(architecture: Architecture, cells: Mapping[str, str]) -> None:
    """Refuse a row without experts whose model is called as a mixture of experts is, and one of no decoder of text.

    Raises:
        UnusableError: it is the first, and its column `experts` is blank or absent, or the second.
    """
    model = cells.get("model", "")
    if architecture.linear_heads is None and (what := other_model(folded_name(model))):
        raise UnusableError(f"model: {model!r} is the name of a model with {what}, which no row is predicted as")
    if architecture.experts is None and not cells.get("experts") and names_mixture(folded_name(model)):
        raise UnusableError(f"experts is blank, but {model!r} is the name of a mixture of experts")


def _of_training(cells: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Words that may say what is trained, by column: of model, source and framework, of notes, and of any single word.

    Notes are the columns that nothing else is read from.
    """
    said: dict[str, frozenset[str]] = {}
    for column, text in cells.items():
        if column in ("model", "source", "framework") or re.fullmatch(r"\W*[A-Za-z]+\W*", text):
            said[column] = frozenset(training_words(text))
        elif not is_column(column):
            said[column] = frozenset(training_words(text)) - words().not_in_notes
    return said


def refuse_other_training(cells: Mapping[str, str]) -> None:
    """Refuse a row that says that neither all weights nor low-rank adapters are trained on given text.

    Raises:
        UnusableError: quantised weights beside adapters, other adapters, a step of reinforcement learning, or one
            with a reference model.
    """
    said, of_word = _of_training(cells), meanings(words().not_modelled)
    for column, known in said.items():
        for word in sorted(known & of_word.keys()):
            raise UnusableError(f"{column}: {cells[column]!r} means {of_word[word]}, which is not predicted")
    if any(known & words().plain_training for known in said.values()):
        return
    for column, known in said.items():
        if known & words().rollout_software:
            what = "software for reinforcement learning, whose step is not predicted"
            raise UnusableError(f"{column}: {cells[column]!r} is {what}; a row of plain training says SFT")


def training_columns(cells: Mapping[str, str]) -> list[str]:
    """Columns that say that adapters are trained, or what is not predicted."""
    decisive = words().adapters | words().rollout_software | meanings(words().not_modelled).keys()
    return [column for column, known in _of_training(cells).items() if known & decisive]


def trains_adapters(cells: Mapping[str, str]) -> bool:
    """Whether a row says that low-rank adapters alone are trained (LoRA)."""
    return bool(cells.get("adapter_rank")) or any(words().adapters & known for known in _of_training(cells).values())


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


def stated_shape(run: ReferenceRun) -> dict[str, str]:
    """The columns of a table that the run's architecture fills, each as a cell."""
    shape = run.architecture
    cells: dict[str, object] = {
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "seq_len": shape.sequence,
        "vocab": shape.padded_vocabulary,
        "padded_vocab": shape.padded_vocabulary,
        "ffn_hidden": shape.ffn_hidden,
        "position": shape.position.value,
        "rotary_base": shape.rotary_base,
        "norm": shape.norm.value,
        "activation": shape.activation.value,
        "residual": shape.residual.value,
        "biases": int(shape.biases is True),
        "tied_embeddings": int(shape.tied_embeddings),
    }
    return {column: str(value) for column, value in cells.items() if value is not None}


def runs_called(model: str) -> list[str]:
    """The recorded runs of the model that is called so, or is without words of training ("LoRA", "SFT")."""
    return named_runs(model) or named_runs(without_training(model))


def named_run(model: str, stated: Mapping[str, str] | None = None) -> str | None:
    """The recorded run of the model that is called so; None: none is, or several are.

    Args:
        stated: cells of the model's row; where the name says no size, the run is meant that has its layers, hidden and
            heads: of several one that has some, and the only one unless it has others.
    """
    found = runs_called(model)
    said = {column: stated[column] for column in _SIZES if stated and stated.get(column)}
    if len(found) > 1 or (said and found and not says_size(model)):
        shapes = {name: stated_shape(reference_run(name)) for name in found}
        found = [name for name, shape in shapes.items() if said and said.items() <= shape.items()]
    return found[0] if len(found) == 1 else None


def is_plain(run: ReferenceRun) -> bool:
    """Whether the columns of a table say all of its shape: dense layers, heads of hidden / heads, plain attention."""
    shape = run.architecture
    return shape.experts is None and shape.key_value_rank is None and shape.query_width == shape.hidden


def tabled_shape(model: str) -> tuple[str, dict[str, str]] | None:
    """The first shipped table that calls a model so, and the cells of its shape; None: none does, or with one shape.

    Letters' case, what stands between them, and an owner in front ("mosaicml/mpt-7b") do not count.
    """
    return _shapes().get(_tabled_name(without_training(model)))


def _tabled_name(model: str) -> str:
    """The name folded; the generation of a GPT stands apart from its size, "gpt3-5b"."""
    found = _GPT_3.fullmatch(model.rpartition("/")[2].strip())
    return f"gpt{found[1]}-{found[2].casefold()}" if found else folded_name(model)


def is_like_models_of(model: str, table: str) -> bool:
    """Whether the shipped table of that name has models that are called alike: one word in common, such as "llama".

    A name without a word, "175B" or none, says nothing against it.
    """
    own = _long_words(model)
    return not own or not own.isdisjoint(_words_of_models(table))


def _long_words(model: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]{3,}", model.casefold()))


@cache
def _words_of_models(table: str) -> frozenset[str]:
    with (PUBLISHED / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return frozenset[str]().union(*(_long_words(row.get("model") or "") for row in csv.DictReader(file)))


@cache
def _shapes() -> dict[str, tuple[str, dict[str, str]]]:
    known: dict[str, tuple[str, dict[str, str]]] = {}
    for path in shipped_tables():
        of_table: dict[str, list[dict[str, str]]] = {}
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                shape = {column: row.get(column) or "" for column in _TABLED}
                of_table.setdefault(_tabled_name(row.get("model") or ""), []).append(shape)
        for name, shapes in of_table.items():
            said = {column: value for column, value in shapes[0].items() if value}
            if (
                name
                and not _OF_A_SIZE.fullmatch(name)
                and all(said.get(column) for column in _SIZES)
                and all(shape == shapes[0] for shape in shapes)
            ):
                known.setdefault(name, (path.stem, said))
    return known
