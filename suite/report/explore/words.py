"""Refusals and notes in the words of the page: they name its controls where the command line names options."""

from __future__ import annotations

import re

# Whole phrases first; an option that none of them has becomes its control
_PHRASES = (
    ("give one with --on", "choose an accelerator"),
    ("give the --network of a node", "enter the Gbit/s out of a node"),
    ("give a --layout", "choose a layout"),
    (", or a file ending in .toml", ""),
    ("peak_flop_per_second", "peak"),
    ("first_loss", "first loss"),
)
_CONTROLS = {
    "on": "accelerator",
    "network": "Gbit/s out of a node",
    "stack": "software",
    "products": "GEMM format",
    "fix": "layout",
    "gpus": "number of accelerators",
    "batch": "samples per step",
    "sequence": "tokens per sample",
    "tokens": "training tokens",
}
_KEY = re.compile(r"(?<![\w./])(?:layout|architecture|recipe|cluster|reported)\.([a-z]+(?:_[a-z]+)*)\b(?!\.)")
_SHIPPED_FILE = re.compile(r"\b(?:accelerators|runs)/\w+\.toml: ")
_OPTION = re.compile(r"`?--([a-z][a-z-]*)`?(?: [A-Z]{2,})?")


def in_controls(line: str) -> str:
    """The line with controls in place of options, and words in place of a run file's keys."""
    for said, shown in _PHRASES:
        line = line.replace(said, shown)
    line = line.replace("--layout: layout", "layout")
    line = _KEY.sub(lambda found: found[1].replace("_", " "), _SHIPPED_FILE.sub("", line))
    line = re.sub(r"\(`--stack`; ([^)]+)\)", r"(\1)", line)
    line = re.sub(r"\bgive (?:an? |the |one with )?(?=`?--)", "enter the ", line)
    return _OPTION.sub(lambda found: _CONTROLS.get(found[1], found[1].replace("-", " ")), line)
