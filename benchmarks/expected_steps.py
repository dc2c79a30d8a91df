"""Expected gains of each optimization of GPT-2's step on an H100, from counts on simulated devices and recorded times.

    python -m tests.simulated_cuda -- python -m benchmarks.expected_steps --counts DIRECTORY > tables.md

and with --toml suite/first_hour/expected_steps.toml what `first-hour` expects.

Counts are made by `benchmarks.simulated_step`, one process for each run and set of optimizations, and kept in the
directory; what lies there is not counted again. Needs PyTorch's CUDA build (.nox/simulated_gpu), and no GPU.

    step      = micro-batches (g - t + a + o b'/b + i l'/l) + u v'/v + h
    g, a      recorded milliseconds of GEMMs and attention in a micro-batch, which no count changes
    t         with tuned GEMMs: by how much weight gradients took longer than input gradients of as many flop in the
              recorded calibration: both take as long then, at best
    o, b, b'  recorded milliseconds of all other kernels; bytes that these move without and with the optimization. With
              epilogues b' has what GEMMs move in addition, GELU's input written and read, as if none of it were hidden
    i, l, l'  recorded milliseconds between kernels; launches that begin after the kernel before them has ended
    u, v, v'  recorded milliseconds of the update; its bytes
    h         recorded milliseconds of the host between steps
What CUDA graphs change between kernels on the device is not predicted.

Assumed: other kernels keep the bytes a second that they reach together; GEMMs keep their rate, though at 700 W a step
with fewer other kernels draws more power, and clocks fall.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.simulated_step import CountedStep, HostSeconds, LaunchKind, LoggedStep
from reference_runs.accelerator import accelerator, dense_peak_flop_per_second
from reference_runs.catalog import reference_run
from reference_runs.layout import Layout
from reference_runs.run import Workload
from suite.first_hour.measurements import all_together, measurements, possible
from suite.first_hour.part import StepOnPaper
from suite.job.options import KernelChoice, Optimization, StepOptions
from suite.machine.half_precision import kernels_for
from suite.machine.profile import decode
from suite.paths import ROOT
from suite.predict.analytic.flop import executed_model_flop
from suite.predict.simulation.cost_model import CostModel
from suite.predict.simulation.launched_options import device_options
from suite.predict.simulation.operator_calls import micro_batch_calls
from suite.predict.simulation.optimizations import RULES
from suite.predict.simulation.step_time import step_seconds
from suite.report.tables import MARKDOWN, table

PLAIN, DEFAULT, ALL, TRITON = "none", "default", "all", "triton"
HOST_STEPS = 9
COUNTED_MICRO_BATCHES = 2
COUNTED_LAYERS = (2, 4)  # all further layers are alike


class RecordedStep(NamedTuple):
    """Milliseconds of one H100's plain step, of a micro-batch where nothing else is said.

    Source: results/recorded/LOG.md, 2026-11-25: profiles of two steps, scaled to the timed ones. Of 1558M's profiled 78
    ms of other kernels 27 / 4 are the update's, of its 12 between kernels 10 / 4 are between steps.
    """

    gemms: float
    attention: float
    others: float
    idle: float
    update: float  # of a step
    between_steps: float  # of a step

    @property
    def micro_batch(self) -> float:
        return self.gemms + self.attention + self.others + self.idle


def scaled(profiled: RecordedStep, *, step: float, micro_batches: int) -> RecordedStep:
    """The same parts, so that they add up to a timed step."""
    once = profiled.update + profiled.between_steps
    factor = (step - once) / micro_batches / profiled.micro_batch
    parts = {name: factor * getattr(profiled, name) for name in ("gemms", "attention", "others", "idle")}
    return profiled._replace(**parts)


RECORDED = {
    "gpt2-124m": scaled(RecordedStep(72.0, 19.0, 36.7, 1.6, 2.2, 0.0), step=1037.7, micro_batches=8),
    "gpt2-1558m": scaled(RecordedStep(225.0, 42.0, 71.25, 9.5, 27.0, 10.0), step=1405.5, micro_batches=4),
}
STEPS = {"gpt2-124m": (("gpt2-124m", 8),), "gpt2-1558m": (("gpt2-1558m-b64", 4), ("gpt2-1558m", 64))}
MEASURED = {("gpt2-124m", PLAIN): 1037.7, ("gpt2-124m", TRITON): 1021.0, ("gpt2-1558m-b64", PLAIN): 1405.5}
ASKED = {"gpt2-124m": 0.50, "gpt2-1558m": 0.58}


class Counts(NamedTuple):
    """Counts of one run with one set of optimizations, with `COUNTED_LAYERS`; all else follows in a straight line.

    Args:
        layers: of the run.
    """

    layers: int
    fewer: CountedStep
    more: CountedStep
    host_of_fewer: HostSeconds
    host_of_more: HostSeconds

    def launches(self, *kinds: LaunchKind) -> float:
        """Launches of these kinds in a micro-batch, by default of all."""

        def of(step: LoggedStep) -> int:
            return sum(number for kind, number in step.launches.items() if not kinds or kind in kinds)

        return self._of_all(lambda counted: (of(counted.step) - of(counted.update)) / counted.micro_batches)

    @property
    def gaps(self) -> float:
        """Launches of a micro-batch that begin after the kernel before them has ended."""
        return self.launches() - self._of_all(
            lambda counted: (counted.step.dependent - counted.update.dependent) / counted.micro_batches
        )

    @property
    def bytes(self) -> float:
        """Bytes that all but GEMMs and attention move in a micro-batch."""
        return self._of_all(_moved)

    @property
    def layer_bytes(self) -> float:
        """The same of one layer."""
        return (_moved(self.more) - _moved(self.fewer)) / (COUNTED_LAYERS[1] - COUNTED_LAYERS[0])

    @property
    def update_bytes(self) -> float:
        """Bytes that the update moves."""
        return self._of_all(lambda counted: counted.update_bytes)

    def _of_all(self, amount: Callable[[CountedStep], float]) -> float:
        return self._line(amount(self.fewer), amount(self.more))

    def _line(self, fewer: float, more: float) -> float:
        first, second = COUNTED_LAYERS
        return more + (self.layers - second) * (more - fewer) / (second - first)

    def host_milliseconds(self) -> tuple[float, float]:
        """Processor milliseconds of the host for a micro-batch; and for one with `COUNTED_LAYERS[1]` layers."""
        fewer, more = (
            1e3 * statistics.median(host.passes) / host.micro_batches
            for host in (self.host_of_fewer, self.host_of_more)
        )
        return self._line(fewer, more), more


def _moved(counted: CountedStep) -> float:
    return (counted.compiled_bytes + counted.operator_bytes - counted.update_bytes) / counted.micro_batches


class SavedMilliseconds(NamedTuple):
    """Milliseconds that are saved by moving fewer bytes, by fewer launches, in the update of a step, and by GEMMs."""

    by_bytes: float
    by_launches: float
    in_update: float
    by_gemms: float = 0.0

    def of_step(self, micro_batches: int) -> float:
        return micro_batches * (self.by_bytes + self.by_launches + self.by_gemms) + self.in_update

    def words(self, micro_batches: int) -> str:
        """The largest of them."""
        parts = {
            "bytes of other kernels": micro_batches * self.by_bytes,
            "time between kernels": micro_batches * self.by_launches,
            "bytes of the update": self.in_update,
            "GEMMs of weight gradients, at best": micro_batches * self.by_gemms,
        }
        name = max(parts, key=lambda part: abs(parts[part]))
        return (
            f"{name}: {parts[name]:+,.1f} ms saved" if abs(parts[name]) >= 0.05 else "nothing that is counted changes"
        )


def saving(
    recorded: RecordedStep, plain: Counts, other: Counts, *, by_gemms: float = 0.0, in_epilogues: float = 0.0
) -> SavedMilliseconds:
    """See the module; `in_epilogues` are bytes of a micro-batch."""
    return SavedMilliseconds(
        recorded.others * (1 - (other.bytes + in_epilogues) / plain.bytes),
        recorded.idle * (1 - other.gaps / plain.gaps),
        recorded.update * (1 - other.update_bytes / plain.update_bytes),
        by_gemms,
    )


def step_milliseconds(recorded: RecordedStep, saved: SavedMilliseconds, micro_batches: int) -> float:
    """Milliseconds of a step with so many micro-batches."""
    whole = micro_batches * recorded.micro_batch + recorded.update + recorded.between_steps
    return whole - saved.of_step(micro_batches)


PROFILE = ROOT / "results" / "recorded_h100" / "machines" / "f5bc1aff__25b0ba23f4fea18b.json"


class OnProfile(NamedTuple):
    """A run's step on the recorded H100's machine profile.

    Args:
        milliseconds: of the whole step, as the suite predicts it.
        slower_weight_gradients: milliseconds of a micro-batch, see the module.
    """

    milliseconds: float
    slower_weight_gradients: float


def on_profile(run: str, names: str, micro_batches: int) -> OnProfile:
    """The step of a run with these optimizations, names with commas between them or "none"."""
    profile, of = decode(PROFILE.read_bytes(), str(PROFILE)), reference_run(run)
    layout = msgspec.structs.replace(
        of.recorded_layout or Layout(), data_parallel=1, accumulation=None, micro_batch=micro_batch_of(run)
    )
    recipe = msgspec.structs.replace(of.recipe, global_batch=micro_batches * layout.micro_batch)
    workload = Workload(of.architecture, recipe, layout)
    chosen = tuple(name for name in Optimization if name.value in names.split(","))
    training = device_options(workload, "cuda", compiled=True, kernels=KernelChoice.TORCH, optimizations=chosen)
    options = StepOptions(kernels=kernels_for(recipe.precision, "cuda"), compiled=True, training_options=training)
    cost = CostModel(profile, workload, cuda=True)
    (chunk,) = micro_batch_calls(workload, options, stage=0)
    of_variants = {
        variant: sum(
            times * cost.seconds(call)
            for (backward, call), times in chunk.calls.items()
            if backward and call.operation == "product" and call.variant == variant
        )
        for variant in ("TN", "NN")
    }
    (step,) = step_seconds(profile, workload, options)
    return OnProfile(1e3 * step.step, 1e3 * (of_variants["TN"] - of_variants["NN"]))


def micro_batch_of(run: str) -> int:
    """Samples of a recorded run's micro-batch."""
    return (reference_run(run).recorded_layout or Layout()).micro_batch


