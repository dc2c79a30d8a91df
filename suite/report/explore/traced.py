"""The numbers of a traced model's page: its controls' state, the step that they ask for, and the page's contents."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from reference_runs.accelerator import accelerator, accelerator_names
from reference_runs.errors import InputError
from suite.job.operators import OperatorKind, TracePhase
from suite.job.trace_job import ModelSource, NumberFormat, OptimizerKernel, Sharding, StepTrace, TraceJob
from suite.job.trace_layout import layout_words
from suite.metrics.figures import Quantity
from suite.paths import program
from suite.predict.analytic.collective_time import collective_seconds, group
from suite.predict.analytic.machine import Machine
from suite.predict.plan.asked import USUAL_ACCELERATOR, check_positive
from suite.predict.traced_run.operator_time import OperatorRates, operator_seconds, product_sizes
from suite.predict.traced_run.prediction import TracedPrediction, traced_prediction
from suite.report.explore.content import Content, fitting_content
from suite.report.explore.controls import Control, PagePart
from suite.report.explore.why import SUM, Number, Why
from suite.reproduce.traced import traced

SHARDINGS = {
    "DistributedDataParallel": Sharding.REPLICATED,
    "FSDP2": Sharding.RESHARDED,
    "FSDP2, weights kept": Sharding.KEPT,
}
AGAIN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "layers but for attention and every other product": {"recompute": True, "saves_products": True},
    "whole layers": {"recompute": True},
}
MOST_PRODUCTS = 16  # that are drawn under the roofline
_PHASES = {TracePhase.RECOMPUTATION: "computed again"}
NUMBERS = ("network", "gpus", "micro", "accumulate", "sequence")
PARTS = (
    PagePart("time", "Where the time of a step goes", ("time",), "step_seconds"),
    PagePart("memory", "Memory at the fullest moment of each phase", ("memory-words", "memory-picture"), "peak_bytes"),
    PagePart("modules", "Modules", ("modules",)),
    PagePart("figures", "Predicted figures", ("figures",)),
    PagePart("traffic", "Communication of one rank in a step", ("traffic",)),
    PagePart("roofline", "Matrix multiplications under the roofline", ("roofline-picture", "roofline-table")),
    PagePart("notes", "Assumptions", ("notes",)),
)


class TracedState(msgspec.Struct, frozen=True, kw_only=True):
    """A question about a traced model.

    Args:
        network: Gbit/s out of a node; None: as usual.
        gpus: data-parallel ranks.
        micro: samples of a micro-batch, `accumulate` of which are a rank's step.
        sequence: tokens of a sample; None: as many as a trace assumes.
    """

    on: str = USUAL_ACCELERATOR
    network: float | None = None
    precision: NumberFormat = NumberFormat.BF16
    optimizer: OptimizerKernel = OptimizerKernel.ADAMW
    gpus: int = 1
    sharing: str = "FSDP2"
    again: str = "nothing"
    micro: int = 1
    accumulate: int = 1
    sequence: int | None = None

    def job(self, source: ModelSource) -> TraceJob:
        """The step that is traced: whatever accelerator it is for."""
        return TraceJob(
            source=source,
            ranks=self.gpus,
            sharding=Sharding.REPLICATED if self.gpus == 1 else SHARDINGS[self.sharing],
            number_format=self.precision,
            optimizer=self.optimizer,
            micro_batches=self.accumulate,
            micro_batch=self.micro,
            sequence=self.sequence,
            synchronises_once=self.gpus == 1 or SHARDINGS[self.sharing] is Sharding.REPLICATED,
            **AGAIN[self.again],
        )


def controls() -> dict[str, list[Control]]:
    """The controls of the page, in groups by their title: one for each field of the state."""
    return {
        "machine": [
            Control("on", "accelerator", tuple(accelerator_names())),
            Control("network", "Gbit/s out of a node", whole=False),
        ],
        "training": [
            Control("precision", "precision", tuple(map(str, NumberFormat))),
            Control("optimizer", "optimizer", tuple(map(str, OptimizerKernel))),
            Control("sequence", "tokens per sample"),
        ],
        "layout": [
            Control("gpus", "accelerators"),
            Control("sharing", "data-parallel ranks", tuple(SHARDINGS)),
            Control("again", "computed again in the backward pass", tuple(AGAIN)),
            Control("micro", "micro-batch"),
            Control("accumulate", "micro-batches of a step"),
        ],
    }


def address(state: TracedState) -> str:
    """The query of an address that shows this state."""
    return "?" + urlencode({key: value for key, value in msgspec.to_builtins(state).items() if value is not None})


def state_of(values: Mapping[str, Any], *, where: str) -> TracedState:
    """The state of these values, of which numbers may be texts; an absent one is as at first.

    Raises:
        InputError: a key or a value that no state has.
    """
    given = {key: value for key, value in values.items() if value not in (None, "")}
    if unknown := given.keys() - set(TracedState.__struct_fields__):
        allowed = ", ".join(TracedState.__struct_fields__)
        raise InputError("unknown key", got=repr(", ".join(sorted(unknown))), allowed=allowed, where=where)
    try:
        state = msgspec.convert(given, TracedState, strict=False)
    except msgspec.ValidationError as error:
        message, _, name = str(error).partition(" - at `$.")
        raise InputError(": ".join(filter(None, (name.rstrip("`"), message))), where=where) from error
    for name, value, allowed_ in (("sharing", state.sharing, SHARDINGS), ("again", state.again, AGAIN)):
        if value not in allowed_:
            raise InputError("unknown", got=repr(value), allowed=", ".join(allowed_), where=f"{where}: {name}")
    check_positive({f"{where}: {name}": getattr(state, name) for name in NUMBERS})
    if state.on.endswith(".toml"):
        raise InputError("a file", got=repr(state.on), allowed=", ".join(accelerator_names()), where="accelerator")
    return msgspec.structs.replace(state, on=accelerator(state.on).name)


def state_of_query(query: str) -> TracedState:
    """The state of an address's query.

    Raises:
        InputError: a key or a value that no state has.
    """
    printable = query.encode(errors="replace").decode()  # JSON may carry halves of characters
    return state_of(dict(parse_qsl(printable.removeprefix("?"))), where="the address")


class TracedPage:
    """A model's page: every step is traced once, whatever accelerators it is asked for.

    Args:
        name: of the model, as it was typed.
        reason: why no formula answers.
    """

    def __init__(
        self,
        source: ModelSource,
        name: str,
        reason: str,
        tracer: Callable[[Sequence[TraceJob]], list[StepTrace]] = traced,
    ) -> None:
        self._source, self._name, self._reason = source, name, reason
        self._tracer = tracer
        self._traces: dict[TraceJob, StepTrace] = {}
        self._lock = threading.Lock()

    def content(self, state: TracedState) -> Content:
        """The contents of a state, in the form of `suite.report.explore.content`.

        Raises:
            InputError: the model cannot be traced so.
            TraceError: a trace ended without an answer.
        """
        network = None if state.network is None else state.network * 1e9 / 8
        job = state.job(self._source)
        predicted = traced_prediction(job, self._trace(job), on=state.on, network_bytes_per_second=network)
        trace = predicted.trace
        return {
            "title": f"{trace.model} of {trace.software}, traced: no formula ({self._reason})",
            "command": self._command(state),
            "views": [_view(predicted, state)],
        }

    def _trace(self, job: TraceJob) -> StepTrace:
        with self._lock:  # another request may be tracing the same
            if job not in self._traces:
                (self._traces[job],) = self._tracer([job])
            return self._traces[job]

    def _command(self, state: TracedState) -> str:
        """The command that prints the same numbers."""
        options = {
            "--layout": layout_words(state.job(self._source)),
            "--on": state.on,
            "--network": None if state.network is None else f"{state.network:.12g}",
            "--precision": str(state.precision),
            "--optimizer": str(state.optimizer),
            "--sequence": None if state.sequence is None else str(state.sequence),
        }
        words = [*program().split(), "predict", self._name]
        return shlex.join([*words, *(word for option, value in options.items() if value for word in (option, value))])


def _view(predicted: TracedPrediction, state: TracedState) -> Content:
    trace, time, machine = predicted.trace, predicted.time, predicted.machine.machine
    found: Content = {
        "layout": layout_words(predicted.job),
        "wrong": [],
        "accelerators": predicted.job.ranks,
        "accelerator": predicted.machine.accelerator.name,
        "memory_limit": predicted.memory.usable,
        **fitting_content(predicted.fitting),
        "intervals": {},
        "not_predicted": [] if time is not None else [predicted.machine.missing],
        "notes": _notes(predicted, state),
        "figures": _figures(predicted),
        "published_elsewhere": None,
        "terms": _terms(predicted),
        "memory": _memory(trace),
        "instants": [moment.phase for moment in trace.fullest],
        "bars": "phase of the step",
        "passes": None,
        "traffic": None,
        "products": None,
        "modules": _modules(predicted),
        "worked": {},
    }
    if machine is not None:
        found["traffic"] = _traffic(predicted, machine)
        found["products"] = _products(predicted, machine)
    return found


def _notes(predicted: TracedPrediction, state: TracedState) -> list[str]:
    trace = predicted.trace
    notes = ["eager PyTorch operators, one by one, on tensors without memory"]
    if state.sequence is None:
        notes.append(f"assumed: {trace.sequence:,} tokens a sample (control: tokens per sample)")
    if trace.layers:
        notes.append(f"units of sharding and recomputation: {trace.layers} modules of class {trace.layer_class}")
    if predicted.machine.uncertainty is not None:
        notes.append(f"error of the step time to expect: {predicted.machine.uncertainty:.0%}".replace("%", " %"))
    return [*notes, *predicted.machine.notes]


def _terms(predicted: TracedPrediction) -> dict[str, float]:
    """Seconds of the step by kind and phase; what is waited for has the names that the page knows."""
    time = predicted.time
    if time is None:
        return {}
    terms = {f"{kind}, {_PHASES.get(phase, phase)}": spent for (phase, kind), spent in time.operators.items()}
    waited = {"data parallel": time.message_seconds, "launch": time.launch_seconds, "overhead": time.overhead_seconds}
    return {name: spent for name, spent in (terms | waited).items() if spent}


def _memory(trace: StepTrace) -> dict[str, list[float]]:
    """Bytes by category, a value for each phase at its fullest moment."""
    names = dict.fromkeys(name for moment in trace.fullest for name in moment.bytes)
    return {name: [float(moment.bytes.get(name, 0)) for moment in trace.fullest] for name in names}


def _figures(predicted: TracedPrediction) -> list[Content]:
    trace, time = predicted.trace, predicted.time
    held = [Number(name, size, "byte") for name, size in sorted(trace.at_peak.bytes.items(), key=lambda one: -one[1])]
    elements = [Number(f"in {dtype}", count, "") for dtype, count in trace.parameters.by_dtype.items()]
    found: list[tuple[Quantity, str, float, Why]] = [
        (Quantity.PEAK_BYTES, "byte", trace.peak_bytes, Why(SUM, held)),
        (Quantity.PARAMETERS, "", trace.parameters.total, Why(SUM, elements)),
    ]
    if time is not None:
        step = Number("step time", time.total_seconds, "step s")
        ranks = Number("accelerators", predicted.job.ranks, "")
        peak = Number("peak of one", predicted.machine.peak.flop_per_second, "flop/s")
        flop = Number("model flop", predicted.model_flop, "flop")
        parts = [Number(name, spent, "step s") for name, spent in _terms(predicted).items()]
        rate = [Number("samples", predicted.samples, ""), Number("tokens of a sample", trace.sequence, ""), step]
        found = [
            (Quantity.STEP_SECONDS, "s", time.total_seconds, Why(SUM, parts)),
            *found,
            (Quantity.MFU, "share", predicted.mfu or 0.0, Why("{0} / ({1} * {2} * {3})", [flop, step, ranks, peak])),
            (Quantity.TOKENS_PER_SECOND, "token/s", predicted.tokens_per_second or 0.0, Why("{0} * {1} / {2}", rate)),
        ]
    blank = {"published": None, "source": None, "compares": False}
    return [
        {"quantity": quantity, "unit": unit, "value": value, **blank, "why": why._asdict()}
        for quantity, unit, value, why in found
    ]


def _modules(predicted: TracedPrediction) -> list[Content]:
    """Seconds in all phases and bytes that a micro-batch keeps, by module, the slowest first."""
    seconds = predicted.time.modules if predicted.time else {}
    kept = predicted.trace.kept_bytes
    rows = [
        {
            "name": name or "the loss and the update",
            "seconds": seconds.get(name, 0.0) if seconds else None,
            "kept_bytes": kept.get(name, 0),
        }
        for name in dict.fromkeys((*seconds, *kept))
    ]
    return sorted(rows, key=lambda row: -(row["seconds"] or 0.0))


def _traffic(predicted: TracedPrediction, machine: Machine) -> list[Content]:
    ranks = predicted.job.ranks
    links = group(machine, ranks=ranks, ranks_in_node=min(ranks, machine.accelerators_per_node))
    return [
        {
            "axis": each.axis,
            "operation": each.operation,
            "payload_bytes": each.payload_bytes,
            "messages": each.messages,
            "ranks": ranks,
            "bytes_per_second": links.bytes_per_second,
            "leaves_node": ranks > machine.accelerators_per_node,
            "seconds": collective_seconds(
                each.operation, links, payload_bytes=each.payload_bytes, messages=each.messages
            ),
        }
        for each in predicted.trace.collectives
    ]


def _products(predicted: TracedPrediction, machine: Machine) -> Content:
    """The forward pass's matrix multiplications that take longest."""
    job, trace = predicted.job, predicted.trace
    rates = OperatorRates(
        machine,
        fp32_flop_per_second=predicted.machine.accelerator.peak_flop_per_second.get(
            "fp32", machine.peak_flop_per_second / 2
        ),
        is_fp32=job.number_format is NumberFormat.FP32,
        causal=bool(job.source.configuration),
        tokens=job.micro_batch * trace.sequence,
    )
    forward = [
        call
        for call in trace.operators
        if call.phase is TracePhase.FORWARD and call.kind is OperatorKind.GEMM and call.flop
    ]
    spent = {call: operator_seconds(call, rates) for call in forward}
    longest = sorted(forward, key=lambda call: -call.calls * spent[call])[:MOST_PRODUCTS]
    return {
        "points": [
            {
                "part": call.module or "the loss",
                "products": call.calls * product_sizes(call)[0],
                "sizes": product_sizes(call)[1],
                "intensity": call.flop / (call.read_bytes + call.written_bytes),
                "rate": call.flop / spent[call],
                "ridge": machine.peak_flop_per_second / machine.memory_bytes_per_second,
                "seconds": call.calls * spent[call],
            }
            for call in longest
        ],
        "peak": machine.peak_flop_per_second,
        "memory_bytes_per_second": machine.memory_bytes_per_second,
    }
