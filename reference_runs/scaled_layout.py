"""The recorded layout on fewer ranks, by one stated rule."""

from __future__ import annotations

import msgspec

from reference_runs.layout import Layout
from reference_runs.run import Architecture

RULE = (
    "the ranks' prime factors, largest first, go in turns to the axes that the record uses: dp, pp, tp; "
    "one that cannot be divided so is passed over"
)


def prime_factors(number: int) -> list[int]:
    """Prime factors of `number`, largest first; none of 1."""
    for divisor in range(2, number + 1):
        if number % divisor == 0:
            return [*prime_factors(number // divisor), divisor]
    return []


def scaled_layout(recorded: Layout, architecture: Architecture, *, ranks: int) -> Layout:
    """`recorded` on `ranks` ranks, for a model of shape `architecture`.

    The prime factors of the ranks go one by one to dp, pp and tp in turns, of those that the record uses. An axis takes
    no factor that it cannot be divided by: tp must divide heads, key-value heads, feed-forward width and vocabulary
    rows, and with sequence parallelism the sequence; pp must leave a layer for each stage. What no axis takes goes to
    dp. Sequence parallelism stays where tp does; interleaving where it divides layers. 8 ranks of a run with all three
    axes are dp2, tp2, pp2.
    """
    sizes = {"data_parallel": 1, "pipeline_stages": 1, "tensor_parallel": 1}
    used = [axis for axis in sizes if getattr(recorded, axis) > 1]
    turn = 0
    for factor in prime_factors(ranks):
        taken = "data_parallel"
        for offset in range(len(used)):
            axis = used[(turn + offset) % len(used)]
            if _fits(architecture, recorded, axis, sizes[axis] * factor):
                taken = axis
                turn += offset + 1
                break
        sizes[taken] *= factor
    stages = sizes["pipeline_stages"]
    interleaves = stages > 1 and architecture.layers % (stages * recorded.virtual_stages) == 0
    return msgspec.structs.replace(
        recorded,
        **sizes,
        context_parallel=1,
        virtual_stages=recorded.virtual_stages if interleaves else 1,
        sequence_parallel=recorded.sequence_parallel and sizes["tensor_parallel"] > 1,
        accumulation=None,
    )


def _fits(architecture: Architecture, recorded: Layout, axis: str, size: int) -> bool:
    if axis == "pipeline_stages":
        return size <= architecture.layers
    if axis == "data_parallel":
        return True
    divided = [architecture.heads, architecture.kv_heads, architecture.ffn_hidden, architecture.padded_vocabulary]
    if recorded.sequence_parallel:
        divided.append(architecture.sequence)
    return all(number % size == 0 for number in divided)
