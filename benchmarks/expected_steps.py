"""Expected gains of each optimization of GPT-2's step on an H100, from counts on simulated devices and recorded times.

    python -m tests.simulated_cuda -- python -m benchmarks.expected_steps --counts DIRECTORY > tables.md

with --toml suite/first_hour/expected_steps.toml what `first-hour` expects, of which only what is counted is written
anew, and with --profile the steps on the recorded machine profile, for which nothing is counted.

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
FP8 GEMMs take the share of g that the machine model has of an H100. Of CUDA graphs only bounds are known: they save
nothing of i, or all of it. A slice of Llama 3 8B has its own counts, times recorded milliseconds of GPT-2 1558M over
that run's: of flop for GEMMs, of bytes, of launches. Attention's flop are scaled by `head_share` besides.

Assumed: other kernels keep the bytes a second that they reach together; GEMMs keep their rate, though at 700 W a step
with fewer other kernels draws more power, and clocks fall.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.simulated_step import CountedStep, HostSeconds, LaunchKind, LoggedStep
from reference_runs.accelerator import accelerator, dense_peak_flop_per_second
from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.machine_model import machine_model
from reference_runs.run import ProductFormat, Workload
from suite.first_hour.measurements import all_together, measurements, possible
from suite.first_hour.part import StepOnPaper
from suite.job.options import KernelChoice, Optimization, StepOptions
from suite.machine.half_precision import kernels_for
from suite.machine.packages import PACKAGES
from suite.machine.profile import decode
from suite.metrics.figures import Quantity
from suite.paths import ROOT
from suite.predict.analytic.flop import executed_model_flop
from suite.predict.analytic.layer_time import attention_work, product_times
from suite.predict.analytic.machine import head_share
from suite.predict.machine_model.model import run_machine
from suite.predict.simulation.cost_model import CostModel
from suite.predict.simulation.launched_options import device_options
from suite.predict.simulation.operator_calls import micro_batch_calls
from suite.predict.simulation.optimizations import RULES
from suite.predict.simulation.step_time import epilogue_seconds, step_seconds
from suite.records.store import read
from suite.report.tables import MARKDOWN, table
from suite.reproduce.request import Request
from suite.reproduce.sheet_shares import layer_model_flop
from suite.reproduce.slice_plan import slice_plan

PLAIN, DEFAULT, ALL, TRITON, FP8 = "none", "default", "all", "triton", "fp8-current"
GRAPH = Optimization.MICRO_BATCH_GRAPH.value
SLICE, SLICE_LAYERS, LIKE_SLICE = "llama3.1-8b", 4, "gpt2-1558m"
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


RECORDED_H100 = ROOT / "results" / "recorded_h100"


def recorded_steps() -> dict[tuple[str, str], float]:
    """Milliseconds of the recorded H100's steps, to a tenth, by run and set: plain, or with Triton's kernels."""
    found = {}
    for path in sorted(RECORDED_H100.glob("records/gpt2-1*/*.begin.json")):
        record = read(path)
        figures = record.end.figures if record.end is not None else ()
        for figure in figures:
            if figure.quantity is Quantity.STEP_SECONDS and figure.rank is None and figure.term is None:
                how = TRITON if record.begin.job.kernels is KernelChoice.TRITON else PLAIN
                found[record.begin.job.name, how] = round(1e3 * figure.value, 1)
    return found


MEASURED = recorded_steps()
RECORDED = {
    "gpt2-124m": scaled(
        RecordedStep(72.0, 19.0, 36.7, 1.6, 2.2, 0.0), step=MEASURED["gpt2-124m", PLAIN], micro_batches=8
    ),
    "gpt2-1558m": scaled(
        RecordedStep(225.0, 42.0, 71.25, 9.5, 27.0, 10.0), step=MEASURED["gpt2-1558m-b64", PLAIN], micro_batches=4
    ),
}
STEPS = {"gpt2-124m": (("gpt2-124m", 8),), "gpt2-1558m": (("gpt2-1558m-b64", 4), ("gpt2-1558m", 64))}
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
    def gemm_flop(self) -> float:
        """Flop of the GEMMs of a micro-batch."""
        return self._of_all(
            lambda counted: (
                sum(2 * M * N * K * times for M, N, K, times in counted.step.products) / counted.micro_batches
            )
        )

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
    """Milliseconds that are saved by moving fewer bytes, by fewer launches, in the update of a step, and by GEMMs.

    Args:
        gemms: which GEMMs take less time.
    """

    by_bytes: float
    by_launches: float
    in_update: float
    by_gemms: float = 0.0
    gemms: str = "GEMMs of weight gradients, at best"

    def of_step(self, micro_batches: int) -> float:
        return micro_batches * (self.by_bytes + self.by_launches + self.by_gemms) + self.in_update

    def words(self, micro_batches: int) -> str:
        """The largest of them."""
        parts = {
            "bytes of other kernels": micro_batches * self.by_bytes,
            "time between kernels": micro_batches * self.by_launches,
            "bytes of the update": self.in_update,
            self.gemms: micro_batches * self.by_gemms,
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


PROFILE = RECORDED_H100 / "machines" / "f5bc1aff__25b0ba23f4fea18b.json"


class OnProfile(NamedTuple):
    """A run's step on the recorded H100's machine profile.

    Args:
        milliseconds: of the whole step, as the suite predicts it.
        epilogues: milliseconds of it that are 0 if the arithmetic of GEMMs hides what their epilogues move.
        slower_weight_gradients: milliseconds of a micro-batch, see the module.
    """

    milliseconds: float
    epilogues: float
    slower_weight_gradients: float

    @property
    def words(self) -> str:
        hidden = f" ({self.milliseconds - self.epilogues:,.0f})" if self.epilogues else ""
        return f"{self.milliseconds:,.0f}{hidden}"


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
    moving = epilogue_seconds(profile, workload, options)
    return OnProfile(1e3 * step.step, 1e3 * moving, 1e3 * (of_variants["TN"] - of_variants["NN"]))


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
    """The same set without CUDA graphs, whose kernels are the same, but no host launches them and nothing counts."""
    others = [name for name in names.split(",") if name != GRAPH]
    return ",".join(others) or PLAIN


def counts(run: str, how: str, directory: Path) -> Counts:
    """Counts that are kept in the directory, made first where they are not there.

    Raises:
        CalledProcessError: the step cannot be had.
    """
    kept = directory / f"{run}__{how.replace(',', '+')}.json"
    if not kept.exists():
        named = {TRITON: ["--kernels", TRITON, "--optimizations", PLAIN], FP8: ["--gemm-dtype", FP8]}
        step = ["-m", "benchmarks.simulated_step", run, *named.get(how, ["--optimizations", how])]
        step += ["--slice"] if run == SLICE else ["--micro-batches", str(COUNTED_MICRO_BATCHES)]
        log = directory / f"{kept.stem}.log"
        step += ["--layers", *map(str, COUNTED_LAYERS), "--host-seconds", str(HOST_STEPS)]
        lines = _simulated("--log", str(log), "--", "python", *step)
        log.unlink()
        kept.write_text("\n".join(lines) + "\n", encoding="utf-8")
    lines = kept.read_text(encoding="utf-8").splitlines()
    fewer, more = (msgspec.json.decode(line, type=CountedStep) for line in lines[::2])
    hosts = (msgspec.json.decode(line, type=HostSeconds) for line in lines[1::2])
    layers = SLICE_LAYERS if run == SLICE else reference_run(run).architecture.layers
    return Counts(layers, fewer, more, *hosts)


def _simulated(*words: str) -> list[str]:
    command = [sys.executable, "-m", "tests.simulated_cuda", *words]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith("{")]


def hows(run: str) -> dict[str, str]:
    """Sets of optimizations that are compared: none, each whose package is here, default, all; Triton's, and FP8."""
    if run == SLICE:
        return {DEFAULT: DEFAULT}
    alone, usual = all_together(run), [name.value for name in possible(run) if RULES[name].is_default]
    sets = {PLAIN: PLAIN, **{name: name for name in alone}, TRITON: TRITON}
    sets |= {DEFAULT: ",".join(usual) or PLAIN, ALL: ",".join(alone)}
    return sets | ({FP8: FP8} if run == LIKE_SLICE else {})


