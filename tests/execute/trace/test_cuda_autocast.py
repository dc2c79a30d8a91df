"""Autocast without a GPU casts as PyTorch's documentation says of CUDA."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from suite.execute.trace.cuda_autocast import FULL, FULL_BY_DTYPE, LOWER, WIDEST, lists
from suite.paths import ROOT

pytestmark = pytest.mark.ranks

# docs.pytorch.org/docs/stable/amp.html, "CUDA Ops that can autocast to float16 / to float32 / promote to the widest
# input type", under the names that aten has for them
DOCUMENTED = {
    LOWER: "addbmm addmm addmv addr baddbmm bmm chain_matmul linalg_multi_dot conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d.input conv_transpose3d.input gru_cell linear lstm_cell matmul mm mv prelu rnn_tanh_cell",
    FULL: "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar acos asin binary_cross_entropy_with_logits cosh "
    "cosine_embedding_loss cdist cosine_similarity dist erfinv exp expm1 group_norm hinge_embedding_loss kl_div "
    "l1_loss layer_norm log log10 log1p log2 margin_ranking_loss mse_loss multilabel_margin_loss multi_margin_loss "
    "nll_loss pdist poisson_nll_loss reciprocal rsqrt sinh smooth_l1_loss soft_margin_loss softplus renorm tan "
    "triplet_margin_loss",
    FULL_BY_DTYPE: "cumprod cumsum log_softmax.int prod prod.dim_int softmax.int sum sum.dim_IntList",
    WIDEST: "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot",
}

# in a process of its own: autocast on a CPU is another one from then on
SCRIPT = """
import json
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from suite.execute.trace.cuda_autocast import _CASTS, cuda_autocast

half, full = torch.ones(4, 4, dtype=torch.bfloat16), torch.ones(4, 4)
weight = torch.ones(4, 4, requires_grad=True)
with cuda_autocast():
    found = {
        "linear": F.linear(full, weight, weight[0]),
        "matmul": full @ weight,
        "attention": F.scaled_dot_product_attention(*[full.view(1, 1, 4, 4)] * 3),
        "layer_norm": F.layer_norm(half, (4,)),
        "rms_norm": F.rms_norm(half, (4,)),
        "softmax": half.softmax(-1),
        "softmax to half": full.softmax(-1, dtype=torch.bfloat16),
        "cross_entropy": F.cross_entropy(half, torch.zeros(4, dtype=torch.int64)),
        "pow": half.pow(2),
        "sum": half.sum(),
        "cumsum": half.cumsum(0),
        "gelu": F.gelu(half),
        "add": half + full,
        "mul": half * half,
        "cat": torch.cat([half, half]),
        "mean": half.mean(),
        "addcmul": torch.addcmul(half, full, half),
        "double": full.double() @ full.double(),
    }
    first, again = F.linear(full, weight), F.linear(full, weight)
    casts = len(_CASTS._of_weights)
    asked = torch.is_autocast_enabled()
    with torch.autocast("cpu", enabled=False):
        found["off"] = full @ weight
left = len(_CASTS._of_weights)
with cuda_autocast():
    loss = checkpoint(lambda x: F.linear(F.layer_norm(x, (4,)), weight), full, use_reentrant=False).float().sum()
loss.backward()
dtypes = {name: str(each.dtype) for name, each in found.items()}
print(json.dumps([dtypes, casts, asked, left, len(_CASTS._of_weights)]))
"""


def test_the_lists_of_the_header_have_what_the_documentation_lists() -> None:
    found = lists()
    missing = {policy: set(names.split()) - set(found[policy]) for policy, names in DOCUMENTED.items()}
    assert missing == {policy: set() for policy in DOCUMENTED}
    everything = [name for names in found.values() for name in names]
    assert len(everything) == len(set(everything))


def test_results_have_the_dtypes_that_they_have_on_a_gpu() -> None:
    out = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True)
    dtypes, casts, asked, left, at_end = json.loads(out.stdout.splitlines()[-1])
    half = {"linear", "matmul", "attention", "softmax to half", "gelu", "mul", "cat", "mean"}
    expected = {name: "torch.bfloat16" if name in half else "torch.float32" for name in dtypes}
    assert dtypes == expected | {"double": "torch.float64"}
    assert casts == 1  # the weight, once
    assert asked is True
    assert (left, at_end) == (0, 0)