def utilisation(run: str, milliseconds: float, micro_batches: int) -> float:
    """MFU of a step on an H100."""
    whole = reference_run(run)
    workload = Workload(whole.architecture, whole.recipe, Layout())
    flop = executed_model_flop(workload, samples=micro_batches * micro_batch_of(run))
    return flop / (milliseconds / 1e3) / dense_peak_flop_per_second(accelerator("h100-sxm"), "bf16")


def without_graph(names: str) -> str:
    """The same set without CUDA graphs, whose kernels no host launches and nothing counts; that one alone stays."""
    others = [name for name in names.split(",") if name != Optimization.MICRO_BATCH_GRAPH.value]
    return ",".join(others) or names


def counts(run: str, how: str, directory: Path) -> Counts:
    """Counts that are kept in the directory, made first where they are not there.

    Raises:
        CalledProcessError: the step cannot be had.
    """
    kept = directory / f"{run}__{how.replace(',', '+')}.json"
    if not kept.exists():
        options = ["--kernels", TRITON, "--optimizations", PLAIN] if how == TRITON else ["--optimizations", how]
        step = ["-m", "benchmarks.simulated_step", run, "--micro-batches", str(COUNTED_MICRO_BATCHES), *options]
        log = directory / f"{kept.stem}.log"
        step += ["--layers", *map(str, COUNTED_LAYERS), "--host-seconds", str(HOST_STEPS)]
        lines = _simulated("--log", str(log), "--", "python", *step)
        log.unlink()
        kept.write_text("\n".join(lines) + "\n", encoding="utf-8")
    lines = kept.read_text(encoding="utf-8").splitlines()
    fewer, more = (msgspec.json.decode(line, type=CountedStep) for line in lines[::2])
    hosts = (msgspec.json.decode(line, type=HostSeconds) for line in lines[1::2])
    return Counts(reference_run(run).architecture.layers, fewer, more, *hosts)


