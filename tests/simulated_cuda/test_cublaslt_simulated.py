"""cuBLASLt's epilogues as the stand-in checks and computes them: descriptions, algorithms, values. No GPU's numbers."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from suite.paths import ROOT
from tests.simulated_cuda.environment import simulated_environment

pytestmark = pytest.mark.timeout(300)

HEAD = """
import ctypes, json, os, sys, torch
from torch.nn.functional import gelu, linear
from kernels import cublaslt, linear_epilogues
from kernels.cublaslt import Epilogue, Gemm
from kernels.linear_epilogues import fused_linear, gelu_feed_forward
device = torch.device("cuda", 0)
generator = torch.Generator().manual_seed(1)
def drawn(*shape, dtype=torch.bfloat16):
    return (0.3 * torch.randn(*shape, generator=generator)).to(device, dtype)
"""


def printed(code: str, **settings: object) -> Any:
    """The JSON that a process with one simulated H100 prints."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(code) + "\nsys.stdout.flush(); os._exit(0)"],
        env=simulated_environment(1, **settings),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


VALUES = 1 << 20  # bytes, more than any matrix here


def test_loss_and_gradients_are_the_plain_layers_but_for_one_rounding() -> None:
    """Largest difference of each result, over its largest element, in units of the dtype's rounding.

    A result has two roundings in the plain way and one here, of sums whose factors were rounded once apart: 3 in all.
    """
    found = printed(
        """
    units = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-19}  # 32 roundings to fp32
    def differences(dtype, tuned):
        shapes = [(2, 40, 24), (64, 24), (64,), (24, 64), (24,)]
        x, *weights = [drawn(*shape, dtype=dtype).requires_grad_() for shape in shapes]
        dy = drawn(2, 40, 24, dtype=dtype)
        def plain():
            return linear(gelu(linear(x, weights[0], weights[1]), approximate="tanh"), weights[2], weights[3])
        def fused():
            return gelu_feed_forward(x, (weights[0], weights[1]), (weights[2], weights[3]), tuned=tuned)
        results = []
        for function in plain, fused:
            y = function()
            results.append([y.detach(), *torch.autograd.grad(y, [x, *weights], dy)])
        both = [[each.float().cpu() for each in of_way] for of_way in results]
        return [float((a - b).abs().max() / b.abs().max() / units[dtype]) for a, b in zip(*both)]
    assert linear_epilogues.why_not(device) == ""
    print(json.dumps([differences(dtype, tuned) for dtype in units for tuned in (False, True)]))
    """,
        values=VALUES,
    )
    assert all(max(off) > 0 for off in found[::2])  # they are computed in another way; tuned it may be PyTorch's
    assert all(max(off) <= 3 for off in found)


def test_a_decoder_has_the_plain_decoder_s_loss_and_gradients() -> None:
    """A GPT-2 of two layers, 2 x 32 tokens, 64 wide, bf16 over its flat store. Forward and backward passes.

    Loss within one rounding to bf16. Gradients, over each one's largest element, within 2^-8 sqrt(8): roundings apart
    of 8 GEMMs and activations that a gradient passes, at most, as good as independent.
    """
    found = printed(
        """
    import msgspec
    from reference_runs.layout import Layout
    from suite.execute.model.decoder import Decoder, initialise
    from suite.execute.model.fused_gemms import fuse_gemms
    from suite.execute.precision import store_weights
    from suite.job.options import Optimization
    from suite.reproduce.plan import plan
    from suite.reproduce.request import Request
    job = plan(Request(name="gpt2-mini", device="cpu", layout="dp1"))
    sizes = {"layers": 2, "hidden": 64, "heads": 2, "kv_heads": 2, "head_dim": 32, "ffn_hidden": 256, "sequence": 32}
    small = msgspec.structs.replace(job.architecture, **sizes)
    still = dict.fromkeys(("hidden_dropout", "attention_dropout", "embedding_dropout"), 0.0)
    recipe = msgspec.structs.replace(job.recipe, **still)
    tokens = torch.randint(500, (2, 33), generator=generator).to(device)
    def passes(*optimizations):
        decoder = Decoder(small, recipe)
        initialise(decoder, recipe, seed=1)
        fuse_gemms([decoder], optimizations, device)
        store_weights([decoder], recipe, shards=1, device=device)
        decoder.to(device)
        loss = decoder(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        named = {n.replace("parametrizations.", "").removesuffix(".original"): p for n, p in decoder.named_parameters()}
        return loss.item(), [p.grad.float().cpu() for _, p in sorted(named.items())]
    loss, gradients = passes()
    compared = []
    for optimizations in [Optimization.EPILOGUES], Optimization:
        fused_loss, fused = passes(*optimizations)
        off = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(fused, gradients))
        compared.append([fused_loss / loss, off])
    print(json.dumps([compared, str(recipe.precision)]))
    """,
        values=8 * VALUES,
    )
    compared, precision = found
    assert precision == "bf16"
    for ratio, off in compared:
        assert ratio == pytest.approx(1, rel=2.0**-8)
        assert off <= 2.0**-8 * 8**0.5
    assert compared[0][1] > 0  # in another way; tuned, the fastest way that was timed may be PyTorch's


