"""Tensors that modules keep if written operator by operator, as in PyTorch scripts and Transformers: not fused.

Symbols as in `suite.predict.analytic.activations`. r bytes of an element of the residual stream: 4 under autocast,
whose embedding and sums are in fp32, else e. Checked byte for byte by saved-tensor hooks on such modules
(tests/predict/analytic/test_eager_modules.py, `nox -s parity`).
"""

from __future__ import annotations

from reference_runs.layout import Layout
from reference_runs.run import Precision, Residual, Workload
from reference_runs.stack import Keeping, Modules, Weights32
from suite.predict.analytic.elementwise import chosen, larger, smaller
from suite.predict.analytic.memory import BYTES_PER_PARAMETER, FP32, WEIGHT_ELEMENT_BYTES, StateBytes
from suite.predict.analytic.pipeline_schedule import NO_FLUSH

LOGIT_BYTES = 4  # of the log-softmax, which the loss keeps
NO_KEEPING = Keeping(Modules.FUSED, Weights32.NEVER)


def is_script(layout: Layout) -> int:
    """1 where data parallelism alone splits the work, as in ordinary scripts, else 0; of arrays, each.

    Frameworks that split layers over tensor and pipeline ranks write modules of their own.
    """
    return (layout.tensor_parallel == 1) * 1 * (layout.pipeline_stages == 1)


def under_autocast(keeping: Keeping, workload: Workload) -> bool:
    """Whether weights are fp32 and cast for each product: autocast over whole weights."""
    return keeping.weights_32 is Weights32.AUTOCAST and _widens(workload) and workload.layout.zero_stage < 2


def shard_is_master(keeping: Keeping, workload: Workload) -> bool:
    """Whether ZeRO-2 and 3 keep their shard of the weights in fp32 alone, and gather it in 16 bit: FSDP's."""
    return keeping.weights_32 is not Weights32.NEVER and _widens(workload) and workload.layout.zero_stage >= 2


def _widens(workload: Workload) -> bool:
    """Whether 16-bit weights may have fp32 ones behind them: bf16-pure says that it has none anywhere."""
    precision = workload.recipe.precision
    return WEIGHT_ELEMENT_BYTES[precision] < FP32 and precision is not Precision.BF16_PURE


def kept_by_modules(
    workload: Workload, kinds: dict[str, int], keeping: Keeping, *, tokens: int, everywhere: int
) -> dict[str, int]:
    """`kinds` of one layer's activations as eager modules keep them, where the layout is a script's (`is_script`).

        RMSNorm               4 T h / u + r T h / u + 4 T    its input in fp32, its result before the gain, the roots
        LayerNorm             r T h / u + 8 T                its input, mean and root
        attention input       e T h / u; 3 of them under autocast, which casts for query, key and value anew
        feed-forward input    e T h / u; 2 under autocast where the activation is gated
        softmax output        4 a s T / t unfused: in fp32; and e a s T / t, which the product reads in 16 bit
        key, value            e T a d / t unfused: heads that share one are copied out

    Source: transformers, models/llama/modeling_llama.py: LlamaRMSNorm, eager_attention_forward, LlamaMLP (counted by
    hooks, 2026-11-26); torch.amp, "Autocast Op Reference". Differs from `layer_activation_bytes` of fused kernels for
    Llama-2-7B by 2 s b h a norm and 4 a s^2 b of the scores.
    """
    architecture, recipe, layout = workload
    element = WEIGHT_ELEMENT_BYTES[recipe.precision]
    autocast = under_autocast(keeping, workload)
    residual = FP32 if autocast else element
    norms = 1 if architecture.residual is Residual.PARALLEL else 2
    t = layout.tensor_parallel
    kept = dict(kinds)
    rows = tokens // t if layout.sequence_parallel else tokens
    if architecture.norm.root_mean_square:
        kept["norm inputs"] = norms * FP32 * everywhere
        kept["norm outputs before gain"] = norms * residual * everywhere
        kept["norm statistics"] = norms * FP32 * rows
    else:
        kept["norm inputs"] = norms * residual * everywhere
        kept["norm statistics"] = norms * 2 * FP32 * rows
    if autocast:
        kept["attention input"] = 3 * element * everywhere
        if "feed-forward input" in kept:
            kept["feed-forward input"] = (2 if architecture.activation.gated else 1) * element * everywhere
    if not layout.fused_attention:
        query = element * tokens * architecture.query_width // t
        kept |= {"key": query, "value": query}
        scores = kinds["softmax output"] // element
        kept["softmax output"] = FP32 * scores
        if element < FP32 and recipe.attention_dropout == 0:
            kept["softmax output in 16 bit"] = element * scores
    script = is_script(layout)
    return {kind: kinds.get(kind, 0) + script * (size - kinds.get(kind, 0)) for kind, size in kept.items()}


def head_of_modules(
    workload: Workload, kinds: dict[str, int], keeping: Keeping, *, tokens: int, everywhere: int
) -> dict[str, int]:
    """`kinds` after the layers as eager modules keep them, at the loss, where the layout is a script's.

        final norm input    with what else a layer's norm keeps
        head input          e T h / u
        log-softmax         4 T V / t
        head's cast         e V h / t, under autocast
        logits and copies   (2 e + 4) T V / t   the output that the caller holds, the gradient in fp32, and its cast

    Source: transformers, loss/loss_utils.py, ForCausalLMLoss (logits.float(), cross_entropy).
    """
    architecture, recipe, layout = workload
    element = WEIGHT_ELEMENT_BYTES[recipe.precision]
    residual = FP32 if under_autocast(keeping, workload) else element
    rows = tokens // layout.tensor_parallel if layout.sequence_parallel else tokens
    rms = architecture.norm.root_mean_square
    norm = (FP32 + residual) * everywhere + FP32 * rows if rms else residual * everywhere + 2 * FP32 * rows
    count = tokens * architecture.padded_vocabulary // layout.tensor_parallel
    kept = {
        "final norm input": norm,
        "head input": element * everywhere,
        "logits": (LOGIT_BYTES + FP32 + 2 * element) * count,
    }
    head = architecture.padded_vocabulary * architecture.hidden // layout.tensor_parallel
    kept["head's cast"] = weight_casts_bytes(workload, keeping, matrices=head)
    return {kind: kinds.get(kind, 0) + is_script(layout) * (size - kinds.get(kind, 0)) for kind, size in kept.items()}


