"""Prints how a model is served: by format of the weights, what fits on an accelerator."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from reference_runs.architecture import Architecture
from suite.job.served_job import ServedTrace
from suite.predict.analytic.usable_memory import GIB
from suite.predict.plan.serving import Serving
from suite.report.terminal.tables import print_folded, print_table

KIB = 2**10
MIB = 2**20
_TITLES = ("weights", "GiB", "with cache and activations", "sequences that fit", "accelerators needed")


def print_serving(
    out: Console,
    name: str,
    answer: Serving,
    *,
    layers: str,
    assumed: Iterable[str],
    traced: tuple[ServedTrace, str] | None,
) -> None:
    """Print whether it fits and in which formats, a table of them, and what it rests on.

    Args:
        layers: what makes the cache, in words.
        assumed: what nobody said, each with the option that changes it.
        traced: the trace that the answer rests on, and why no formula answers; None: formulas do.
    """
    if traced is not None:
        trace, reason = traced
        print_folded(out, f"traced: {trace.model} of {trace.software}, a forward pass without memory", "bold")
        print_folded(out, f"no formula: {reason}, so its own code was executed")
    question, rank = answer.question, answer.rank
    where = f"{name} on {question.ranks} {question.device.name}"
    load = f"{sequences(question.sequences)} of {question.context:,} tokens"
    if fits := answer.fits:
        print_folded(out, f"fits: {where} with {joined(fits)} weights, {load}", "bold green")
    else:
        print_folded(out, f"does not fit: {where}, {load}", "bold red")
    rows = [
        (
            each.weight_format.value,
            f"{each.weight_bytes / GIB:,.1f}",
            f"{each.needed / GIB:,.1f}",
            f"{each.fitting:,}",
            "-" if each.enough is None else f"{each.enough}",
        )
        for each in answer.formats
    ]
    print_table(out, rows, _TITLES, right=_TITLES[1:])
    if question.ranks > 1:
        split = "" if traced is None else " evenly, but not the activations"
        print_folded(out, f"bytes are those of each accelerator; tensor parallelism splits the model{split}")
    if question.ranks > (node := question.device.board.accelerators_per_node):
        words = f"tensor parallelism beyond a node of {node}: messages of every layer cross the network"
        print_folded(out, words, "yellow")
    cache = f"cache: {amount(rank.token)} a token, {amount(rank.sequence)} a sequence of {question.context:,}; {layers}"
    print_folded(out, cache, "")
    tokens = min(question.chunk, question.context)
    print_folded(out, f"activations: {amount(rank.prefill)}, a forward pass of {tokens:,} tokens of prefill", "")
    stay = "embeddings, head, norms, biases and routers stay in 16 bits"
    print_folded(out, f"{stay}: {amount(rank.weights.whole_bytes)} of the weights")
    share = f"{question.memory_share:.0%} of its memory (--memory-share), less CUDA's context"
    print_folded(out, f"limit: {answer.room / GIB:,.1f} GiB an accelerator, {share}")
    for words in assumed:
        print_folded(out, f"assumed: {words}")


def formula_layers(architecture: Architecture) -> str:
    """Layers and heads whose keys and values are kept, in words."""
    if architecture.key_value_rank is not None:
        state = f"a latent state of {architecture.key_value_rank} + {architecture.rotary_dim}"
        return f"{architecture.layers} layers with {state}"
    heads = f"{architecture.kv_heads} key-value head{'' if architecture.kv_heads == 1 else 's'}"
    if architecture.linear_heads is not None:
        others = f"{architecture.layers - architecture.full_layers} with a state of linear attention"
        return f"{architecture.full_layers} layers with {heads} of {architecture.head_dim}, {others}"
    words = f"{architecture.layers} layers with {heads} of {architecture.head_dim}"
    if architecture.sliding_window is not None:
        some = f" of {architecture.layers - architecture.full_layers} layers" if architecture.full_layers else ""
        words += f", in a window of {architecture.sliding_window:,} tokens{some}"
    return words


def trace_layers(trace: ServedTrace) -> str:
    """Layers by the class of their cache, each with its bytes, in words."""
    classes = list(dict.fromkeys(each.layer for each in trace.cache))
    words = []
    for name in classes:
        tensors = [each for each in trace.cache if each.layer == name]
        size = sum(each.bytes for each in tensors)
        words.append(f"{max(each.layers for each in tensors)} x {name} {amount(size)}")
    return ", ".join(words)


def sequences(number: int) -> str:
    """The number with its noun."""
    return f"{number:,} sequence{'' if number == 1 else 's'}"


def joined(words: Iterable[str]) -> str:
    """The words as one text: "int8 or int4"."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def amount(size: float) -> str:
    """Bytes in the unit that suits them."""
    unit, name = next((each for each in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")) if size >= each[0]), (1, "B"))
    return f"{size / unit:,.4g} {name}"
