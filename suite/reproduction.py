"""One reproduction: what is asked for becomes a job; the job is launched, recorded and compared."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from reference_runs.catalog import accumulation, check_layout, miniatures, reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout, Offload, Recomputation, Schedule, parse_layout
from reference_runs.placement import chunk_layers
from reference_runs.run import (
    BLANK_TOKENS,
    LEAST_WINDOW,
    Activation,
    Architecture,
    Mask,
    Norm,
    Objective,
    Position,
    Recipe,
    Residual,
)
from suite import store
from suite.arithmetic import kernels_for
from suite.compare import Row, Verdict, compare, overall
from suite.corpus import Corpus, tokenised_corpus
from suite.devices import resolved_device, usable_cores
from suite.figures import Figure, Quantity
from suite.job import (
    COUNTED_STEPS,
    Averaging,
    Event,
    Failed,
    Finished,
    Job,
    KernelChoice,
    Phase,
    Status,
    Step,
    warm_up_steps,
)
from suite.launch import Outcome, launch
from suite.machine_profile import Profile
from suite.measured import counted_figures, others_shares
from suite.miniature import DEFAULT_STEPS, in_batches, miniature
from suite.predict.executed_memory_figures import memory_figures
from suite.predict.executed_time_figures import time_figures
from suite.predict.parameters import parameter_count
from suite.predict.prediction import prediction
from suite.ramp_up import check_ramp_up
from suite.record import SCHEMA, End, RankOutcome, begin_record
from suite.residuals import Residuals, residuals
from suite.scaled_layout import scaled_layout
from suite.traces import checked_trace
from suite.utilisation import peaks, utilisation

COLLECTIVE_TIMEOUT_SECONDS = 900.0
LOSS_MUST_FALL_STEPS = 20
LOSS_MUST_FALL = 0.5
MOST_STEPS = 1_000_000  # a record keeps every step of every rank: 512 MB for 2 ranks
MOST_SEED = 2**32 - 1
OPTIMIZERS: tuple[str, ...] = ("adam", Averaging.ONE_BIT.value)  # adam: Adam or AdamW, as recorded
COMPRESSIONS: tuple[str, ...] = ("none", Averaging.FP16.value, Averaging.BF16.value, Averaging.POWER_SGD.value)
EXACT_SHARE = 0.15  # of the steps, as in Tang et al. 2021, arXiv 2102.02888, section 7
LEAST_EXACT_STEPS = 2  # PyTorch's PowerSGD averages the first two exactly, in which buckets are arranged
NUMBERS = {2: "two"}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for; None where nothing was said."""

    name: str
    ranks: int | None = None
    layout: str | None = None
    device: str = "auto"
    compiled: bool | None = None
    steps: int = DEFAULT_STEPS
    seed: int = 1
    kernels: str = KernelChoice.TORCH.value
    optimizer: str = OPTIMIZERS[0]
    gradient_compression: str = COMPRESSIONS[0]
    exact_steps: int | None = None
    corpus: Path | None = None
    trace: Path | None = None
    results: Path


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request: everything but the corpus. `learns`: the recipe is ours to scale, so its loss must fall."""

    name: str
    architecture: Architecture
    recipe: Recipe
    layout: Layout
    device: str
    compiled: bool
    steps: int
    seed: int
    learns: bool = False
    trace: Path | None = None
    kernels: KernelChoice = KernelChoice.TORCH
    averaging: Averaging = Averaging.EXACT
    exact_steps: int = 0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One launch, its record and its comparison; no rows where it did not end well.

    Args:
        loss_scales: of each step, where the precision needs one.
        skipped: numbers of the steps that an overflow skipped.
        profile: path of the machine profile, or why there is none.
        time: the step time beside its prediction, where there is one.
        others_share, steal_share: see `End`.
    """

    run: str
    status: Status
    verdict: Verdict
    message: str
    record: str
    rows: list[Row]
    losses: list[float]
    loss_scales: list[float]
    skipped: list[int]
    arithmetic: str
    profile: str = ""
    time: Residuals | None = None
    others_share: float | None = None
    steal_share: float | None = None


