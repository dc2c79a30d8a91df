"""In what a layout disagrees with its prediction and with the single process: sentences, none where it agrees."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator

import torch
from torch import Tensor

from reference_runs.catalog import accumulation
from reference_runs.run import Activation, Architecture, Precision
from suite.execute.precision import DTYPES
from suite.job.events import Finished
from suite.job.pipeline_passes import MeasuredPass, Pass, PassKind
from suite.job.training_job import Job
from suite.machine.half_precision import kernels_for
from suite.metrics.comparison import Verdict, compare
from suite.metrics.figures import EXACT, Quantity
from suite.predict.executed_run.counts import prediction
from suite.predict.executed_run.figures import memory_figures
from suite.predict.executed_run.routing import given_routing
from suite.predict.simulation.pipeline_order import passes
from suite.reproduce.measured_figures import counted_figures
from tests.end_to_end.layouts.execution import Executed
from tests.end_to_end.layouts.table import STEPS

# by which an update made larger what rounding had left, while `loss_bound` adds the errors of passes: losses of
# llama3-mini in cp2,dp2,zero3 were 0.07, 0.3, 2, 4, 12 and 68 millionths apart (an Intel Xeon, 2026-11-26)
GROWTH = 7
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def differences_from_prediction(executed: Executed) -> Iterator[str]:
    """Exact figures, and activations, that are not as predicted, or that one side alone has.

    Not peaks: of so small runs the messages that communication threads free late are several per cent. Nor activations
    on simulated GPUs, whose operators are computed by kernels of the CPU.
    """
    job = executed.job
    predicted = prediction(job.workload)
    options = job.step_options(kernels_for(job.recipe.precision, job.device))
    predicted += memory_figures(job.workload, options)
    rows = [report.computed_rows for report in executed.finished]
    predicted = given_routing(job.workload, options, predicted, rows)
    counted = counted_figures(job, executed.finished, executed.steps)
    for row in compare(predicted, counted, left_name="predicted", right_name="measured", judge=True):
        wrong = row.quantity in EXACT and row.verdict is Verdict.FAIL
        activations = row.quantity == Quantity.ACTIVATION_BYTES and job.device == "cpu"
        if wrong or (activations and row.left != row.right):
            where = [str(key) for key in (row.axis, row.operation) if key is not None]
            where += [] if row.rank is None else [f"rank {row.rank}"]
            yield f"{' '.join([row.quantity, *where])}: predicted {row.left}, measured {row.right}"


def differing_losses(executed: Executed, single: Executed) -> Iterator[str]:
    """Losses of the judged steps that are further from the single process's than `loss_bound`."""
    steps, bound = judged_steps(executed), loss_bound(executed)
    expected = [step.loss for step in single.steps[0]]
    for rank, own in enumerate(executed.steps):
        assert len(own) == len(expected) == STEPS
        for step, wanted in zip(own[:steps], expected, strict=False):
            grown = GROWTH if step.step == STEPS - 1 else 1
            if not abs(step.loss - wanted) <= grown * bound * wanted:
                yield f"loss of step {step.step} on rank {rank}: {step.loss}, in one process {wanted}"


def differing_norms(executed: Executed, single: Executed) -> Iterator[str]:
    """Norms of the first step's whole gradient that are further from the single process's than `gradient_bound`."""
    wanted, bound = single.steps[0][0].gradient_norm, gradient_bound(executed)
    assert wanted is not None
    for rank, own in enumerate(executed.steps):
        norm = own[0].gradient_norm
        if norm is None or not abs(norm - wanted) <= bound * wanted:
            yield f"gradient norm of rank {rank}: {norm}, in one process {wanted}"