def _simulated(*words: str) -> list[str]:
    command = [sys.executable, "-m", "tests.simulated_cuda", *words]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith("{")]


def hows(run: str) -> dict[str, str]:
    """Sets of optimizations that are compared: none, each whose package is here, the default ones, all; Triton's."""
    alone, usual = all_together(run), [name.value for name in possible(run) if RULES[name].is_default]
    sets = {PLAIN: PLAIN, **{name: name for name in alone}, TRITON: TRITON}
    return sets | {DEFAULT: ",".join(usual) or PLAIN, ALL: ",".join(alone)}


TITLES = (
    *("optimizations", "GEMMs", "attention", "compiled", "others"),
    *("MB a layer", "GB", "update, GB", "host, ms", "step, ms", "measured", "MFU", "saves most", "by the profile"),
)


def saved_by(run: str, how: str, of: dict[str, Counts]) -> SavedMilliseconds:
    """Milliseconds that a set of optimizations saves of a run's recorded step."""
    names = hows(run)[how]
    if names == Optimization.MICRO_BATCH_GRAPH.value:
        return SavedMilliseconds(0.0, 0.0, 0.0)
    tuned = Optimization.TUNED_GEMMS.value in names.split(",")
    gemms = on_profile(run, names, STEPS[run][0][1]).slower_weight_gradients if tuned else 0.0
    more = epilogue_bytes(run) if Optimization.EPILOGUES.value in names.split(",") else 0.0
    return saving(RECORDED[run], of[PLAIN], of[how], by_gemms=gemms, in_epilogues=more)