def plan(request: Request) -> Plan:
    """The checked plan for a request.

    Raises:
        InputError: unknown name, broken file, bad layout, ranks, steps, seed or device, or no place for a trace.
    """
    if request.ranks is not None and request.ranks < 1:
        raise InputError("ranks", got=request.ranks, allowed="1 or more", where="--ranks")
    averaging, exact_steps = checked_averaging(request)
    first = warm_up_steps(exact_steps)
    if request.steps < (least := first + COUNTED_STEPS + 1):
        raise InputError(
            f"too few steps: {NUMBERS.get(first, first)} warm up, three are counted, the rest is timed",
            got=request.steps,
            allowed=f"{least} or more",
            where="--steps",
        )
    if request.steps > MOST_STEPS:
        raise InputError("too many steps", got=request.steps, allowed=f"at most {MOST_STEPS}", where="--steps")
    if not 0 <= request.seed <= MOST_SEED:
        raise InputError("seed out of range", got=request.seed, allowed=f"0 to {MOST_SEED}", where="--seed")
    minis = miniatures()
    is_file = request.name.endswith(".toml")
    if not is_file and request.name not in minis:
        raise InputError(
            "unknown run", got=repr(request.name), allowed=", ".join(minis) + ", or a run file ending in .toml"
        )
    run = reference_run(request.name if is_file else minis[request.name])
    device, default_ranks = resolved_device(request.device)
    if is_file:
        name, architecture, recipe, base = run.name, run.architecture, run.recipe, run.layout
        default_ranks = base.ranks
    else:
        ranks = default_ranks if request.ranks is None else request.ranks
        small = miniature(run, device, ranks=ranks, steps=request.steps)
        name, architecture, recipe, base = small.name, small.architecture, small.recipe, small.layout
    layout = _layout(request, architecture, base, default_ranks)
    if averaging is not Averaging.EXACT and request.layout is None:
        layout = msgspec.structs.replace(layout, zero_stage=0)  # every rank needs the whole momentum or gradient
    if averaging is Averaging.POWER_SGD and device == "cpu":
        # PyTorch's hook waits for messages in gloo's threads: two buckets can take both and wait for each other
        layout = msgspec.structs.replace(layout, bucket_bytes=4 * parameter_count(architecture))
    where = "--layout" if request.layout else run.where if is_file and request.ranks is None else "--ranks"
    if not is_file:
        recipe = in_batches(recipe, run, device, layout, steps=request.steps)
    _check_executable(architecture, recipe, run.where)
    check_layout(architecture, recipe, layout, where)
    _check_executable_layout(architecture, recipe, layout, where)
    check_ramp_up(recipe, layout, run.where)
    _check_averaging(averaging, recipe, layout, device)
    if device == "cuda" and layout.ranks > (available := resolved_device("cuda")[1]):
        raise InputError("more ranks than GPUs", got=layout.ranks, allowed=f"at most {available}", where="--ranks")
    trace = request.trace
    if trace is not None:
        trace = checked_trace(trace, ranks=layout.ranks, device=device, steps=request.steps)
    return Plan(
        name=name,
        architecture=architecture,
        recipe=recipe,
        layout=layout,
        device=device,
        compiled=device == "cuda" if request.compiled is None else request.compiled,
        steps=request.steps,
        seed=request.seed,
        learns=not is_file,
        trace=trace,
        kernels=checked_kernels(request.kernels),
        averaging=averaging,
        exact_steps=exact_steps,
    )


