"""Miniatures of many model types, each trained by two FSDP2 ranks, against their traces: python -m benchmarks.minis.

Prints a line a type: how many exact figures are equal, and by how much kept bytes and the peak differ. Arguments: types
of transformers (default: 33), and after -- options of `reproduce`. Exit code 1: one differs or fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TYPES = (
    *("llama", "gpt2", "gpt_neox", "bloom", "opt", "gptj", "falcon", "phi3", "gemma2", "gemma3_text", "gemma4_text"),
    *("qwen2", "qwen3", "mistral", "glm4", "olmo2", "granite", "smollm3", "cohere2", "stablelm", "codegen"),
    *("mixtral", "qwen3_moe", "olmoe", "deepseek_v3", "gpt_oss", "glm4_moe", "granitemoe", "ernie4_5_moe"),
    *("mamba2", "falcon_h1", "nemotron_h", "qwen3_next"),
)
OPTIONS = ("--device", "cpu", "--layout", "dp2,zero3", "--steps", "6")


def main(arguments: list[str]) -> int:
    """Launch all, print a table; the exit code."""
    mark = arguments.index("--") if "--" in arguments else len(arguments)
    types, options = arguments[:mark] or TYPES, arguments[mark + 1 :]
    failed = []
    print(f"{'type':20} {'parameters':>12} {'exact':>7} {'kept':>8} {'peak':>8} {'s':>5}  why not", flush=True)
    for kind in types:
        began = time.monotonic()
        line, passed = _launched(kind, options)
        print(f"{kind:20} {line.format(seconds=f'{time.monotonic() - began:5.0f}')}", flush=True)
        failed += [] if passed else [kind]
    words = f"; differ or fail: {', '.join(failed)}" if failed else ""
    print(f"{len(types) - len(failed)} of {len(types)} types are as their traces say{words}")
    return 1 if failed else 0


def _launched(kind: str, options: list[str]) -> tuple[str, bool]:
    """The rest of a type's line, and whether it is as its trace says."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "config.json")
        path.write_text(json.dumps({"model_type": kind}))
        command = [
            sys.executable,
            "-m",
            "suite",
            "reproduce",
            str(path),
            "--mini",
            "--device",
            "cpu",
            *OPTIONS,
            *options,
        ]
        done = subprocess.run(
            [*command, "--results", directory, "--json"], capture_output=True, text=True, timeout=900, check=False
        )
    if not done.stdout:
        return f"{'-':>12} {'-':>7} {'-':>8} {'-':>8} {{seconds}}  {done.stderr.strip()[-300:]}", False
    answer: dict[str, Any] = json.loads(done.stdout)
    rows = answer["figures"]
    exact = [row for row in rows if row["tolerance"] == 0]
    equal = sum(row["verdict"] == "pass" for row in exact)
    (parameters,) = [row["right"] for row in rows if (row["quantity"], row["rank"]) == ("parameters", None)] or [0]
    sizes = " ".join(f"{_difference(rows, quantity):>8}" for quantity in ("activation_bytes", "peak_bytes"))
    wrong = [" ".join(filter(None, (r["quantity"], r["operation"]))) for r in rows if r["verdict"] == "fail"]
    why = answer["message"] or ", ".join(dict.fromkeys(wrong))
    return f"{parameters:12,} {f'{equal}/{len(exact)}':>7} {sizes} {{seconds}}  {why}", answer["verdict"] == "pass"


def _difference(rows: list[dict[str, Any]], quantity: str) -> str:
    """How much more was measured than predicted, of the fullest rank."""
    found = (row for row in rows if row["quantity"] == quantity and row["rank"] is None and row["left"])
    return next((f"{100 * (row['right'] / row['left'] - 1):+.2f}%" for row in found), "-")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
