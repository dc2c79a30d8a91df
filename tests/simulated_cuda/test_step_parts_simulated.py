"""Parts of GPT-2's step on a simulated H100: each way launches what it says, and computes what PyTorch's does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from suite.paths import ROOT
from tests.simulated_cuda.environment import simulated_environment

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(600)]

SMALL = """
import json, os, sys, msgspec, torch
from benchmarks.kernels import layer_tensors, step_parts
from benchmarks.kernels.case import Draw
from benchmarks.kernels.turns import contenders
from suite.execute.model import packed_attention
device = torch.device("cuda", 0)
recorded = step_parts.reference_run("gpt2-124m")
sizes = {"hidden": 64, "heads": 2, "kv_heads": 2, "head_dim": 32, "ffn_hidden": 256, "layers": 1}
small = msgspec.structs.replace(recorded.architecture, **sizes)
run = msgspec.structs.replace(recorded, architecture=small)
step_parts.reference_run = layer_tensors.reference_run = lambda _: run
step_parts.RUNS, step_parts.ROWS["cuda"], step_parts.LENGTH["cuda"] = ("gpt2-124m",), 64, 32
step_parts.in_step = lambda function, _device, **_options: function  # compiled kernels compute nothing here
"""


def done(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SMALL + code, *options],
        env=simulated_environment(1, values=1 << 20),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_ways_that_the_stand_ins_compute_give_what_pytorchs_way_gives() -> None:
    ended = done("""
found = {}
for part in step_parts.cases(device):
    if part.variant != "attention":  # the stand-in of cuDNN computes nothing
        draw = Draw(device)
        functions, errors, _ = contenders(part, [part.inputs(draw)], draw)
        found.setdefault(part.variant, {}).update(dict.fromkeys(functions, "") | {w: str(e) for w, e in errors.items()})
print(json.dumps(found))
sys.stdout.flush(); os._exit(0)
""")
    assert ended.returncode == 0, ended.stderr
    through_gelu = dict.fromkeys(("plain", "epilogues", "epilogues+tuned-gemms"), "")
    assert json.loads(ended.stdout) == {
        "linear_gelu": through_gelu,
        "linear_gelu_backward": through_gelu,
        "linear_gradients": through_gelu | {"tuned-gemms": ""},
        "between_blocks": dict.fromkeys(("plain", "across-blocks", "dependent-launch"), ""),
        "clipped_update": dict.fromkeys(("plain", "one-pass-update"), ""),
    }


@pytest.mark.long
@pytest.mark.parametrize("library", ["", "99.0"], ids=["a library", "no library"])
def test_the_benchmark_times_old_and_new_ways_and_without_a_library_the_old_one_alone(
    library: str, tmp_path: Path
) -> None:
    code = f"""
torch.version.cuda = "{library}" or torch.version.cuda
from benchmarks.kernels.__main__ import main
code = main(sys.argv[1:])
sys.stdout.flush(); os._exit(code)
"""
    options = ("--optimizations", "epilogues,tuned-gemms,one-pass-update", "-k", "gradients-bf16-64x64x64 or update")
    ended = done(code, *options, f"--benchmark-storage={tmp_path}")
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    (path,) = tmp_path.rglob("*.json")
    kept = json.loads(path.read_text(encoding="utf-8"))
    forms = {(timed["extra_info"]["variant"], timed["extra_info"]["form"]) for timed in kept["benchmarks"]}
    by_library = ("epilogues", "tuned-gemms", "epilogues+tuned-gemms")
    always = {("linear_gradients", "plain"), ("clipped_update", "plain"), ("clipped_update", "one-pass-update")}
    assert forms - always == (set() if library else {("linear_gradients", way) for way in by_library})
    assert forms >= always
    missing = [f"without {way}: cuBLASLt: libcublasLt.so.99" for way in by_library] if library else []
    assert [line.partition(": cannot")[0] for line in kept["lacking"]] == missing