def checked_averaging(request: Request) -> tuple[Averaging, int]:
    """How gradients are averaged, and the steps that average exactly before: 15 % of all, where nothing is said.

    Raises:
        InputError: an unknown word, both an optimizer and a compression of gradients, or too few or many exact steps.
    """
    for what, got, words, where in (
        ("optimizer", request.optimizer, OPTIMIZERS, "--optimizer"),
        ("gradient compression", request.gradient_compression, COMPRESSIONS, "--gradient-compression"),
    ):
        if got not in words:
            raise InputError(f"unknown {what}", got=repr(got), allowed=", ".join(words), where=where)
    compression = request.gradient_compression
    if request.optimizer == Averaging.ONE_BIT:
        if compression != COMPRESSIONS[0]:
            raise InputError(
                "1-bit Adam does not average gradients", got=compression, allowed="none", where="--gradient-compression"
            )
        averaging = Averaging.ONE_BIT
    else:
        averaging = Averaging.EXACT if compression == COMPRESSIONS[0] else Averaging(compression)
    asked = request.exact_steps
    if not averaging.exact_at_first:
        if asked is not None:
            raise InputError(
                "exact steps before what never changes",
                got=asked,
                allowed="with --optimizer one-bit-adam or --gradient-compression powersgd",
                where="--exact-steps",
            )
        return averaging, 0
    steps = max(LEAST_EXACT_STEPS, round(EXACT_SHARE * request.steps)) if asked is None else asked
    if not LEAST_EXACT_STEPS <= steps < max(request.steps, LEAST_EXACT_STEPS + 1):
        allowed = f"{LEAST_EXACT_STEPS} or more, and fewer than --steps"
        raise InputError("exact steps out of range", got=steps, allowed=allowed, where="--exact-steps")
    return averaging, steps


def _check_averaging(averaging: Averaging, recipe: Recipe, layout: Layout, device: str) -> None:
    """Refuse a way of averaging that does not go with the rest.

    Raises:
        InputError: it does not.
    """
    if averaging is Averaging.EXACT:
        return
    name = averaging.value
    for wrong, what, got, allowed in (
        (layout.data_parallel == 1, f"{name} without data-parallel ranks to average over", "dp1", "dp2 or more"),
        (layout.zero_stage > 0, f"{name} with state that is sharded over ranks", f"zero{layout.zero_stage}", "zero0"),
        (
            averaging is Averaging.POWER_SGD and recipe.precision.scaled,
            "powersgd of fp16 gradients, whose factors need fp32",
            recipe.precision.value,
            "bf16, fp32",
        ),
        (averaging is Averaging.BF16 and device == "cpu", "bf16 without NCCL (PyTorch's hook)", device, "cuda"),
    ):
        if wrong:
            raise InputError(what, got=got, allowed=allowed, where="--optimizer, --gradient-compression, --layout")


def checked_kernels(kernels: str) -> KernelChoice:
    """The kernels that were asked for.

    Raises:
        InputError: an unknown word, or Triton where it is not installed.
    """
    if kernels not in list(KernelChoice):
        raise InputError("unknown kernels", got=repr(kernels), allowed=", ".join(KernelChoice), where="--kernels")
    if kernels == KernelChoice.TRITON and importlib.util.find_spec("triton") is None:
        raise InputError("kernels without Triton", got="it is not installed", allowed="torch", where="--kernels")
    return KernelChoice(kernels)


def _layout(request: Request, architecture: Architecture, base: Layout, default_ranks: int) -> Layout:
    if request.layout is not None:
        layout = parse_layout(request.layout, base=base)
        if request.ranks is not None and layout.ranks != request.ranks:
            raise InputError(
                f"--layout {request.layout} is {layout.ranks} ranks", got=f"--ranks {request.ranks}", where="--ranks"
            )
        return layout
    ranks = default_ranks if request.ranks is None else request.ranks
    if ranks == base.ranks:
        return base
    return scaled_layout(base, architecture, ranks=ranks)


_EXECUTED = {
    "architecture.norm": (Norm.PRE_LAYER_NORM, Norm.DEEP_NORM),
    "architecture.activation": tuple(activation for activation in Activation if activation is not Activation.SWIGLU),
}


def _check_executable(architecture: Architecture, recipe: Recipe, where: str) -> None:
    """Refuse an architecture or recipe that this version describes but does not execute."""
    records = {"architecture": architecture, "recipe": recipe}
    for key, executed in _EXECUTED.items():
        section, name = key.split(".")
        if (value := getattr(records[section], name)) not in executed:
            allowed = ", ".join(str(choice) for choice in executed)
            raise InputError(f"this version does not execute that {key}", got=value, allowed=allowed, where=where)
    if recipe.precision.scaled and (recipe.initial_loss_scale is None or recipe.loss_scale_window is None):
        raise InputError(
            f"{recipe.precision.value} is executed with a dynamic loss scale, and the file does not record one",
            allowed="recipe.initial_loss_scale and recipe.loss_scale_window",
            where=where,
        )
    if architecture.kv_heads != architecture.heads:
        raise InputError(
            "this version does not execute grouped-query attention",
            got=f"{architecture.kv_heads} architecture.kv_heads",
            allowed=f"as many as heads, {architecture.heads}",
            where=where,
        )
    _check_combination(architecture, recipe, where)


