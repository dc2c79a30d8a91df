"""Words for models, dtypes and networks in tables of measurements; published/words.toml has them all."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import msgspec

from reference_runs.published_tables import PUBLISHED
from reference_runs.recorded_file import record_of

Synonyms = dict[str, tuple[str, ...]]  # by meaning, the words for it

DTYPES = ("bf16", "fp16", "fp32", "fp8", "fp8-delayed", "fp8-current", "fp8-blockwise", "mxfp8", "nvfp4")
_PAIRS = {("mx", "fp8"): "mxfp8", ("nv", "fp4"): "nvfp4"}

_RATE = re.compile(
    r"(?<![\d.])(\d+(?:\.\d*)?|\.\d+) ?([gt])(?:(bytes?/s|bits?/s|b(?:/s|ps|e)?)(?![a-z])|(?![a-z]))", re.IGNORECASE
)
_PORTS = r"(?:ports?|nics?|hcas?|interfaces?|rails?|adapters?)\b"
_BEFORE = re.compile(
    rf"(?<![\w.-])(?:(\d+) ?(?:[x\u00d7*](?! ?\d+\b(?! ?[gt.]))|(?=-?{_PORTS})|(?=\d+ ?[gt]))|[x\u00d7*](\d+)\b)",
    re.IGNORECASE,
)
_AFTER = re.compile(r"[x\u00d7*] ?(\d+)\b", re.IGNORECASE)
_OF_PORTS = re.compile(rf"(\d+)[ -]?{_PORTS}|(\d+) per node", re.IGNORECASE)
_EACH_PORT = re.compile(rf"(?:per|/|a) ?{_PORTS}|\beach\b", re.IGNORECASE)
_EACH_ACCELERATOR = re.compile(r"(?:per|/|each|a) ?(?:gpu|accelerator)\b", re.IGNORECASE)
_INSIDE = re.compile(r"nvlink|nvswitch|\bnvl\d*\b|xgmi|infinity fabric|\bintra", re.IGNORECASE)
_TO_THE_HOST = re.compile(r"pcie", re.IGNORECASE)
_DENIED_AFTER = frozenset(("no", "not", "non", "nor", "without", "than", "vs", "versus", "unlike"))
_LANES = re.compile(r"\b(?:4X|12X) ?(?=[EFHNX]DR)")  # of one port of InfiniBand
_NAMED_PORT = re.compile(
    r"(?:(\d+) ?[x\u00d7*] ?)?(?<![a-z])([ehnx]dr)(\d{3})?(?![a-z])(?:.*?[x\u00d7*] ?(\d+)\b)?", re.IGNORECASE
)


class DtypeVocabulary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Words for formats and for the scales of FP8, and those that may stand around them."""

    around: frozenset[str]
    gradients: frozenset[str]
    formats: Synonyms
    fp8_scales: Synonyms


