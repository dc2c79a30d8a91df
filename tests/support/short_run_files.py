"""Run files that say no more than a question needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

UNITS = {
    "vocabulary": "token",
    "sequence": "token",
    "global_batch": "sample",
    "micro_batch": "sample",
    "tokens": "token",
}
SHAPE: dict[str, object] = {  # of LLaMA 7B: the keys that no default follows for
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "ffn_hidden": 11008,
    "vocabulary": 32000,
    "sequence": 2048,
    "position": "rotary",
    "norm": "pre-rms-norm",
    "activation": "swiglu",
    "biases": False,
    "tied_embeddings": False,
}


def short_run_file(path: Path, **sections: Mapping[str, object]) -> Path:
    """A run file with these values in `sections`, and SHAPE where no architecture is given."""
    lines = ['title = "short"', "", "[sources]", 'card = "model card"']
    for section, values in ({"architecture": SHAPE} | sections).items():
        lines += ["", f"[{section}]"]
        for key, value in values.items():
            counts = isinstance(value, (int, float)) and not isinstance(value, bool)
            unit = f'unit = "{UNITS.get(key, "1")}", ' if counts else ""
            lines.append(f'{key} = {{ value = {json.dumps(value)}, {unit}kind = "stated", source = "card" }}')
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path
