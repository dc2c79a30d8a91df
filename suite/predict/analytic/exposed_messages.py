"""Messages that computation does not hide, by switches of the software stack: in layers, and of data parallelism."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from reference_runs.layout import Layout, Recomputation
from reference_runs.run import Architecture, Workload
from reference_runs.stack import Stack
from suite.predict.analytic.elementwise import chosen, larger, smaller
from suite.predict.analytic.experts import chosen_experts
from suite.predict.analytic.flop import repeated_layers
from suite.predict.analytic.layer_time import ROUTED, sent_in_pieces, split_product_seconds
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.memory import BYTES_PER_PARAMETER, WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.product_formats import AFTER_NORMS, SUMMED, factor_element_bytes
from suite.predict.analytic.stage_layers import stage_layer_kinds
from suite.predict.analytic.traffic import activation_message_bytes, tensor_parallel_messages

BULK_COST = 16 / 132  # multiprocessors of a collective beside a product that it does not wait for, of H100's


class TensorParallelShares(NamedTuple):
    """Shares of a stage's all-gathers, reduce-scatters and all-reduces that make its step longer."""

    gathers: float
    scatters: float
    sums: float


class TensorParallelExposure(NamedTuple):
    """By how much a stage's tensor-parallel messages make its step longer.

    Args:
        factors: of `tensor_parallel_factors`.
        most_hidden_seconds: of `input_gradient_products_seconds`.
    """

    factors: dict[str, float]
    most_hidden_seconds: float | None

    def seconds(self, operation: str, spent: float) -> float:
        """Exposed seconds of an operation whose messages take `spent` seconds."""
        exposed = spent * self.factors[operation]
        return exposed if self.most_hidden_seconds is None else larger(exposed, spent - self.most_hidden_seconds)


def tensor_parallel_exposure(
    workload: Workload, machine: Machine, *, stage: int, micro_batches: int
) -> Callable[[str, float], float]:
    """Exposed seconds of a step's tensor-parallel messages, of an operation and the seconds that its messages take."""
    if machine.stack.keeping.titan:
        return partial(exposed_dtensor_seconds, workload, machine, stage, micro_batches)
    return TensorParallelExposure(
        tensor_parallel_factors(workload, machine, stage=stage),
        input_gradient_products_seconds(workload, machine, stage=stage, micro_batches=micro_batches),
    ).seconds


def exposed_dtensor_seconds(
    workload: Workload, machine: Machine, stage: int, micro_batches: int, operation: str, spent: float
) -> float:
    """Exposed seconds of all messages of an operation as torchtitan sends them, where those counted take `spent`.

    Of a layer with i inputs and o outputs that are split, with sequence parallelism:
        i gathers of inputs       and again where the layer is recomputed; what is gathered is kept for the weights'
                                  gradients, so that nothing is gathered for those
        o gathers of gradients
        o scatters of outputs     full recomputation stops before the last one; selective-op keeps what they leave
        i scatters of gradients

    and one of each of embedding and head. What layers gather is cast before. Around each message a kernel copies it
    whole, since samples, and not the positions that are split, are the tensors' first dimension.
    Where the stack cuts messages into pieces (asynchronous tensor parallelism), t pieces of each of the first three go
    on beside the product that reads or writes them, whose seconds hide them but for one piece's; nothing is copied, but
    a kernel reads the t parts of a scatter to write their sum. Gradients of inputs are sums of several products'
    outputs, and so are sent whole.

    Source: torchtitan 0.1.0, models/llama3/infra/parallelize.py, apply_tp and _save_list; PyTorch 2.6.0,
    distributed/_functional_collectives.py, all_gather_tensor and reduce_scatter_tensor (the copies),
    _inductor/fx_passes/micro_pipeline_tp.py, fuse_all_gather_matmul and fuse_matmul_reduce_scatter, and
    distributed/_symmetric_memory, _pipelined_all_gather_and_consume and _pipelined_produce_and_all2all (read).
    """
    if operation == "all_reduce":
        return spent
    layout, gathers = workload.layout, operation == "all_gather"
    t, counted = layout.tensor_parallel, tensor_parallel_messages(workload, stage=stage)
    sent = spent / larger(micro_batches * (counted.gathers if gathers else counted.scatters), 1)
    copied = 2 * activation_message_bytes(workload) / machine.achievable_memory_bytes_per_second
    share = narrow_gathers_share(workload, machine.stack) if gathers else 1.0
    summed = 0.0 if gathers else (1 + 1 / t) / 2 * copied
    in_pieces = sent_in_pieces(layout, machine) & (machine.stack.tensor_parallel_chunks > 1)
    stops = SUMMED[:1] if layout.recomputation is Recomputation.FULL else ()
    whole = counted.first + counted.last + (0 if gathers else counted.input_gradients)
    exposed = whole * (sent + copied)
    for kind, layers in stage_layer_kinds(workload.architecture, layout, stage=stage):
        again = repeated_layers(layout.recomputation, layers)
        for part, (product, _) in split_product_seconds(workload._replace(architecture=kind), machine).items():
            passes = again * (part in (AFTER_NORMS if gathers else stops)) + layers * (gathers or part in SUMMED)
            pieces = larger(share * sent - (1 - 1 / t) * product, 0.0) + summed
            exposed = exposed + passes * chosen(in_pieces, pieces, share * (sent + copied))
    return micro_batches * exposed


