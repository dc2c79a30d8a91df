"""Traces the default configuration of every causal language model type of transformers, and writes which answer."""

from __future__ import annotations

import argparse
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import psutil

from suite.job.operators import TracePhase
from suite.job.trace_job import UNKNOWN_SHAPES, ModelSource, NotTraced, NumberFormat, StepTrace, TraceAnswer, TraceJob

SEQUENCE = 128  # tokens: what a type takes depends on its modules, not on the length
_OF_TRANSFORMERS = f"{os.sep}transformers{os.sep}"  # in the path of a line that raised


class TracedType(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a trace of a type's default configuration.

    Args:
        software: of the answer; empty: there is none.
        forward_flop: of one sample.
        refusal: why there is no answer; empty: there is one.
        place: line that raised.
        seconds: of a processor.
    """

    kind: str
    software: str = ""
    model: str = ""
    parameters: int = 0
    buffers: int = 0
    forward_flop: int = 0
    refusal: str = ""
    place: str = ""
    seconds: float = 0.0

    @property
    def raised_inside(self) -> bool:
        """Whether transformers raised, not this project."""
        return bool(self.refusal) and _OF_TRANSFORMERS in self.place and not self.refusal.startswith(UNKNOWN_SHAPES)


def types() -> list[str]:
    """Model types of transformers that have a causal language model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def traced_types(kinds: Sequence[str], limit: float) -> Iterator[TracedType]:
    """The trace of each type, one sample in bf16 on one rank: all in one process, which forks for each.

    Args:
        limit: seconds after which a trace is ended.
    """
    with tempfile.TemporaryDirectory() as directory:
        worker = subprocess.Popen(
            [sys.executable, "-m", "suite.execute.trace"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert worker.stdin is not None
        assert worker.stdout is not None
        for kind in kinds:
            path = Path(directory, f"{kind}.json")
            path.write_bytes(msgspec.json.encode({"model_type": kind}))
            source = ModelSource(configuration=str(path))
            job = TraceJob(source=source, sequence=SEQUENCE, number_format=NumberFormat.BF16_PURE)
            before = _processor_seconds(worker.pid)
            worker.stdin.write(msgspec.json.encode(job) + b"\n")
            worker.stdin.flush()
            if not select.select([worker.stdout], [], [], limit)[0]:
                for child in psutil.Process(worker.pid).children():
                    child.kill()
            answer = msgspec.json.decode(worker.stdout.readline(), type=TraceAnswer)
            yield _of(kind, answer, _processor_seconds(worker.pid) - before)
        worker.stdin.close()
        worker.wait()


def _processor_seconds(process: int) -> float:
    """Seconds of processors that the children of a process took, all of which have ended or are about to."""
    of_worker = psutil.Process(process)
    psutil.wait_procs(of_worker.children())
    while of_worker.children():  # it has not noticed yet
        time.sleep(0.01)
    spent = of_worker.cpu_times()
    return float(spent.children_user + spent.children_system)


def _of(kind: str, answer: TraceAnswer, seconds: float) -> TracedType:
    if isinstance(answer, NotTraced):
        return TracedType(kind=kind, refusal=answer.message, place=answer.place, seconds=seconds)
    assert isinstance(answer, StepTrace)
    forward = [each for each in answer.operators if each.phase is TracePhase.FORWARD]
    return TracedType(
        kind=kind,
        software=answer.software,
        model=answer.model,
        parameters=answer.parameters.total,
        buffers=answer.parameters.buffers,
        forward_flop=sum(each.calls * each.flop for each in forward),
        seconds=seconds,
    )


def page(found: Sequence[TracedType]) -> str:
    """The page of the table, in Markdown."""
    answered = [each for each in found if not each.refusal]
    refused = [each for each in found if each.refusal and not each.raised_inside]
    failing = [each for each in found if each.raised_inside]
    software = answered[0].software if answered else "transformers"
    slowest = max(answered, key=lambda each: each.seconds)
    lines = [
        "# Types of models that are traced",
        "",
        f"`nox -s traced_types` traces the default configuration of every causal language model type of {software}: "
        f"{SEQUENCE} tokens, one sample, bf16 alone. Of {len(found)} types {len(answered)} answer, {len(refused)} are "
        f"refused by this project and {len(failing)} raise inside transformers. The slowest, `{slowest.kind}` with "
        f"{slowest.parameters:,} parameters, takes {slowest.seconds:.0f} s of a processor.",
        "",
    ]
    for title, several in (("Refused", refused), ("Raise inside transformers", failing)):
        if several:
            lines += [f"## {title}", "", "| type | reason |", "|---|---|"]
            lines += [f"| `{each.kind}` | {_reason(each)} |" for each in several]
            lines.append("")
    titles = "| type | model | parameters | forward flop of a sample | processor seconds |"
    lines += ["## Answered", "", titles, "|---|---|--:|--:|--:|"]
    lines += [
        f"| `{each.kind}` | {each.model} | {each.parameters:,} | {each.forward_flop:.4g} | {each.seconds:.1f} |"
        for each in answered
    ]
    return "\n".join([*lines, ""])


def _reason(each: TracedType) -> str:
    place = each.place.rpartition(_OF_TRANSFORMERS)[2]
    said = each.refusal.replace("|", "\\|").replace("<", "\\<")
    return f"{said} ({place})" if place else said


def main() -> None:
    """Trace the types that a file does not have yet, print a line for each, and write the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.traced_types", description=main.__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="TYPE", help="these types, anew")
    parser.add_argument("--most", type=int, help="end after so many types")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a trace is ended")
    parser.add_argument("--keep", type=Path, help="file of answers, a JSON object a line, to go on with")
    parser.add_argument("--write", type=Path, help="page to write")
    asked = parser.parse_args()
    known: dict[str, TracedType] = {}
    if asked.keep and asked.keep.exists():
        lines = asked.keep.read_bytes().splitlines()
        known = {each.kind: each for each in (msgspec.json.decode(line, type=TracedType) for line in lines)}
    wanted = asked.only or [kind for kind in types() if kind not in known]
    for each in traced_types(wanted[: asked.most], asked.limit):
        known[each.kind] = each
        said = each.refusal or f"{each.parameters:,} parameters, {each.seconds:.1f} s"
        sys.stdout.write(f"{each.kind}: {said} {each.place}\n")
        sys.stdout.flush()
        if asked.keep:
            with asked.keep.open("ab") as file:
                file.write(msgspec.json.encode(each) + b"\n")
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 2**30
    sys.stdout.write(f"most memory of a process: {most:.2f} GiB\n")
    if asked.write:
        asked.write.write_text(page([known[kind] for kind in sorted(known)]), encoding="utf-8")


if __name__ == "__main__":
    main()