TITLES = (
    *("optimizations", "GEMMs", "attention", "compiled", "others"),
    *("MB a layer", "GB", "update, GB", "host, ms"),
)


def saved_by(run: str, how: str, of: dict[str, Counts]) -> SavedMilliseconds:
    """Milliseconds that a set of optimizations saves of a run's recorded step."""
    names = hows(run)[how]
    if names == FP8:
        faster = RECORDED[run].gemms * (1 - fp8_share_of_gemms(run))
        saved = saving(RECORDED[run], of[PLAIN], of[how], by_gemms=faster)
        return saved._replace(gemms="GEMMs, by the machine model")
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
    """A run's launches, bytes and host's milliseconds of a micro-batch, and its steps on paper for each batch."""
    batches = STEPS[run]
    rows = []
    for how, own in of.items():
        numbers = [own.launches(kind) for kind in (LaunchKind.PRODUCT, LaunchKind.ATTENTION, LaunchKind.COMPILED)]
        saved = saved_by(run, how, of)
        rows.append(
            [
                how,
                *(f"{number:,.0f}" for number in (*numbers, own.launches() - sum(numbers))),
                f"{own.layer_bytes / 1e6:,.0f}",
                f"{own.bytes / 1e9:,.1f}",
                f"{own.update_bytes / 1e9:,.1f}",
                host_words(own),
                *(words for name, number in batches for words in step_words(name, run, how, saved, number)),
                "-" if how == PLAIN else saved_words(run, how, saved, batches[0][1]),
            ]
        )
    heading = "; ".join(f"{name}: {number} micro-batches a step" for name, number in batches)
    steps = (title for name, _ in batches for title in (f"{name}, ms", f"{name}, MFU"))
    return f"### {heading}\n\n{table(rows, (*TITLES, *steps, f'{batches[0][0]} saves most'), style=MARKDOWN)}\n"