def tensor_parallel_factors(workload: Workload, machine: Machine, *, stage: int) -> dict[str, float]:
    """By operation, seconds by which tensor-parallel messages make a step longer, over those of 16-bit ones alone."""
    shares = exposed_tensor_parallel_shares(workload, machine, stage=stage)
    gathers = shares.gathers * narrow_gathers_share(workload, machine.stack)
    return {"all_gather": gathers, "reduce_scatter": shares.scatters, "all_reduce": shares.sums}


def exposed_tensor_parallel_shares(workload: Workload, machine: Machine, *, stage: int) -> TensorParallelShares:
    """Shares of the tensor-parallel messages that nothing hides, where the stack cuts them into c > 1 pieces.

    Where `sent_in_pieces` alone: over 32 GB/s of PCIe all is exposed. All but one piece overlap, so that 1 / c is
    exposed. Those around experts are whole: of k experts a token they are k of the 1 + k parts of a layer's bytes,
    shared ones one more.
    Transformer Engine's are cut up by how they stand to products. Of a layer with i inputs and o outputs that are split
    (`step_traffic`) and F passes forward:
        F i gathers of inputs       from rank to rank, while products of the rows that are there go on: nothing
        o gathers of gradients      the same
        i gathers again             next to the product of the inputs' gradient, which does not need them: nothing but
                                    the multiprocessors that they take, 16 of 132
        F o scatters of outputs     in c pieces: 1 / c
        i scatters of gradients     next to the product of the weights' gradient: 16 / 132
    and those of embedding and head are whole, and all-reduces.
    Where the stack overlaps input gradients instead, the i gathers again and the i scatters (or all-reduces) of
    gradients go on next to a product that does not need them: 16 / 132 of each, and of all else the whole: with
    sequence parallelism of all-reduces (cross-entropy, norms' gradients), without it of gathers. The network
    may be one between nodes; what is longer than the product is exposed, see `input_gradient_products_seconds`.
    Megatron-LM's own kernels are assumed to cost what Transformer Engine's do.

    Source: Transformer Engine, pytorch/module/base.py, initialize_ub: ring_exchange for qkv_fprop, fc1_fprop,
    proj_dgrad, fc2_dgrad; pipeline in 4 splits for proj_fprop, fc2_fprop; bulk on 16 multiprocessors for qkv_dgrad,
    qkv_wgrad, fc1_dgrad, fc1_wgrad (known code); Megatron-Core 0.1.0, core/tensor_parallel/layers.py,
    LinearWithGradAccumulationAndAsyncCommunication.backward (read); later ones, tp_comm_overlap, an option of linear
    layers, not of experts.
    """
    architecture, layout, chunks = workload.architecture, workload.layout, machine.stack.tensor_parallel_chunks
    in_pieces = sent_in_pieces(layout, machine)
    around_experts = _share_around_experts(architecture, layout)

    def share(of_layers: float) -> float:
        return chosen(in_pieces, around_experts + (1 - around_experts) * of_layers, 1.0)

    if not _own_methods(machine.stack) and not machine.stack.overlaps_input_gradients:
        return TensorParallelShares(share(1 / chunks), share(1 / chunks), share(1 / chunks))
    counted = tensor_parallel_messages(workload, stage=stage)
    gathers, scatters = counted.gathers, counted.scatters
    if not _own_methods(machine.stack):
        hidden = (1 - BULK_COST) * (1 - around_experts) * counted.input_gradients
        split = layout.sequence_parallel
        return TensorParallelShares(
            chosen(split, 1 - hidden / larger(gathers, 1), 1.0),
            chosen(split, 1 - hidden / larger(scatters, 1), 1.0),
            chosen(split, 1.0, 1 - hidden / larger(scatters, 1)),
        )
    bulk = BULK_COST * counted.input_gradients + counted.first + counted.last
    exposed_gathers, exposed_scatters = bulk + counted.last, bulk + counted.outputs / chunks
    return TensorParallelShares(
        share(exposed_gathers / larger(gathers, 1)), share(exposed_scatters / larger(scatters, 1)), 1.0
    )


def input_gradient_products_seconds(
    workload: Workload, machine: Machine, *, stage: int, micro_batches: int
) -> float | None:
    """The most seconds of a step that products can hide of one operation's tensor-parallel messages.

    Where the stack overlaps input gradients: each gather goes on next to the product of an input's gradient, each
    scatter or all-reduce next to that of a weight's, of the same size: half of the backward pass of query, key, value
    and expansion, a router's experts left out. Layers are assumed to be alike in this, so that their sums are compared.
    None with other stacks, whose shares say all.
    """
    if not machine.stack.overlaps_input_gradients or _own_methods(machine.stack):
        return None
    return micro_batches * sum(
        layers * backward / 2
        for kind, layers in stage_layer_kinds(workload.architecture, workload.layout, stage=stage)
        for part, (_, backward) in split_product_seconds(workload._replace(architecture=kind), machine).items()
        if part in AFTER_NORMS and (kind.experts is None or part not in ROUTED)
    )


