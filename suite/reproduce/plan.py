"""Checks a reproduction: a request becomes a plan, and a plan with its corpus a job."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import msgspec

from reference_runs.catalog import check_layout, miniatures, reference_run, run_names
from reference_runs.errors import InputError, Mistakes
from reference_runs.incomplete import check_whole
from reference_runs.layout import Layout, layout_text, parse_layout
from reference_runs.miniature import in_batches, miniature, scaled_layout
from reference_runs.named_runs import meant_run
from reference_runs.run import Architecture, Recipe, ReferenceRun, Workload
from suite.job.checkpoints import Checkpoints
from suite.job.corpus import Corpus, tokenised_corpus
from suite.job.options import DEFAULT_OPTIONS, Averaging, KernelChoice, StepOptions, TrainingOptions
from suite.job.slice import Slice
from suite.job.synchronisation import SlowRank, Synchronisation
from suite.job.trace_job import TraceJob
from suite.job.training_job import COUNTED_STEPS, Job, warm_up_steps
from suite.launch.network_namespaces import INTERFACE
from suite.machine.devices import cuda_device_list, resolved_device, usable_cores
from suite.machine.half_precision import kernels_for
from suite.metrics.figures import Figure
from suite.predict.analytic.parameters import parameter_count
from suite.predict.simulation.launched_options import device_options
from suite.predict.simulation.optimizations import PlannedLaunch
from suite.records.record import shared_fields
from suite.reproduce.checked_checkpoints import checked_checkpoints
from suite.reproduce.checked_options import (
    check_no_slice,
    checked_averaging,
    checked_products,
    checked_renewal,
    checked_synchronisation,
    checked_trace,
    of_global_batch,
)
from suite.reproduce.device_memory import check_device_memory
from suite.reproduce.device_use import checked_compilation, checked_kernels, checked_optimizations, checked_sharing
from suite.reproduce.request import Request
from suite.reproduce.scheduled import Scheduled, scheduled
from suite.reproduce.supported import (
    check_averaging,
    check_executable,
    check_executable_layout,
    check_fused_attention,
    check_grouped_queries,
    check_kernels,
    check_products,
    check_ramp_up,
    check_replicas,
)

COLLECTIVE_TIMEOUT_SECONDS = 900.0
MOST_STEPS = 1_000_000  # a record keeps every step of every rank: 512 MB for 2 ranks
MOST_LAUNCHES = 1000  # of a command: about a day of the shortest ones
MOST_SEED = 2**32 - 1


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request: everything but the corpus.

    Args:
        learns: whether this is a miniature, whose recipe the suite chose; its loss must fall.
        hosts: number of hosts with one rank each; 1: all ranks are on this machine.
        host_names: hosts that are reached by ssh; empty: network namespaces of this machine.
        interface: network interface of each host; None: the backend chooses.
        changes: what the suite chose that the request did not say, in words.
        shares_devices: whether there are more ranks than GPUs.
        slice: of which recorded run it is a slice; None: it is a whole run.
        synchronisation, slow_ranks: of workers at a parameter store (see `Job`).
        scheduled: nodes of a scheduler; None: none is asked.
        checkpoints: where they lie; None: none is stored or loaded.
        model: see `Job`; `expected` are the figures that its traces expect.
    """

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
    renewal: bool = False
    training_options: TrainingOptions = DEFAULT_OPTIONS
    hosts: int = 1
    host_names: tuple[str, ...] = ()
    interface: str | None = None
    changes: tuple[str, ...] = ()
    shares_devices: bool = False
    slice: Slice | None = None
    synchronisation: Synchronisation | None = None
    slow_ranks: tuple[SlowRank, ...] = ()
    scheduled: Scheduled | None = None
    checkpoints: Checkpoints | None = None
    model: TraceJob | None = None
    expected: tuple[Figure, ...] = ()

    @property
    def ranks(self) -> int:
        """Processes of the launch."""
        return self.layout.ranks if self.slice is None else len(self.slice.places)

    @property
    def workload(self) -> Workload:
        """Architecture, recipe and layout."""
        return Workload(self.architecture, self.recipe, self.layout)

    @property
    def step_options(self) -> StepOptions:
        """How its steps are executed on this machine."""
        kernels = kernels_for(self.recipe.precision, self.device)
        return StepOptions(
            kernels=kernels, compiled=self.compiled, training_options=self.training_options, averaging=self.averaging
        )

    @property
    def joined_by(self) -> str | None:
        """The interface by which messages leave: of namespaces the one that they are made with."""
        return INTERFACE if self.hosts > 1 and not self.host_names else self.interface


