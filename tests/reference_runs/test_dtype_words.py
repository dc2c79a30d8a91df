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
        ("", None),
    ],
)
def test_words_say_one_format_or_none(text: str, dtype: str | None) -> None:
    assert dtype_named(text) == dtype
    assert dtype_named(text.upper()) == dtype
