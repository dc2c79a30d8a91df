"""Which software a file is a configuration of, and what it says; names that are misspelled are found here too."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from reference_runs.configurations.configuration import Framework, Keys, TrainingConfiguration
from reference_runs.configurations.deepspeed import deepspeed
from reference_runs.configurations.document import Document, flat, read_document
from reference_runs.configurations.megatron import last_words, megatron, megatron_model
from reference_runs.configurations.nanotron import nanotron
from reference_runs.configurations.torchtitan import torchtitan, torchtitan_model
from reference_runs.configurations.torchtune import torchtune, torchtune_model
from reference_runs.configurations.trainer import MODEL_KEYS, accelerate, axolotl, llama_factory, trainer
from reference_runs.errors import nearest

WORDS = Path(__file__).parent / "words.toml"
MOST_UNKNOWN, MOST_LETTERS = 300, 60  # names that are compared with the known ones; letters of one
LEAST_ARGUMENTS = 3  # of Megatron in a file of arguments, which may be of any program
_LISTS = {  # Framework -> the list of its words; the others take any word
    Framework.TORCHTITAN: "torchtitan",
    Framework.MEGATRON: "megatron",
    Framework.MEGATRON_BRIDGE: "megatron",
    Framework.DEEPSPEED: "deepspeed",
    Framework.TRAINER: "trainer",
    Framework.AXOLOTL: "axolotl",
    Framework.LLAMA_FACTORY: "llama-factory",
    Framework.NANOTRON: "nanotron",
}
_ALSO = {Framework.LLAMA_FACTORY: ("trainer",), Framework.AXOLOTL: ("trainer",)}
_PARALLEL = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "micro_batch_size", "global_batch_size")
_DEEPSPEED = (
    "zero_optimization",
    "train_micro_batch_size_per_gpu",
    "train_batch_size",
    "zero_allow_untested_optimizer",
)


class UnknownWord(NamedTuple):
    """A name that the software does not know, and the nearest one that it knows."""

    word: str
    meant: str


class ReadFile(NamedTuple):
    """A file of known software; `configuration` and `model_named` read its values.

    Args:
        keys: without those that are misspelled.
        values: tables within tables.
        unknown: names that are misspelled.
    """

    path: Path
    software: Framework
    keys: Keys
    values: Mapping[str, Any]
    unknown: tuple[UnknownWord, ...]


def read_file(path: Path) -> ReadFile | str:
    """The configuration of known software that a file is; or in words why it is none.

    Raises:
        InputError: the file is broken.
    """
    document = read_document(path)
    software = software_of(document)
    if isinstance(software, str) and not isinstance(software, Framework):
        return software
    unknown = misspelled(software, document.values)
    wrong = {each.word for each in unknown}
    values = {name: value for name, value in _with_tables(document.values).items() if not wrong & {*name.split(".")}}
    keys = Keys(values, has_auto=software is Framework.DEEPSPEED)
    return ReadFile(path, software, keys, document.values, unknown)


def model_named(read: ReadFile) -> str:
    """The model that a file names, as it is written; empty: it names none.

    Raises:
        ComputedError: a shell computes the name.
    """
    match read.software:
        case Framework.TORCHTITAN:
            return torchtitan_model(read.keys)
        case Framework.MEGATRON | Framework.MEGATRON_BRIDGE:
            return megatron_model(Keys(last_words(read.keys.values)))
        case Framework.TRAINER | Framework.LLAMA_FACTORY | Framework.AXOLOTL:
            return read.keys.text(*MODEL_KEYS[read.software])
        case Framework.TORCHTUNE:
            return torchtune_model(read.keys)[1]
        case Framework.DEEPSPEED | Framework.ACCELERATE | Framework.NANOTRON:
            return ""


def configuration(read: ReadFile) -> TrainingConfiguration:
    """The training that a file configures.

    Raises:
        InputError: a value is none of its key's.
    """
    keys, path = read.keys, read.path
    match read.software:
        case Framework.TORCHTITAN:
            spec = read.values.get("model_spec")
            model = spec.get("model") if isinstance(spec, Mapping) else None
            return torchtitan(keys, model if isinstance(model, Mapping) else None)
        case Framework.MEGATRON | Framework.MEGATRON_BRIDGE:
            return megatron(keys)
        case Framework.DEEPSPEED:
            return deepspeed(keys)
        case Framework.TRAINER:
            return trainer(keys, path)
        case Framework.AXOLOTL:
            return axolotl(keys, path)
        case Framework.LLAMA_FACTORY:
            return llama_factory(keys, path)
        case Framework.ACCELERATE:
            return accelerate(keys)
        case Framework.TORCHTUNE:
            return torchtune(keys, path)
        case Framework.NANOTRON:
            return nanotron(keys)


def _with_tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted key, without the layers of an exported model; a table that is null stays as a key."""
    model = values.get("model_spec")
    if isinstance(model, Mapping):
        values = {**values, "model_spec": {name: model.get(name) for name in ("name", "flavor")}}
    return flat(values)


