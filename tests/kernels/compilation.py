"""Compiles what kernels launch, for a GPU that need not be there: the interpreter checks no types and no instructions.

A process of its own, in which Triton does not interpret, runs public functions on CPU tensors and compiles what they
launch down to machine code (`benchmarks.machine_code`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NamedTuple

from suite.paths import ROOT


class Compiled(NamedTuple):
    """One kernel in machine code; whether it loads and stores 16 bytes a thread at once.

    Args:
        spilled_bytes: of a thread, in memory: what its registers do not hold.
        fp64: whether it computes in fp64 where torch.compile launches it.
    """

    kernel: str
    spilled_bytes: int
    wide_loads: bool
    wide_stores: bool
    fp64: bool


def compiled_kernels(calls: Mapping[str, str], target: str) -> dict[str, list[Compiled] | str]:
    """By name: what the calls of public functions of `kernels` would launch on a target, or the error as a text."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compilation", target],
        input=json.dumps(dict(calls)),
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: got if isinstance(got, str) else [Compiled(*k) for k in got] for name, got in found.items()}


def _computes_in_fp64(built: Any) -> bool:
    """Whether it does with its numbers in fp64, as torch.compile hands Python's numbers over."""
    import triton

    signature = {name: "fp64" if kind == "fp32" else kind for name, kind in built.src.signature.items()}
    if signature == built.src.signature:
        return False
    again = triton.compiler.ASTSource(built.src.fn, signature, built.src.constants, built.src.attrs)
    options = {name: getattr(built.metadata, name) for name in ("num_warps", "num_stages")}
    code = triton.compile(again, target=built.metadata.target, options=options).asm
    wide = r"^\s*(?!ld|mov|cvt)[a-z]\S*\.f64" if "ptx" in code else r"^\s*v_(?!cvt|mov)\w*_f64"
    return re.search(wide, code["ptx" if "ptx" in code else "amdgcn"], re.MULTILINE) is not None


def _compiled(call: str, name: str) -> list[Compiled] | str:
    import torch

    from benchmarks.machine_code import compiled, launches_noted
    from benchmarks.machine_targets import TARGETS

    try:
        with launches_noted(TARGETS[name]) as launches:
            exec(call, {"torch": torch})
        codes = [(launch.name, compiled(launch, TARGETS[name])) for launch in launches]
    except Exception:
        return traceback.format_exc()
    fp64 = {name: _computes_in_fp64(code.built) for name, code in dict(codes).items()}  # depends on no size
    return [
        Compiled(name, code.spilled_bytes, 16 in code.load_bytes, 16 in code.store_bytes, fp64[name])
        for name, code in codes
    ]


if __name__ == "__main__":
    print(json.dumps({name: _compiled(call, sys.argv[1]) for name, call in json.load(sys.stdin).items()}))