def step_words(name: str, run: str, how: str, saved: SavedMilliseconds, micro_batches: int) -> tuple[str, str]:
    """A step's milliseconds and its MFU, of which FP8 has none."""
    steps, measured = bounds(run, how, saved, micro_batches), MEASURED.get((name, how))
    shares = [utilisation(run, step, micro_batches) for step in reversed(steps)]
    return (
        " to ".join(f"{step:,.0f}" for step in steps) + (f" (measured {measured:,.0f})" if measured else ""),
        "-" if how == FP8 else " to ".join(f"{share:.1%}" for share in shares),
    )


def bounds(run: str, how: str, saved: SavedMilliseconds, micro_batches: int) -> list[float]:
    """Milliseconds of a step; with CUDA graphs alone those without any time between kernels, and those with all."""
    step = step_milliseconds(RECORDED[run], saved, micro_batches)
    return [step - micro_batches * RECORDED[run].idle, step] if how == GRAPH else [step]


def saved_words(run: str, how: str, saved: SavedMilliseconds, micro_batches: int) -> str:
    """The largest of what is saved, in words."""
    if how == GRAPH:
        return f"time between kernels: 0 to {micro_batches * RECORDED[run].idle:+,.1f} ms saved"
    return saved.words(micro_batches)


def profile_table() -> str:
    """Steps on the recorded profile of the sets that change them; in parentheses: all bytes of epilogues hidden."""
    columns = [(run, *step) for run, steps in STEPS.items() for step in steps]
    rows: dict[str, list[str]] = {}
    for run, _, micro_batches in columns:
        for how, names in hows(run).items():
            if how not in (TRITON, FP8):
                rows.setdefault(how, [how]).append(on_profile(run, names, micro_batches).words)
    titles = ("optimizations", *(f"{name}: {number} micro-batches" for _, name, number in columns))
    changed = [row for how, row in rows.items() if how == PLAIN or row[1:] != rows[PLAIN][1:]]
    return table(changed, titles, style=MARKDOWN)


