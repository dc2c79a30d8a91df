"""Every kernel compiles for a GPU, without one, and fits its registers; most bytes move 16 at once in each thread."""

from __future__ import annotations

import pytest

from tests.kernels.compilation import ROOT, Compiled, compiled_kernels

CALLS = {
    "adamw": """
from kernels.adamw import adamw
settings = dict(step=1, learning_rate=0.1, beta1=0.9, beta2=0.99, epsilon=1e-8, weight_decay=0.1)
for count in (1, 3):
    w, g, m, v = ([torch.ones(1000) for _ in range(count)] for _ in range(4))
    adamw(w, g, m, v, **settings)
    g, copies = ([x.to(torch.bfloat16) for x in role] for role in (g, w))
    adamw(w, g, m, v, copies=copies, gradient_factor=torch.ones(()), **settings)
""",
    "cross_entropy": """
from kernels.cross_entropy import cross_entropy
for columns in (1600, 3144, 9400, 50_304):  # the second and third are multiples of 8, and not of 16
    logits = torch.ones(8, columns, dtype=torch.bfloat16).requires_grad_()
    cross_entropy(logits * 1, torch.ones(8, dtype=torch.int64)).backward()
""",
    "gradient_norm": """
from kernels.gradient_norm import gradient_norm
for dtype in (torch.float32, torch.bfloat16):
    gradient_norm(torch.ones(1000, dtype=dtype))
    gradient_norm([torch.ones(1000, dtype=dtype), torch.ones(3, dtype=dtype)])
""",
    "linear_cross_entropy": """
from kernels.linear_cross_entropy import linear_cross_entropy
x, weight = (torch.ones(*shape, dtype=torch.bfloat16).requires_grad_() for shape in ((8, 64), (1600, 64)))
linear_cross_entropy(x, weight, torch.ones(8, dtype=torch.int64)).backward()
""",
    "masked_softmax": """
from kernels.masked_softmax import masked_softmax
scores = torch.ones(2, 3, 128, 128, dtype=torch.bfloat16).requires_grad_()
seen = torch.stack([torch.zeros(2, 128), torch.full((2, 128), 128)], 1).long()
for mask in (
    dict(causal=True),
    dict(causal=True, slopes_H=torch.ones(3)),
    dict(causal=True, prefix_B=torch.ones(2, dtype=torch.int64)),
    dict(seen_B2S=seen),
    dict(bias=torch.zeros(1, 128, 128)),
):
    masked_softmax(scores, 0.5, **mask).sum().backward()
""",
    "rotary": """
from kernels.rotary import rotary
q, k = (torch.ones(2, 3, 128, 64, dtype=torch.bfloat16).requires_grad_() for _ in range(2))
for turned in (64, 16):
    q2, k2 = rotary(q, k, torch.ones(2, 128, turned))
    (q2 + k2).backward(torch.ones_like(q2))
for share in (4, 7):  # of grouped queries, as they lie in one projection's output
    fused = torch.ones(2, 128, 3 * (share + 2) * 64, dtype=torch.bfloat16).requires_grad_()
    q, k, _ = fused.view(2, 128, 3, share + 2, 64).permute(0, 2, 3, 1, 4).split((share, 1, 1), dim=2)
    q2, k2 = rotary(q, k, torch.ones(2, 128, 64))
    (q2 + k2).backward(torch.ones_like(q2))
""",
    "sign_pack": """
from kernels.sign_pack import sign_pack, sign_unpack
for dtype in (torch.float32, torch.bfloat16):
    packed, scale = sign_pack(torch.ones(1000, dtype=dtype), torch.zeros(1000))
sign_unpack(packed[None], scale[None], 1000)
""",
}
# by name in the table of kernels of rows: the module, and numbers of columns
OF_ROWS = {
    "layer_norm": ("layer_norm", (1600, 12_288)),
    "rms_norm": ("rms_norm", (128, 4096, 16_384)),
    "residual_layer_norm, scaled": ("residual_layer_norm", (1600, 12_288)),
    "residual_layer_norm, sum kept": ("residual_layer_norm", (1600, 12_288)),
    "residual_rms_norm": ("residual_rms_norm", (1600, 16_384)),
    "parallel_layer_norms": ("parallel_layer_norms", (1600, 12_288)),
    **dict.fromkeys(("gelu", "gelu_tanh", "fast_gelu", "relu", "relu_squared"), ("bias_activation", (1600,))),
    **dict.fromkeys(("gelu_tanh without bias", "relu without bias"), ("bias_activation", (1600,))),
    **dict.fromkeys(("geglu", "geglu by tanh"), ("geglu", (3200,))),
    **dict.fromkeys(("swiglu", "swiglu without bias"), ("swiglu", (3200,))),
}
CALLS |= {
    name: f"""
from tests.kernels.row_kernels import KERNELS
for columns in {sizes}:
    inputs = KERNELS[{name!r}].inputs(32, columns, dtype=torch.bfloat16)
    outputs = KERNELS[{name!r}].kernel(*(x.requires_grad_() for x in inputs))
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    torch.autograd.backward(outputs, [torch.empty_like(y) for y in outputs])
"""
    for name, (_, sizes) in OF_ROWS.items()
}
FAULTY = {
    "a mask that may cut anywhere": """
from tests.kernels.faulty import narrow
narrow[(1,)](torch.ones(1000), torch.ones(1000), 999)
""",
    "values that registers do not hold": """
from tests.kernels.faulty import crowded
crowded[(1,)](torch.ones(16_384), torch.ones(16_384), num_warps=1)
""",
    "a type that changes in a loop": """
from tests.kernels.faulty import changing
changing[(1,)](torch.ones(1000, dtype=torch.int64), 3)
""",
    "a number that is not rounded to fp32": """
from tests.kernels.faulty import unrounded
unrounded[(1,)](torch.ones(1000), torch.ones(1000), 0.5)
""",
}
# Room for the few registers by which releases of Triton differ: 0 in these cases with 3.6.0 and 3.7.1. A LayerNorm's
# backward pass over rows of 12,288 in one block took 1,288 (3.7.1, 2026-11-22).
MOST_SPILLED_BYTES = 16
# Those that read or write little: a number, a sum a program, a bit an element, or half of 16 bytes that were loaded.
NARROW_LOADS = {"gradient_norm.root_kernel", "sign_pack._unpack_kernel", "sign_pack.root_kernel"}
NARROW_STORES = {
    "gradient_norm._squares_kernel",
    "gradient_norm.root_kernel",
    "sign_pack._squares_kernel",
    "sign_pack.root_kernel",
}
OPAQUE = {"adamw", "gradient_norm"}  # torch.compile does not look into them
WITHOUT_PUBLIC_KERNELS = {
    "bits",
    "cublaslt",
    "gated_activation",
    "half_matmul",
    "interpreter",
    "linear_epilogues",
    "operator",
    "row_norm",
    "special_functions",
    "tensor_table",
    "tiles",
}

