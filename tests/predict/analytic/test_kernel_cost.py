"""Least bytes of kernels: those of the tensors that PyTorch makes for them, and the worked numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from suite.paths import ROOT
from suite.predict.analytic.kernel_cost import FLOP_FORMULAS, FORMULAS, STEP_FORMULAS, kernel_bytes, kernel_flop

M, N, V = 48, 640, 5000
SIZES = {"rows": M, "columns": N, "element_bytes": 2}


def half(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def fp32(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="meta")


def packed(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.uint8, device="meta")


x, w, m = half(M, N), fp32(N), fp32(N)
# kernel, sizes, tensors read and written forward, and backward
MOVED: list[tuple[str, dict[str, int], list[Tensor], list[Tensor]]] = [
    ("layer_norm", SIZES, [x, x], [x, x, x]),
    ("residual_layer_norm", SIZES, [x, x, x], [x, x, x]),
    ("residual_layer_norm", SIZES | {"kept": 1}, [x, x, x, x], [x, x, x, x]),
    ("residual_layer_norm", SIZES | {"scaled": 1}, [x, x, x], [x, x, x, x]),
    ("rms_norm", SIZES, [x, x], [x, x, x]),
    ("residual_rms_norm", SIZES, [x, x, x, x], [x, x, x, x]),
    ("parallel_layer_norms", SIZES, [x, x, x], [x, x, x, x]),
    ("bias_activation", SIZES, [x, x], [x, x, x]),
    ("geglu", SIZES, [half(M, 2 * N), x], [half(M, 2 * N), x, half(M, 2 * N)]),
    ("swiglu", SIZES, [half(M, 2 * N), x], [half(M, 2 * N), x, half(M, 2 * N)]),
    # 3 sequences of 7 positions, 8 heads of queries and 2 of keys of 16 dimensions, however many of them turn
    ("rotary", {"elements": 3 * 7 * (8 + 2) * 16, "element_bytes": 2}, 2 * [half(3, 8, 7, 16), half(3, 2, 7, 16)], []),
    ("masked_softmax", SIZES, [x, x], [x, x, x]),
    ("masked_softmax", SIZES | {"causal": 1}, [half(M, N // 2), x], [half(M, N // 2), half(M, N // 2), x]),
    # half of the positions are a prefix: its rows read half, the others three quarters on average
    (
        "masked_softmax",
        SIZES | {"causal": 1, "prefix": N // 2},
        [half(M, N * 5 // 8), x],
        [half(M, N * 5 // 8), half(M, N * 5 // 8), x],
    ),
    ("attention", {"heads": 6, "length": 8, "head_size": N, "element_bytes": 2}, [x] * 4, [x] * 7),
    ("cross_entropy", SIZES, [x, x], []),
    ("linear_cross_entropy", SIZES | {"vocabulary": V}, 2 * [x, half(V, N)], []),
    ("adamw", {"parameters": N}, [w, w, w, w, w, w, w], []),
    ("adamw", {"parameters": N, "copy_bytes": 2}, [w, w, w, w, w, w, w, half(N)], []),
    ("adamw", {"parameters": N, "gradient_bytes": 2, "weight_bytes": 2}, [*3 * [half(N)], *4 * [m]], []),
    ("gradient_norm", {"parameters": N, "gradient_bytes": 2}, [half(N)], []),
    ("sign_pack", {"elements": 1001, "element_bytes": 4}, [*5 * [fp32(1001)], packed(126)], []),
    ("sign_pack", {"elements": 1000, "element_bytes": 2}, [*2 * [half(1000)], *3 * [fp32(1000)], packed(125)], []),
    ("sign_unpack", {"elements": 1001, "ranks": 3}, [packed(3, 126), fp32(1001)], []),
    ("linear_gelu", SIZES | {"width": V}, [x, half(V, N), half(M, V), half(M, V)], []),
    ("linear_gelu_backward", SIZES | {"width": V}, [x, half(N, V), half(M, V), half(M, V)], []),
    ("linear_gradients", SIZES | {"width": V}, [half(M, V), x, half(V, N)], []),
    ("between_blocks", SIZES, [x, x, x, x], []),
    ("clipped_update", {"parameters": N, "copy_bytes": 2}, [w, *7 * [w], half(N)], []),
]


def test_bytes_are_those_of_the_tensors_that_are_read_and_written() -> None:
    wrong = []
    for name, sizes, forward, backward in MOVED:
        counted = [sum(tensor.nbytes for tensor in tensors) for tensors in (forward, backward)]
        if name == "rotary":  # backward it turns the other way
            counted[1] = counted[0]
        found = kernel_bytes(name, **sizes)
        if [found.forward, found.backward or 0] != counted:
            wrong.append((name, sizes, found, counted))
    assert wrong == []
    assert {name for name, *_ in MOVED} == {*FORMULAS, *STEP_FORMULAS}


def test_every_kernel_has_a_formula() -> None:
    others = {"bits", "cublaslt", "gated_activation", "half_matmul", "interpreter", "linear_epilogues", "operator"}
    others |= {"row_norm", "special_functions", "tensor_table", "tiles"}
    assert {path.stem for path in (ROOT / "kernels").glob("[a-z]*.py")} - others <= set(FORMULAS)


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="^kernel: allowed layer_norm, .*, got sofmax$"):
        kernel_bytes("sofmax", rows=1)


# what each element of a row goes through, forward and backward, in the order of the plain reference
LAYER_NORM = (
    ["sum", "centre", "square", "sum", "scale", "weight", "bias"],
    ["product", "sum", "sum", "centre", "scale", "subtract", "subtract", "scale", "product", "scale", *3 * ["sum"]],
)
RMS_NORM = (["square", "sum", "scale", "weight"], ["product", "sum", *5 * ["dx"], *2 * ["dw"]])
SOFTMAX = (
    ["scale", "mask", "maximum", "difference", "exp", "sum", "quotient"],
    ["product", "sum", "difference", "product", "product"],
)
SIGMOID = ["scale", "exp", "sum", "quotient"]
NORMAL = ["scale", "erf", "sum", "half"]  # its distribution function
TANH = ["square", "scale", "sum", "product", "tanh", "sum", "half"]
# u = x + bias, p(u), and y = u p(u); backward p + u p', times dy; the bias's own sum of dx is not counted
ACTIVATIONS = {
    "gelu": (["bias", *NORMAL, "u"], ["bias", *NORMAL, "square", "scale", "exp", "scale", "u", "sum", "dy"]),
    "gelutanh": (
        ["bias", *TANH, "u"],
        ["bias", *TANH, "square", "difference", "scale", "sum", "product", "u", "sum", "dy"],
    ),
    # u / (1 + exp(-1.702 u)); s (1 + 1.702 u (1 - s))
    "fastgelu": (["bias", *SIGMOID], ["bias", *SIGMOID, "difference", "product", "sum", "product", "dy"]),
    "relu": (["bias", "maximum"], ["compare", "dy"]),
    "relusquared": (["bias", "maximum", "square"], ["bias", "maximum", "twice", "dy"]),
}
LINEAR = ("linear_gelu", "linear_gelu_backward", "linear_gradients")
R, C = 6, 10
AREA = {"rows": R, "columns": C}
ARITHMETIC: list[tuple[str, str, dict[str, int], float, float | None]] = [
    ("layer_norm", "", AREA, R * C * len(LAYER_NORM[0]), R * C * len(LAYER_NORM[1])),
    ("residual_layer_norm", "", AREA, R * C * (len(LAYER_NORM[0]) + 1), R * C * (len(LAYER_NORM[1]) + 1)),
    ("residual_layer_norm", "scaled", AREA, R * C * (len(LAYER_NORM[0]) + 2), R * C * (len(LAYER_NORM[1]) + 2)),
    ("rms_norm", "", AREA, R * C * len(RMS_NORM[0]), R * C * len(RMS_NORM[1])),
    ("residual_rms_norm", "", AREA, R * C * (len(RMS_NORM[0]) + 1), R * C * (len(RMS_NORM[1]) + 1)),
    # a second weight and bias; their two gradients, of which each is a product and a sum or a sum, and a sum of both
    ("parallel_layer_norms", "", AREA, R * C * (len(LAYER_NORM[0]) + 2), R * C * (len(LAYER_NORM[1]) + 5)),
    ("bias_activation", "", AREA, R * C * len(ACTIVATIONS["gelu"][0]), R * C * len(ACTIVATIONS["gelu"][1])),
    *(
        ("bias_activation", name, AREA, R * C * len(forward), R * C * len(backward))
        for name, (forward, backward) in ACTIVATIONS.items()
    ),
    ("geglu", "", AREA, R * C * 6, R * C * 14),
    ("swiglu", "", AREA, R * C * 5, R * C * 11),
    ("rotary", "", {"elements": 60}, 180, 180),  # two products and a sum
    ("masked_softmax", "", AREA, R * C * len(SOFTMAX[0]), R * C * len(SOFTMAX[1])),
    ("attention", "", {"heads": 3, "length": 4, "head_size": 5}, 4 * 3 * 4 * 4 * 5 / 2, 10 * 3 * 4 * 4 * 5 / 2),
    ("cross_entropy", "", AREA, 6 * R * C, None),
    ("linear_cross_entropy", "", AREA | {"vocabulary": 7}, 3 * 2 * R * C * 7, None),  # three products
    ("adamw", "", {"parameters": 9}, 9 * (3 + 3 + 4 + 2 + 2), None),
    ("gradient_norm", "", {"parameters": 9}, 9 * 2, None),
    ("sign_pack", "", {"elements": 9}, 9 * 6, None),
    ("sign_unpack", "", {"elements": 9, "ranks": 3}, 9 * 3 * 2, None),
    *((name, "", AREA | {"width": 7}, 2 * R * C * 7, None) for name in LINEAR),
    ("between_blocks", "", AREA, R * C * (len(LAYER_NORM[0]) + 1), None),
    ("clipped_update", "", {"parameters": 9}, 9 * (3 + 3 + 4 + 2 + 2) + 9 * 2 + 9, None),  # the norm, clipping
]


def test_arithmetic_is_what_each_element_goes_through() -> None:
    wrong = [
        (name, variant, sizes)
        for name, variant, sizes, forward, backward in ARITHMETIC
        if kernel_flop(name, variant, **sizes) != (forward, backward)
    ]
    assert wrong == []
    assert {name for name, *_ in ARITHMETIC} == set(FLOP_FORMULAS) == {*FORMULAS, *STEP_FORMULAS}


@pytest.mark.parametrize("prefix", [0, 16, 48, 64])
def test_masked_scores_are_those_that_a_mask_leaves(prefix: int) -> None:
    """Counted one by one, of 64 positions; the diagonal is half in and half out."""
    whole = kernel_flop("masked_softmax", rows=64, columns=64).forward
    left = kernel_flop("masked_softmax", rows=64, columns=64, causal=1, prefix=prefix).forward
    seen = sum(
        1.0 if max(row, prefix - 1) > column or (row < prefix and column < prefix) else 0.5 * (row == column)
        for row in range(64)
        for column in range(64)
    )
    assert left / whole == seen / 64**2


def test_a_causal_mask_without_a_prefix_reads_half_however_many_rows_there_are() -> None:
    shape = {"rows": 4096, "columns": 4, "element_bytes": 2, "causal": 1}
    assert kernel_bytes("masked_softmax", **shape).forward == 4096 * 4 * 2 * 3 // 2
    assert kernel_bytes("masked_softmax", **shape) == kernel_bytes("masked_softmax", **shape, prefix=0)
