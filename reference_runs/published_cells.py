"""Cells as people write them: numbers such as "2,048" and "8 GPUs", blanks such as "n/a", words such as "ZeRO-1"."""

from __future__ import annotations

import math
import re

from reference_runs.published_columns import BATCH_TOKENS, MEMORY, MEMORY_GB, STEP, STEP_MS, THROUGHPUTS
from reference_runs.published_run import UnusableError

_BLANK = frozenset(["n/a", "n.a.", "na", "#n/a", "-", "--", "\u2013", "\u2014", "none", "null", "nan", "?"])
_NONE_IS_A_CHOICE = ("recompute", "product_format")
_CLAIMS = ("sp", "biases", "tied_embeddings", "fused_attention", "scatter_gather")
_AXES = ("tp", "pp", "cp", "vpp", "ep")  # 0 of them: nothing is split
_COUNTS = frozenset(
    [
        *("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab", "padded_vocab", "seq_len"),
        *("experts", "experts_per_token", "expert_ffn_hidden", "shared_experts", "dense_layers", "gpus"),
        *("gpus_per_node", "dp", "global_batch", "micro_batch", "zero_stage", "mean_document", *_AXES, BATCH_TOKENS),
    ]
)
_FRACTIONS = (STEP, MEMORY, MEMORY_GB, "dropout")  # numbers that a table has with decimals
_NUMBERS = _COUNTS.union(_FRACTIONS, THROUGHPUTS, ("rotary_base", "network_bytes_per_second", STEP_MS))

_PER_S = r"(?:/| per )(?:s|sec|second)"
_TOKENS_PER_S = rf"(?:tok|tokens?){_PER_S}"
_SAMPLES = "samples?|sequences?|seqs?"
_UNITS = {
    "gpus": "gpus?|accelerators?|chips?",
    "gpus_per_node": r"gpus?(?:\s*(?:/|per)\s*node)?",
    "layers": "layers?",
    "heads": "heads?",
    "kv_heads": "(?:kv )?heads?",
    "experts": "experts?",
    **dict.fromkeys(("seq_len", "vocab", "padded_vocab", "mean_document", BATCH_TOKENS), "tokens?"),
    **dict.fromkeys(("global_batch", "micro_batch"), _SAMPLES),
    STEP: "s|secs?|seconds?",
    STEP_MS: "ms",
    MEMORY: "gib",
    MEMORY_GB: "gb",
    "measured_tokens_per_s": _TOKENS_PER_S,
    "measured_tokens_per_s_per_gpu": rf"{_TOKENS_PER_S}(?:(?:/| per )gpu)?",
    "measured_samples_per_s": rf"(?:{_SAMPLES}){_PER_S}",
    "network_bytes_per_second": rf"(?:b|bytes?){_PER_S}",
}
_BY_BLANKS = re.compile(r"\d{1,3}(?:[ '\u2019\u00a0\u2009\u202f]\d{3})+(?=[.,]|$)")
_BY_COMMAS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_BY_POINTS = re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?")

_WORDS: dict[str, dict[str, str]] = {
    "recompute": {
        "full": "1 true yes on y enabled all block uniform full-block full-uniform full-recompute "
        "activation-checkpointing activation-recomputation checkpointing",
        "selective": "sel attn attention core-attn core-attention selective-core-attn selective-core-attention",
        "none": "0 false no off n disabled",
    },
    "zero_stage": {
        "0": "ddp no-shard off false no",
        "1": "zero-1 zero1 stage-1 stage1 zero-stage-1 distributed-optimizer dist-opt distopt",
        "2": "zero-2 zero2 stage-2 stage2 zero-stage-2 shard-grad-op",
        "3": "zero-3 zero3 stage-3 stage3 zero-stage-3 fsdp fsdp2 full-shard",
    },
    "norm": {
        "pre-rms-norm": "rmsnorm rms-norm rms pre-rmsnorm",
        "pre-layer-norm": "layernorm layer-norm pre-layernorm",
    },
    "position": {
        "rotary": "rope rotary-embedding rotary-embeddings rotary-position-embedding rotary-position-embeddings",
        "learned": "absolute learned-absolute learned-absolute-embeddings",
    },
    "activation": {
        "swiglu": "silu swish swi-glu",
        "geglu": "ge-glu",
        "gelu-tanh": "gelu-new gelu-pytorch-tanh",
        "relu-squared": "relu2 squared-relu relu-square",
    },
}
_WORDS |= {column: {"1": "1.0 on y enabled", "0": "0.0 off n disabled"} for column in _CLAIMS}
_MEANINGS = {
    column: {word: meaning for meaning, words in meanings.items() for word in words.split()}
    for column, meanings in _WORDS.items()
}


