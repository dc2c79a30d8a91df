"""The record of one launch: fingerprints, samples, counted figures, status; JSON in and out."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.regular_file import file_bytes
from reference_runs.run import Architecture, Recipe
from suite.job.checkpoints import LaunchGoodput, Restart
from suite.job.corpus import Corpus
from suite.job.device_kernels import DeviceKernel
from suite.job.events import (
    ComputedRows,
    Event,
    Failed,
    Finished,
    PackedDocuments,
    Phase,
    RoutedLayer,
    Status,
    Step,
    StoreWork,
)
from suite.job.launch_nodes import LaunchNode
from suite.job.options import DEFAULT_OPTIONS
from suite.job.pipeline_passes import PipelineTimes
from suite.job.slice import SliceTimes
from suite.job.trace_job import TraceJob
from suite.job.training_job import Job
from suite.machine.fingerprint import digest, hardware, node_identity, software
from suite.machine.gpu import recorded_gpu
from suite.machine.half_precision import Kernels
from suite.machine.processes import boot_identity, started_ticks
from suite.metrics.figures import Figure
from suite.stored_words import RECORD, in_todays_words

THROUGH_FP32 = "products through fp32"  # in what a rank says of its arithmetic

# 1.1: traces, profiled steps, figures of a step's terms; 1.2: the job's averaging; 1.3: its renewal; 1.4: its script,
# what each rank reserved, and how often it waited; 1.5: slices; 1.6: the passes of pipelines,
# workers at a parameter store; 1.7: the nodes that a scheduler gave a launch, checkpoints and restarts,
# what a pipeline's rank does between steps; 1.8: words (suite/stored_words.py); 1.9: launches of any model;
# 1.10: kernels of a profiled step
SCHEMA = "1.10"
BEGIN, END = ".begin.json", ".end.json"  # of the names of a record's two files
PRUNED = ".pruned"  # of the hidden name that a first half has while its record is removed


def partial(kind: type[msgspec.Struct], *names: str, **replaced: Any) -> Any:
    """A struct with the fields `names` of `kind`, with their types, defaults and encoded names.

    Args:
        replaced: more fields of `kind`, each decoded as the type that is given: a `partial` of its own, or msgspec.Raw;
            [type] is a list of it.

    Raises:
        KeyError: `kind` has no field of that name.
    """
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    kept = []
    for name in dict.fromkeys([*names, *replaced]):
        field, asked = fields[name], replaced.get(name, fields[name].type)
        asked = list.__class_getitem__(asked[0]) if isinstance(asked, list) else asked
        default = {"default": field.default, "default_factory": field.default_factory}
        kept.append((name, asked, msgspec.field(name=field.encode_name, **default)))
    return msgspec.defstruct(f"Partial{kind.__name__}", kept, frozen=True, kw_only=True, gc=False)


def shared_fields(kind: type[msgspec.Struct], other: type[msgspec.Struct], *but: str) -> tuple[str, ...]:
    """Names of fields that both have, in the order of `kind`; those that are named are left out."""
    return tuple(name for name in kind.__struct_fields__ if name in other.__struct_fields__ and name not in but)


class Launcher(msgspec.Struct, frozen=True):
    """The process that wrote a begin record: enough to know later whether it still runs."""

    pid: int
    started_ticks: int
    boot: str


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """Written before the run starts, so that a hang or a killed node leaves evidence.

    Three fingerprints apart: hardware, software, policy. Node identity is a hash of its own.
    """

    schema: str
    id: str
    run: str
    started: float
    node: str
    launcher: Launcher
    hardware: dict[str, str]
    software: dict[str, str]
    policy: dict[str, str]
    hashes: dict[str, str]
    job: Job
    corpus: Corpus


class RankOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one rank: its samples, its last phase and step, and its traceback where it failed.

    Fields that `suite.job.events.Finished` has too are those, and are copied from there by name.
    """

    rank: int
    steps: list[Step]
    last: str
    environment: dict[str, str] = {}
    failure: str = ""
    arithmetic: str = ""
    resident_bytes: int | None = None
    reserved_bytes: int | None = None
    synchronisations: int | None = None
    routed: list[RoutedLayer] = []
    computed_rows: dict[str, ComputedRows] = {}
    packed: PackedDocuments | None = None
    slice_times: SliceTimes | None = None
    pipeline_times: PipelineTimes | None = None
    store_work: StoreWork | None = None
    device_kernels: list[DeviceKernel] = []


_OF_FINISHED = shared_fields(RankOutcome, Finished)