def head_of_torchtitan(workload: Workload, kinds: dict[str, int], *, tokens: int) -> dict[str, int]:
    """`kinds` after the layers as torchtitan's loss keeps them, where the allocator holds most of it.

        head input    e T h: whole, gathered with sequence parallelism
        logits        (12 + e) T V / t: log-softmax, its gradient, and that of the logits, in fp32; the segment of the
                      16-bit logits, which the gradient's cast takes again

    Source: torchtitan of December 2024, train.py: cross_entropy(pred.flatten(0, 1).float(), labels.flatten(0, 1)), and
    del pred before the backward pass; the loss is not compiled there.
    """
    architecture, recipe, layout = workload
    element = WEIGHT_ELEMENT_BYTES[recipe.precision]
    count = tokens * architecture.padded_vocabulary // layout.tensor_parallel
    return kinds | {"head input": element * tokens * architecture.hidden, "logits": (3 * FP32 + element) * count}


def adds_in_16_bit(keeping: Keeping, workload: Workload) -> bool:
    """Whether gradients of bf16 training are added up in 16 bits."""
    return keeping.narrow_gradients and workload.recipe.precision is Precision.BF16


def state_of_modules(state: StateBytes, keeping: Keeping, workload: Workload, *, share: float) -> StateBytes:
    """`state` where weights are kept in fp32: no master weights beside them, and gradients in fp32.

    FSDP's shard: 4 + 4 + 8 bytes a parameter of the shard; with ZeRO-2 the gathered 16-bit weights stay besides.
    Autocast: 4 + 4 + 8 a parameter. NeMo: 2 + 2 + 4 + 8, see `adds_in_16_bit`.

    Source: Zhao et al. 2023, arXiv 2304.11277, section 4.4 (sharded parameters in full precision, a low-precision
    shard for the passes alone).
    """
    element = WEIGHT_ELEMENT_BYTES[workload.recipe.precision]
    if adds_in_16_bit(keeping, workload):
        return state._replace(gradients=state.gradients * element / FP32)
    if under_autocast(keeping, workload):
        whole = state.weights / element
        gradients = max(FP32 / BYTES_PER_PARAMETER[workload.recipe.precision].gradients, 1) * state.gradients
        return StateBytes(FP32 * whole, gradients, 0 * whole, 0 * whole, state.moments)
    if not shard_is_master(keeping, workload):
        return state
    gathered = 0 * state.weights if workload.layout.zero_stage == 3 else state.weights
    gradients = max(FP32 / BYTES_PER_PARAMETER[workload.recipe.precision].gradients, 1) * state.gradients
    return StateBytes(FP32 * share + gathered, gradients, 0 * share, 0 * share, state.moments)


def gradients_in_passes(
    gradients: float, each: float, in_flight: float, keeping: Keeping, layout: Layout, *, micro_batches: int
) -> float:
    """Bytes of gradients at the fullest moment of the forward passes.

        G, from the second micro-batch on    in a buffer that stays, as Megatron-Core's
        G min(ceil(n / p), v) / v            made by autograd: of the chunks that n = (m - F) v backward passes come to
                                             before the last forward pass, p of each of v chunks
        max(G - A, 0) / v                    n = 0: of the first chunk, whose backward pass frees A / v of activations

    Source: Megatron-Core, distributed/param_and_grad_buffer.py; Narayanan et al. 2021, arXiv 2104.04473, section 2.2.
    """
    if not keeping.eager or layout.schedule in NO_FLUSH:
        return (micro_batches > 1) * gradients
    virtual = layout.virtual_stages
    backward = (micro_batches - in_flight) * virtual
    made = smaller(-(-backward // layout.pipeline_stages), virtual) * gradients
    first = (virtual > 1) * larger(gradients - each, 0 * each)
    return chosen(backward > 0, made, first) / virtual


def unscattered_gradient_bytes(workload: Workload, keeping: Keeping, *, parameters: float, micro_batches: int) -> float:
    """Bytes of whole fp32 gradients that torchtitan's pipeline stages add up before FSDP2 scatters them; else 0.

    4 a parameter of the rank, from the first micro-batch's backward pass to the last's, with several micro-batches.

    Source: torch/distributed/pipelining/stage.py, backward_maybe_with_nosync (set_requires_gradient_sync(False) until
    the last backward pass); _fsdp_param.py, unsharded_accumulated_grad, in the dtype of the reduction.
    """
    layout = workload.layout
    if not keeping.titan or layout.zero_stage < 2:
        return 0
    piped = (layout.pipeline_stages > 1) * 1 * (layout.sharding_ranks > 1) * (micro_batches > 1)
    return FP32 * piped * parameters


def weight_casts_bytes(workload: Workload, keeping: Keeping, *, matrices: int) -> int:
    """Bytes of the 16-bit copies of `matrices` weights that autocast makes in a pass, for its backward pass too."""
    return under_autocast(keeping, workload) * WEIGHT_ELEMENT_BYTES[workload.recipe.precision] * matrices