class Words(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file words.toml: by column its other names, the units of its numbers, and the words of its cells."""

    blank: frozenset[str]
    adapters: frozenset[str]
    not_in_notes: frozenset[str]
    plain_training: frozenset[str]
    rollout_software: frozenset[str]
    around_models: tuple[str, ...]
    mixtures: tuple[str, ...]
    other_models: Synonyms
    not_modelled: Synonyms
    columns: Synonyms
    loose_columns: Synonyms
    axes: Synonyms
    units: dict[str, str]
    cells: dict[str, Synonyms]
    claims: Synonyms
    dtype: DtypeVocabulary
    gbits_of_a_port: dict[str, int]


@cache
def words() -> Words:
    """The file of words.

    Raises:
        InputError: unreadable file, broken TOML, missing, unknown or wrongly typed key.
    """
    return record_of(PUBLISHED / "words.toml", Words, what="words")


def meanings(synonyms: Synonyms) -> dict[str, str]:
    """The meaning of each word."""
    return {word: meaning for meaning, these in synonyms.items() for word in these}


@cache
def dtype_named(text: str) -> str | None:
    """The one of `DTYPES` that `text` says; None: it says none of them, or something else besides.

    The narrowest format that is named is that of the products. fp32 may stand beside it for sums and master weights,
    but fp32 gradients beside fp16 are none of the recorded precisions.
    """
    known = words().dtype
    formats, scale_words = meanings(known.formats), meanings(known.fp8_scales)
    joined = re.sub(r"[ _-](?=wise\b)|(?<=\bsub)[ _-](?=channel\b)", "", text.casefold())
    said = re.findall(r"[a-z0-9]+", joined)
    if (pair := _PAIRS.get(tuple(said[:2]))) is not None:
        said[:2] = [pair]
    if said[:1] == ["16"] and "mixed" in said:  # Lightning's
        said[0] = "fp16"
    if any(word not in {*formats, *scale_words, *known.around, *known.gradients} for word in said):
        return None
    named = list(dict.fromkeys(formats[word] for word in said if word in formats))
    scales = [scale_words[word] for word in said if word in scale_words]
    narrow = [name for name in named if name in ("fp8", "mxfp8", "nvfp4")]
    wide = [name for name in named if name in ("bf16", "fp16")]
    if not named or len(narrow) > 1 or len(wide) > 1 or len(scales) > 1 or (scales and narrow != ["fp8"]):
        return None
    if narrow:
        return None if wide == ["fp16"] else (scales or narrow)[0]
    if not wide:
        return "fp32"
    gradients = not known.gradients.isdisjoint(said)
    return None if wide == ["fp16"] and gradients and "fp32" in named else wide[0]


def names_mixture(folded: str) -> bool:
    """Whether a model's name, without blanks and marks but points, is one of a mixture of experts."""
    return "distill" not in folded and any(re.search(pattern, folded) for pattern in words().mixtures)


def other_model(folded: str) -> str | None:
    """The part that a model of this name has and no decoder of text has; None: nothing. Points are its only marks.

    A name that begins with a decoder's is one, as Llama-3.1-Nemotron-Nano.
    """
    of_pattern = meanings(words().other_models)
    return next((what for pattern, what in of_pattern.items() if re.search(pattern, folded)), None)


@cache
def training_words(text: str) -> tuple[str, ...]:
    """Words of `text` that may say what is trained: each one, and two as one, "P-tuning" as ptuning.

    A word has no digits at its end but with them, and no "trainer"; none after "no", "without" or "than" counts.
    """
    said = re.findall(r"[a-z\d]+", text.casefold())
    said = [word for before, word in zip(["", *said], said, strict=False) if before not in _DENIED_AFTER]
    pairs = [f"{first}{second}" for first, second in pairwise(said)]
    return tuple(dict.fromkeys([*said, *(re.sub(r"\d+$|trainer$", "", word) for word in said), *pairs]))


def without_training(model: str) -> str:
    """A model's name without words of its training: "Llama 2 70B LoRA" is Llama 2 70B."""
    around = "|".join(words().around_models)
    return re.sub(rf"[\s_([-]*(?<![a-z\d])({around})(?![a-z\d])[)\]]*", "", model, flags=re.IGNORECASE)


class WordedRate(NamedTuple):
    """Bytes per second that words name, over so many interfaces; 1 where they name none."""

    bytes_per_second: float
    interfaces: int


@cache
def worded_rate(text: str, accelerators: int) -> WordedRate | None:
    """Rate that leaves a node with so many accelerators, in words such as "8x HDR 200Gb/s"; None: no rate in them.

    A count before or after the rate multiplies, one of ports what is said of each port, and the accelerators what is
    said of each; a small b is a bit, a large one a byte. Of several rates the highest: the others are of storage and
    management. A part that names NVLink is of links inside; one of PCIe counts where no other part has a rate.
    """
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", _LANES.sub("", text))
    plain = re.sub(r"(?<=\d),(?=\d{1,2} ?[GT])", ".", plain)
    parts = [part for part in re.split(r"[,;+]", plain) if not _INSIDE.search(part)]
    for those in (
        [part for part in parts if not _TO_THE_HOST.search(part)],
        [part for part in parts if _TO_THE_HOST.search(part)],
    ):
        rates = [rate for part in those if (rate := _rate_of_part(part, text, accelerators))]
        if rates:
            return max(rates)
    return None


def _rate_of_part(part: str, text: str, accelerators: int) -> WordedRate | None:
    found = _RATE.search(part)
    if found is None:
        return _rate_of_a_named_port(part)
    number, prefix, unit = found.groups()
    is_bytes = bool(unit) and (unit.startswith("B") or unit.casefold().startswith("byte"))
    rate = float(number) * {"g": 1e9, "t": 1e12}[prefix.casefold()] / (1 if is_bytes else 8)
    before, after = _BEFORE.search(part[: found.end()]), _AFTER.search(part[found.end() :])
    if before and before.start() < found.start():
        count = int(before[1] or before[2])
    elif after:
        count = int(after[1])
    elif _EACH_ACCELERATOR.search(part):
        count = accelerators
    else:
        ports = _OF_PORTS.search(text if _EACH_PORT.search(part) else part)
        count = int(ports[1] or ports[2]) if ports else 1
    return WordedRate(count * rate, count) if rate > 0 else None


def _rate_of_a_named_port(part: str) -> WordedRate | None:
    """Rate of words such as "8x NDR", which need a count: how many ports a node has is not in their name."""
    found = _NAMED_PORT.search(part)
    if found is None or not (count := found[1] or found[4]):
        return None
    gbits = int(found[3] or words().gbits_of_a_port[found[2].casefold()])
    return WordedRate(int(count) * gbits * 1e9 / 8, int(count))
