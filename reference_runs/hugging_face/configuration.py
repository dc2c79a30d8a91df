"""A configuration of Hugging Face's transformers (config.json), read key by key into sourced facts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reference_runs.errors import InputError
from reference_runs.regular_file import typed_text
from reference_runs.sourced import Kind, Sourced, Value

OF_ARITHMETIC = re.compile(
    r"(^|_)(act|alibi|attention|attn|bias|cap|capacity|clip|conv|cross|depth|dim|dropout|embd|embed|embedding|experts?|"
    r"factor|ffn|fc|gates?|groups?|heads?|hidden|inner|intermediate|kv|layers?|layernorm|ln|logits?|lora|mamba|mlp|moe|"
    r"mtp|multiplier|mup|nextn|norm|normalization|parallel|pdrop|positions?|qkv?|qk|query|rank|residual|rope|rotary|"
    r"routed|router|scal\w*|shared|size|soft\w*|sparse|ssm|state|theta|top_?k|vocab|width|window)(_|$)"
)
OF_NO_STEP = frozenset(  # named like arithmetic, but of the same product's numerics, of generation, of classifiers
    {
        "attention_softmax_in_fp32",
        "attn_implementation",
        "bias_dropout_fusion",
        "chunk_size_feed_forward",
        "classifier_dropout",
        "ep_size",
        "masked_softmax_fusion",
        "offset_alibi",
        "output_attentions",
        "output_hidden_states",
        "scale_attention_softmax_in_fp32",
        "skip_bias_add",
        "summary_first_dropout",
        "top_k",
    }
)
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "quick_gelu": "fast-gelu",
    "relu": "relu",
    "relu2": "relu-squared",
}
USUAL_SEQUENCE = 8192  # tokens of pre-training, as of Llama 3 and Qwen 3: longer ones come last and are few
# Precision that a dtype of stored weights stands for: float32 ones are master weights of training in bf16
TRAINED_IN = {"bfloat16": "bf16", "float16": "fp16", "float32": "bf16"}
GATED_ACTIVATIONS = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_new": "geglu-tanh",
    "gelu_fast": "geglu-tanh",
    "gelu_pytorch_tanh": "geglu-tanh",
}


class NotDescribedError(InputError):
    """A configuration that no formula describes.

    Args:
        reason: what of it, in a few words.
    """

    def __init__(self, what: str, *, reason: str, **parts: Any) -> None:
        super().__init__(what, **parts)
        self.reason = reason


class Configuration:
    """The keys of one configuration: each is asked for by name, and gives a fact whose source names it.

    Args:
        values: the JSON object.
        where: the file, for messages.
        sequence: tokens of a training sequence, where the user knows better than the longest that is allowed.
    """

    def __init__(self, values: Mapping[str, Any], *, where: str, sequence: int | None = None) -> None:
        self.values, self.where, self.sequence = values, where, sequence
        self.facts: dict[str, Sourced] = {}
        self.notes: list[str] = []
        self._used = {"model_type"}

    def put(self, key: str, fact: Sourced, *, section: str = "architecture") -> None:
        """Record `fact` under `key` of a section."""
        self.facts[f"{section}.{key}"] = fact

    def known(self, key: str) -> int:
        """The whole number that is recorded under `key` of the architecture."""
        value = self.facts[f"architecture.{key}"].value
        assert isinstance(value, int)
        return value

    def refusal(self, key: str, *, allowed: str) -> InputError:
        """The refusal of a key's value."""
        got = json.dumps(self.values.get(key))
        return NotDescribedError(key, got=got, allowed=allowed, where=self.where, reason=f"{key} = {got}")

    def given(self, key: str) -> bool:
        """Whether the configuration has the key, be it null."""
        return key in self.values

    def raw(self, key: str) -> Any:
        """The value of a key as it is; None where it is null or absent."""
        self._used.add(key)
        return self.values.get(key)

    def value(self, *keys: str, default: Value | None = None) -> Sourced:
        """The first of `keys` that is there, or transformers' default.

        Raises:
            InputError: none is there, and there is no default; or a value that is no number, text, true or false.
        """
        for key in keys:
            value = self.raw(key)
            if isinstance(value, (bool, int, float, str)):
                return Sourced(kind=Kind.STATED, source=f"config {key}", value=value)
            if value is not None:
                raise self.refusal(key, allowed="a number, a text, true or false")
        if default is None:
            raise InputError(f"missing key {keys[0]!r}", where=self.where)
        source = f"transformers default: the configuration has no {keys[0]}"
        return Sourced(kind=Kind.STATED, source=source, value=default)

    def count(self, *keys: str, default: int | None = None) -> Sourced:
        """As `value`, of a whole number of at least 1.

        Raises:
            InputError: as `value`, or another value.
        """
        fact = self.value(*keys, default=default)
        if isinstance(fact.value, bool) or not isinstance(fact.value, int) or fact.value < 1:
            raise self.refusal(fact.source.removeprefix("config "), allowed="a whole number of 1 or more")
        return fact

    def number(self, *keys: str, default: float | None = None) -> Sourced:
        """As `value`, of a number.

        Raises:
            InputError: as `value`, or another value.
        """
        fact = self.value(*keys, default=default)
        if isinstance(fact.value, bool) or not isinstance(fact.value, (int, float)):
            raise self.refusal(fact.source.removeprefix("config "), allowed="a number")
        return fact

    def flag(self, *keys: str, default: bool | None = None) -> Sourced:
        """As `value`, of true or false.

        Raises:
            InputError: as `value`, or another value.
        """
        fact = self.value(*keys, default=default)
        if not isinstance(fact.value, bool):
            raise self.refusal(fact.source.removeprefix("config "), allowed="true, false")
        return fact

    def choice(self, key: str, choices: Mapping[str, str], *, default: str) -> Sourced:
        """As `value`, of one of the texts that `choices` translates.

        Raises:
            InputError: another value.
        """
        fact = self.value(key, default=default)
        if not isinstance(fact.value, str) or fact.value not in choices:
            raise self.refusal(key, allowed=", ".join(choices))
        note = f"there {fact.value}" if choices[fact.value] != fact.value else ""
        return Sourced(kind=fact.kind, source=fact.source, value=choices[fact.value], note=note)

    def only(self, key: str, *allowed: Value | None, default: Value | None) -> None:
        """Refuse a key whose other values change the arithmetic in a way that no key of a run file describes.

        Raises:
            InputError: another value than `allowed`.
        """
        value = self.raw(key) if self.given(key) else default
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed):
            raise self.refusal(key, allowed=", ".join(json.dumps(one) for one in allowed))

    def model(self, value: Value, words: str = "") -> Sourced:
        """A fact of transformers' model class, whatever the configuration."""
        source = f"transformers model_type {self.values['model_type']}"
        return Sourced(kind=Kind.STATED, source=f"{source}: {words}" if words else source, value=value)

    def derived(self, value: Value, calculation: str) -> Sourced:
        """A fact that follows from others."""
        return Sourced(kind=Kind.DERIVED, source=f"calculation {calculation}", value=value)

    def precision(self) -> None:
        """Record the precision that the dtype of the stored weights suggests, assumed; nothing where it is unknown."""
        key = "dtype" if self.raw("dtype") is not None else "torch_dtype"
        dtype = self.raw(key)
        if dtype not in TRAINED_IN:
            return
        why = f"weights are stored in {dtype}; fp32 master weights beside them are assumed (--precision)"
        effect = "memory, traffic and time"
        fact = Sourced(kind=Kind.ASSUMED, source=f"config {key}", value=TRAINED_IN[dtype], why=why, effect=effect)
        self.put("precision", fact, section="recipe")

    def training_sequence(self, *keys: str, default: int | None = None) -> int:
        """Record the sequence: what the user says, else what the configuration allows and is usual, assumed.

        Returns that longest one.
        """
        longest = self.count(*keys, default=default)
        assert isinstance(longest.value, int)
        if self.sequence is not None:
            if self.sequence > longest.value:
                beyond = f"{self.sequence:,} tokens, and the configuration allows {longest.value:,}"
                self.notes.append(f"sequences of {beyond}")
            self.put("sequence", Sourced(kind=Kind.STATED, source="option --sequence", value=self.sequence))
        else:
            value = min(longest.value, USUAL_SEQUENCE)
            longer = f"usual for pre-training; the configuration allows up to {longest.value:,}, and"
            why = "the longest of the configuration, which" if value == longest.value else longer
            why += " does not say what training used (--sequence)"
            effect = "flop and activations of attention"
            assumed = Sourced(kind=Kind.ASSUMED, source=longest.source, value=value, why=why, effect=effect)
            self.put("sequence", assumed)
        return longest.value

    def learned_positions(self, *keys: str, default: int, more: int = 0) -> None:
        """Record the sequence, and a learned position table of the longest one's rows and `more`.

        Raises:
            InputError: a longer sequence than the table has rows for.
        """
        longest = self.training_sequence(*keys, default=default)
        self.put("position", self.model("learned"))
        beyond = longest + more - self.known("sequence")
        if beyond < more:
            raise InputError(
                "more positions than the table has", got=self.sequence, allowed=f"at most {longest}", where="--sequence"
            )
        if beyond:
            self.put("extra_positions", self.derived(beyond, f"{longest + more} rows of the table - sequence"))

    def leftovers(self) -> list[str]:
        """Keys that were not asked for, sorted.

        Raises:
            InputError: one of them is named like a part of the arithmetic of a step, and is set.
        """
        left = sorted(set(self.values) - self._used)
        for key in left:
            if self.values[key] and key not in OF_NO_STEP and OF_ARITHMETIC.search(key):
                raise self.refusal(key, allowed="null or absent: no key of a run file is known to mean it")
        return left


def read_configuration(path: Path) -> dict[str, Any]:
    """The JSON object in the file at `path`, which names its `model_type`.

    Raises:
        InputError: unreadable file, broken JSON, or no such object.
    """
    try:
        values = json.loads(typed_text(path))
    except OSError as error:
        what, allowed = (f"cannot read the configuration: {error.strerror}", "a config.json, or its directory")
        raise InputError(what, allowed=allowed, where=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON: {error}", where=str(path)) from error
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise InputError("no configuration of a model: an object with a model_type is expected", where=str(path))
    return values
