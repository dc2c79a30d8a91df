"""Build the stand-ins for CUDA's libraries, for one installation of PyTorch's CUDA build: python build.py

Every symbol that PyTorch's libraries miss, and that no source defines, becomes a stub that returns 0 and is logged.
gcc and nm are needed. CUDA's headers lie in the virtual environment, below `cuda_headers` (from the wheels
nvidia-cuda-runtime and nvidia-cuda-crt, apart from their libraries, which PyTorch would take instead of these).
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "src"
CORE = "libsimulated_cuda.so"
CORE_SOURCES = ("device.c", "memory.c", "work.c", "times.c", "faults.c", "log.c")
IMPLEMENTED = {
    "libcudart.so.13": "runtime.c",
    "libcuda.so.1": "driver.c",
    "libcublas.so.13": "blas.c",
    "libcublasLt.so.13": "blas.c",
    "libnccl.so.2": "nccl.c",
    "libcudnn.so.9": "tools.c",
    "libcupti.so.13": "tools.c",
    "libnvrtc.so.13": "tools.c",
    "libnvidia-ml.so.1": "nvml.c",
}
UNVERSIONED = {  # libraries whose symbols carry no version, by the beginning of their names
    "libnccl.so.2": ("nccl",),
    "libcusparseLt.so.0": ("cusparseLt",),
    "libcufile.so.0": ("cuFile",),
    "libcurand.so.10": ("curand",),
    "libcuda.so.1": ("cu",),
    "libnvidia-ml.so.1": ("nvml",),
}
NAMED_AT_RUN_TIME = {  # asked for by name, so that nothing misses them beforehand
    "libcuda.so.1": [
        *("cuCtxSetLimit", "cuFuncSetAttribute", "cuFuncSetCacheConfig", "cuTensorMapEncodeIm2col"),
        *("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuMemRetainAllocationHandle"),
        *("cuMemGetAllocationPropertiesFromHandle", "cuMulticastCreate", "cuMulticastAddDevice", "cuMulticastBindMem"),
        *("cuMulticastUnbind", "cuCtxFromGreenCtx", "cuDevResourceGenerateDesc", "cuDevSmResourceSplitByCount"),
        *("cuDeviceGetDevResource", "cuGreenCtxCreate", "cuGreenCtxDestroy", "cuGreenCtxStreamCreate"),
        *("cuMemsetD32Async", "cuStreamWriteValue32_v2"),
    ]
}
COMPILE = ("gcc", "-std=gnu11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-pthread")


def site_directory(package: str) -> Path:
    """Where a package is installed, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed for {sys.executable}")
    return Path(spec.origin).parent


def missing_symbols(libraries: Path) -> dict[str, set[str]]:
    """Symbols that PyTorch's libraries expect of CUDA's, by library."""
    missing: dict[str, set[str]] = defaultdict(set)
    for library in sorted(libraries.glob("*.so")):
        listed = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
        for line in listed.stdout.splitlines():
            name, _, version = line.split()[-1].partition("@")
            owner = {"NVSHMEM": "libnvshmem_host.so.3"}.get(version, version)
            if re.match(r"lib(cu|nv)", owner):
                missing[owner].add(name)
            elif not version:
                for unversioned, beginnings in UNVERSIONED.items():
                    if re.match(rf"({'|'.join(beginnings)})[A-Z]", name):
                        missing[unversioned].add(name)
                        break
    for owner, names in NAMED_AT_RUN_TIME.items():
        missing[owner].update(names)
    for owner in [*IMPLEMENTED, *UNVERSIONED]:
        missing.setdefault(owner, set())
    missing["libnvshmem_host.so.3"].add("nvshmem_init")
    return missing


def stub_source(names: list[str]) -> str:
    """C source of functions that log their name and return 0."""
    stub = '__attribute__((visibility("default"))) long {0}(void) {{ sim_log("stub", "{0}"); return 0; }}\n'
    return '#include "core.h"\n' + "".join(stub.format(name) for name in names)


def defined_symbols(source: Path) -> set[str]:
    """Names of the functions that a source offers."""
    return set(re.findall(r"(\w+)\(", "\n".join(re.findall(r"^API [^={]*\(", source.read_text(), re.MULTILINE)))) | set(
        re.findall(r"^(?:PRODUCT|BATCHED)\((\w+)", source.read_text(), re.MULTILINE)
    )


def libraries() -> Path:
    """Where the libraries of these sources belong, in this virtual environment, for its PyTorch."""
    texts = [path.read_bytes() for path in sorted([*SOURCES.iterdir(), Path(__file__)])]
    texts.append((site_directory("torch") / "version.py").read_bytes())
    return Path(sys.prefix, "simulated_cuda", hashlib.sha256(b"".join(texts)).hexdigest()[:16])


def build() -> Path:
    """Compile every library where there is none yet; returns their directory."""
    place = libraries()
    if place.exists():
        return place
    place.parent.mkdir(exist_ok=True)
    out = Path(tempfile.mkdtemp(dir=place.parent))
    torch, headers = site_directory("torch"), Path(sys.prefix, "cuda_headers", "nvidia", "cu13", "include")
    core = [str(SOURCES / name) for name in CORE_SOURCES]
    subprocess.run([*COMPILE, f"-Wl,-soname,{CORE}", "-o", out / CORE, *core], check=True)
    for library, names in missing_symbols(torch / "lib").items():
        own = SOURCES / IMPLEMENTED[library] if library in IMPLEMENTED else None
        stubs = out / f"{library}.c"
        stubs.write_text(stub_source(sorted(names - (defined_symbols(own) if own else set()))))
        versions = out / f"{library}.map"
        unversioned = library in UNVERSIONED
        node = "NVSHMEM" if "nvshmem" in library else library
        versions.write_text("{ global: *; };\n" if unversioned else f"{node} {{ global: *; }};\n")
        sources = [str(stubs), *([str(own)] if own else [])]
        options = [f"-Wl,-soname,{library}", f"-Wl,--version-script={versions}", f"-I{SOURCES}", f"-I{headers}"]
        linked = [f"-L{out}", "-lsimulated_cuda", "-Wl,-rpath,$ORIGIN", "-ldl", "-lm"]
        subprocess.run([*COMPILE, *options, "-o", out / library, *sources, *linked], check=True)
    (out / "libcuda.so").symlink_to("libcuda.so.1")  # Triton links with -lcuda
    try:
        out.rename(place)
    except OSError:  # another process was faster
        shutil.rmtree(out)
    return place


if __name__ == "__main__":
    print(build())