def rank_outcome(rank: int, events: Sequence[Event]) -> RankOutcome:
    """The outcome that follows from the events of one rank."""
    finished = next((event for event in events if isinstance(event, Finished)), None)
    failed = next((event for event in events if isinstance(event, Failed)), None)
    steps = [event for event in events if isinstance(event, Step)]
    phases = [event.name for event in events if isinstance(event, Phase)]
    last = f"step {steps[-1].step} done" if steps else (phases[-1] if phases else "not started")
    return RankOutcome(
        rank=rank,
        steps=steps,
        last="finished" if finished else last,
        failure=failed.traceback if failed else "",
        **({name: getattr(finished, name) for name in _OF_FINISHED} if finished else {}),
    )


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Written when the run has ended, however it ended.

    Args:
        predicted: step time, its terms and rates, where a machine profile said what to expect.
        profile: that profile's file, or why there was none.
        others_share, steal_share: of the processors, what other processes, and other guests of the host, took while
            steps were timed; None where the system does not report them.
        nodes: that a scheduler gave the launch.
        restarts: of all ranks, each after one of them ended.
        goodput: of a launch with checkpoints that ended well.
    """

    schema: str
    id: str
    status: Status
    message: str
    ranks_at_fault: list[int]
    finished: float
    figures: list[Figure]
    ranks: list[RankOutcome]
    log_tail: str = ""
    predicted: list[Figure] = []
    profile: str = ""
    others_share: float | None = None
    steal_share: float | None = None
    nodes: list[LaunchNode] = []
    restarts: list[Restart] = []
    goodput: LaunchGoodput | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Both halves of one launch; without an end it is running, or crashed where its launcher is gone."""

    path: str
    begin: Begin
    end: End | None

    @property
    def status(self) -> str:
        """The end's status. Where there is none: "running", "crashed", or "unknown" for another machine's launch."""
        if self.end is not None:
            return self.end.status.value
        return status_without_end(self.begin.node, self.begin.launcher)


Half = TypeVar("Half", Begin, End)


