"""The state of the page's controls: a run, a machine and a layout, as the page's address carries them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from reference_runs.accelerator import accelerator, accelerator_names
from reference_runs.errors import InputError
from reference_runs.layout import Layout, Recomputation, layout_text, parse_layout
from reference_runs.run import Precision, ProductFormat, precision_of
from reference_runs.stack import stack
from suite.predict.plan.asked import check_positive

COUNTS = {
    "dp": "data_parallel",
    "tp": "tensor_parallel",
    "pp": "pipeline_stages",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "interleave": "virtual_stages",
    "micro": "micro_batch",
}
NUMBERS = ("network", "batch", "sequence", "tokens", "gpus")  # above 0
ZERO_FORMS = ("zero0", "zero1,all-reduce", "zero1,reduce-scatter", "zero2", "zero3")


class ExploreState(msgspec.Struct, frozen=True, kw_only=True):
    """A question in the words of `predict`'s options; None where an option is absent.

    Args:
        layout: in the words of `--layout`, complete.
        network: Gbit/s out of a node.
        batch: samples of a step.
        sequence: tokens of a sample.
        tokens: of the whole training.
        gpus: accelerators, of which the fastest layout is asked for in place of `layout`.
        other: a second layout, to stand beside the first.
    """

    run: str
    layout: str
    on: str | None = None
    network: float | None = None
    stack: str | None = None
    products: ProductFormat | None = None
    precision: Precision | None = None
    batch: int | None = None
    sequence: int | None = None
    tokens: float | None = None
    gpus: int | None = None
    price: float | None = None
    other: str | None = None


def address(state: ExploreState) -> str:
    """The query of an address that shows this state."""
    values = {key: value for key, value in msgspec.to_builtins(state).items() if value is not None}
    return "?" + urlencode(values, safe=",")


def state_of(query: str, first: ExploreState) -> ExploreState:
    """The state of an address's query; `first` where it says nothing, and its run where it names none.

    Raises:
        InputError: a key or a value that no state has.
    """
    printable = query.encode(errors="replace").decode()  # JSON may carry halves of characters
    values: dict[str, Any] = dict(parse_qsl(printable.removeprefix("?")))
    if not values:
        return first
    if unknown := values.keys() - set(ExploreState.__struct_fields__):
        allowed = ", ".join(ExploreState.__struct_fields__)
        raise InputError("unknown key", got=repr(", ".join(sorted(unknown))), allowed=allowed, where="the address")
    return checked_state({"run": first.run, "layout": "", **values}, where="the address")


def checked_state(values: Mapping[str, Any], *, where: str) -> ExploreState:
    """The state of these values, of which numbers and formats may be texts.

    Raises:
        InputError: a value that no state has: the refusals of `predict`.
    """
    if "products" in values and values["products"] not in (None, *ProductFormat):
        allowed = ", ".join(ProductFormat)
        raise InputError("products: unknown format", got=repr(values["products"]), allowed=allowed, where=where)
    values = {
        **values,
        **{key: named(values[key]) for key, named in _NAMED.items() if isinstance(values.get(key), str)},
    }
    if isinstance(precision := values.get("precision"), str):
        values["precision"] = precision_of(precision, where=f"{where}: precision")
    try:
        state = msgspec.convert(values, ExploreState, strict=False)
    except msgspec.ValidationError as error:
        message, _, name = str(error).partition(" - at `$.")
        raise InputError(": ".join(filter(None, (name.rstrip("`"), message))), where=where) from error
    check_positive({f"{where}: {name}": getattr(state, name) for name in NUMBERS})
    if state.tokens is not None and state.tokens < 1:
        raise InputError("tokens: not a usable number", got=state.tokens, allowed="1 or more", where=where)
    if state.price is not None and not (math.isfinite(state.price) and state.price >= 0):
        raise InputError(
            "price: not a usable number", got=state.price, allowed="a finite one of 0 or more", where=where
        )
    return state


def _accelerator_name(name: str) -> str:
    """The catalog's name of an accelerator; a file of one is not for the address to name.

    Raises:
        InputError: there is none.
    """
    if name.endswith(".toml"):
        raise InputError("a file", got=repr(name), allowed=", ".join(accelerator_names()), where="accelerator")
    return accelerator(name).name


_NAMED: dict[str, Callable[[str], str]] = {"on": _accelerator_name, "stack": lambda name: stack(name).name}


def controls_of(layout: Layout) -> dict[str, Any]:
    """The value of each control that a layout sets."""
    zero = f"zero{layout.zero_stage}"
    if layout.zero_stage == 1:
        zero += ",reduce-scatter" if layout.reduce_scatter else ",all-reduce"
    return {
        **{word: getattr(layout, field) for word, field in COUNTS.items()},
        "zero": zero,
        "schedule": layout.schedule.value,
        "recompute": layout.recomputation.value,
        "every": layout.checkpoint_layers,
        "switches": [
            word
            for word, is_on in (
                ("sp", layout.sequence_parallel),
                ("fused", layout.fused_attention),
                ("noreshard", not layout.reshard_after_forward),
            )
            if is_on
        ],
    }


def layout_of(controls: Mapping[str, Any], base: Layout) -> Layout:
    """The layout that the controls say; what no control sets is from `base`.

    Raises:
        InputError: a control has no value, or one that no layout has.
    """
    words = []
    for word in COUNTS:
        size = controls[word]
        if not isinstance(size, int) or size < 1:
            raise InputError("expected a whole number of 1 or more", got=repr(size), where=word)
        words.append(f"{word}{size}")
    switches = controls["switches"] or []
    words += [controls["zero"], controls["schedule"], f"recompute-{controls['recompute']}"]
    if controls["recompute"] == Recomputation.FULL:
        words.append(f"every{controls['every'] or 1}")
    else:
        base = msgspec.structs.replace(base, checkpoint_layers=1)
    words += ["sp"] if "sp" in switches else []
    words.append("fused" if "fused" in switches else "unfused")
    words.append("noreshard" if "noreshard" in switches else "reshard")
    if "zero1" not in controls["zero"]:
        base = msgspec.structs.replace(base, reduce_scatter=False)
    return parse_layout(",".join(words), base=base)


def complete_text(layout: Layout) -> str:
    """The layout in words that are read as it from any base."""
    return layout_text(layout, complete=True)