Found = dict[str, list[Compiled] | str]


@pytest.fixture(
    scope="module", params=["sm_90", *(pytest.param(name, marks=pytest.mark.rare) for name in ("sm_100", "gfx942"))]
)
def found(request: pytest.FixtureRequest) -> Found:
    return compiled_kernels(CALLS | FAULTY, request.param)


def test_kernels_compile_for_a_gpu_fit_registers_and_move_16_bytes_at_once(found: Found) -> None:
    wrong = []
    for name in CALLS:
        compiled = found[name]
        if isinstance(compiled, str) or not compiled:
            wrong.append((name, compiled))
            continue
        for one in compiled:
            narrow_loads = not one.wide_loads and one.kernel not in NARROW_LOADS
            narrow_stores = not one.wide_stores and one.kernel not in NARROW_STORES
            fp64 = one.fp64 and name not in OPAQUE
            if one.spilled_bytes > MOST_SPILLED_BYTES or narrow_loads or narrow_stores or fp64:
                wrong.append((name, one))
    assert wrong == []


def test_every_kernel_is_compiled() -> None:
    modules = {path.stem for path in (ROOT / "kernels").glob("[a-z]*.py")}
    assert modules - WITHOUT_PUBLIC_KERNELS == {module for module, _ in OF_ROWS.values()} | modules & set(CALLS)


def test_the_checks_can_fail(found: Found) -> None:
    narrow, crowded, changing, unrounded = (found[fault] for fault in FAULTY)
    assert isinstance(narrow, list)
    assert isinstance(crowded, list)
    assert [(kernel.wide_loads, kernel.wide_stores) for kernel in narrow] == [(False, False)]
    assert [kernel.spilled_bytes > MOST_SPILLED_BYTES for kernel in crowded] == [True]
    assert "Loop-carried variable" in str(changing)
    assert isinstance(unrounded, list)
    assert [kernel.fp64 for kernel in unrounded] == [True]
