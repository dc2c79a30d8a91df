"""Decoder layers as Megatron-LM and Megatron-Core write them, with sizes in place of tensors: what operators hold.

Each function reads like the module of that name, from its first operator on, and says what each keeps for the backward
pass, and which gradients live while that one's backward pass runs; sizes may be arrays of many layouts. A tensor that
several operators keep counts once. Norm statistics (8 T bytes a LayerNorm), what all layers share (masks, rotary
tables) and what a kernel needs inside are left out.
Symbols: T = s b / c tokens of a micro-batch on a rank, h hidden, f feed-forward width, a heads and k key-value heads of
size d, t tensor-parallel ranks, u = t with sequence parallelism, else 1, e bytes of an element.
Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4; Megatron-Core 0.16.1, core/transformer:
transformer_layer.py, attention.py, multi_latent_attention.py, mlp.py, moe/ (read, and its layer counted on a CPU by
hooks); Transformer Engine 2, pytorch/module: layernorm_linear.py and linear.py, which save what they multiply in its 8
bits (known code, not re-read for this file).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from reference_runs.layout import Layout, Offload, Recomputation, RecomputedModule
from reference_runs.run import Activation, AdapterTargets, QueryKeyNorm, Residual, Workload
from reference_runs.stack import Keeping
from suite.predict.analytic.elementwise import larger
from suite.predict.analytic.experts import dispatched_tokens
from suite.predict.analytic.linear_attention import linear_activation_bytes
from suite.predict.analytic.memory import FP32, WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.micro_batch import micro_batch_tokens
from suite.predict.analytic.process_groups import key_width
from suite.predict.analytic.product_formats import both_orientations_bytes, format_bytes

# kinds that --offload-modules may name: attn_norm, mlp_norm, qkv_linear, core_attn, attn_proj, expert_fc1, moe_act
_OFFLOADED = {
    *("norm inputs", "attention input", "query", "key", "value", "attention context"),
    *("expert input", "expert activation input"),
}
_BESIDE_ATTENTION = ("feed-forward input", "contraction input")  # which gradients of these weights alone need
_FEED_FORWARD = {RecomputedModule.MLP, RecomputedModule.EXPERTS}


class RankTensor:
    """Rows and columns of a tensor, or of a rank's part where so many ranks share out its rows.

    Args:
        module: what makes it again where that is recomputed, so that those who read it need not keep it.
    """

    def __init__(self, rows: int, columns: int, *, shards: int = 1, module: RecomputedModule | None = None) -> None:
        self.rows, self.columns, self.shards, self.module = rows, columns, shards, module

    @property
    def elements(self) -> int:
        """Elements on a rank."""
        return self.rows * self.columns // self.shards


class KeptBytes(NamedTuple):
    """Bytes that an operator keeps.

    Args:
        modules: whoever recomputes one of these does not keep it.
        put_out_by: of these, the module that computes no more than it.
    """

    kind: str
    bytes: int
    modules: tuple[RecomputedModule, ...]
    put_out_by: RecomputedModule | None = None

    def leaves(self, layout: Layout) -> bool:
        """Whether it leaves the accelerator until the backward pass: computed again, or offloaded meanwhile."""
        offloaded = layout.offload is Offload.ACTIVATIONS and self.kind in _OFFLOADED
        return offloaded or bool(layout.recomputed & {*self.modules})


class _BackwardPass(NamedTuple):
    """An operator's: bytes of its outputs' and inputs' gradients, gathered and cast; tensors kept up to it."""

    bytes: int
    kept: int


