"""What the catalog says of a model that a table calls by its name, as cells of the table."""

from __future__ import annotations

from collections.abc import Mapping

from reference_runs.catalog import reference_run
from reference_runs.named_runs import named_runs, says_size
from reference_runs.run import ReferenceRun

_SIZES = ("layers", "hidden", "heads")


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


def named_run(model: str, stated: Mapping[str, str] | None = None) -> str | None:
    """The recorded run of the model that is called so; None: none is, or several are.

    Args:
        stated: cells of the model's row; where the name says no size, the run is meant that has its layers, hidden and
            heads: of several one that has some, and the only one unless it has others.
    """
    found = named_runs(model)
    said = {column: stated[column] for column in _SIZES if stated and stated.get(column)}
    if len(found) > 1 or (said and found and not says_size(model)):
        shapes = {name: stated_shape(reference_run(name)) for name in found}
        found = [name for name, shape in shapes.items() if said and said.items() <= shape.items()]
    return found[0] if len(found) == 1 else None


def is_plain(run: ReferenceRun) -> bool:
    """Whether the columns of a table say all of its shape: dense layers, heads of hidden / heads, plain attention."""
    shape = run.architecture
    return shape.experts is None and shape.key_value_rank is None and shape.query_width == shape.hidden