def differing_copies(executed: Executed) -> Iterator[str]:
    """First gradients that ranks of one replica all have, where they are not the same bits: of parameters that each
    stores whole, and of copies of key-value heads."""
    first: dict[tuple[tuple[int, int], int, str], Tensor] = {}
    whole = executed.job.layout.zero_stage < 2
    copies = max(executed.job.layout.tensor_parallel // executed.job.architecture.kv_heads, 1)
    has_shards = executed.job.layout.scatters_gradients or not whole
    for rank, (report, gradients) in enumerate(zip(executed.finished, executed.gradients, strict=True)):
        index = copy_index(executed, report), report.coordinates.get("ep", 0) if has_shards else 0
        for name, (gradient, dim) in gradients.items():
            whose = index, report.coordinates["pp"], name
            if whole and has_copied_heads(executed, name):
                gradient = gradient[-2 * executed.job.architecture.head_dim :]
                whose = (*whose[:2], f"{name} {report.coordinates['tp'] // copies}")
            elif dim is not None:
                continue
            if not torch.equal(first.setdefault(whose, gradient), gradient):
                yield f"gradient of {name} on rank {rank}: not that of the other ranks of its replica"


def differing_gradients(executed: Executed, single: Executed) -> Iterator[str]:
    """Tensors whose first gradient is further from the single process's than `gradient_bound`."""
    bound = gradient_bound(executed)
    (expected,) = single.gradients
    found: set[str] = set()
    for name, whose, gradient in whole_gradients(executed):
        found.add(name)
        wanted = expected[name][0].double()
        distance = torch.linalg.vector_norm(gradient.double() - wanted) / torch.linalg.vector_norm(wanted)
        if not distance <= bound:
            yield f"gradient of {name} on {whose}: off by {distance:.2g} of its norm"
    for name in sorted(set(expected) - found):
        yield f"no rank has a gradient of {name}"


def copy_index(executed: Executed, report: Finished) -> int:
    """The rank's index among those with the same weights."""
    index = report.coordinates
    return index["dp"] * executed.job.layout.context_parallel + index.get("cp", 0)


def whole_gradients(executed: Executed) -> Iterator[tuple[str, str, Tensor]]:
    """Every gradient of the whole model, put together anew for each of the ranks that hold copies: name, whose, value.

    The last pipeline stage's copy of a tied table goes by the table's name.
    """
    layout, shape = executed.job.layout, executed.job.architecture
    parts: dict[str, dict[tuple[int, int, int], Tensor]] = {}
    dims: dict[str, int | None] = {}
    for report, gradients in zip(executed.finished, executed.gradients, strict=True):
        for name, (part, dim) in gradients.items():
            place = copy_index(executed, report), report.coordinates.get("ep", 0), report.coordinates["tp"]
            parts.setdefault(name, {})[place] = part
            dims[name] = dim
    data = range(layout.data_parallel * layout.context_parallel)
    expert, tensor = range(layout.expert_parallel), range(layout.tensor_parallel)
    for name, held in parts.items():
        known = name
        if name == "head.weight" and executed.job.architecture.tied_embeddings:
            known = "embedding.weight"
        of_experts = ".feed_forward.experts." in name
        if layout.zero_stage >= 2 and not of_experts and len(expert) > 1:
            contexts = layout.context_parallel
            order = [(d + c, e) for d in data[::contexts] for e in expert for c in range(contexts)]
            held = {(0, 0, t): torch.cat([held[d, e, t] for d, e in order]) for t in tensor}
        elif layout.zero_stage >= 2:
            shards = len(data) if of_experts else layout.sharding_ranks
            held = {
                (g, e, t): torch.cat([held[d, e, t] for d in data[g : g + shards]])
                for g in range(0, len(data), shards)
                for e in expert
                for t in tensor
            }
        if layout.scatters_gradients:  # each rank has its own elements, and 0 elsewhere
            whose = [[e] for e in expert] if of_experts else [[*expert]]
            held = {
                (0, own[0], t): torch.stack([held[d, e, t] for d in data for e in own]).sum(0)
                for own in whose
                for t in tensor
            }
        stacked = (shape.experts or 1) // len(expert) if of_experts else 1
        copied, dim = has_copied_heads(executed, name), dims[name]
        if copied or dim is not None:
            by_rank = {(d, e): [held[d, e, t] for t in tensor] for d, e, _ in held}
            held = {
                (d, e, 0): without_copies(executed, parts) if copied else joined(parts, dim or 0, stacked)
                for (d, e), parts in by_rank.items()
            }
        if of_experts:
            held = {(d, 0, 0): torch.cat([held[d, e, 0] for e in expert]) for d, _, t in held if t == 0}
        for (d, e, t), whole in held.items():
            yield known, f"dp {d}, ep {e}, tp {t} ({name})", whole


def joined(parts: list[Tensor], dim: int, stacked: int) -> Tensor:
    """Matrices, so many of which lie one below the other in each part, of whose `dim` every part has a part."""
    return torch.cat([part.unflatten(0, (stacked, -1)) for part in parts], dim + 1).flatten(0, 1)


def has_copied_heads(executed: Executed, name: str) -> bool:
    """Whether several tensor-parallel ranks have the same key-value head of a parameter."""
    above = executed.job.layout.tensor_parallel > executed.job.architecture.kv_heads
    return above and name.rpartition(".")[0].endswith(("attention.query_key_value", "attention.key_value"))


def without_copies(executed: Executed, parts: list[Tensor]) -> Tensor:
    """The whole of a fused projection's tensor, [G, R + 2, K] in rows, from the ranks' parts, each its queries and a
    copy of a key and a value."""
    shape = executed.job.architecture
    rows, copies = 2 * shape.head_dim, len(parts) // shape.kv_heads
    heads = [parts[first : first + copies] for first in range(0, len(parts), copies)]
    return torch.cat([torch.cat([*(part[:-rows] for part in head), head[0][-rows:]]) for head in heads])


def differing_passes(executed: Executed) -> Iterator[str]:
    """Passes of a pipeline that are not those of its schedule, in its order, each after what it needs.

    On a GPU clocks of ranks are set to each other but for some microseconds, so that ranks are not compared.
    """
    job, layout = executed.job, executed.job.layout
    if layout.pipeline_stages == 1:
        return
    pipelines: dict[tuple[int, ...], dict[Pass, MeasuredPass]] = {}
    for rank, report in enumerate(executed.finished):
        assert report.pipeline_times is not None
        own, stage = report.pipeline_times.passes, report.coordinates["pp"]
        order = [Pass(each.kind, each.chunk, each.micro_batch) for each in own]
        if order != passes(layout, micro_batches=accumulation(job.recipe, layout), stage=stage):
            yield f"passes of rank {rank}: {order}"
        if any(after.start_us < before.end_us for before, after in itertools.pairwise(own)):
            yield f"passes of rank {rank} overlap"
        others = tuple(index for axis, index in sorted(report.coordinates.items()) if axis != "pp")
        pipelines.setdefault(others, {}).update(zip(order, own, strict=True))
        medians = {(each.kind, each.chunk) for each in report.pipeline_times.medians}
        if medians != {(each.kind, each.chunk) for each in order}:
            yield f"medians of rank {rank}: {medians}"
    last = layout.pipeline_stages * layout.virtual_stages - 1
    for pipeline in pipelines.values() if job.device == "cpu" else ():
        for done, measured in pipeline.items():
            kind, chunk, micro_batch = done
            if kind is PassKind.WEIGHT:
                needed = [Pass(PassKind.INPUT, chunk, micro_batch)]
            elif kind is PassKind.FORWARD:
                needed = [Pass(kind, chunk - 1, micro_batch)] if chunk else []
            else:
                needed = [Pass(PassKind.FORWARD, chunk, micro_batch)]
                above = [Pass(kind, chunk + 1, micro_batch) for kind in (PassKind.BACKWARD, PassKind.INPUT)]
                needed += [each for each in above if each in pipeline] if chunk < last else []
            for before in needed:
                if before not in pipeline and not layout.flushes:
                    continue  # of the step before
                if measured.start_us < pipeline[before].end_us:
                    yield f"{done} began before {before} had ended"


def disagreements(executed: Executed, single: Executed | None) -> list[str]:
    """All of them; `single`: the same run in one process, where dropout does not tell them apart."""
    found = [*differences_from_prediction(executed), *differing_copies(executed), *differing_passes(executed)]
    if single is not None:
        found += differing_losses(executed, single)
        found += differing_norms(executed, single)
        found += differing_gradients(executed, single)
    return found


def judged_steps(executed: Executed) -> int:
    """All steps in fp32; in 16 bit the first, because Adam makes as much of a rounding error as of a gradient; without
    flush the first too, as later gradients are those of other weights.
    """
    job = executed.job
    return STEPS if job.recipe.precision is Precision.FP32 and job.layout.flushes else 1


def loss_bound(executed: Executed) -> float:
    """Allowed relative distance of losses from the single process's.

    fp32: each of the steps adds the error of a forward pass.
    16 bit: logits are no larger than the loss, which is the mean over tokens whose errors are independent.
    """
    job = executed.job
    if job.recipe.precision is Precision.FP32:
        return STEPS * relative_error(job, passes=1)
    return relative_error(job, passes=1) / math.sqrt(tokens(job))


def gradient_bound(executed: Executed) -> float:
    """Allowed distance of a gradient from the single process's, relative to its norm: there and back through the model.

    ReLU jumps in its derivative. Of two normal inputs whose difference is e of their deviation, the share
    arccos(1 - e^2 / 2) / pi = e / pi has different signs: of T tokens * F units in each of L layers, as many pass a
    gradient in one of the two only; and one unit, for the chance of it. Half of the units pass one, so that of its norm
        sqrt(2 L (e / pi + 1 / (T F)))
    is different, with the error e of the forward pass.

    In 16 bit tensor-parallel ranks and fused attention round hidden states otherwise: `of_other_choices`.
    """
    job, a = executed.job, executed.job.architecture
    bound = relative_error(job, passes=2)
    if job.layout.tensor_parallel > 1 or job.layout.fused_attention:
        bound += of_other_choices(job)
    if a.activation is Activation.RELU:
        turned = relative_error(job, passes=1) / math.pi + 1 / (tokens(job) * a.ffn_hidden)
        bound += math.sqrt(2 * a.layers * turned)
    return bound


def of_other_choices(job: Job) -> float:
    """The share of a gradient's norm that differs where hidden states that round otherwise choose other experts.

    In 16 bit alone. Of E normal scores, the C largest chosen, E phi(z) e / sqrt(2 pi) pass z, which C / E are above: a
    share c of that over C of the rows has other experts, and sqrt(2 L c) of the norm is different, with the error e of
    the forward pass.
    """
    a = job.architecture
    if a.experts is None or job.recipe.precision is Precision.FP32:
        return 0.0
    chosen, normal = a.experts_per_token or 0, statistics.NormalDist()
    passing = a.experts * normal.pdf(normal.inv_cdf(chosen / a.experts)) * relative_error(job, passes=1)
    return math.sqrt(2 * a.layers * passing / math.sqrt(2 * math.pi) / chosen)


def relative_error(job: Job, *, passes: int) -> float:
    """Relative distance of two results of `passes` passes through the model that round differently."""
    if job.recipe.precision is Precision.FP32:
        return fp32_error(job, products=passes * products_in_row(job.architecture))
    return error_16_bit(job, roundings=passes * roundings_in_row(job.architecture))


def tokens(job: Job) -> int:
    return job.recipe.global_batch * job.architecture.sequence


def products_in_row(architecture: Architecture) -> int:
    """Matrix products between a token and its loss: six a layer (queries, scores, context, projection, expansion,
    contraction), and the head."""
    return 6 * architecture.layers + 1


def roundings_in_row(architecture: Architecture) -> int:
    """Roundings of hidden states between a token and its logits: 17 a layer, and the head's.

    A layer's: 2 norms, queries and keys and 3 of their rotation, scores, weights, context, projection, the sum of its
    tensor-parallel parts, residual; expansion, activation, contraction, the sum of its parts, residual.
    """
    return 17 * architecture.layers + 1


def fp32_error(job: Job, *, products: int) -> float:
    """Relative distance of two results of `products` products in a row that sum in different orders.

    A sum of K terms is off by 2^-24 sqrt(K) of its size, a random walk of roundings; n products in a row by sqrt(n)
    times that. K is that of the longest sum: over a width, the vocabulary, or the tokens of a step.
    """
    a = job.architecture
    terms = max(a.hidden, a.ffn_hidden, a.padded_vocabulary, tokens(job))
    return math.sqrt(products) * math.sqrt(terms) * ROUNDING[torch.float32]


def error_16_bit(job: Job, *, roundings: int) -> float:
    """Relative distance of two results of `roundings` roundings in a row: a random walk of both."""
    return math.sqrt(2 * roundings) * ROUNDING[DTYPES[job.recipe.precision]]
