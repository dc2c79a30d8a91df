"""Words of a column `dtype` say one of the known formats, or are refused as a whole."""

from __future__ import annotations

import pytest

from reference_runs.dtype_words import DTYPES, dtype_named


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        *((dtype, dtype) for dtype in DTYPES),
        ("amp_bf16", "bf16"),
        ("bf16 (fp32 grad accum)", "bf16"),
        ("BF16, fp32 master weights", "bf16"),
        ("bf16/fp32 mixed", "bf16"),
        ("torch.bfloat16", "bf16"),
        ("bf16-mixed", "bf16"),
        ("16-mixed", "fp16"),
        ("float16", "fp16"),
        ("half", "fp16"),
        ("FP16 mixed precision", "fp16"),
        ("FP8", "fp8"),
        ("amp_fp8", "fp8"),
        ("float8_e4m3fn", "fp8"),
        ("fp8 (delayed scaling)", "fp8-delayed"),
        ("bf16 with fp8 current scaling", "fp8-current"),
        ("MXFP8", "mxfp8"),
        # NVIDIA's abbreviations, and torchao's words
        ("FP8-CS", "fp8-current"),
        ("fp8_cs", "fp8-current"),
        ("FP8-DS", "fp8-delayed"),
        ("FP8-SC", "fp8-blockwise"),
        ("FP8 (sub-channel scaling)", "fp8-blockwise"),
        ("FP8-MX", "mxfp8"),
        ("MX FP8", "mxfp8"),
        ("NV-FP4", "nvfp4"),
        ("FP4", "nvfp4"),
        ("float8 tensorwise", "fp8-current"),
        ("float8 (row-wise, dynamic)", None),
        ("float8 row-wise scaling", "fp8-current"),
        ("fp8 block wise", "fp8-blockwise"),
        ("float32", "fp32"),
        # what is not one of the recorded precisions
        ("amp_fp9", None),
        ("pure bf16", None),
        ("bf16-true", None),
        ("fp16 (fp32 grad accum)", None),
        ("bf16 or fp16", None),
        ("tf32", None),
        ("int8", None),
        ("16", None),
        ("delayed", None),
        ("bf16 delayed", None),
        ("CS", None),
        ("bf16-cs", None),
        ("fp8-cs-ds", None),
        ("mxfp4", None),
        ("mx bf16", None),
        ("", None),
    ],
)
def test_words_say_one_format_or_none(text: str, dtype: str | None) -> None:
    assert dtype_named(text) == dtype
    assert dtype_named(text.upper()) == dtype