class _NamedRun(NamedTuple):
    """The subject of a request: a run in its own size, or a miniature of one.

    Args:
        workload: in the recorded layout, or the miniature's for the ranks asked for.
        ranks: where the request gives none.
        usual_batch: samples of a step with that many ranks.
    """

    run: ReferenceRun
    name: str
    workload: Workload
    ranks: int
    usual_batch: int
    is_miniature: bool


def plan(request: Request) -> Plan:
    """The checked plan for a request.

    Raises:
        InputError: unknown name, damaged file, bad layout, ranks, steps, seed or device, a trace that cannot be
            written, or more memory needed than a GPU has.
    """
    check_no_slice(request)
    request, nodes = scheduled(request)
    averaging, exact_steps = checked_averaging(request)
    check_numbers(request, first=warm_up_steps(exact_steps))
    subject, device = _subject(request)
    architecture, recipe, _ = subject.workload
    layout = _averaged(averaging, _layout(request, subject), architecture, request, device)
    if subject.is_miniature:
        recipe = in_batches(recipe, subject.run, device, layout, steps=request.steps)
    if request.global_batch is not None:
        recipe, layout = of_global_batch(request.global_batch, recipe, layout)
    if request.products is not None:
        recipe = msgspec.structs.replace(recipe, product_format=checked_products(request.products))
    workload = Workload(architecture, recipe, layout)
    _check_executable(request, subject, workload, device)
    ranks_here = layout.ranks if nodes is None else nodes.ranks_of_node
    shares_devices, shared = checked_sharing(
        request.share_devices, device, ranks=ranks_here, devices=resolved_device(device)[1]
    )
    synchronisation, slow_ranks = checked_synchronisation(request, workload, averaging, shares_devices=shares_devices)
    check_averaging(averaging, workload, "cpu" if shares_devices else device)  # gloo's, not NCCL's
    compiled, eager = checked_compilation(request.compiled, device, layout)
    kernels = checked_kernels(request.kernels, device)
    check_kernels(workload.architecture, layout, kernels)
    launch = PlannedLaunch(workload, device, compiled, kernels, kernels_for(workload.recipe.precision, device).gpu)
    optimizations, plain = checked_optimizations(request.optimizations, launch)
    checked = Plan(
        name=subject.name,
        architecture=architecture,
        recipe=recipe,
        layout=layout,
        device=device,
        compiled=compiled,
        steps=request.steps,
        seed=request.seed,
        learns=subject.is_miniature,
        trace=request.trace
        and checked_trace(request.trace, ranks=layout.ranks, device=device, steps=request.steps, force=request.force),
        kernels=kernels,
        averaging=averaging,
        exact_steps=exact_steps,
        renewal=checked_renewal(request, averaging, exact_steps),
        training_options=device_options(
            workload, device, compiled=compiled, kernels=kernels, optimizations=optimizations
        ),
        changes=(*_changes(request, subject, workload), *shared, *eager, *plain),
        shares_devices=shares_devices,
        synchronisation=synchronisation,
        slow_ranks=slow_ranks,
        scheduled=nodes,
        checkpoints=checked_checkpoints(request, averaging),
    )
    if device == "cuda" and (devices := cuda_device_list()):
        ranks_of_device = math.ceil(ranks_here / len(devices))  # more than one where they are shared
        smallest = min(each.memory_bytes for each in devices) // ranks_of_device
        where = "--layout" if request.layout else subject.name
        check_device_memory(workload, checked.step_options, kernels, memory_bytes=smallest, where=where)
    return checked


