"""Makes the module that a trace executes: of a configuration by transformers, or by a user's own function."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from reference_runs.hugging_face.aliases import known_type
from reference_runs.hugging_face.configuration import USUAL_SEQUENCE
from suite.execute.trace.miniature import miniature
from suite.job.trace_job import ModelSource, ScaledKey

TOKENS = 1024  # of a sample, where neither an option nor the configuration says how many
REMOTE = "auto_map"  # names code outside transformers


class SourceError(Exception):
    """A model that cannot be built, and where."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place


class Built(NamedTuple):
    """A model, how its step computes a loss, and what built it.

    Args:
        inputs: keyword arguments of its forward pass.
        software: with its version.
        tokens: name of the argument with token numbers; empty: the source brings its inputs.
        vocabulary: numbers that there are; None: not known.
        values, scaled: of a miniature, its configuration and what became of each key.
    """

    module: nn.Module
    inputs: Mapping[str, Any]
    software: str
    sequence: int
    tokens: str = ""
    vocabulary: int | None = None
    values: str | None = None
    scaled: tuple[ScaledKey, ...] = ()

    @property
    def own_inputs(self) -> bool:
        """Whether the source brings its inputs."""
        return not self.tokens

    def facts(self) -> dict[str, Any]:
        """The facts of it that a launch must know."""
        names = ("vocabulary", "own_inputs", "values")
        return {name: getattr(self, name) for name in names} | {"scaled": list(self.scaled)}

    def loss(self) -> Tensor:
        """The loss of one micro-batch: what the module returns as `loss`, or the mean of its first tensor.

        Raises:
            SourceError: it returns no tensor that has gradients.
        """
        return loss_of(self.module(**self.inputs))

    def of_tokens(self, ids_BT: Tensor) -> Mapping[str, Any]:
        """Keyword arguments of a forward pass on these token numbers."""
        given = dict(self.inputs)
        return given | {name: ids_BT for name in (self.tokens, "labels") if name in given}


def loss_of(returned: Any) -> Tensor:
    """The loss in what a module returns.

    Raises:
        SourceError: there is no tensor that has gradients.
    """
    values = list(returned.values()) if isinstance(returned, Mapping) else [returned]
    named = returned.get("loss") if isinstance(returned, Mapping) else getattr(returned, "loss", None)
    found = next((leaf for leaf in [named, *tree_leaves(values)] if isinstance(leaf, Tensor)), None)
    if found is None or not found.requires_grad:
        what = type(returned).__name__
        raise SourceError(f"the forward pass returns no tensor with gradients, but a value of type {what}")
    return found if found.ndim == 0 else found.float().mean()


def build(source: ModelSource, *, dtype: torch.dtype, micro_batch: int, sequence: int | None) -> Built:
    """The model of a source, with weights of `dtype` where the source leaves it open.

    Raises:
        SourceError: it cannot be built.
    """
    if source.configuration:
        return _by_transformers(source, dtype, micro_batch, sequence)
    return _by_function(source.module, dtype, micro_batch, sequence)


def _by_transformers(source: ModelSource, dtype: torch.dtype, micro_batch: int, sequence: int | None) -> Built:
    import transformers

    transformers.logging.set_verbosity_error()
    values: dict[str, Any] = json.loads(source.values or Path(source.configuration).read_text(encoding="utf-8"))
    configuration, software, able = _configuration(values)
    scaled: tuple[ScaledKey, ...] = ()
    if source.mini:
        values, scaled = miniature(configuration.to_dict())
        configuration, software, able = _configuration(dict(values))
    try:
        module = able.from_config(configuration, dtype=dtype)
    except Exception as error:
        what = "its miniature" if source.mini else "it"
        raise SourceError(f"{software} cannot build {what}: {one_line(error)}", last_line(error)) from error
    text = configuration.get_text_config()
    tokens = sequence or min(getattr(text, "max_position_embeddings", None) or TOKENS, USUAL_SEQUENCE)
    ids_BT = torch.ones(micro_batch, tokens, dtype=torch.int64)
    inputs = {"input_ids": ids_BT, "labels": ids_BT, "use_cache": False}
    made = json.dumps(values) if source.mini else None
    return Built(module.train(), inputs, software, tokens, "input_ids", getattr(text, "vocab_size", None), made, scaled)