def encode(half: Begin | End) -> bytes:
    """One half of a record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(half), indent=1) + b"\n"


def contents(path: str) -> bytes:
    """The bytes of a file.

    Raises:
        InputError: it is no file, or cannot be read.
    """
    try:
        return file_bytes(path)
    except OSError as error:
        raise InputError(f"cannot read the record: {error.strerror}", where=path) from error


def check_names(identity: str, run: str, path: str) -> None:
    """Refuse a first half that lies where another launch's would.

    Raises:
        InputError: its id is not the file's name, or its run not the directory's.
    """
    directory, name = os.path.split(path)  # a Path for each of 100,000 costs a second
    if identity + BEGIN != name:
        raise InputError("damaged record: its id is not the file's name", got=repr(identity), where=path)
    if run != os.path.basename(directory or os.getcwd()):
        raise InputError("damaged record: its run is not the directory's name", got=repr(run), where=path)


def check_same_launch(begin: str, end: str, path: str) -> None:
    """Refuse the second half of another launch.

    Raises:
        InputError: the ids of the halves differ.
    """
    if begin != end:
        raise InputError("damaged record: the end of another launch", got=repr(end), where=path)


def check_schema(data: bytes, where: str) -> None:
    """Refuse a record of a major schema version that this suite does not know.

    Raises:
        InputError: of another major version, or no JSON object.
    """
    try:
        schema = msgspec.json.decode(data).get("schema", "")
    except (msgspec.MsgspecError, AttributeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"damaged record: {error}", where=where) from error
    if str(schema).split(".")[0] != SCHEMA.split(".")[0]:
        raise InputError("unknown schema version", got=repr(schema), allowed=f"{SCHEMA.split('.')[0]}.x", where=where)


def decode(data: bytes, kind: type[Half], where: str) -> Half:
    """One half of a record; fields that only a later minor schema has are left out.

    Raises:
        InputError: not JSON, fields missing, or a major schema version that this suite does not know.
    """
    check_schema(data, where)
    data = in_todays_words(data, RECORD)
    try:
        data.decode()
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.ValidationError:
            return msgspec.convert(_without_unknown(msgspec.json.decode(data)), kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"damaged record: {error}", where=where) from error


def _without_unknown(record: Any) -> Any:
    """The same without the fields of a job that its types, which are those of run files too, would refuse."""
    job = record.get("job")
    if not isinstance(job, dict):
        return record
    known = {"architecture": Architecture, "recipe": Recipe, "layout": Layout}
    jobs_fields = {
        name: {key: job[name][key] for key in job[name] if key in kind.__struct_fields__}
        for name, kind in known.items()
        if isinstance(job.get(name), dict)
    }
    return record | {"job": job | jobs_fields}


# Of the fields that may be left open, those that hashes have had from the beginning
_FIRST_OF_ARCHITECTURE = frozenset({"extra_positions", "rotary_dim", "rotary_base", "top_query_layer"})
_LATER_IN_RECIPE = {"product_format", "moments", "adapter_rank", "adapter_targets", "expert_imbalance"}
_FIRST_OF_RECIPE = frozenset(Recipe.__struct_fields__) - _LATER_IN_RECIPE
_LATER_IN_LAYOUT = frozenset(
    {"expert_parallel", "whole_experts", "reduce_scatter", "shard_ranks", "stage_replicas", "recomputed_modules"}
)
_FIRST_OF_LAYOUT = frozenset(Layout.__struct_fields__) - _LATER_IN_LAYOUT


def _said(record: Architecture | Recipe | Layout, first: frozenset[str]) -> dict[str, Any]:
    """Fields of a struct without later ones that were left open: launches stay comparable with earlier ones."""
    return {
        field.name: value
        for field in msgspec.structs.fields(record)
        if (value := getattr(record, field.name)) != field.default or field.name in first
    }


def policy(job: Job) -> dict[str, str]:
    """Facts that decide results besides hardware and software: precision, layout, compilation, determinism, batch."""
    recipe = job.recipe
    script = msgspec.structs.asdict(job.training_options) | {"texts": None}  # the corpus has the hash of its texts
    if not job.training_options.optimizations:
        del script["optimizations"]  # launches stay comparable with earlier ones
    return {
        "device": job.device,
        "precision": recipe.precision.value,
        "layout": msgspec.json.encode(_said(job.layout, _FIRST_OF_LAYOUT)).decode(),
        "compiled": str(job.compiled),
        "kernels": job.kernels.value,
        "averaging": job.averaging.value,
        "exact_steps": str(job.exact_steps),
        "renewal": str(job.renewal),
        "deterministic": str(job.deterministic),
        "threads": str(job.threads),
        "global_batch": str(recipe.global_batch),
        "micro_batch": str(job.layout.micro_batch),
        "architecture": digest(_said(job.architecture, _FIRST_OF_ARCHITECTURE)),
        "recipe": digest(_said(recipe, _FIRST_OF_RECIPE)),
        **({} if job.training_options == DEFAULT_OPTIONS else {"script": msgspec.json.encode(script).decode()}),
        **({} if job.interface is None else {"interface": job.interface}),
        **({"shares_devices": "True"} if job.shares_devices else {}),
        **({} if job.synchronisation is None else {"synchronisation": str(job.synchronisation)}),
        **({"slow_ranks": ",".join(map(str, job.slow_ranks))} if job.slow_ranks else {}),
        **({} if job.model is None else {"model": _model(job.model)}),
        **({} if job.checkpoints is None else {"checkpoint_every": str(job.checkpoints.every)}),
        **({} if job.slice is None else {"slice": f"{job.slice.layers} layers, stage {job.slice.stage.value}"}),
        **({"processes": str(len(job.slice.group))} if job.slice is not None and job.slice.group else {}),
    }


def _model(asked: TraceJob) -> str:
    """Hash of the step of any model: of what its source says, wherever the file lies."""
    source = msgspec.structs.replace(asked.source, configuration="", module=asked.source.module.rpartition(":")[2])
    return digest(msgspec.to_builtins(msgspec.structs.replace(asked, source=source)))


def status_without_end(node: str, launcher: Launcher) -> str:
    """Status of a launch without an end half: "running" or "crashed" on this machine, "unknown" on another."""
    if node != node_identity():
        return "unknown"
    alive = launcher.boot == boot_identity() and started_ticks(launcher.pid) == launcher.started_ticks != -1
    return "running" if alive else Status.CRASHED.value


def begin_record(job: Job, corpus: Corpus, identity: str, other_software: dict[str, str] | None = None) -> Begin:
    """The first half for a launch that is about to start in this process.

    `other_software` are facts of the Python of its ranks, where that is not this process's own.
    """
    fingerprints = {"hardware": hardware(), "software": software() | (other_software or {}), "policy": policy(job)}
    return Begin(
        schema=SCHEMA,
        id=identity,
        run=job.name,
        started=time.time(),
        node=node_identity(),
        launcher=Launcher(os.getpid(), started_ticks(os.getpid()), boot_identity()),
        hashes={name: digest(facts) for name, facts in fingerprints.items()},
        job=job,
        corpus=corpus,
        **fingerprints,
    )


def recorded_kernels(record: Record) -> Kernels:
    """Which kernels the ranks of a recorded launch used, as they reported."""
    ranks = record.end.ranks if record.end else []
    return Kernels(
        cuda=record.begin.job.device == "cuda",
        products_through_fp32=any(THROUGH_FP32 in rank.arithmetic for rank in ranks),
        gpu=recorded_gpu(next((rank.environment for rank in ranks), {})),
    )