def check_numbers(request: Request, *, first: int) -> None:
    """Refuse ranks, steps and seeds out of range; the `first` steps warm up."""
    if request.ranks is not None and request.ranks < 1:
        raise InputError("ranks", got=request.ranks, allowed="1 or more", where="--ranks")
    if request.steps < (least := first + COUNTED_STEPS + 1):
        what = f"too few steps: {first} warm up, {COUNTED_STEPS} are counted, the rest is timed"
        raise InputError(what, got=request.steps, allowed=f"{least} or more", where="--steps")
    if request.steps > MOST_STEPS:
        raise InputError("too many steps", got=request.steps, allowed=f"at most {MOST_STEPS}", where="--steps")
    check_seed(request.seed)


def check_seed(seed: int) -> None:
    """Refuse a seed that PyTorch's and NumPy's generators do not both take."""
    if not 0 <= seed <= MOST_SEED:
        raise InputError("seed out of range", got=seed, allowed=f"0 to {MOST_SEED}", where="--seed")


def _subject(request: Request) -> tuple[_NamedRun, str]:
    """The subject of the request, and the device that it runs on."""
    minis = miniatures()
    is_file = request.run.endswith(".toml")
    is_whole = is_file or request.run in run_names()
    if not is_whole and request.run not in minis:
        allowed = ", ".join(minis) + ", on a GPU a recorded run (see `runs`), or a run file ending in .toml"
        meant = meant_run(request.run, [*minis, *run_names()])
        raise InputError("unknown run", got=repr(request.run), meant=meant, allowed=allowed)
    run = reference_run(request.run if is_whole else minis[request.run])
    check_whole(run, needs_layout=is_whole and not request.mini and request.layout is None)
    device, device_ranks = resolved_device(request.device)
    if request.mini or not is_whole:
        return _miniature_of(run, request, device, device_ranks), device
    if not is_file and device != "cuda":
        allowed = f"--device cuda, or {run.miniature or '--mini'}"
        raise InputError("a recorded run in its own size", got=device, allowed=allowed, where=run.name)
    workload = Workload(run.architecture, run.recipe, run.recorded_layout or Layout())
    return _NamedRun(run, run.name, workload, workload.layout.ranks, run.recipe.global_batch, False), device


def _miniature_of(run: ReferenceRun, request: Request, device: str, device_ranks: int) -> _NamedRun:
    """The miniature of a run on the ranks that are asked for.

    Raises:
        InputError: a run file whose miniature has the name of a recorded run's, below which its records would stand.
    """
    usual = miniature(run, device, ranks=device_ranks, steps=request.steps)
    if request.run.endswith(".toml") and miniatures().get(usual.name, run.name) != run.name:
        what = f"its miniature would be called {usual.name}, as that of {miniatures()[usual.name]}"
        raise InputError(what, allowed="another file name, or another `miniature`", where=run.where)
    small = usual if request.ranks is None else miniature(run, device, ranks=request.ranks, steps=request.steps)
    return _NamedRun(run, small.name, small.workload, device_ranks, usual.recipe.global_batch, True)


def _averaged(
    averaging: Averaging, layout: Layout, architecture: Architecture, request: Request, device: str
) -> Layout:
    """The layout as a way of averaging needs it."""
    asynchronous = request.synchronisation is not None or not layout.flushes
    unsaid = request.layout is None or (asynchronous and "zero" not in request.layout)
    if (averaging is not Averaging.EXACT or asynchronous) and unsaid:
        layout = msgspec.structs.replace(layout, zero_stage=0)  # every rank needs the whole momentum or gradient
    if averaging is Averaging.POWER_SGD and device == "cpu":
        # PyTorch's hook waits for messages in gloo's threads: two buckets can take both and wait for each other
        layout = msgspec.structs.replace(layout, bucket_bytes=4 * parameter_count(architecture))
    return layout