def slice_workload() -> Workload:
    """Workload of the slice, as one GPU executes it."""
    return slice_plan(Request(name=SLICE, slice=True, layers=SLICE_LAYERS, device="cuda")).workload


def sliced_step(own: Counts, plain: Counts) -> RecordedStep:
    """Milliseconds of a slice's step at the recorded rates of the plain run, without the host's between steps.

    Args:
        own, plain: counts of the slice and of the run.
    """
    recorded, run = RECORDED[LIKE_SLICE], reference_run(LIKE_SLICE)
    flop = [
        own.layers * _attention_flop(slice_workload()),
        plain.layers * _attention_flop(Workload(run.architecture, run.recipe, run.recorded_layout or Layout())),
    ]
    return RecordedStep(
        gemms=recorded.gemms * own.gemm_flop / plain.gemm_flop,
        attention=recorded.attention * flop[0] / flop[1],
        others=recorded.others * own.bytes / plain.bytes,
        idle=recorded.idle * own.gaps / plain.gaps,
        update=recorded.update * own.update_bytes / plain.update_bytes,
        between_steps=0.0,
    )


def _attention_flop(workload: Workload) -> float:
    """Flop of a layer's attention, forward, over the share of its rate that the size of heads leaves."""
    hopper = machine_model().families["hopper"].exponential_flop
    return attention_work(workload).flop / head_share(workload.architecture, hopper)


def slice_on_paper(own: Counts, plain: Counts) -> StepOnPaper:
    """The step of the slice, and the MFU of its layers."""
    step = sliced_step(own, plain)
    one, none = (sliced_step(own._replace(layers=layers), plain).micro_batch for layers in (1, 0))
    rate = layer_model_flop(slice_workload(), stage=0) / (1e-3 * (one - none))
    mfu = rate / dense_peak_flop_per_second(accelerator("h100-sxm"), "bf16")
    whole = step.micro_batch + step.update
    parts = sorted(SLICE_PARTS, key=lambda part: -getattr(step, part))
    shares = [f"{SLICE_PARTS[part]} {getattr(step, part) / whole:.0%}" for part in parts]
    return StepOnPaper(round(whole, 1), f"{', '.join(shares)}; layers alone: MFU {mfu:.1%}; {TORCHTITAN}")


SLICE_PARTS = {
    "gemms": "GEMMs",
    "attention": "attention",
    "others": "bytes of other kernels",
    "idle": "time between kernels",
    "update": "bytes of the update",
}
TORCHTITAN = "torchtitan's whole run: 33.7% eager, 39.0% compiled"  # docs/slices.md


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
                said = saved_words(run, how, saved, micro_batches)
                bound = said if measured is None else "measured with earlier kernels"
            if words in parts:
                yield words, StepOnPaper(round(milliseconds if measured is None else measured, 1), bound)


def fp8_share_of_gemms(run: str) -> float:
    """Seconds of a micro-batch's GEMMs with layers in FP8 over those in 16 bits, by the machine model of an H100."""
    of, seconds = reference_run(run), []
    for product_format in (ProductFormat.NONE, ProductFormat.FP8_CURRENT):
        recipe = msgspec.structs.replace(of.recipe, product_format=product_format)
        found = run_machine(
            None, recipe.precision, product_format, ranks=1, accelerator_name="h100-sxm", stack_name="this-suite"
        )
        assert found is not None
        assert found.machine is not None
        times = product_times(Workload(of.architecture, recipe, of.recorded_layout or Layout()), found.machine)
        head = times.pop("head")
        layer = sum(time.forward_seconds + time.backward_seconds for part, time in times.items() if part != "attention")
        seconds.append(of.architecture.layers * layer + head.forward_seconds + head.backward_seconds)
    return seconds[1] / seconds[0]