def narrow_gathers_share(workload: Workload, stack: Stack) -> float:
    """Bytes that tensor-parallel gathers of layers move over those in the dtype of the weights.

    1 but with Transformer Engine's layers, which cast before they gather: then an element has those of the products'
    format; around experts as many as before.
    Source: Transformer Engine, pytorch/module/layernorm_linear.py (the norm's output is cast, then gathered) and
    base.py, grad_output_preprocess (gradients likewise) (known code).
    """
    recipe = workload.recipe
    if not ((stack.transformer_engine or stack.keeping.titan) and recipe.product_format.casts):
        return 1.0
    narrow = factor_element_bytes(recipe.product_format) / WEIGHT_ELEMENT_BYTES[recipe.precision]
    around_experts = _share_around_experts(workload.architecture, workload.layout)
    return around_experts + (1 - around_experts) * narrow


def _own_methods(stack: Stack) -> bool:
    return stack.transformer_engine and stack.tensor_parallel_chunks > 1


def _share_around_experts(architecture: Architecture, layout: Layout) -> float:
    if architecture.experts is None:
        return 0.0
    routed = 0.0 if layout.whole_experts else float(chosen_experts(architecture))
    parts = routed + (architecture.shared_experts > 0)
    sparse = 1 - (architecture.dense_layers or 0) / architecture.layers
    return sparse * parts / (1 + parts)


def exposed_data_parallel_seconds(
    layout: Layout,
    *,
    reduction_seconds: float,
    gather_seconds: float,
    backward_seconds: float,
    computation_seconds: float,
    micro_batches: int,
    overlap_share: float,
    overlap_cost: float = 0.0,
    gathers_overlap: bool = False,
) -> float:
    """Seconds by which a step's data-parallel traffic makes it longer, at overlap share o.

    stage 0, 1    max(reduction - o i backward, 0) + gathers        backward passes of the last micro-batches
    stage 2       max(reduction - o m backward, 0) + gathers        every micro-batch reduces
    stage 3       max(reduction + gathers - o m computation, 0)     every layer gathers and reduces

    Each second that is hidden costs the computation around it `overlap_cost` seconds: collectives occupy
    multiprocessors and memory. Below stage 3 the gathers bring the new weights after the update, where there is
    nothing to hide them unless the stack gathers as the next forward passes need them (`gathers_overlap`): then
    max(gathers - o i forward, 0).
    `backward_seconds` and `computation_seconds` (forward and backward) are those of one micro-batch.
    i is 1, or (1 + (v - 1) min(p, m)) / v with v virtual stages on each of p: chunks are passed one after the other by
    p micro-batches each, so that the first chunk's gradients are complete before the others' last p backward passes.
    Source: Li et al. 2020, arXiv 2006.15704, section 3.2.3; Rajbhandari et al. 2020, arXiv 1910.02054, section 7; i
    derived here from the schedule of Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2.
    """
    if layout.zero_stage == 3:
        hidden = overlap_share * micro_batches * computation_seconds
        return _exposed(reduction_seconds + gather_seconds, hidden, overlap_cost)
    virtual = layout.virtual_stages
    passes = (1 + (virtual - 1) * smaller(layout.pipeline_stages, micro_batches)) / virtual
    hidden = overlap_share * backward_seconds * (micro_batches if layout.zero_stage == 2 else passes)
    forward = overlap_share * (computation_seconds - backward_seconds) * passes if gathers_overlap else 0.0
    return _exposed(reduction_seconds, hidden, overlap_cost) + _exposed(gather_seconds, forward, overlap_cost)


def shard_copies_bytes(workload: Workload, stack: Stack, *, parameters: float) -> float:
    """Bytes that FSDP2 copies beside the computation of one micro-batch; 0 of other stacks, and without ZeRO-3.

    With w bytes of a gathered weight (f in 8 bits, where the stack gathers them so) and g of a reduced gradient:
        2 w a gather        out of the buffer that ranks gather into, to each weight: 2 gathers where weights are
                            dropped between the passes
        w + g               of the gradients, into the buffer that is scattered

    Both are on the stream that computes. Source: PyTorch 2.5, torch/distributed/_composable/fsdp/_fsdp_collectives.py,
    foreach_all_gather_copy_out, foreach_reduce (known code, not re-read for this file).
    """
    recipe, layout = workload.recipe, workload.layout
    if not stack.keeping.fsdp2 or layout.zero_stage != 3:
        return 0.0
    state = BYTES_PER_PARAMETER[recipe.precision]
    narrow = stack.gathers_in_format and recipe.product_format.casts
    weight = factor_element_bytes(recipe.product_format) if narrow else state.weights
    gathers = 2 if layout.reshard_after_forward else 1
    copied = gathers * 2 * weight + state.weights + state.gradients
    return (layout.sharding_ranks > 1) * copied * parameters


def _exposed(traffic: float, hiding: float, cost: float) -> float:
    return larger(traffic - hiding, 0.0) + cost * smaller(traffic, hiding)
