"""What the catalog says of a model that a table calls by its name: "meta-llama/Llama-2-7b-hf" is llama2-7b."""

from __future__ import annotations

import functools
import re

from reference_runs.catalog import run_names
from reference_runs.run import ReferenceRun

_SIZE = re.compile(r"-(?:\d+x)?[\d.]+[bm](?:-.*)?$")
_ENDINGS = ("hf", "base", "pretrain", "pretraining", "v0.1", "v0.3")


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "", name.casefold())


@functools.cache
def _names() -> dict[str, str]:
    """Folded names -> run; a name without its size where one run alone has it."""
    names = {_folded(name): name for name in run_names()}
    stems: dict[str, list[str]] = {}
    for name in run_names():
        stems.setdefault(_folded(_SIZE.sub("", name)), []).append(name)
    return {stem: runs[0] for stem, runs in stems.items() if len(runs) == 1} | names


def named_run(model: str) -> str | None:
    """The recorded run of the model that is called so; None: none is.

    Letters' case, what stands between them, an owner in front ("meta-llama/") and endings such as "-hf" do not count.
    """
    folded = _folded(model.rpartition("/")[2])
    for ending in ("", *_ENDINGS):
        if folded.endswith(ending):
            short = folded.removesuffix(ending).removeprefix("meta")
            if found := _names().get(short):
                return found
    return None


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


def is_plain(run: ReferenceRun) -> bool:
    """Whether the columns of a table say all of its shape: dense layers, heads of hidden / heads, plain attention."""
    shape = run.architecture
    return shape.experts is None and shape.key_value_rank is None and shape.query_width == shape.hidden
