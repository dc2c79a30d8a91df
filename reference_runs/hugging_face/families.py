"""From a configuration to the sections of a run file: which family reads it, and what of it nothing describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from reference_runs.architecture import Architecture
from reference_runs.hugging_face import experts, gpt, hybrid, llama
from reference_runs.hugging_face.aliases import ALIASES
from reference_runs.hugging_face.configuration import Configuration, read_configuration
from reference_runs.hugging_face.refused import refused_type
from reference_runs.incomplete import incomplete_recipe
from reference_runs.recorded_file import Omitted, section_of, unit_of
from reference_runs.run import Recipe
from reference_runs.sourced import Sourced

FAMILIES: dict[str, Callable[[Configuration], None]] = {
    "bloom": gpt.bloom,
    "deepseek_v2": experts.deepseek_v2,
    "deepseek_v3": experts.deepseek_v3,
    "falcon": gpt.falcon,
    "gemma": llama.gemma,
    "glm4_moe": experts.glm4_moe,
    "gpt2": gpt.gpt2,
    "gpt_bigcode": gpt.gpt_bigcode,
    "gpt_neox": gpt.gpt_neox,
    "gpt_oss": experts.gpt_oss,
    "gptj": gpt.gptj,
    "llama": llama.llama,
    "mistral": llama.mistral,
    "mixtral": experts.mixtral,
    "mpt": gpt.mpt,
    "nemotron": gpt.nemotron,
    "nemotron_h": hybrid.nemotron_h,
    "olmo": llama.olmo,
    "olmo2": llama.olmo2,
    "opt": gpt.opt,
    "phi": gpt.phi,
    "phi3": llama.phi3,
    "qwen2": llama.qwen2,
    "qwen2_moe": experts.qwen2_moe,
    "qwen3": llama.qwen3,
    "qwen3_moe": experts.qwen3_moe,
    "qwen3_next": experts.qwen3_next,
    "starcoder2": gpt.starcoder2,
}
FAMILIES |= {alias: FAMILIES[kind] for alias, kind in ALIASES.items()}
OF_OPTIONS = "what `import` was given"
SECTIONS: dict[str, type[msgspec.Struct]] = {"architecture": Architecture, "recipe": Recipe}


class Imported(NamedTuple):
    """Model that a configuration describes.

    Args:
        name: as the configuration has it, else of its directory or file.
        facts: under `section.key`, of the architecture whole, of the recipe in part.
        sources: what each source's first word means.
        notes: what the family's model does and no key describes, in words.
        not_used: keys of the configuration that no fact comes from.
    """

    name: str
    title: str
    architecture: Architecture
    facts: dict[str, Sourced]
    sources: dict[str, str]
    notes: tuple[str, ...]
    not_used: tuple[str, ...]


def imported(path: Path, *, sequence: int | None = None) -> Imported:
    """The facts in the configuration at `path`, for training on sequences of so many tokens.

    Raises:
        InputError: unreadable file, a family that is not described, or a key whose value is not.
    """
    return imported_values(read_configuration(path), path, sequence=sequence)


def imported_values(
    values: Mapping[str, Any], path: Path, *, sequence: int | None = None, where: str | None = None
) -> Imported:
    """As `imported`, of a configuration that has been read.

    Args:
        path: the file, or a name in its place.
        where: what refusals begin with; None: the path.

    Raises:
        InputError: as `imported`, of what the file says.
    """
    kind, where = values["model_type"], where or str(path)
    if kind not in FAMILIES:
        raise refused_type(kind, values, FAMILIES, where)
    c = Configuration(values, where=where, sequence=sequence)
    FAMILIES[kind](c)
    c.precision()
    not_used = c.leftovers()
    facts = {key: _with_unit(key, fact) for key, fact in c.facts.items()}
    texts = {
        "config": f"{path.name}, a configuration of transformers with model_type {kind}",
        "transformers": "transformers 5 (Hugging Face): what the model class of that model_type computes, and the "
        "defaults of its configuration class",
        "calculation": "computed from values of this file",
        "option": OF_OPTIONS,
    }
    used = {fact.source.split()[0] for fact in facts.values()}
    sources = {key: text for key, text in texts.items() if key in used}
    tables: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for key, fact in facts.items():
        section, _, field = key.partition(".")
        tables[section][field] = msgspec.to_builtins(fact)
    architecture, _ = section_of(tables["architecture"], Architecture, "architecture", sources, where)
    section_of(tables["recipe"], Recipe, "recipe", sources, where, Omitted(incomplete=incomplete_recipe))
    architecture.check(where)
    name = str(values.get("_name_or_path") or (path.absolute().parent.name if path.stem == "config" else path.stem))
    return Imported(name, f"{name} ({kind})", architecture, facts, sources, tuple(c.notes), tuple(not_used))


def _with_unit(key: str, fact: Sourced) -> Sourced:
    section, _, name = key.partition(".")
    return msgspec.structs.replace(fact, unit=unit_of(SECTIONS[section], name))