def epilogue_bytes(run: str) -> float:
    """Bytes of a micro-batch that GEMMs with GELU in their epilogues move in addition to those without.

    4 L B T F: GELU's input in 16 bits, B T rows of F columns, written forward and read backward.
    """
    of = reference_run(run).architecture
    return 4.0 * of.layers * micro_batch_of(run) * of.sequence * of.ffn_hidden


def run_table(run: str, of: dict[str, Counts]) -> str:
    """A table for each batch of a run: launches, bytes and host's milliseconds of a micro-batch, the step on paper."""
    recorded = RECORDED[run]
    parts = []
    for name, micro_batches in STEPS[run]:
        rows = []
        for how, own in of.items():
            if how == Optimization.MICRO_BATCH_GRAPH.value:  # of a graph's kernels nothing is counted
                continue
            saved = saved_by(run, how, of)
            step = step_milliseconds(recorded, saved, micro_batches)
            kinds = (LaunchKind.PRODUCT, LaunchKind.ATTENTION, LaunchKind.COMPILED)
            numbers = [own.launches(kind) for kind in kinds]
            measured = MEASURED.get((name, how))
            rows.append(
                [
                    how,
                    *(f"{number:,.0f}" for number in (*numbers, own.launches() - sum(numbers))),
                    f"{own.layer_bytes / 1e6:,.0f}",
                    f"{own.bytes / 1e9:,.1f}",
                    f"{own.update_bytes / 1e9:,.1f}",
                    host_words(own),
                    f"{step:,.0f}",
                    "-" if measured is None else f"{measured:,.0f}",
                    f"{utilisation(run, step, micro_batches):.1%}",
                    "-" if how == PLAIN else saved.words(micro_batches),
                    "-" if how == TRITON else f"{on_profile(run, hows(run)[how], micro_batches).milliseconds:,.0f}",
                ]
            )
        parts.append(f"### {name}: {micro_batches} micro-batches a step\n\n{table(rows, TITLES, style=MARKDOWN)}\n")
    return "\n".join(parts)


