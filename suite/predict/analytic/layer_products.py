"""Matrix products of one layer on one rank: how many, and their sizes, by part."""

from __future__ import annotations

from reference_runs.run import Workload
from suite.predict.analytic.experts import expert_products
from suite.predict.analytic.latent_attention import latent_products
from suite.predict.analytic.linear_attention import linear_input_columns, linear_products
from suite.predict.analytic.process_groups import key_width


def layer_products(workload: Workload) -> dict[str, tuple[int, int, int, int]]:
    """Matrix products of one rank's forward pass of one micro-batch through one layer: how many, M, N and K, by part.

    With T = b s / c tokens, t tensor-parallel ranks, g = 2 for a gated activation and 1 otherwise, an M x K by K x N
    product is:
        query, key, value      T x h by h x (a + 2 k) d / t    (k / t at least 1)
        attention scores       b a / t of s / c x d by d x s
        attention context      b a / t of s / c x s by s x d
        projection             T x a d / t by a d / t x h
        expansion              T x h by h x g f / t
        contraction            T x f / t by f / t x h
    Adapters of rank r, of matrices with m rows and n columns in all, are taken together:
        adapter inputs         T x n / t by n / t x r
        adapter outputs        T x r by r x m / t
    Linear attention has `linear_products` in place of scores and context; a gate of the context a d / t more columns in
    the first. Latent attention has `latent_products` in place of the first, experts `expert_products` in place of the
    last two.

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3 (split by columns, then by rows). Summed over the ranks,
    their flop are those of `suite.predict.analytic.flop.layer_forward_flop`.
    """
    architecture, layout = workload.architecture, workload.layout
    h, s, t = architecture.hidden, architecture.sequence, layout.tensor_parallel
    width, inner = architecture.query_width // t, architecture.ffn_hidden // t
    rows = s // layout.context_parallel
    tokens = layout.micro_batch * rows
    heads = layout.micro_batch * architecture.heads // t
    products: dict[str, tuple[int, int, int, int]] = {
        "query, key, value": (
            1,
            tokens,
            width * (1 + architecture.attention_gate) + 2 * key_width(architecture, tensor_parallel=t),
            h,
        )
    }
    if architecture.key_value_rank is not None:
        latent = latent_products(architecture, tensor_parallel=t)
        own = tokens // (t if layout.sequence_parallel else 1)  # positions that a rank compresses
        products = {
            part: (1, own if part.endswith("compression") else tokens, columns, depth)
            for part, (columns, depth) in latent.items()
        }
    if architecture.linear:
        of_heads = (architecture.linear_heads or 0) // t
        products = {"query, key, value": (1, tokens, linear_input_columns(architecture) // t, h)}
        products |= linear_products(architecture, samples=layout.micro_batch, heads=of_heads)
    else:
        products |= {
            "attention scores": (heads, rows, s, architecture.head_dim),
            "attention context": (heads, rows, architecture.value_head_dim or architecture.head_dim, s),
        }
    products |= {"projection": (1, tokens, h, architecture.context_width // t)}
    if architecture.experts is not None:
        return products | expert_products(workload, tokens=tokens)
    if workload.recipe.adapter_rank is not None:
        products |= _adapter_products(workload, tokens=tokens, rank=workload.recipe.adapter_rank)
    if not architecture.feeds_forward:
        return products
    return products | {
        "expansion": (1, tokens, (2 if architecture.activation.gated else 1) * inner, h),
        "contraction": (1, tokens, h, inner),
    }


def _adapter_products(workload: Workload, *, tokens: int, rank: int) -> dict[str, tuple[int, int, int, int]]:
    from suite.predict.analytic.adapters import trained_matrices  # other predictions start without it

    found = [each.matrices for each in trained_matrices(workload.architecture, workload.recipe)]
    rows, columns = (sum(getattr(each, side) * each.number for each in found) for side in ("rows", "columns"))
    t = workload.layout.tensor_parallel
    return {"adapter inputs": (1, tokens, rank, columns // t), "adapter outputs": (1, tokens, rows // t, rank)}
