"""Fields of the run and its layout that an exported file leaves out, and what else its reader has to know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from reference_runs.layout import Layout, Recomputation
from reference_runs.run import LearningRateDecay, Moments, Optimizer
from suite.job.corpus import STANDARD_LIBRARY
from suite.report.export.job import ExportedJob
from suite.report.export.schedule import schedule_of
from suite.report.export.torchrun import lacking_words

_SCHEDULE = ("learning_rate_decay", "minimum_learning_rate", "warmup", "decay")
_SCHEDULED = ("megatron", "nemo", "torchtitan")
_TRAINS = {  # format -> its key of the learning rate
    "megatron": "--lr",
    "nemo": "lr of OptimizerConfig",
    "torchtitan": "lr of [optimizer]",
    "deepspeed": "optimizer.params.lr",
}
_INITIAL = ("init_std", "residual_init_scaled")
_DROPOUTS = ("embedding_dropout", "hidden_dropout", "attention_dropout")


def left_out(job: ExportedJob, export: str) -> list[str]:
    """Fields that the format does not write, each with its value; without those that the software implies.

    Args:
        export: megatron, nemo, torchtitan, deepspeed, torchrun, or another, which writes everything.
    """
    writers = {
        "megatron": _of_megatron,
        "nemo": _of_nemo,
        "torchtitan": _of_torchtitan,
        "deepspeed": _of_deepspeed,
        "torchrun": _of_torchrun,
    }
    return list(writers[export](job)) if export in writers else []


def remarks(job: ExportedJob, export: str) -> list[str]:
    """Sentences on the file: what it leaves out, what is to fill in, where its schedule differs from the record."""
    found = left_out(job, export)
    sentences = [f"not in the file: {', '.join(found)}"] if found else []
    if export in _TRAINS and job.recorded("learning_rate") is None:
        sentences.append(f"to fill in: {_TRAINS[export]}, which the run file leaves out")
    if export == "torchrun":
        sentences += _remarks_of_torchrun(job)
    if export in _SCHEDULED:
        sentences += schedule_of(job).remarks
    if export == "torchtitan" and (decay := schedule_of(job).decay) is not None and job.steps_of(decay) < job.steps:
        sentences.append("learning rate: torchtitan has no constant minimum, so that its decay ends with the training")
    return sentences


def comment(job: ExportedJob, export: str) -> str:
    """The sentences as lines of a script; empty where there are none."""
    return "".join(f"# {words[0].upper()}{words[1:]}\n" for words in remarks(job, export))


def _of_megatron(job: ExportedJob) -> Iterator[str]:
    layout = job.workload.layout
    yield from _named(job, ["embedding_gradient_shrink"])
    yield from _moments(job)
    yield from _coupled_decay(job)
    if job.recorded("decay_of_vectors") is True:
        yield "weight decay of vectors: it decays matrices alone"
    if job.recorded("residual_init_scaled") is False:
        yield "residual_init_scaled = false: it scales them"
    yield from _buckets(job)
    if layout.scatter_gather and layout.tensor_parallel > 1 < layout.pipeline_stages and not layout.sequence_parallel:
        yield "scatter_gather between stages"


def _of_nemo(job: ExportedJob) -> Iterator[str]:
    yield from _of_megatron(job)
    yield from _schedule_of_nemo(job)


def _schedule_of_nemo(job: ExportedJob) -> Iterator[str]:
    if not writes_cosine(job):
        yield from _named(job, _SCHEDULE)


def writes_cosine(job: ExportedJob) -> bool:
    """Whether the learning rate is one that CosineAnnealingScheduler describes."""
    known = all(job.recorded(key) is not None for key in _SCHEDULE)
    return known and job.recorded("learning_rate_decay") is LearningRateDecay.COSINE


def _of_torchtitan(job: ExportedJob) -> Iterator[str]:
    yield from _named(job, ["embedding_gradient_shrink", *_INITIAL])
    yield from _moments(job)
    if job.recorded("decay_of_vectors") is False:
        yield "decay_of_vectors = false: it decays vectors too"
    yield from _buckets(job)


def _of_deepspeed(job: ExportedJob) -> Iterator[str]:
    layout = job.workload.layout
    attention = "fused" if layout.fused_attention else "unfused"
    sequence = job.workload.architecture.sequence
    yield f"the model, which the script builds for {sequence} tokens with {attention} attention"
    if layout.recomputation is Recomputation.FULL:
        every = layout.checkpoint_layers
        yield f"calls of deepspeed.checkpointing.checkpoint for each group of layers (checkpoint_layers = {every})"
    yield f"the data, of which tokens = {job.tokens}"
    yield from _named(job, ["objective", *_SCHEDULE, *_INITIAL, "embedding_gradient_shrink", *_DROPOUTS])
    yield from _moments(job)
    if job.recorded("decay_of_vectors") is not None:
        yield f"decay_of_vectors = {str(job.recorded('decay_of_vectors')).lower()}"
    yield from _buckets(job)


def _of_torchrun(job: ExportedJob) -> Iterator[str]:
    """The command names the run, from which it has the recipe."""
    if not job.name.endswith(".toml"):
        batch = job.workload.recipe.global_batch
        yield f"the run's own sizes (its miniature is trained), and global_batch = {batch}"
    yield f"tokens = {job.tokens}: see --steps"


def _remarks_of_torchrun(job: ExportedJob) -> Iterator[str]:
    if job.nodes > 1:
        yield f"{job.nodes} nodes are started by Slurm (docs/slurm.md): the suite starts none without it"
    if found := lacking_words(job):
        vocabulary, words = found
        yield (
            f"to fill in: --corpus. The usual text, {STANDARD_LIBRARY}, has {words:,} distinct words, "
            f"and this vocabulary {vocabulary:,} tokens"
        )


def _named(job: ExportedJob, keys: Iterable[str]) -> Iterator[str]:
    for key in keys:
        value = job.recorded(key)
        if value is not None and not (key in _DROPOUTS and value == 0):
            yield f"{key} = {_text(value)}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:.6g}" if isinstance(value, float) else str(value)


def _moments(job: ExportedJob) -> Iterator[str]:
    if (rank := job.workload.recipe.adapter_rank) is not None:
        yield f"adapters of rank {rank}: all weights are trained"
    if (optimizer := job.recorded("optimizer")) in (Optimizer.SGD, Optimizer.MUON):
        yield f"optimizer = {optimizer}: it is AdamW"
    elif (moments := job.workload.recipe.moments) is not Moments.FP32:
        yield f"moments in {moments}"


def _coupled_decay(job: ExportedJob) -> Iterator[str]:
    if job.recorded("optimizer") is Optimizer.ADAM and job.recorded("weight_decay"):
        yield "optimizer = adam, whose weight decay goes through the moments: it is AdamW"


def _buckets(job: ExportedJob) -> Iterator[str]:
    layout = job.workload.layout
    if layout.bucket_bytes != Layout().bucket_bytes and layout.state_ranks > 1:
        yield f"buckets of {layout.bucket_bytes / 1e6:g} MB"
