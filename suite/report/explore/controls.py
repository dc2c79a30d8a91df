"""The controls of the page, and the parts that it shows, in words: the same of the served page and of the file."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.accelerator import accelerator_names
from reference_runs.layout import Recomputation, Schedule
from reference_runs.run import Precision, ProductFormat
from reference_runs.stack import stacks
from suite.report.explore.state import COUNTS, ZERO_FORMS

TRAINING = ("precision", "batch", "sequence", "tokens")
OTHERS = ("run", "on", "network", "stack", "products", *TRAINING, "price", "other")
RANKS = "gpus"  # the layout's own number; another one asks for the fastest layout of so many
LAYOUT_CONTROLS = (*COUNTS, "zero", "schedule", "recompute", "every", "switches")
SWITCHES = {"sp": "sequence parallel", "fused": "fused attention", "noreshard": "keep gathered weights"}
_COUNT_WORDS = {
    "dp": "data (dp)",
    "tp": "tensor (tp)",
    "pp": "pipeline (pp)",
    "cp": "context (cp)",
    "ep": "expert (ep)",
    "interleave": "chunks per stage",
    "micro": "micro-batch",
}


class Control(NamedTuple):
    """One control.

    Args:
        options: of a choice; None: a number.
        clearable: a choice that may be none.
        whole: a number without fraction.
    """

    name: str
    label: str
    options: tuple[str, ...] | None = None
    clearable: bool = False
    whole: bool = True


def controls() -> dict[str, list[Control]]:
    """The controls after the run's, in groups by their title."""
    return {
        "machine": [
            Control("on", "accelerator", tuple(accelerator_names()), clearable=True),
            Control("network", "Gbit/s out of a node", whole=False),
            Control("price", "price of a GPU-hour", whole=False),
            Control("stack", "software", tuple(stacks()), clearable=True),
            Control("products", "GEMM format", tuple(map(str, ProductFormat)), clearable=True),
        ],
        "training": [
            Control("precision", "precision", tuple(map(str, Precision)), clearable=True),
            Control("batch", "samples per step"),
            Control("sequence", "tokens per sample"),
            Control("tokens", "training tokens", whole=False),
        ],
        "layout": [
            Control(RANKS, "accelerators"),
            *(Control(word, _COUNT_WORDS[word]) for word in COUNTS),
            Control("zero", "ZeRO", ZERO_FORMS),
            Control("schedule", "schedule", tuple(map(str, Schedule))),
            Control("recompute", "recomputation", tuple(map(str, Recomputation))),
            Control("every", "layers of a group"),
        ],
    }


class PagePart(NamedTuple):
    """A part of the page.

    Args:
        name: of the element, with "-part" of its section.
        why: the derivations that it opens; empty: none of its own.
        places: elements in it, of which the browser fills each.
    """

    name: str
    title: str
    places: tuple[str, ...]
    why: str = ""


NUMBERS = "numbers"  # the part that is searched when it is asked for
PARTS = (
    PagePart("time", "Where the time of a step goes", ("time",), "step_seconds"),
    PagePart("memory", "Memory of each pipeline stage", ("memory-words", "memory-picture"), "peak_bytes"),
    PagePart("figures", "Predicted and published figures", ("figures",)),
    PagePart("passes", "The pipeline's first passes", ("passes",), "schedule"),
    PagePart("traffic", "Communication of one rank in a step", ("traffic",), "traffic"),
    PagePart(
        "roofline", "Matrix multiplications under the roofline", ("roofline-picture", "roofline-table"), "roofline"
    ),
    PagePart(NUMBERS, "Other numbers of accelerators", ("numbers-words", "numbers-pictures", "numbers-table")),
    PagePart("measured", "Measured with this suite", ("measured",)),
    PagePart("notes", "Assumptions", ("notes",)),
)
