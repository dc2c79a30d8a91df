"""Reads the sizes in models.toml again in the releases that it names; exits with 1 where one differs or is not stated.

The releases are downloaded with pip, without their dependencies, and read: nothing of them is installed or executed.
"""

from __future__ import annotations

import ast
import contextlib
import fnmatch
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from exported_names import downloaded

from reference_runs.model_sizes import KnownModel, known_models, packages

# The keys of a config.json by what packages call them, other than transformers
_KEYS = {
    "hidden_size": ("embed_dim", "n_embd", "dim"),
    "num_hidden_layers": ("num_layers", "n_layer", "n_layers"),
    "num_attention_heads": ("num_heads", "n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_query_groups", "num_query_groups"),
    "head_dim": ("head_size", "kv_channels"),
    "intermediate_size": ("intermediate_dim", "ffn_hidden_size"),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": ("max_seq_len", "block_size", "seq_length"),
    "rms_norm_eps": ("norm_eps", "layernorm_epsilon"),
    "rope_theta": ("rope_base", "rotary_base"),
    "partial_rotary_factor": ("rotary_percentage", "rotary_percent"),
    "tie_word_embeddings": ("share_embeddings_and_output_weights",),
    "n_routed_experts": ("num_moe_experts",),
    "num_local_experts": ("num_moe_experts",),
    "num_experts": ("num_moe_experts",),
    "num_experts_per_tok": ("moe_router_topk",),
    "moe_intermediate_size": ("moe_ffn_hidden_size",),
    "n_group": ("moe_router_num_groups",),
    "topk_group": ("moe_router_group_topk",),
    "routed_scaling_factor": ("moe_router_topk_scaling_factor",),
    "use_qk_norm": ("qk_layernorm",),
    "qk_nope_head_dim": ("qk_head_dim",),
    "qk_rope_head_dim": ("qk_pos_emb_head_dim",),
    "scoring_func": ("moe_router_score_function",),
    "sliding_window": ("sliding_window_size", "window_size"),
    "ssm_state_size": ("mamba_state_dim",),
    "n_groups": ("mamba_num_groups",),
    "num_kv_heads": ("n_query_groups",),
    "rotary_pct": ("rotary_percentage",),
}
_OF_LITGPT = {  # defaults of its Config
    "block_size": 4096,
    "n_embd": 4096,
    "n_head": 32,
    "n_layer": 16,
    "norm_eps": 1e-5,
    "rope_base": 10000,
    "rotary_percentage": 0.25,
    "sliding_window_size": None,
}
_ARITHMETIC = {ast.Add: lambda a, b: a + b, ast.Mult: lambda a, b: a * b, ast.FloorDiv: lambda a, b: a // b}


def value_of(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of an expression of literals, of `names` and of arithmetic.

    Raises:
        ValueError: it is of something else.
    """
    match node:
        case ast.BinOp(left, operator, right) if type(operator) in _ARITHMETIC:
            return _ARITHMETIC[type(operator)](value_of(left, names), value_of(right, names))
        case ast.Name(name) if name in names:
            return names[name]
        case ast.Call(ast.Name("dict")):
            return stated(node.keywords, names)
        case ast.Call(ast.Name("field"), keywords=[ast.keyword("default_factory", ast.Lambda(body=body))]):
            return value_of(body, names)
        case ast.List(elements):
            return [value_of(each, names) for each in elements]
    return ast.literal_eval(node)


def stated(keywords: list[ast.keyword], names: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the arguments of a call that are literal."""
    found = {}
    for each in keywords:
        with contextlib.suppress(ValueError):
            found[each.arg or ""] = value_of(each.value, names)
    return found


def records(tree: ast.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """Sizes by name: of classes, of functions that return a call, of calls in a table, of `dict(name=…)`."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name, bases, body=body):
                fields = [each for each in body if isinstance(each, ast.AnnAssign) and each.value is not None]
                said = stated([ast.keyword(ast.unparse(each.target), each.value) for each in fields], {})
                yield name, said | {"": [ast.unparse(base) for base in bases]}
            case ast.FunctionDef(name, arguments, [*_, ast.Return(ast.Call(keywords=keywords))]):
                usual = zip(arguments.args[::-1], arguments.defaults[::-1], strict=False)
                yield name, stated(keywords, stated([ast.keyword(each.arg, value) for each, value in usual], {}))
            case ast.Dict(keys, values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(value, ast.Call):
                        yield str(key.value), stated(value.keywords, {})
            case ast.Call(ast.Name("dict"), [], keywords):
                said = stated(keywords, {})
                if "hf_config" in said:
                    yield said["name"].replace("{}", ""), _of_litgpt(said)


def _of_litgpt(said: dict[str, Any]) -> dict[str, Any]:
    """A model of litgpt, with the defaults that its Config computes."""
    said = _OF_LITGPT | said
    multiple = said.get("padding_multiple", 512)
    rows = said.get("vocab_size", 50254)
    said.setdefault("padded_vocab_size", -(-rows // multiple) * multiple)
    said.setdefault("intermediate_size", 4 * said["n_embd"])
    said.setdefault("n_query_groups", said["n_head"])
    return {key: value for key, value in said.items() if key != "vocab_size"}


def read(archive: Path, pattern: str) -> dict[str, dict[str, Any]]:
    """Sizes in the files of a wheel by name, and by directory.name; a class has those of its bases in the same file."""
    found: dict[str, dict[str, Any]] = {}
    with zipfile.ZipFile(archive) as wheel:
        for name in fnmatch.filter(wheel.namelist(), pattern):
            here: dict[str, dict[str, Any]] = {}
            for key, said in records(ast.parse(wheel.read(name))):
                bases = [here.get(base, {}) for base in reversed(said.pop("", []))]
                here[key] = {k: value for each in (*bases, said) for k, value in each.items()}
            found |= here | {f"{Path(name).parent.name}.{key}": said for key, said in here.items()}
    return found


def said_of(key: str, said: Mapping[str, Any]) -> list[Any]:
    """The value of a config.json's key in a record, in a list; an empty one: it states none."""
    if key == "first_k_dense_replace" and "moe_layer_freq" in said:
        return [said["moe_layer_freq"].index(1)]
    if key == "n_shared_experts" and "moe_shared_expert_intermediate_size" in said:
        return [said["moe_shared_expert_intermediate_size"] // said["moe_ffn_hidden_size"]]
    values = [said[name] for name in (key, *_KEYS.get(key, ())) if name in said]
    return [value[0] if isinstance(value, tuple) else value for value in values][:1]


def differences(name: str, model: KnownModel, sources: list[dict[str, Any]]) -> Iterator[str]:
    """Keys of a model whose value the first source that states one does not have, a line each."""
    for key in model.config.keys() - {"model_type", *model.not_read}:
        wanted = model.config[key]
        found = [value for said in sources for value in said_of(key, said)]
        if wanted is not None:
            found = [value for value in found if value is not None]
        if not found or found[0] != wanted:
            yield f"{name}: {key} is {wanted}, and {found[0] if found else 'not stated'} there"


def main() -> int:
    """Read all sizes again, and say how many were found."""
    wrong, count = [], 0
    with tempfile.TemporaryDirectory() as directory:
        said = {
            name: read(downloaded(each["release"], Path(directory)), each["files"]) for name, each in packages().items()
        }
    for name, model in known_models().items():
        wrong += differences(name, model, [said[package][called] for package, called in model.sources])
        count += len(model.config) - 1 - len(model.not_read)
    print(*wrong, f"{count - len(wrong)} of {count} sizes read again", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
