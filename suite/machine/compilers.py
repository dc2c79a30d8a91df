"""Whether this machine can compile what torch.compile and Triton generate, without importing either."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from functools import cache

CHECK_SECONDS = 20.0


@cache
def compilation_missing(device: str) -> str:
    """What torch.compile lacks on this machine for "cpu" or "cuda", in words; empty where it lacks nothing.

    On CUDA Triton compiles its launcher as C (triton/runtime/build.py), on a CPU Inductor its kernels as C++
    (torch/_inductor/cpp_builder.py). Both include Python.h. So a file that includes it is compiled, in 0.2 s.
    """
    language, variable = ("C", "CC") if device == "cuda" else ("C++", "CXX")
    names = ["gcc", "clang"] if device == "cuda" else ["g++"]
    asked = os.environ.get(variable)
    compiler = asked or next(filter(shutil.which, names), None)
    if compiler is None:
        return f"no {language} compiler ({' or '.join(names)} on the PATH, or {variable})"
    scheme = sysconfig.get_default_scheme()
    include = sysconfig.get_paths(scheme="posix_prefix" if scheme == "posix_local" else scheme)["include"]
    command = [compiler, f"-I{include}", "-fsyntax-only", f"-x{language.lower()}", "-"]
    source = "#include <Python.h>\n"
    try:
        done = subprocess.run(
            command, input=source, capture_output=True, text=True, timeout=CHECK_SECONDS, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the {language} compiler {compiler} does not run ({error})"
    if done.returncode == 0:
        return ""
    words = [line.strip() for line in done.stderr.splitlines() if "error:" in line] or ["no word"]
    if "Python.h" in words[0]:
        return f"no Python.h in {include} (Debian: python3-dev)"
    return f"the {language} compiler {compiler} fails: {words[0]}"