def _check_combination(architecture: Architecture, recipe: Recipe, where: str) -> None:
    """Refuse what is executed in some architectures in one where it is not."""
    a = architecture
    blanks = recipe.objective is Objective.BLANK_INFILLING
    short = 0 if recipe.packed_samples is None else LEAST_WINDOW * recipe.packed_samples
    for wrong, what, got, allowed in (
        (
            a.norm is Norm.DEEP_NORM and (a.residual is Residual.PARALLEL or a.top_query_layer),
            "deep-norm in that block",
            f"{a.residual.value} architecture.residual, top_query_layer {a.top_query_layer}",
            "sequential, False",
        ),
        (
            a.top_query_layer and a.position is not Position.LEARNED,
            "a top-query layer with those positions",
            a.position.value,
            Position.LEARNED.value,
        ),
        (
            blanks != (a.mask is Mask.PREFIX),
            "that recipe.objective with that mask",
            f"{recipe.objective.value} with {a.mask.value}",
            "causal-lm with causal, blank-infilling with prefix",
        ),
        (blanks and a.position is not Position.ROTARY, "blank infilling with those positions", a.position, "rotary"),
        (
            blanks and a.padded_vocabulary < a.vocabulary + len(BLANK_TOKENS),
            "blank infilling without rows for its special tokens",
            f"{a.padded_vocabulary} architecture.padded_vocabulary",
            f"at least {a.vocabulary + len(BLANK_TOKENS)}",
        ),
        (
            blanks and a.sequence < short,
            "blank infilling in so short windows",
            f"{a.sequence} architecture.sequence",
            f"at least {short}",
        ),
    ):
        if wrong:
            raise InputError(f"this version does not execute {what}", got=got, allowed=allowed, where=where)


def _check_executable_layout(architecture: Architecture, recipe: Recipe, layout: Layout, where: str) -> None:
    """Refuse a layout that this version describes but does not execute."""
    micro_batches = accumulation(recipe, layout)
    refused = {
        f"cp{layout.context_parallel}": layout.context_parallel > 1,
        f"sp with tp{layout.tensor_parallel}": layout.sequence_parallel and layout.tensor_parallel == 1,
        f"recompute-{layout.recomputation}": layout.recomputation is Recomputation.FROM_INPUT,
        layout.schedule.value: layout.schedule not in (Schedule.GPIPE, Schedule.ONE_F_ONE_B),
        # PyTorch's schedules accumulate whole gradients over the micro-batches where stages are fully sharded
        f"zero{layout.zero_stage} with pp{layout.pipeline_stages}": layout.zero_stage > 1
        and layout.pipeline_stages > 1,
        "fused attention": layout.fused_attention,
        "partitioned checkpoints": layout.partitioned_checkpoints and layout.tensor_parallel > 1,
        "scatter-gather": layout.scatter_gather and layout.tensor_parallel > 1,
        f"{micro_batches} micro-batches, 1f1b, pp{layout.pipeline_stages}": layout.schedule is Schedule.ONE_F_ONE_B
        and micro_batches < layout.pipeline_stages,
        "a top-query layer apart from the head": architecture.top_query_layer
        and not chunk_layers(architecture.layers, layout)[-1],
        f"offload {layout.offload} with zero{layout.zero_stage}": layout.offload is not Offload.NONE
        and (layout.offload is not Offload.STATE or layout.zero_stage < 2),
    }
    for word, is_asked in refused.items():
        if is_asked:
            raise InputError(
                "this version does not execute that layout",
                got=word,
                allowed="dpN, tpN, sp with tpN, ppN, interleaveN, gpipe, 1f1b, "
                "zero0/1, zero2/3 without ppN, reshard, noreshard, offload with zero2/3, "
                "recompute-none/selective/full, everyN, microN, accumulateN, bucketN",
                where=where,
            )