def _check_executable(request: Request, subject: _NamedRun, workload: Workload, device: str) -> None:
    """Refuse what this version, or this machine, does not execute, with all that speaks against it."""
    architecture, recipe, layout = workload
    run = subject.run
    is_recorded = not subject.is_miniature and request.ranks is None
    where = "--layout" if request.layout else run.where if is_recorded else "--ranks"
    mistakes = Mistakes()
    with mistakes.collected():
        check_executable(architecture, recipe, run.where)
    with mistakes.collected():  # what cannot be divided has no other reason
        check_layout(workload, where)
        check_executable_layout(workload, where)
        check_fused_attention(recipe, layout, device, where)
        check_replicas(layout, device, where)
        check_grouped_queries(architecture, recipe, layout, device, where)
        check_ramp_up(recipe, layout, run.where)
        gpus = [each.gpu for each in cuda_device_list()] if device == "cuda" else []
        check_products(workload, device, gpus, "--gemm-dtype" if request.products else run.where)
    mistakes.refuse()


def _changes(request: Request, subject: _NamedRun, workload: Workload) -> tuple[str, ...]:
    """Choices of the suite that change the losses or the layout of a run, and that the request does not say."""
    layout, batch, usual = workload.layout, workload.recipe.global_batch, subject.workload.layout
    shared = " * ep" if layout.expert_parallel > 1 else ""
    changes = []
    if not subject.is_miniature and request.layout is None and layout.ranks != usual.ranks:
        changes.append(f"layout of {usual.ranks} ranks scaled to {layout_text(layout)}")
    if request.global_batch not in (None, subject.usual_batch):
        usual_batch = f"{subject.usual_batch} as usual"
        changes.append(f"global batch {batch} samples ({usual_batch}); losses of the two do not compare")
    elif batch != subject.usual_batch:
        changes.append(
            f"global batch {batch} samples ({subject.usual_batch} with {subject.ranks} ranks as usual): a multiple of "
            f"{layout.replicas} (dp{shared}) * {layout.micro_batch} (micro-batch); losses of the two do not compare"
        )
    return tuple(changes)


def _layout(request: Request, subject: _NamedRun) -> Layout:
    """The layout asked for, or that of the subject for the ranks asked for."""
    usual = subject.workload.layout
    if request.layout is not None:
        layout = parse_layout(request.layout, base=usual)
        if request.ranks is not None and layout.ranks != request.ranks:
            what = f"--layout {request.layout} is {layout.ranks} ranks"
            raise InputError(what, got=f"--ranks {request.ranks}", where="--ranks")
        return layout
    ranks = subject.ranks if request.ranks is None else request.ranks
    return usual if ranks == usual.ranks else scaled_layout(usual, subject.workload.architecture, ranks=ranks)


def corpus_for(plan: Plan, path: Path | None) -> Corpus:
    """The tokens that the plan trains on (see `suite.job.corpus.tokenised_corpus`)."""
    return tokenised_corpus(
        path,
        vocabulary=plan.architecture.vocabulary,
        least_tokens=plan.recipe.global_batch * plan.architecture.sequence + 1,
    )


def _machines(plan: Plan) -> int:
    """How many machines share the plan's ranks."""
    return max(1, len(plan.host_names)) if plan.scheduled is None else plan.scheduled.nodes


_OF_PLAN = shared_fields(Plan, Job, "trace", "interface", "checkpoints")


def job_for(plan: Plan, corpus: Corpus, scratch: str) -> Job:
    """The job that the ranks read, with `scratch` as the directory of their events."""
    return Job(
        **{name: getattr(plan, name) for name in _OF_PLAN},
        tokens_file=corpus.tokens_file,
        tokens=corpus.tokens,
        directory=scratch,
        threads=max(1, usable_cores() // (plan.ranks // _machines(plan))),
        collective_timeout_seconds=COLLECTIVE_TIMEOUT_SECONDS,
        trace=None if plan.trace is None else str(plan.trace),
        interface=plan.joined_by,
        checkpoints=plan.checkpoints and msgspec.structs.replace(plan.checkpoints, corpus=corpus.sha256),
    )