def host_words(own: Counts) -> str:
    """Milliseconds of the host for a micro-batch; and of its steps with `COUNTED_LAYERS[1]` layers how far they lie."""
    of_all, of_more = own.host_milliseconds()
    each = [1e3 * seconds / own.host_of_more.micro_batches for seconds in own.host_of_more.passes]
    return f"{of_all:.0f} ({min(each) / of_more:.0%} to {max(each) / of_more:.0%})"


def on_paper(run: str, of: dict[str, Counts]) -> Iterator[tuple[str, StepOnPaper]]:
    """The steps of a run's parts in `first-hour`, by their names."""
    recorded = RECORDED[run]
    parts = {part.name for part in measurements(short=False)}
    for name, micro_batches in STEPS[run]:
        for how in of:
            saved = saved_by(run, how, of)
            words = {PLAIN: f"{name} plain", DEFAULT: name}.get(how, f"{name} {how}")
            milliseconds = step_milliseconds(recorded, saved, micro_batches)
            measured = MEASURED.get((name, how))
            if how == PLAIN:
                bound = largest_part(recorded)
            else:
                bound = saved.words(micro_batches) if measured is None else "measured with earlier kernels"
            if words in parts and how != Optimization.MICRO_BATCH_GRAPH.value:  # what it gains is not predicted
                yield words, StepOnPaper(round(milliseconds if measured is None else measured, 1), bound)
        if f"{name} {FP8}" in parts:
            plain = step_milliseconds(recorded, SavedMilliseconds(0.0, 0.0, 0.0), micro_batches)
            share = in_fp8(run, micro_batches)
            yield f"{name} {FP8}", StepOnPaper(round(plain * share, 1), f"{share:.0%} of plain, by the machine model")


FP8 = "fp8-current"


def in_fp8(run: str, micro_batches: int) -> float:
    """The step with FP8 GEMMs over that in 16 bits, as `predict` has them of one H100."""
    words = ["predict", run, "--on", "h100-sxm", "--gpus", "1", "--stack", "this-suite", "--json"]
    words += ["--batch", str(micro_batches * micro_batch_of(run))]
    steps: list[float] = []
    for of_format in ("none", FP8):
        command = [sys.executable, "-m", "suite", *words, "--gemm-dtype", of_format]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)  # 1: it does not fit
        figures = msgspec.json.decode(done.stdout)["figures"]
        whole = (each["left"] for each in figures if each["quantity"] == "step_seconds" and each["term"] is None)
        steps.append(next(whole))
    return steps[1] / steps[0]


def largest_part(recorded: RecordedStep) -> str:
    """The largest part of a plain micro-batch, in words."""
    return f"GEMMs: {recorded.gemms / recorded.micro_batch:.0%} of a micro-batch"


HEAD = """\
# Milliseconds of a step on one H100 SXM at 700 W, written down before they are measured.
# Written by benchmarks/expected_steps.py, from recorded times of 2026-11-25 and from counts on simulated devices.
"""


def main(arguments: Sequence[str]) -> int:
    """Print the tables, or write what `first-hour` expects; returns the exit code."""
    parser = argparse.ArgumentParser(
        "benchmarks.expected_steps", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--counts", type=Path, required=True, help="directory of the counts")
    parser.add_argument("--toml", type=Path, help="file that is written in place of the tables")
    parser.add_argument("--runs", nargs="+", default=[*RECORDED], help="gpt2-124m, gpt2-1558m (default: both)")
    asked = parser.parse_args(arguments)
    asked.counts.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Counts]] = {}
    for run in asked.runs:
        found[run] = {}
        for how, names in hows(run).items():
            try:
                found[run][how] = counts(run, without_graph(names), asked.counts)
            except subprocess.CalledProcessError:
                print(f"left out: {run} with {how}", file=sys.stderr)
    if asked.toml is None:
        print("\n".join(run_table(run, of) for run, of in found.items()))
        return 0
    lines = [HEAD]
    for run, of in found.items():
        for name, step in on_paper(run, of):
            lines.append(f'["{name}"]\nmilliseconds = {step.milliseconds}\nbound_by = "{step.bound_by}"\n')
    asked.toml.write_text("\n".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