class MegatronLayer:
    """The modules of one layer; `kept` has what their operators keep of a micro-batch.

    Args:
        keeping: how the software's kernels differ from those of Megatron-LM of 2022.
    """

    def __init__(self, workload: Workload, keeping: Keeping) -> None:
        self.architecture, self.recipe, self.layout = workload
        self.keeping, self.tokens = keeping, micro_batch_tokens(workload)
        self.element = WEIGHT_ELEMENT_BYTES[self.recipe.precision]
        self.t = self.layout.tensor_parallel
        self.u = self.t if self.layout.sequence_parallel else 1
        self.kept: list[KeptBytes] = []
        self._operators: list[_BackwardPass] = []
        self._last: list[int] = []  # operator that reads a kept tensor last, or the end of a recomputed module
        self._known: dict[tuple[RankTensor, bool], int] = {}
        self._inside: tuple[RecomputedModule, ...] = ()
        self.transformer_layer(self._stream())

    def _stream(self) -> RankTensor:
        """Hidden states between the split matrices."""
        return RankTensor(self.tokens, self.architecture.hidden, shards=self.u)

    @contextmanager
    def _checkpoint(self, module: RecomputedModule) -> Iterator[None]:
        """The operators of a module that may be recomputed from its inputs."""
        outside, self._inside, first = self._inside, (*self._inside, module), len(self.kept)
        yield
        self._inside = outside
        if module in self.layout.recomputed:
            self._last[first:] = [len(self._operators) - 1] * (len(self.kept) - first)

    def _keep(self, kind: str, x: RankTensor, *, product: bool = False, element: int | None = None) -> None:
        """Keep a tensor that an operator reads again; a `product` reads it in the products' format if there is one.

        That is one orientation, whose sums are along tokens, for the weight's gradient; adapters read it in 16 bits.
        """
        if kind in _BESIDE_ATTENTION and self.recipe.adapter_targets is AdapterTargets.ATTENTION:
            return
        narrow = product and self.recipe.product_format.casts and self.recipe.adapter_rank is None
        if (x, narrow) in self._known:
            self._last[self._known[x, narrow]] = len(self._operators)
            return
        self._known[x, narrow] = len(self.kept)
        size = (self.element if element is None else element) * x.elements
        if narrow:
            size = format_bytes(self.recipe.product_format, rows=x.columns, columns=x.rows // x.shards)
        self._keep_bytes(kind, size, x.module)

    def _keep_bytes(self, kind: str, size: int, module: RecomputedModule | None = None) -> None:
        modules = self._inside if module is None else (*self._inside, module)
        self.kept.append(KeptBytes(kind, size, modules, module))
        self._last.append(len(self._operators))

    def _operator(self, *gradients: RankTensor, product: RankTensor | None = None) -> None:
        """Conclude an operator, whose tensors are kept already, with the gradients of its backward pass.

        Args:
            product: its output's gradient, which a product casts in both orientations where products have a format.
        """
        size = self.element * sum(each.elements for each in gradients)
        if product is not None and (form := self.recipe.product_format).casts:
            size = size + both_orientations_bytes(form, rows=product.rows // product.shards, columns=product.columns)
        self._operators.append(_BackwardPass(size, len(self.kept)))

    def _gathered(self, columns: int) -> RankTensor:
        """Rows of all ranks that sequence parallelism gathers for an operator."""
        return RankTensor(self.tokens * (self.u > 1), columns)

    def _column_parallel(self, x: RankTensor, out: RankTensor) -> None:
        """Conclude a linear layer split by columns: its input is gathered again, its input's gradient scattered."""
        self._operator(out, x, *[self._gathered(x.columns)] * 2, product=out)

    def _row_parallel(self, x: RankTensor) -> None:
        """Conclude a linear layer split by rows, which gathers its output's gradient; without dropout the stream's."""
        h = self.architecture.hidden
        dropped = (self._stream(),) if self.recipe.hidden_dropout > 0 else ()
        self._operator(x, self._gathered(h), *dropped, product=RankTensor(self.tokens, h))

    def backward_bytes(self) -> int:
        """Most bytes of the layer that live in its backward pass, the gradient of the residual stream among them.

        Autograd goes from the last operator to the first, and frees what an operator keeps after its backward pass.
        What was recomputed or offloaded is there from the last operator that reads it on; what a module puts out twice,
        computed and copied to where others look for it. A whole layer or feed-forward part computes its output too.
        Source: Megatron-Core 0.16.1, core/tensor_parallel/random.py, CheckpointWithoutOutput and CheckpointFunction.
        """
        recomputed = self.layout.recomputed
        again = [each.leaves(self.layout) for each in self.kept]
        most = 0 * self.tokens
        for number, operator in enumerate(self._operators):
            alive = sum(
                each.bytes * (2 if each.put_out_by in recomputed else 1)
                for each, anew, last in zip(self.kept[: operator.kept], again, self._last, strict=False)
                if not anew or number <= last
            )
            most = larger(most, alive + operator.bytes)
        whole = self.layout.recomputation is Recomputation.FULL or bool(recomputed & _FEED_FORWARD)
        return most + (1 + whole) * self.element * self._stream().elements

    def transformer_layer(self, x: RankTensor) -> None:
        """Attention and feed-forward part, each with its norm, dropout and residual sum.

        Norms after their part keep as much: they read the sums, or what is added to them.
        """
        a, feed_forward = self.architecture, self.mlp if self.architecture.experts is None else self.experts
        normed = self.norm(x, apart=a.key_value_rank is not None)
        self.bias_dropout_add(self.self_attention(normed))
        if a.feeds_forward:
            after = x if a.residual is Residual.PARALLEL else self._stream()
            feed_forward(normed if a.shared_norm else self.norm(after, apart=a.experts is not None))
            self.bias_dropout_add(self._stream())

    def norm(self, x: RankTensor, *, apart: bool) -> RankTensor:
        """A norm of hidden states, which can be computed again where it is apart from the linear layer that reads it.

        Transformer Engine's are one, except before latent attention and experts.
        Source: Megatron-Core 0.16.1, core/models/gpt/gpt_layer_specs.py; transformer_layer.py, __init__.
        """
        self._keep("norm inputs", x)
        self._operator(x, x)
        return RankTensor(x.rows, x.columns, shards=x.shards, module=RecomputedModule.LAYER_NORM if apart else None)

    def bias_dropout_add(self, x: RankTensor) -> None:
        """Hidden dropout and the residual sum: keeps a mask of a byte an element."""
        if self.recipe.hidden_dropout > 0:
            self._keep("dropout masks", x, element=1)
            self._operator(x)

    def self_attention(self, x: RankTensor) -> RankTensor:
        """Attention without its norm."""
        a = self.architecture
        self._keep("attention input", x, product=True)
        context = RankTensor(self.tokens, a.context_width // self.t)
        if a.linear:
            self._linear_attention(context)
            return self._stream()
        self.core_attention(*self._queries_keys_values(x), context)
        if a.attention_gate:
            self._keep("attention context", context)
            self._keep("output gate", RankTensor(context.rows, context.columns))
            self._operator(context, context, context)
            self._keep("gated context", RankTensor(context.rows, context.columns), product=True)
        else:
            self._keep("attention context", context, product=True)
        self._row_parallel(context)
        return self._stream()

    def _queries_keys_values(self, x: RankTensor) -> tuple[RankTensor, RankTensor, RankTensor]:
        """Projections of queries, keys and values, with their norms.

        Rotary positions replace them by their rotation. Latent attention keeps what it is compressed to, q + c
        columns, before and after a norm; its second projections, with these norms, may be recomputed.
        Source: DeepSeek-AI 2024, arXiv 2405.04434, section 2.1.
        """
        a, module = self.architecture, None
        if a.key_value_rank is not None:
            module = RecomputedModule.LATENT_PROJECTION
            for rank in (a.query_rank, a.key_value_rank):
                if rank is not None:
                    self._keep("compressed states", RankTensor(self.tokens, rank, shards=self.u))
                    normed = RankTensor(self.tokens, rank, shards=self.u, module=module)
                    self._keep("normed compressed states", normed, product=True)
        keys = key_width(a, tensor_parallel=self.t)
        query = RankTensor(self.tokens, a.query_width // self.t, module=module)
        key = RankTensor(self.tokens, keys, module=module)
        if a.query_key_norm is not QueryKeyNorm.NONE:
            for x in (query, key):
                self._keep("query, key norm inputs", RankTensor(x.rows, x.columns, module=module))
        width = a.value_head_dim or a.head_dim
        value = RankTensor(self.tokens, keys * width // a.head_dim, module=module)
        joined = RankTensor(self.tokens, query.columns + key.columns + value.columns)
        self._column_parallel(x, joined)
        self._operator(joined, joined)
        return query, key, value

    def core_attention(self, query: RankTensor, key: RankTensor, value: RankTensor, context: RankTensor) -> None:
        """Attention proper: a fused kernel keeps its output and a log-sum-exp a row, else the scores stay.

        softmax output              e a s T / t
        attention dropout mask      a s T / t     with attention dropout only
        attention dropout output    e a s T / t   with attention dropout only; without, the context's is the softmax
        log-sum-exp                 4 a T / t

        Source: Korthikanti et al. 2022, section 4.1; Dao et al. 2022, arXiv 2205.14135, algorithm 2. ALiBi adds a
        constant, of which nothing is kept.
        """
        a, layout = self.architecture, self.layout
        for kind, x in {"query": query, "key": key, "value": value}.items():
            self._keep(kind, x)
        rows = a.heads * layout.micro_batch * a.sequence // (self.t * layout.context_parallel)
        scores = RankTensor(rows, a.sequence)
        if layout.fused_attention:
            self._keep("attention context", context)
        with self._checkpoint(RecomputedModule.CORE_ATTENTION):
            if layout.fused_attention:
                self._keep("log-sum-exp", RankTensor(rows, 1), element=FP32)
                self._operator(query, key, value, context)
                return
            self._keep("softmax output", RankTensor(rows, a.sequence))
            if self.recipe.attention_dropout > 0:
                self._keep("attention dropout mask", RankTensor(rows, a.sequence), element=1)
                self._keep("attention dropout output", RankTensor(rows, a.sequence))
            self._operator(scores, scores, value)

    def _linear_attention(self, context: RankTensor) -> None:
        """Linear attention, see `linear_activation_bytes`; the delta rule's kernel keeps queries and keys normed."""
        self._keep("attention context", context)
        kept = linear_activation_bytes(self.architecture, tokens=self.tokens, element=self.element, ranks=self.t)
        for kind, size in kept.items():
            self._keep_bytes(kind, size)
        self._operator(context, context, context, context)

    def mlp(self, x: RankTensor) -> None:
        """A dense feed-forward part without its norm."""
        with self._checkpoint(RecomputedModule.MLP):
            self._keep("feed-forward input", x, product=True)
            self._feed_forward(x, RankTensor(self.tokens, self.architecture.ffn_hidden // self.t))

    def _feed_forward(self, x: RankTensor, half: RankTensor, *, of: str = "") -> None:
        """Expansion, activation and contraction of what all ranks compute."""
        self._column_parallel(x, self._into(half))
        self._keep(f"{of}contraction input", self.activation(half, of=of), product=True)
        self._row_parallel(half)

    def _into(self, out: RankTensor) -> RankTensor:
        """Input of an activation that puts out `out`: twice as many columns where it is gated."""
        gated = self.architecture.activation.gated
        return RankTensor(out.rows, out.columns * (2 if gated else 1), shards=out.shards)

    def activation(self, out: RankTensor, *, of: str = "") -> RankTensor:
        """GELU, SwiGLU and the others, which put out `out`.

        activation input     as much; twice as much where gated; none for ReLU, whose backward pass reads its output;
                             the positive part of a squared ReLU
        activated half       as much, gated only, where the product is an operator of its own: Megatron-Core's kernel
                             computes it again (0.16.1, core/fusions/fused_bias_swiglu.py, SwiGLUFunction)

        DeepSeek-V3 keeps the input in 8 bits (arXiv 2412.19437, section 3.3.3).
        """
        activation, into = self.architecture.activation, self._into(out)
        if activation is Activation.RELU:
            self._keep(f"{of}contraction input", out)
        else:
            self._keep(f"{of}activation input", into, product=self.keeping.narrow_activation_inputs)
            if activation.gated and not self.keeping.fused_gate:
                self._keep(f"{of}activated half", RankTensor(out.rows, out.columns, shards=out.shards))
        computed = (out,) if out.module in self.layout.recomputed else ()
        self._operator(out, into, *computed)
        return out

    def experts(self, x: RankTensor) -> None:
        """A mixture of experts: router, dispatch by all-to-all, grouped products, and shared experts.

            gates              4 T E / u       the router's probabilities, in fp32
            expert input       e T k h         the dispatched tokens, which all tensor-parallel ranks have; / t where
                                               these share out whole experts
            expert output      e T k h / u     where gates weigh it: Megatron-Core's weigh what the activation puts out
            shared expert output    e T (h + 1) / u    where a gate weighs it: that and the gate

        Source: Megatron-Core 0.16.1, moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher; moe/experts.py, TEGroupedMLP,
        bias_act_func; core/fusions/fused_bias_swiglu.py, WeightedSwiGLUFunction. Up to 0.11 gates weigh the output
        (known code, not re-read for this file): more is kept there by `expert output`.
        """
        a, t = self.architecture, self.t
        self._keep("feed-forward input", x)  # the router reads it, in 16 bits
        sent = RankTensor(dispatched_tokens(a, tokens=self.tokens), a.hidden, shards=self.u)
        with self._checkpoint(RecomputedModule.EXPERTS):
            if a.shared_experts:
                with self._checkpoint(RecomputedModule.SHARED_EXPERTS):
                    self._keep("feed-forward input", x, product=True)
                    half = RankTensor(self.tokens, a.shared_experts * a.expert_width // t)
                    self._feed_forward(x, half, of="shared expert ")
            if a.shared_gate:
                self._keep("shared expert output", RankTensor(self.tokens, a.hidden + 1, shards=self.u))
            self._keep("gates", RankTensor(self.tokens, a.experts or 0, shards=self.u), element=FP32)
            rows, splits = sent.rows * self.layout.expert_splits, self.layout.expert_splits
            into = RankTensor(rows, a.hidden, shards=t)
            self._operator(sent, into)
            self._keep("expert input", into, product=True)
            out = RankTensor(rows, a.expert_width // splits, shards=t, module=RecomputedModule.EXPERT_ACTIVATION)
            self._operator(into, self._into(out), product=self._into(out))
            self._keep("expert contraction input", self.activation(out, of="expert "), product=True)
            if self.keeping.fused_gate:
                self._keep("weights of rows", RankTensor(rows, 1, shards=t), element=FP32)
            else:
                self._keep("expert output", sent)
            self._operator(into, out, product=into)
            self._operator(sent, sent)


def kept_by_layer(workload: Workload, keeping: Keeping) -> tuple[KeptBytes, ...]:
    """Bytes that the operators of one layer keep for the backward pass of a micro-batch on one rank, in their order.

        norm inputs          2 e T h / u   one of them where both norms read the same input: parallel residual
        attention input      e T h / u
        query                e T a d / t
        key, value           e T k d / t each; e T d where there are fewer key-value heads than ranks
        compressed states    twice e T (q + c) / u, latent attention alone
        scores               see `MegatronLayer.core_attention`
        attention context    e T a d / t   the projection's input
        dropout masks        2 T h / u     with hidden dropout only
        feed-forward input   e T h / u     none where both branches share their norm
        activation input     e T f / t     twice that where gated, see `MegatronLayer.activation`
        contraction input    e T f / t     of experts see `MegatronLayer.experts`

    In a format of 8 or 4 bits where a product alone reads it.
    """
    return tuple(MegatronLayer(workload, keeping).kept)


def by_kind(kept: Iterable[KeptBytes]) -> dict[str, int]:
    """Bytes by kind."""
    kinds: dict[str, int] = {}
    for each in kept:
        kinds[each.kind] = kinds.get(each.kind, 0) + each.bytes
    return kinds
