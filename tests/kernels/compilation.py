"""Compiles what kernels launch, for a GPU that need not be there: the interpreter checks no types and no instructions.

A process of its own runs public functions on CPU tensors, with Triton's driver replaced by one that names a target;
every launch compiles its kernel down to machine code, and launches nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

from suite.paths import ROOT

_COMPILING = """
import json, re, subprocess, sys, tempfile, traceback
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

class Gpu:
    get_current_device = get_current_stream = lambda self, *_: 0
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)

triton.runtime.driver.set_active(Gpu())
run, built = JITFunction.run, []

def stack_bytes(cubin):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        reported = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(re.search(r"STACK:(\\d+)", reported)[1])

def computes_in_fp64(src, metadata):
    # with its numbers in fp64, as torch.compile hands Python's numbers over
    signature = {name: "fp64" if kind == "fp32" else kind for name, kind in src.signature.items()}
    if signature == src.signature:
        return False
    again = triton.compiler.ASTSource(src.fn, signature, src.constants, src.attrs)
    options = {name: getattr(metadata, name) for name in ("num_warps", "num_stages")}
    ptx = triton.compile(again, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    return re.search(r"^\\s*(?!ld|mov|cvt)[a-z]\\S*\\.f64", ptx, re.MULTILINE) is not None

def compile_only(self, *arguments, **named):
    compiled = run(self, *arguments, **named | {"warmup": True})
    ptx = compiled.asm["ptx"]
    # copies of pipelined loops: .cg is of 16 bytes alone
    wide = ["ld.global.v4" in ptx or "cp.async.cg.shared.global" in ptx, "st.global.v4" in ptx]
    wide.append(computes_in_fp64(compiled.src, compiled.metadata))
    built.append([self.__name__, len(compiled.asm["cubin"]), stack_bytes(compiled.asm["cubin"]), *wide])
    return compiled

JITFunction.run = compile_only
import kernels.operator
kernels.operator.runs_triton = lambda x: True
found = {}
for name, code in json.load(sys.stdin).items():
    built.clear()
    try:
        exec(code, {"torch": torch})
        found[name] = list(built)
    except Exception:
        found[name] = traceback.format_exc()
print(json.dumps(found))
"""


class Compiled(NamedTuple):
    """One kernel in machine code of so many bytes; whether it loads and stores 16 bytes a thread at once.

    Args:
        stack_bytes: a thread's, in memory: what its registers do not hold.
        fp64: whether it computes in fp64 where torch.compile launches it.
    """

    kernel: str
    code_bytes: int
    stack_bytes: int
    wide_loads: bool
    wide_stores: bool
    fp64: bool


def compiled_kernels(calls: Mapping[str, str]) -> dict[str, list[Compiled] | str]:
    """By name: what the calls of public functions of `kernels` would launch on an H100, or the error as a text."""
    done = subprocess.run(
        [sys.executable, "-c", _COMPILING],
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
