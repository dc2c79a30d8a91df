"""What people write in a column `dtype`: "amp_bf16", "bf16 (fp32 grad accum)", "torch.float16", "FP8-CS"."""

from __future__ import annotations

import re

_BASES = {
    **dict.fromkeys(("bf16", "bfloat16", "bfloat"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "f16", "half"), "fp16"),
    **dict.fromkeys(("fp32", "float32", "f32", "single"), "fp32"),
    **dict.fromkeys(("fp8", "float8", "f8"), "fp8"),
    **{"mxfp8": "mxfp8", "nvfp4": "nvfp4", "fp4": "nvfp4"},
}
# the abbreviations are NVIDIA's: delayed and current scaling, scales of blocks of 128 ("sub-channel"), of 32 ("MX")
_FP8_SCALES = {
    **dict.fromkeys(("delayed", "ds"), "fp8-delayed"),
    **dict.fromkeys(("current", "cs", "dynamic", "tensorwise", "rowwise"), "fp8-current"),
    **dict.fromkeys(("blockwise", "block", "blocks", "subchannel", "sc"), "fp8-blockwise"),
    "mx": "mxfp8",
}
_PAIRS = {("mx", "fp8"): "mxfp8", ("nv", "fp4"): "nvfp4"}
DTYPES = ("bf16", "fp16", "fp32", "fp8", "fp8-delayed", "fp8-current", "fp8-blockwise", "mxfp8", "nvfp4")
# words around them that say nothing else: how products are cast, and that fp32 sums or master weights are kept
_AROUND = frozenset(
    [
        "amp",
        "autocast",
        "mixed",
        "precision",
        "torch",
        "cuda",
        "compute",
        "training",
        "hybrid",
        "e4m3",
        "e5m2",
        "e4m3fn",
        "per",
        "tensor",
        "scaling",
        "scaled",
        "te",
        "transformer",
        "engine",
        "gemm",
        "gemms",
        "matmul",
        "matmuls",
        "linear",
        "linears",
        "with",
        "and",
        "in",
        "for",
        "master",
        "weights",
        "weight",
        "copy",
        "optimizer",
        "state",
        "states",
    ]
)
_OF_GRADIENTS = frozenset(
    [
        "grad",
        "grads",
        "gradient",
        "gradients",
        "accum",
        "accumulation",
        "accumulate",
        "accumulated",
        "reduce",
        "reduced",
        "reduction",
        "allreduce",
    ]
)


def dtype_named(text: str) -> str | None:
    """Of `DTYPES` the one that `text` says; None: it says none of them, or something else besides.

    The narrowest format that is named is that of the products. fp32 may stand beside it for sums and master weights,
    but fp32 gradients beside fp16 are none of the recorded precisions.
    """
    joined = re.sub(r"[ _-](?=wise\b)|(?<=\bsub)[ _-](?=channel\b)", "", text.casefold())
    words = re.findall(r"[a-z0-9]+", joined)
    if (pair := _PAIRS.get(tuple(words[:2]))) is not None:
        words[:2] = [pair]
    if words[:1] == ["16"] and "mixed" in words:  # Lightning's
        words[0] = "fp16"
    named = [_BASES[word] for word in words if word in _BASES]
    scales = [_FP8_SCALES[word] for word in words if word in _FP8_SCALES]
    gradients = bool(_OF_GRADIENTS.intersection(words))
    if not named or any(word not in {*_BASES, *_FP8_SCALES, *_AROUND, *_OF_GRADIENTS} for word in words):
        return None
    narrow = [name for name in dict.fromkeys(named) if name in ("fp8", "mxfp8", "nvfp4")]
    wide = [name for name in dict.fromkeys(named) if name in ("bf16", "fp16")]
    if len(narrow) > 1 or len(wide) > 1 or len(scales) > 1 or (scales and narrow != ["fp8"]):
        return None
    if narrow:
        return None if wide == ["fp16"] else (scales or narrow)[0]
    if not wide:
        return "fp32"
    return None if wide == ["fp16"] and gradients and "fp32" in named else wide[0]