def read_cells(stated: dict[str, str], separator: str) -> tuple[dict[str, str], list[str]]:
    """The cells of a row, numbers with a point and no other mark and words as tables have them; and what is to be said.

    Args:
        separator: between the file's cells; a comma within a number may be a decimal one where it is another.

    Raises:
        UnusableError: a number that has two readings.
    """
    read: dict[str, str] = {}
    notes: list[str] = []
    for column, text in stated.items():
        read[column], noted = _read(column, text, separator)
        if noted:
            notes.append(f"{column} {text} = {read[column]}")
    framework, version = read.get("framework", ""), read.get("framework_version", "")
    if version not in framework:
        read["framework"] = f"{framework} {version}".strip()
    return read, notes


def _read(column: str, text: str, separator: str) -> tuple[str, bool]:
    """What a cell says, and whether that is to be said: not of a number's marks, nor of what is blank."""
    folded = text.casefold()
    if folded in _BLANK and not (folded == "none" and column in _NONE_IS_A_CHOICE):
        return "", False
    said = _number(column, text, separator) if column in _NUMBERS or column in _MEANINGS else text
    if column in _AXES and said == "0":
        return "1", True
    words = re.sub(r"[\s_()/-]+", "-", said.casefold()).strip("-")
    if meaning := _MEANINGS.get(column, {}).get(words):
        return meaning, column not in _CLAIMS
    return said, column in _FRACTIONS and bool(_BY_COMMAS.fullmatch(text))


def _number(column: str, text: str, separator: str) -> str:
    """`text` as a number with a decimal point and no unit; unchanged where it is none, or is written so already."""
    bare = text
    if (unit := _UNITS.get(column)) and (found := re.fullmatch(rf"(\d[^a-z]*?)\s*(?:{unit})", text, re.IGNORECASE)):
        bare = found[1]
    bare = _BY_BLANKS.sub(lambda found: re.sub(r"\D", "", found[0]), bare)
    readings = _readings(bare, separator, decimals=column in _FRACTIONS)
    integer = column in _COUNTS or column in _MEANINGS
    possible = [value for value in readings if value == int(value)] if integer and "," in bare else readings
    if len(possible) > 1:
        either = " or ".join(f"{value:.15g}" for value in readings)
        raise UnusableError(f"{column}: expected a number with one reading; got {text!r}, which is {either}")
    if not readings or bare.isdecimal():
        return bare if readings else text
    value = (possible or readings)[0]
    if value == int(value) and integer:
        return str(int(value))
    return text if _plain(text) is not None else f"{value:.15g}"


def _plain(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None


def _readings(text: str, separator: str, *, decimals: bool) -> list[float]:
    """The numbers that `text` may be.

    In a file without commas between its cells a comma may be a decimal one, and a point before three digits none.

    Args:
        decimals: such numbers have decimals more often than thousands.
    """
    free = separator != ","
    plain, one_mark = _plain(text), len(re.findall("[.,]", text)) == 1
    by_points = float(text.replace(".", "").replace(",", ".")) if _BY_POINTS.fullmatch(text) else None
    if plain is not None:
        return [plain, by_points] if free and by_points is not None and not decimals else [plain]
    if _BY_COMMAS.fullmatch(text):
        thousands = float(text.replace(",", ""))
        if one_mark and decimals and separator == ";":
            return [float(text.replace(",", "."))]
        return [thousands, float(text.replace(",", "."))] if one_mark and (free or decimals) else [thousands]
    if by_points is not None and (free or "," not in text):
        return [by_points]
    return [float(text.replace(",", "."))] if free and re.fullmatch(r"\d+,\d+", text) else []