def corpus_for(plan: Plan, path: Path | None) -> Corpus:
    """The tokens that the plan trains on (see `suite.corpus.tokenised_corpus`)."""
    return tokenised_corpus(
        path,
        vocabulary=plan.architecture.vocabulary,
        least_tokens=plan.recipe.global_batch * plan.architecture.sequence + 1,
    )


def reproduce(
    plan: Plan,
    corpus: Corpus,
    results: Path,
    on_event: Callable[[int, Event], None],
    *,
    profile: Profile | None = None,
    profile_source: str = "",
) -> Result:
    """Launch the plan once, keep its record below `results`, and compare it with the prediction.

    Args:
        profile: what this machine was measured to do; None where nothing valid is known.
        profile_source: its path, or why there is none.

    Raises:
        InputError: the results directory cannot be written.
        StoreFullError: the record could not be written.
    """
    directory = store.records_directory(results, plan.name)
    identity = store.new_identity()
    with tempfile.TemporaryDirectory(prefix="suite-", ignore_cleanup_errors=True) as scratch:
        job = job_for(plan, corpus, scratch)
        (Path(scratch) / "job.json").write_bytes(msgspec.json.encode(job))
        opened = store.Opened(directory, begin_record(job, corpus, identity))
        try:
            outcome = launch(job, identity, on_event)
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            status = Status.INTERRUPTED if interrupted else Status.CRASHED
            opened.close(_end(identity, status, f"the launcher ended: {type(error).__name__}", [], []))
            raise
        figures: list[Figure] = []
        times: list[Figure] = []
        if outcome.status is Status.OK:
            steps = [[e for e in events if isinstance(e, Step)] for events in outcome.events]
            figures = countable(plan, counted_figures(job, outcome.finished, steps))
            try:
                times, figures = with_time(plan, profile, figures)
            except InputError as error:  # the run's own shapes or precision, which no calibration covers
                profile_source = f"{profile_source}: step time is not predicted: {error}"
        end = _end(identity, outcome.status, outcome.message, outcome.ranks_at_fault, figures, outcome=outcome)
        others = others_shares(outcome.finished) if outcome.status is Status.OK else None
        others_share, steal_share = others or (None, None)
        opened.close(
            msgspec.structs.replace(
                end, predicted=times, profile=profile_source, others_share=others_share, steal_share=steal_share
            )
        )
    rows: list[Row] = []
    if outcome.status is Status.OK:
        alone = plan.device == "cuda" or plan.layout.ranks <= usable_cores()
        predicted = prediction(
            plan.architecture,
            plan.recipe,
            plan.layout,
            compiled=plan.compiled,
            own_processors=alone,
            averaging=plan.averaging,
        )
        predicted = countable(plan, predicted)
        kernels = kernels_for(plan.recipe.precision, plan.device)
        if plan.kernels is KernelChoice.TORCH:  # what Triton's keep and need is not described
            memory = memory_figures(plan.architecture, plan.recipe, plan.layout, kernels)
            # nor what other ways of averaging take in passing
            exact = plan.averaging is Averaging.EXACT
            predicted += [figure for figure in memory if exact or figure.quantity is not Quantity.PEAK_BYTES]
        predicted += times
        rows = compare(predicted, figures, left_name="predicted", right_name="measured", judge=True)
    ran = [event for event in outcome.events[0] if isinstance(event, Step)]
    losses = [step.loss for step in ran]
    verdict, message = overall(rows), outcome.message
    if outcome.status is Status.OK and plan.learns and not loss_fell(losses):
        verdict = Verdict.FAIL
        message = (
            f"the loss did not fall: {losses[0]:.3f} at first, {last_loss(losses):.3f} at last, "
            f"at least {LOSS_MUST_FALL} less expected"
        )
    return Result(
        run=plan.name,
        status=outcome.status,
        verdict=verdict if outcome.status is Status.OK else Verdict.FAIL,
        message=message,
        record=str(opened.path),
        rows=rows,
        losses=losses,
        loss_scales=[step.loss_scale for step in ran if step.loss_scale is not None],
        skipped=[step.step for step in ran if step.skipped],
        arithmetic=outcome.finished[0].arithmetic if outcome.finished else "",
        profile=profile_source,
        time=residuals(rows),
        others_share=others_share,
        steal_share=steal_share,
    )


