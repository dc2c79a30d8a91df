"""A training that other software is configured for, on so many accelerators: its layout, and whether it fits."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from reference_runs.accelerator import Accelerator
from reference_runs.catalog import layout_mistakes
from reference_runs.configurations.configuration import ConfiguredAdapters, TrainingConfiguration
from reference_runs.configurations.configuration import Framework as Of
from reference_runs.errors import InputError, Mistakes
from reference_runs.hugging_face.configuration import NotDescribedError
from reference_runs.incomplete import IncompleteRecipe
from reference_runs.layout import Layout, Offload, Recomputation, StageAssignment
from reference_runs.run import Architecture, Precision, ProductFormat, Recipe, ReferenceRun, Reported, Workload
from suite.predict.analytic.activations import layer_activation_bytes
from suite.predict.analytic.adapters import adapted_memory
from suite.predict.analytic.memory_uncertainty import PeakKind, peak_uncertainty
from suite.predict.analytic.parameters import parameter_count
from suite.predict.analytic.stage_layers import layer_kinds
from suite.predict.analytic.usable_memory import usable_memory
from suite.predict.analytic.weight_formats import WeightFormat
from suite.predict.plan.asked import AskedTraining
from suite.predict.plan.predicted_run import PredictionRequest, prediction_of_run
from suite.predict.recorded_run.figures import Prices

NODE = 8  # accelerators that are assumed at least where neither file nor option says how many
MOST_RANKS = 4096  # that are tried
PADDED_TO = 128  # rows of Megatron's tables, times tensor-parallel ranks (--make-vocab-size-divisible-by)
NO_PRICES = Prices(None, None, 1.0)
_MEGATRON = (Of.MEGATRON, Of.MEGATRON_BRIDGE)
_WHOLE_HEADS = (  # whose tensor parallelism splits key-value heads and does not copy them
    *(Of.TORCHTITAN, Of.TORCHTUNE, Of.NANOTRON, Of.TRAINER, Of.AXOLOTL),
)
_RAMP_UP = ("batch_rampup_start", "batch_rampup_increment", "batch_rampup_samples")


class Judged(NamedTuple):
    """Needs of a training on each accelerator.

    Args:
        usable_bytes: that an accelerator has.
        probability_fits: with which the fullest rank's peak fits.
        step_seconds: None where no time is predicted.
    """

    peak_bytes: float
    usable_bytes: float
    probability_fits: float
    step_seconds: float | None


def rising_ranks(of: TrainingConfiguration) -> list[int]:
    """Accelerators to try where nothing says how many: what the axes divide, a node at least, then twice as many.

    Where a batch says how many samples there are, no more than have one.
    """
    unit = of.tensor_parallel * of.context_parallel * of.pipeline_stages * of.expert_parallel * (of.replicas or 1)
    inner = of.tensor_parallel * of.context_parallel * of.pipeline_stages
    ranks = unit * -(-NODE // unit)
    found = [ranks]
    while (ranks := 2 * ranks) <= MOST_RANKS:
        if of.batch is not None and of.batch % (ranks // inner * of.micro_batch):
            break
        found.append(ranks)
    return found


def recomputations(of: TrainingConfiguration, architecture: Architecture) -> tuple[Recomputation, ...]:
    """Recomputation of the layout; where it is not described for such a model, the two between which its peak lies."""
    special = architecture.experts is not None or architecture.key_value_rank is not None
    if of.recomputation is Recomputation.SELECTIVE_OP and special:
        return Recomputation.NONE, Recomputation.FULL
    if of.adapters is not None and of.recomputation is Recomputation.NONE:
        return Recomputation.NONE, Recomputation.FULL
    return (of.recomputation,)


def configured_layout(of: TrainingConfiguration, architecture: Architecture, ranks: int) -> Layout:
    """The layout of a configuration over so many accelerators.

    Raises:
        InputError: the axes do not divide them.
        NotDescribedError: experts over ranks of another axis than data parallelism.
    """
    sizes = {"tp": of.tensor_parallel, "pp": of.pipeline_stages, "cp": of.context_parallel}
    inner = of.tensor_parallel * of.pipeline_stages * of.context_parallel
    if ranks % inner:
        named = " * ".join(f"{size} ({axis})" for axis, size in sizes.items() if size > 1)
        raise InputError(f"{named} = {inner} does not divide {ranks:,} accelerators")
    dense = ranks // inner
    experts = 1 if architecture.experts is None and of.software is Of.TORCHTITAN else of.expert_parallel
    copies = of.replicas or 1
    if dense % copies:
        raise InputError(f"{copies} replicas of shards do not divide {dense:,} data-parallel ranks")
    if dense % experts:
        if (dense * of.context_parallel * of.tensor_parallel) % experts:
            raise InputError(f"expert parallelism of {experts} does not divide {dense:,} data-parallel ranks")
        what = f"expert parallelism of {experts} over {dense:,} data-parallel ranks and those of other axes"
        raise NotDescribedError(f"{what} is not described", reason="experts over other axes")
    shards = dense // copies * of.context_parallel
    zero = of.zero_stage if shards > 1 or of.offload is not Offload.NONE or of.zero_stage < 2 else 0
    return Layout(
        micro_batch=of.micro_batch,
        data_parallel=dense // experts,
        tensor_parallel=of.tensor_parallel,
        pipeline_stages=of.pipeline_stages,
        context_parallel=of.context_parallel,
        expert_parallel=experts,
        whole_experts=of.whole_experts and architecture.experts is not None,
        sequence_parallel=of.sequence_parallel,
        zero_stage=zero,
        shard_ranks=shards if zero >= 2 and copies > 1 else None,
        reduce_scatter=zero == 1 and of.reduce_scatter,
        reshard_after_forward=of.reshard,
        virtual_stages=of.virtual_stages,
        schedule=of.schedule,
        recomputation=recomputations(of, architecture)[0],
        checkpoint_layers=of.checkpoint_layers,
        stage_assignment=StageAssignment.LAYERS_AND_TABLES if of.with_tables == 2 else StageAssignment.LAYERS,
        offload=of.offload,
        fused_attention=True,
    )


def configured_run(run: ReferenceRun, of: TrainingConfiguration, layout: Layout) -> ReferenceRun:
    """The training of a model as the configuration and its layout say.

    Raises:
        InputError: the model, the batch or the stages cannot be divided so; each reason is a line.
    """
    architecture = run.architecture
    if of.sequence is not None:
        architecture = msgspec.structs.replace(architecture, sequence=of.sequence)
    unit = layout.tensor_parallel * (PADDED_TO if of.software in _MEGATRON else 1)
    rows = -(-architecture.padded_vocabulary // unit) * unit
    architecture = msgspec.structs.replace(architecture, padded_vocabulary=rows)
    batch = of.batch or layout.replicas * of.micro_batch * (of.accumulation or 1)
    values: dict[str, Any] = {
        "global_batch": batch,
        "precision": of.precision or Precision.BF16,
        "product_format": ProductFormat.NONE,
        "moments": of.moments,
        "adapter_rank": None,
        "adapter_targets": None,
        **dict.fromkeys(_RAMP_UP),
    }
    if of.optimizer is not None:
        values["optimizer"] = of.optimizer
    recipe = _with(run.recipe, values)
    mistakes = Mistakes(_own_mistakes(of, architecture))
    mistakes.errors += layout_mistakes(Workload(architecture, recipe, layout), "")
    undescribed = [each for each in mistakes.errors if "not described" in str(each)]
    if undescribed and len(undescribed) == len(mistakes.errors):
        raise NotDescribedError(str(undescribed[0]).removeprefix(": "), reason="layout")
    mistakes.refuse()
    return msgspec.structs.replace(
        run,
        architecture=architecture,
        recipe=recipe,
        recorded_layout=layout,
        unpublished=(),
        cluster=None,
        software=None,
        reported=Reported(),
        measured=(),
    )


def judged(
    run: ReferenceRun,
    device: Accelerator,
    *,
    stack: str | None,
    network: float | None,
    adapters: ConfiguredAdapters | None,
) -> Judged:
    """The peak of a run's layout on such accelerators.

    Args:
        network: bytes per second out of a node.

    Raises:
        InputError: nothing here describes it.
    """
    if adapters is not None and run.architecture.experts is not None and (stack or "").startswith("megatron"):
        raise NotDescribedError("adapters of experts in Megatron-Core are not described", reason="adapters")
    if adapters is not None:
        return _judged_adapters(run, device, adapters)
    request = PredictionRequest(
        device.name, None, None, network, NO_PRICES, stack, training=AskedTraining(batch=run.recipe.global_batch)
    )
    predicted = prediction_of_run(run, request, by_stage=False)
    if (fitting := predicted.fitting) is None or predicted.peak_bytes is None or predicted.memory_bytes is None:
        raise NotDescribedError("; ".join(predicted.missing) or "no memory is predicted", reason="memory")
    step = predicted.prediction.step if predicted.prediction else None
    seconds = step.total_seconds if step else None
    return Judged(predicted.peak_bytes, predicted.memory_bytes, fitting.probability, seconds)


def _judged_adapters(run: ReferenceRun, device: Accelerator, adapters: ConfiguredAdapters) -> Judged:
    """Adapters on every linear layer; ZeRO-3 alone shards the weights, tensor and pipeline ranks split them.

    A micro-batch of several samples keeps what one sample of as many tokens does. Where layers are not computed again,
    each keeps its activations in place of its input.
    """
    layout = run.layout
    tokens = run.architecture.sequence * layout.micro_batch // layout.context_parallel
    architecture = msgspec.structs.replace(run.architecture, sequence=max(1, tokens))
    shards = layout.sharding_ranks if layout.zero_stage >= 3 else 1
    base = WeightFormat.NF4 if adapters.four_bits else WeightFormat.BF16
    memory = adapted_memory(architecture, run.recipe, base=base, rank=adapters.rank, ranks=shards)
    kept = memory.kept
    if layout.recomputation is Recomputation.NONE:
        once = Layout(micro_batch=1, fused_attention=True)
        kept = sum(
            layers * sum(layer_activation_bytes(Workload(kind, run.recipe, once)).values())
            for kind, layers in layer_kinds(architecture)
        )
    held = 0.0 if layout.offload is Offload.STATE else memory.base * _held_share(run.architecture, layout)
    peak = memory._replace(kept=kept // layout.tensor_parallel, base=int(held)).peak
    usable = usable_memory(device.board).usable
    return Judged(peak, usable, peak_uncertainty(PeakKind.WALKED).fitting(peak, usable).probability, None)


def _held_share(architecture: Architecture, layout: Layout) -> float:
    """Share of the weights that a rank holds: tensor and pipeline ranks split all, expert-parallel ones the experts."""
    split = layout.tensor_parallel * layout.pipeline_stages
    if architecture.experts is None:
        return 1 / split
    of_experts = 1 - _without_experts(architecture) / parameter_count(architecture)
    return (1 - of_experts + of_experts / layout.expert_parallel) / split


def _without_experts(architecture: Architecture) -> int:
    """Parameters outside of experts: those of the model less what each further expert adds."""
    assert architecture.experts is not None
    fewer = msgspec.structs.replace(architecture, experts=architecture.experts // 2 or 1)
    whole = parameter_count(architecture)
    of_one = (whole - parameter_count(fewer)) / max(1, architecture.experts - (fewer.experts or 0))
    return int(whole - architecture.experts * of_one)


def _own_mistakes(of: TrainingConfiguration, architecture: Architecture) -> list[InputError]:
    """Reasons that the software itself has."""
    found = [InputError(reason) for reason in of.refused]
    heads = architecture.kv_heads
    if of.software in _WHOLE_HEADS and architecture.key_value_rank is None and heads % of.tensor_parallel:
        found.append(InputError(f"{of.tensor_parallel} (tp) does not divide {heads} key-value heads"))
    chunks, layers = of.pipeline_stages * of.virtual_stages, architecture.layers + of.with_tables
    if of.even_stages and layers % chunks:
        counted = f"{layers} layers" + (", embedding and head counted" if of.with_tables else "")
        found.append(InputError(f"{of.pipeline_stages} (pp) * {of.virtual_stages} chunks do not divide {counted}"))
    if of.sequence is not None and of.context_parallel > 1 and of.sequence % (2 * of.context_parallel):
        found.append(InputError(f"2 * {of.context_parallel} (cp) does not divide sequences of {of.sequence:,} tokens"))
    return found


def _with(recipe: Recipe, values: dict[str, Any]) -> Recipe:
    """The recipe with these values, of which it may lack some."""
    if isinstance(recipe, IncompleteRecipe):
        values = values | {"missing": tuple(key for key in recipe.missing if key not in values)}
    return msgspec.structs.replace(recipe, **values)