def test_the_self_check_finds_a_library_that_computes_something_else_or_nothing() -> None:
    found = printed(
        """
    made, number, version = cublaslt._Descriptions._attribute, cublaslt.AUX_LD, torch.version.cuda
    def without_gelu(self, number, value):
        wrong = number == cublaslt.EPILOGUE and value.value == Epilogue.GELU_AUX_BIAS
        made(self, number, ctypes.c_uint32(4) if wrong else value)
    x, weight, second = drawn(16, 8), drawn(24, 8), drawn(8, 24)
    right = linear(gelu(linear(x, weight), approximate="tanh"), second)
    answers = []
    for fault in "none", "epilogue", "aux", "library":
        if fault == "epilogue":
            cublaslt._Descriptions._attribute = without_gelu
        elif fault == "aux":
            cublaslt._Descriptions._attribute, cublaslt.AUX_LD = made, 10**6  # an attribute that nobody knows
        elif fault == "library":
            torch.version.cuda = "99.0"
        linear_epilogues.why_not.cache_clear()
        cublaslt.library.cache_clear()
        answers.append(linear_epilogues.why_not(device))
    y = gelu_feed_forward(x, (weight, None), (second, None), tuned=True)  # by PyTorch's operators
    print(json.dumps([answers, float((y - right).abs().max())]))
    """,
        values=VALUES,
    )
    answers, difference = found
    assert answers[:3] == [
        "",
        "cuBLASLt: wrong results of GELU_AUX_BIAS in bfloat16, GELU_AUX_BIAS in float16",
        "cuBLASLt: cublasLtMatmulAlgoGetHeuristic: invalid value",
    ]
    assert "libcublasLt.so.99" in answers[3]
    assert difference == 0.0


def test_layouts_and_pointers_that_the_library_refuses_are_computed_by_pytorch_or_raise() -> None:
    statuses = printed("""
    def status(**changes):
        x, weight, out, aux, bias = drawn(16, 8), drawn(32, 8), drawn(16, 32), drawn(16, 32), drawn(32)
        whole = Gemm(x, weight, out, (False, True), Epilogue.GELU_AUX_BIAS, bias, aux, lambda: None)
        try:
            found = cublaslt._Descriptions(whole._replace(**changes)).algorithms
        except cublaslt.CublasLtError as error:
            return str(error)
        return len(found)
    print(json.dumps({
        "as it should be": status(),
        "aux of 36 columns": status(aux=drawn(16, 36)[:, :32]),
        "aux of 8 bytes": status(aux=drawn(16 * 40 + 4)[4:].view(16, 40)[:, :32]),
        "no bias": status(bias=None),
        "other depth": status(left=drawn(16, 16)),
        "gradient of a bias from a layout that is not transposed": status(epilogue=Epilogue.BGRADB, aux=None),
    }))
    """)
    assert statuses == {
        "as it should be": 4,
        "aux of 36 columns": "cublasLtMatmulAlgoGetHeuristic: invalid value",
        "aux of 8 bytes": 0,
        "no bias": "cublasLtMatmulAlgoGetHeuristic: invalid value",
        "other depth": "cublasLtMatmulAlgoGetHeuristic: invalid value",
        "gradient of a bias from a layout that is not transposed": 0,
    }


def test_an_odd_width_is_computed_by_pytorch_with_a_line_that_says_so() -> None:
    done = printed(
        """
    import contextlib, io
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        x, weight, second = drawn(16, 8), drawn(36, 8), drawn(8, 36)
        y = gelu_feed_forward(x, (weight, None), (second, None), tuned=False)
    right = linear(gelu(linear(x, weight), approximate="tanh"), second)
    print(json.dumps([said.getvalue(), float((y - right).abs().max())]))
    """,
        values=VALUES,
    )
    refused = "cublasLtMatmulAlgoGetHeuristic: invalid value"
    assert done == [f"cuBLASLt: GELU_AUX of 16 by 36: {refused}; by PyTorch's operators instead\n", 0.0]


def test_the_algorithm_that_splits_a_long_depth_is_kept_where_its_time_is_least(tmp_path: Path) -> None:
    """The stand-in's algorithms have the depth in 1, 1, 4 and 8 parts; the last two are faster where it is long."""
    times = tmp_path / "times"
    times.write_text("matmul 0.1\nmemory 3000\n")  # milliseconds each, which the host's own clock resolves
    parts = printed(
        """
    def kept(rows, columns, depth, tuned):
        dy, x = drawn(depth, rows), drawn(depth, columns)
        linear_epilogues._linear_gradients(dy, x, False, tuned)
        way = list(cublaslt._ways.values())[-1]
        return way.keywords["algorithm"].data[1] if hasattr(way, "keywords") else "PyTorch's"
    print(json.dumps([kept(128, 128, 1024, True), kept(128, 128, 1024, False), kept(256, 256, 256, True)]))
    """,
        times=times,
    )
    assert parts[0] in (4, 8)
    assert parts[1:] == [1, 1]


def test_each_epilogue_is_one_launch(tmp_path: Path) -> None:
    printed(
        """
    shapes = [(4, 32, 64), (256, 64), (256,), (64, 256), (64,)]
    x, *weights = [drawn(*shape).requires_grad_() for shape in shapes]
    assert linear_epilogues.why_not(device) == ""
    sys.stdout.flush()
    torch.cuda.synchronize()
    linear(x, drawn(8, 64))  # marks the beginning: 8 columns
    y = gelu_feed_forward(x, (weights[0], weights[1]), (weights[2], weights[3]), tuned=False)
    y.backward(torch.empty_like(y))
    torch.cuda.synchronize()
    ctypes.CDLL("libcuda.so.1").sim_log_flush()
    print(json.dumps(0))
    """,
        log=tmp_path / "log",
    )
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    marks = [number for number, line in enumerate(lines) if line[2] == "matmul" and line[4].startswith("8x128x64")]
    launched = [line[-1] for line in lines[marks[-1] + 1 :] if line[2] in ("launch", "matmul", "fill", "copy")]
    names = [name.rpartition("+")[2] for name in launched]
    assert names[0] == "GELU_AUX_BIAS"
    assert sorted(names).count("BGRADB") == 2
    assert names.count("DGELU") == 1
    assert len(names) == 6  # with the contraction, and the gradient of x