def countable(plan: Plan, figures: list[Figure]) -> list[Figure]:
    """The figures that can be counted in this run: all, but with PowerSGD.

    PyTorch's hook multiplies and sends in the threads in which its messages end, where no counter looks: what it sends
    shows on a network interface alone, in `sent_bytes`.
    """
    if plan.averaging is not Averaging.POWER_SGD:
        return figures
    hidden = {(Quantity.PAYLOAD_BYTES, "dp"), (Quantity.MESSAGES, "dp"), (Quantity.HARDWARE_FLOP, None)}
    return [figure for figure in figures if (figure.quantity, figure.axis) not in hidden]


def with_time(plan: Plan, profile: Profile | None, measured: list[Figure]) -> tuple[list[Figure], list[Figure]]:
    """Predicted step time with its terms and rates, and the measured figures with their shares of peaks.

    Without a profile nothing is predicted.

    Raises:
        InputError: the profile lacks an operation, or has no times of the kernels.
    """
    if profile is None:
        return [], measured
    if plan.kernels is not KernelChoice.TORCH:
        raise InputError("kernels without a measured time", got=plan.kernels, allowed="torch", where="--kernels")
    if plan.averaging is not Averaging.EXACT:
        where = "--optimizer, --gradient-compression"
        raise InputError("averaging without a measured time", got=plan.averaging, allowed="exact", where=where)
    kernels = kernels_for(plan.recipe.precision, plan.device)
    times = time_figures(profile, plan.architecture, plan.recipe, plan.layout, kernels=kernels, compiled=plan.compiled)
    shares_of = peaks(profile, plan.recipe.precision, ranks=plan.layout.ranks)
    return times + utilisation(times, shares_of), measured + utilisation(measured, shares_of)


def loss_fell(losses: list[float]) -> bool:
    """Whether training learned: the last loss is below the first by 0.5 nats a token or more.

    Runs of fewer than 20 steps are not judged.
    """
    return len(losses) < LOSS_MUST_FALL_STEPS or last_loss(losses) <= losses[0] - LOSS_MUST_FALL


def last_loss(losses: list[float]) -> float:
    """Mean loss of the last 3 steps."""
    return sum(losses[-3:]) / len(losses[-3:])


def job_for(plan: Plan, corpus: Corpus, scratch: str) -> Job:
    """The job that the ranks read, with `scratch` as the directory of their events."""
    return Job(
        name=plan.name,
        architecture=plan.architecture,
        recipe=plan.recipe,
        layout=plan.layout,
        device=plan.device,
        compiled=plan.compiled,
        seed=plan.seed,
        steps=plan.steps,
        tokens_file=corpus.tokens_file,
        tokens=corpus.tokens,
        directory=scratch,
        threads=max(1, usable_cores() // plan.layout.ranks),
        collective_timeout_seconds=COLLECTIVE_TIMEOUT_SECONDS,
        trace=None if plan.trace is None else str(plan.trace),
        kernels=plan.kernels,
        averaging=plan.averaging,
        exact_steps=plan.exact_steps,
    )


def _end(
    identity: str,
    status: Status,
    message: str,
    faulty: list[int],
    figures: list[Figure],
    *,
    outcome: Outcome | None = None,
) -> End:
    ranks = [] if outcome is None else [_rank_outcome(n, events) for n, events in enumerate(outcome.events)]
    return End(
        schema=SCHEMA,
        id=identity,
        status=status,
        message=message,
        ranks_at_fault=faulty,
        finished=time.time(),
        figures=figures,
        ranks=ranks,
        log_tail=outcome.log_tail if outcome else "",
    )


def _rank_outcome(rank: int, events: list[Event]) -> RankOutcome:
    finished = next((event for event in events if isinstance(event, Finished)), None)
    failed = next((event for event in events if isinstance(event, Failed)), None)
    steps = [event for event in events if isinstance(event, Step)]
    phases = [event.name for event in events if isinstance(event, Phase)]
    last = f"step {steps[-1].step} done" if steps else (phases[-1] if phases else "not started")
    return RankOutcome(
        rank=rank,
        steps=steps,
        last="finished" if finished else last,
        environment=finished.environment if finished else {},
        arithmetic=finished.arithmetic if finished else "",
        failure=failed.traceback if failed else "",
    )