def software_of(document: Document) -> Framework | str:
    """The software whose configuration a document is, by keys that it alone has; or in words what it is instead."""
    values, tables = document.values, {name for name, value in document.values.items() if isinstance(value, Mapping)}
    words = {name.replace("-", "_") for name in values}
    if document.form == "arguments":
        known = _known("megatron") & {name.rpartition(".")[2] for name in words}
        enough = len(known) >= LEAST_ARGUMENTS and known & {*_PARALLEL, "seq_length", "hidden_size"}
        if enough or ("recipe" in words and known):
            return Framework.MEGATRON_BRIDGE if "recipe" in words else Framework.MEGATRON
        return "arguments of no software that is known here"
    if "training" in tables and {"parallelism", "model", "model_spec", "activation_checkpoint"} & tables:
        return Framework.TORCHTITAN
    if {"tokens", "parallelism"} <= tables:
        return Framework.NANOTRON
    if isinstance(values.get("model"), Mapping) and "_component_" in values["model"]:
        return Framework.TORCHTUNE if "optimizer" in words else "no training: a recipe of torchtune without optimizer"
    if "base_model" in words and {"micro_batch_size", "datasets", "sequence_len", "adapter"} & words:
        return Framework.AXOLOTL
    if "distributed_type" in words and {"num_processes", "compute_environment"} & words:
        return Framework.ACCELERATE
    if words & {*_DEEPSPEED}:
        return Framework.DEEPSPEED
    if {"stage", "finetuning_type"} & words and "model_name_or_path" in words:
        if "do_train" not in words and "per_device_train_batch_size" not in words:
            return "no training: LLaMA-Factory's inference or export"
        return Framework.MEGATRON if {*_PARALLEL[:2]} <= words else Framework.LLAMA_FACTORY
    if "per_device_train_batch_size" in words or ("model_name_or_path" in words and "learning_rate" in words):
        return Framework.TRAINER
    of_megatron = set(last_words(flat(values))) if {"model", "train"} <= tables else words
    if len({*_PARALLEL[:2]} & of_megatron) == 2 or ({"model", "train"} <= tables and "seq_length" in of_megatron):
        return Framework.MEGATRON_BRIDGE if tables else Framework.MEGATRON
    if "model_type" in words and {"architectures", "hidden_size", "n_embd"} & words:
        return "a model, that of configurations beside it"
    return "no keys of a training that are known here"


def misspelled(software: Framework, values: Mapping[str, Any]) -> tuple[UnknownWord, ...]:
    """Names that the software does not know and that are spelled like one that it knows.

    Others may be of an extension or a later release, and are left alone.
    """
    if software not in _LISTS:
        return ()
    lists = [_LISTS[software], *_ALSO.get(software, ())]
    if software is Framework.MEGATRON and "model_name_or_path" in values:  # of LLaMA-Factory over Megatron
        lists += ["llama-factory", "trainer"]
    known = frozenset().union(*map(_known, lists))
    found = []
    names = [
        word for word in dict.fromkeys(_names(software, values)) if word not in known and len(word) <= MOST_LETTERS
    ]
    for word in names[:MOST_UNKNOWN]:
        if (meant := nearest(word, known)) is not None and _is_slip(word, meant):
            found.append(UnknownWord(word, meant))
    return tuple(found)


def _names(software: Framework, values: Mapping[str, Any]) -> list[str]:
    """Names to look up: of files with tables those of the tables' keys too."""
    if software in (Framework.MEGATRON, Framework.MEGATRON_BRIDGE):
        return [name.rpartition(".")[2].replace("-", "_") for name in flat(values)]
    if software is Framework.TORCHTITAN:
        tables = (table for name, table in values.items() if isinstance(table, Mapping) and name != "model_spec")
        return [str(name) for table in tables for name in table]
    if software is Framework.NANOTRON:
        return [name for key in flat(values) for name in key.split(".")[:2]]
    return [str(name) for name in values]


def _is_slip(word: str, meant: str) -> bool:
    """Whether one word is the other with at most two letters changed, left out or put in, and not its plural or more.

    Names of one family differ in whole words and numbers: `adam_beta1` and `adam_beta3`, `save_steps` and `save_step`.
    """
    if word[-1:].isdigit() or any(part.isdigit() for part in word.split("_")):
        return False
    return 0 < _distance(word, meant) <= (2 if len(word) > 8 else 1)


def _distance(left: str, right: str) -> int:
    """Levenshtein's distance."""
    row = list(range(len(right) + 1))
    for number, letter in enumerate(left, 1):
        before, row[0] = row[0], number
        for column, other in enumerate(right, 1):
            before, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, before + (letter != other))
    return row[-1]


@functools.cache
def _known(name: str) -> frozenset[str]:
    with WORDS.open("rb") as file:
        return frozenset(tomllib.load(file)[name]["words"].split())