def _configuration(values: dict[str, Any]) -> tuple[Any, str, Any]:
    """transformers' configuration of these values, which software that is, and the class that builds its models.

    Raises:
        SourceError: it has no such model, or does not read them.
    """
    import transformers
    from transformers import CONFIG_MAPPING, AutoConfig, masking_utils

    # a sample is one sequence; without numbers transformers takes it for packed ones and makes full masks
    masking_utils.find_packed_sequence_indices = lambda _: None
    software = f"transformers {transformers.__version__}"
    values.pop(REMOTE, None)
    kind = _transformers_type(values)
    if kind != values.pop("model_type"):
        software += f" as {kind}"
    if kind not in CONFIG_MAPPING:
        raise SourceError(f"{software} has no model of type {kind!r}", "model_type")
    try:
        configuration = AutoConfig.for_model(kind, **values)
    except Exception as error:
        raise SourceError(f"{software} does not read this configuration: {one_line(error)}", "model_type") from error
    # those with towers for pictures or sound first: a configuration that has some is of the whole model
    classes = (transformers.AutoModelForImageTextToText, transformers.AutoModelForMultimodalLM)
    models = (*classes, transformers.AutoModelForCausalLM)
    able = next((each for each in models if type(configuration) in each._model_mapping), None)
    if able is None:
        raise SourceError(f"{software} has no causal language model of type {kind!r}", "model_type")
    return configuration, software, able


def _transformers_type(values: Mapping[str, Any]) -> str:
    """The model type of transformers that a configuration is of.

    Its own, the one that its own is by another name, or the one whose causal language model it names.
    """
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as MODELS

    kind = known_type(values["model_type"])
    if kind in transformers.CONFIG_MAPPING:
        return kind
    named = [model for model in values.get("architectures") or () if model in MODELS.values()]
    return str(getattr(transformers, named[0]).config_class.model_type) if named else kind


def _by_function(name: str, dtype: torch.dtype, micro_batch: int, sequence: int | None) -> Built:
    file, _, function = name.rpartition(":")
    tokens = sequence or TOKENS
    try:
        imported = _imported(Path(file))
    except Exception as error:
        raise SourceError(f"importing it raises {one_line(error)}", last_line(error)) from error
    if not callable(make := getattr(imported, function, None)):
        raise SourceError(f"has no function {function}")
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        built = make()
    except Exception as error:
        raise SourceError(f"{function}() raises {one_line(error)}", last_line(error)) from error
    finally:
        torch.set_default_dtype(usual)
    module, inputs = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if not isinstance(module, nn.Module):
        raise SourceError(f"{function}() returns no torch.nn.Module, but a value of type {type(built).__name__}")
    takes_tokens = inputs is None
    if takes_tokens:
        inputs = (torch.ones(micro_batch, tokens, dtype=torch.int64),)
    if not isinstance(inputs, Mapping):
        inputs = _by_name(module, inputs if isinstance(inputs, (tuple, list)) else (inputs,))
    software = f"PyTorch {torch.__version__.partition('+')[0]}"
    name = next(iter(inputs), "") if takes_tokens else ""
    tables = (each.num_embeddings for each in module.modules() if isinstance(each, nn.Embedding))
    return Built(module.train(), inputs, software, tokens, name, next(tables, None))


def _by_name(module: nn.Module, inputs: Sequence[Any]) -> dict[str, Any]:
    names = list(inspect.signature(module.forward).parameters)
    return dict(zip(names, inputs, strict=False))


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SourceError("not a Python file", str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def one_line(error: BaseException) -> str:
    """An error's type and the first line of what it says."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0][:300]}" if said else type(error).__name__


def last_line(error: BaseException) -> str:
    """File and line of the model's code that raised it, or that called PyTorch, which did."""
    frames = traceback.extract_tb(error.__traceback__)
    ours, of_torch = str(Path(__file__).parents[1]), f"{os.sep}torch{os.sep}"
    own = [each for each in frames if of_torch not in each.filename and not each.filename.startswith(ours)] or frames
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""