def largest_part(recorded: RecordedStep) -> str:
    """The largest part of a plain micro-batch, in words."""
    return f"GEMMs: {recorded.gemms / recorded.micro_batch:.0%} of a micro-batch"


HEAD = """\
# Milliseconds of a step on one H100 SXM at 700 W, written down before they are measured.
# Written by benchmarks/expected_steps.py, from recorded times of 2026-11-25 and from counts on simulated devices.
"""


def lacking(runs: Sequence[str]) -> list[str]:
    """A line for each optimization that `all` is without and that has no row, as its package is not installed."""
    names = dict.fromkeys(name for run in runs if run != SLICE for name in possible(run))
    absent = {name.value: RULES[name].package for name in names if not RULES[name].is_installed}
    return [f"left out: {name}: {PACKAGES[package].name} is not installed" for name, package in absent.items()]


def _refuse_unknown(names: Sequence[str], allowed: Iterable[str], where: str) -> None:
    known = [*dict.fromkeys(allowed)]
    for name in names:
        if name not in known:
            raise InputError("unknown name", got=repr(name), allowed=", ".join(known), where=where)


def main(arguments: Sequence[str]) -> int:
    """Print the tables, or write what `first-hour` expects; returns the exit code."""
    try:
        return _main(arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "benchmarks.expected_steps", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked_for = parser.add_mutually_exclusive_group(required=True)
    asked_for.add_argument("--counts", type=Path, help="directory of the counts")
    asked_for.add_argument("--profile", action="store_true", help="print the steps on the recorded profile")
    parser.add_argument("--toml", type=Path, help="file that is written in place of the tables")
    parser.add_argument("--runs", nargs="+", default=[*RECORDED, SLICE], help="which of these (default: all)")
    parser.add_argument("--only", nargs="+", metavar="SET", help="sets of GPT-2 besides none (default: all)")
    asked = parser.parse_args(arguments)
    _refuse_unknown(asked.runs, (*RECORDED, SLICE), "--runs")
    _refuse_unknown(asked.only or [], (how for run in RECORDED for how in hows(run)), "--only")
    for line in lacking([*RECORDED] if asked.profile else asked.runs):
        print(line, file=sys.stderr)
    if asked.profile:
        print(profile_table())
        return 0
    try:
        asked.counts.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"no directory: {error.strerror}", got=asked.counts, where="--counts") from error
    found: dict[str, dict[str, Counts]] = {}
    for run in asked.runs:
        found[run] = {}
        for how, names in hows(run).items():
            if asked.only and run != SLICE and how not in (PLAIN, *asked.only):
                continue
            try:
                found[run][how] = counts(run, without_graph(names), asked.counts)
            except subprocess.CalledProcessError:
                print(f"left out: {run} with {how}", file=sys.stderr)
    sliced = found.pop(SLICE, {})
    papers = {name: step for run, of in found.items() for name, step in on_paper(run, of)}
    if sliced and PLAIN in found.get(LIKE_SLICE, {}):
        papers[f"{SLICE} slice"] = slice_on_paper(sliced[DEFAULT], found[LIKE_SLICE][PLAIN])
    if asked.toml is None:
        print("\n".join(run_table(run, of) for run, of in found.items()))
        if (step := papers.get(f"{SLICE} slice")) is not None:
            print(f"{SLICE}, {SLICE_LAYERS} layers: {step.milliseconds} ms: {step.bound_by}")
        return 0
    if asked.toml.exists():
        papers = msgspec.toml.decode(asked.toml.read_bytes(), type=dict[str, StepOnPaper]) | papers
    lines = [HEAD]
    for name in (part.name for part in measurements(short=False)):
        if name in papers:
            step = papers[name]
            lines.append(f'["{name}"]\nmilliseconds = {step.milliseconds}\nbound_by = "{step.bound_by}"\n')
    asked.toml.write_text("\n".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
