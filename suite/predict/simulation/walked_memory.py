"""Memory of each pipeline stage by a walk through the whole step, as launches are compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.errors import InputError
from reference_runs.layout import Layout, Schedule
from reference_runs.run import Workload
from reference_runs.stack import Keeping, Modules
from suite.job.options import KernelChoice, StepOptions
from suite.machine.half_precision import Kernels
from suite.predict.analytic.nanotron_memory import not_described as not_in_nanotron
from suite.predict.analytic.stage_layers import layer_kinds, stage_layer_kinds
from suite.predict.simulation.launched_options import device_options, not_compiled
from suite.predict.simulation.memory_blocks import Category, StepPhase
from suite.predict.simulation.state import executed_state
from suite.predict.simulation.supported_layouts import layout_limits, unexecuted_parts

_WALKED = 3  # stages alike of which the first and the last stand for the others
_FULL = 3  # micro-batches a stage, from where on a pipeline is full
_FEW, _FEW_ALONE = (2, 3), (4, 6)  # layers of a chunk: in a pipeline, and where there is none
Peaks = Mapping[str, Mapping[str, float]]
# Modules that the formula takes in place of those with a memory of their own
BY_FORMULA = {
    **dict.fromkeys((Modules.SCRIPTS, Modules.TRANSFORMERS, Modules.DEEPSPEED), Modules.EAGER),
    Modules.NANOTRON: Modules.FUSED,
}


class Execution(NamedTuple):
    """How a step is executed.

    Args:
        keeping: of a stack that is walked through. This suite compiles blocks, on a GPU and where they can be.
    """

    kernels: Kernels
    keeping: Keeping

    def options(self, workload: Workload) -> StepOptions:
        """The options of a launch. Its memory is that of an eager step, of a loss in parts where it compiles."""
        cuda = self.kernels.cuda
        asked = self.keeping.modules is Modules.THIS_SUITE
        compiled = asked and cuda and not not_compiled(workload.layout)
        training = device_options(workload, "cuda" if cuda else "cpu", compiled=compiled, kernels=KernelChoice.TORCH)
        return StepOptions(kernels=self.kernels, training_options=training)


class WalkedMemory(NamedTuple):
    """Bytes on one rank of a pipeline stage, with the same words as the closed form's `StageMemory`.

    Args:
        optimizer: moments, master weights and the optimizer's copy of the gradients.
        peaks: the most that is allocated at a time in each `StepPhase`, by `Category`.
    """

    weights: float
    gradients: float
    optimizer: float
    peaks: Peaks

    @property
    def state(self) -> float:
        """Bytes of weights, gradients and optimizer state."""
        return self.weights + self.gradients + self.optimizer

    @property
    def activations(self) -> float:
        """Bytes of the forward pass where this holds most: of all micro-batches in flight, logits included."""
        return self.peaks[StepPhase.FORWARD].get(Category.FORWARD, 0)

    @property
    def logits(self) -> float:
        """None apart from `activations`."""
        return 0

    @property
    def after_forward(self) -> float:
        """Bytes at the fullest moment of the forward passes."""
        return sum(self.peaks[StepPhase.FORWARD].values())

    @property
    def after_backward(self) -> float:
        """Bytes at the fullest moment of the backward passes."""
        return sum(self.peaks[StepPhase.BACKWARD].values())

    @property
    def at_update(self) -> float:
        """Bytes at the fullest moment of the update."""
        return sum(self.peaks[StepPhase.UPDATE].values())

    @property
    def peak(self) -> float:
        """Bytes at the fullest moment of the step."""
        return max(self.after_forward, self.after_backward, self.at_update)

    def fullest_instant(self) -> tuple[str, dict[str, float]]:
        """When a rank holds most, and the bytes of each part that lives then; they add up to the peak."""
        phase = max(self.peaks, key=lambda phase: sum(self.peaks[phase].values()))
        when = "at the update" if phase == StepPhase.UPDATE else f"in the {phase} pass"
        return when, dict(self.peaks[phase])


def walked_memory(workload: Workload, *, stage: int, execution: Execution) -> WalkedMemory:
    """Memory of a rank of pipeline stage `stage` (from 0), the fullest of those that share its parameters.

    Raises:
        InputError: the walk does not know how the layout is executed.
    """
    _check_described(workload, execution)
    if execution.keeping.modules is Modules.DEEPSPEED:
        from suite.predict.simulation.deepspeed_step import deepspeed_bytes, deepspeed_peaks

        return WalkedMemory(*deepspeed_bytes(workload), deepspeed_peaks(workload, execution.kernels))
    if execution.keeping.scripted:  # imported for its stacks alone: other predictions start without it
        from suite.predict.simulation.transformers_step import EagerStep, stored_bytes, transformers_peaks

        step = EagerStep(execution.kernels, execution.keeping.modules)
        stored = stored_bytes(workload, step)
        weights, optimizer = stored[Category.WEIGHTS], stored[Category.OPTIMIZER]
        return WalkedMemory(weights, weights, optimizer, transformers_peaks(workload, step))
    state = executed_state(workload, stage=stage, replica=0)
    peaks = _peaks(workload, stage=stage, execution=execution)
    return WalkedMemory(state.weight_bytes, state.gradient_bytes, state.optimizer_bytes, peaks)


def _executed_peaks(workload: Workload, execution: Execution, *, stage: int) -> Peaks:
    from suite.predict.simulation.step_memory import executed_peaks  # other predictions start without it

    return executed_peaks(workload, execution.options(workload), stage=stage, replica=0)


def unwalked(workload: Workload, keeping: Keeping) -> list[str]:
    """Words for the part of a workload that its stack's own memory lacks; none: nothing, or it is of another stack."""
    if keeping.modules is Modules.NANOTRON:
        return not_in_nanotron(workload)
    if not keeping.scripted:
        return []
    if keeping.modules is Modules.DEEPSPEED:
        from suite.predict.simulation import deepspeed_step

        return deepspeed_step.not_described(workload) + _unlike_updates(workload)
    from suite.predict.simulation.transformers_step import not_described  # other predictions start without it

    return not_described(workload, keeping.modules) + _unlike_updates(workload)


def described_keeping(workload: Workload, keeping: Keeping) -> Keeping:
    """The stack's own way, or that of a formula where its own memory does not describe the workload."""
    return keeping._replace(modules=BY_FORMULA[keeping.modules]) if unwalked(workload, keeping) else keeping


def _unlike_updates(workload: Workload) -> list[str]:
    unlike = {"Muon": workload.recipe.orthogonalises, "adapters": workload.recipe.adapter_rank is not None}
    return [name for name, applies in unlike.items() if applies]


def _check_described(workload: Workload, execution: Execution) -> None:
    if execution.keeping.scripted:
        if unlike := unwalked(workload, execution.keeping):
            what = f"not among the steps of {execution.keeping.modules} whose memory is known"
            raise InputError(what, got="; ".join(unlike), where="--stack")
        return
    of_layout = [limit.name for limit in layout_limits(workload) if limit.applies and not limit.described]
    of_model = unexecuted_parts(workload.architecture) + _unlike_updates(workload)
    if unknown := of_model + of_layout:
        what = "not executed by this suite, so that its memory is not known"
        raise InputError(what, got="; ".join(unknown), where="--stack" if of_model else "--layout")


def least_peak(workload: Workload, *, stage: int, execution: Execution) -> float:
    """Bytes that the peak of `walked_memory` has at least, by walks through few layers; 0 where that does not help.

    A script's is the peak, but for DeepSpeed's. Of other steps, at each moment of a step the bytes are a line in the
    number of layers. So the peak, their maximum, lies on or above the line through the peaks of two shallower models,
    and on it unless another moment becomes the fullest.

    Raises:
        InputError: as `walked_memory`.
    """
    _check_described(workload, execution)
    if execution.keeping.scripted and execution.keeping.modules is not Modules.DEEPSPEED:
        return walked_memory(workload, stage=stage, execution=execution).peak
    architecture, recipe, layout = workload
    chunks = layout.pipeline_stages * layout.virtual_stages * (2 if layout.schedule.shape_of_v else 1)
    few, more = (chunks * each for each in (_FEW if chunks > 1 else _FEW_ALONE))
    alike = len(layer_kinds(architecture)) == 1 and architecture.layers % chunks == 0
    if not alike or architecture.layers <= 2 * more or layout.stage_layer_counts is not None:
        return 0
    peaks = []
    for layers in (few, more):
        shallow = Workload(msgspec.structs.replace(architecture, layers=layers), recipe, layout)
        peaks.append(walked_memory(shallow, stage=stage, execution=execution).peak)
    return peaks[1] + (peaks[1] - peaks[0]) * (architecture.layers - more) / (more - few)


def _peaks(workload: Workload, *, stage: int, execution: Execution) -> Peaks:
    """The peaks of a step; of one of many micro-batches on a line through two shorter steps.

    A schedule that fills and drains the pipeline once holds what it sends to the end. So every part is a line in the
    number of micro-batches, from where the pipeline is full.
    """

    def of(micro_batches: int) -> Peaks:
        batch = whole.recipe.global_batch * micro_batches // number
        shorter = whole._replace(recipe=msgspec.structs.replace(whole.recipe, global_batch=batch))
        return _executed_peaks(shorter, execution, stage=stage)

    whole, stages = workload, workload.layout.pipeline_stages
    number = accumulation(whole.recipe, whole.layout)
    few = _FULL * stages + number % stages
    more = few + stages
    is_long = number > more and stages > 1 and workload.layout.flushes and workload.layout.accumulation is None
    if not is_long or _alternates(workload.layout):
        return _executed_peaks(workload, execution, stage=stage)
    return _line(of(few), of(more), (number - few) / (more - few))


def walked_by_stage(workload: Workload, *, execution: Execution) -> list[WalkedMemory]:
    """`walked_memory` of every pipeline stage, in order.

    With 1f1b, in a step that fills the pipeline, a stage has a micro-batch less in flight than the one before it. So of
    neighbours with equal layers, and
    neither embedding nor head, every part is a line: the first and the last are walked through.

    Raises:
        InputError: as `walked_memory`.
    """
    architecture, layout = workload.architecture, workload.layout
    stages = range(layout.pipeline_stages)
    found: dict[int, WalkedMemory] = {}

    def walk(stage: int) -> WalkedMemory:
        if stage not in found:
            found[stage] = walked_memory(workload, stage=stage, execution=execution)
        return found[stage]

    fills = accumulation(workload.recipe, layout) >= 2 * layout.pipeline_stages
    if _alternates(layout) and fills:
        for run in _alike([stage_layer_kinds(architecture, layout, stage=stage) for stage in stages]):
            if len(run) > _WALKED:
                first, last = walk(run[0]), walk(run[-1])
                found |= {stage: _between(first, last, (stage - run[0]) / (len(run) - 1)) for stage in run[1:-1]}
    return [walk(stage) for stage in stages]


def _alike(kinds: list[object]) -> list[list[int]]:
    """Runs of neighbours with equal layers, without the first and the last stage."""
    runs: list[list[int]] = []
    for stage in range(1, len(kinds) - 1):
        if runs and kinds[runs[-1][-1]] == kinds[stage] and runs[-1][-1] == stage - 1:
            runs[-1].append(stage)
        else:
            runs.append([stage])
    return runs


def _between(first: WalkedMemory, last: WalkedMemory, share: float) -> WalkedMemory:
    """A stage at so much of the way from the first to the last."""
    weights, gradients, optimizer = (a + share * (b - a) for a, b in zip(first[:3], last[:3], strict=True))
    return WalkedMemory(weights, gradients, optimizer, _line(first.peaks, last.peaks, share))


def _line(first: Peaks, last: Peaks, share: float) -> Peaks:
    """Each part at so much of the way from the first to the last, or as far beyond it."""
    return {
        phase: {
            name: parts.get(name, 0) + share * (last[phase].get(name, 0) - parts.get(name, 0))
            for name in dict.fromkeys((*parts, *last[phase]))
        }
        for phase, parts in first.items()
    }


def _alternates(layout: Layout) -> bool:
    """Whether passes forward and backward alternate one by one: cycles are alike, and the walk leaves out most."""
    return layout.schedule is Schedule.ONE_F_ONE_B and layout.virtual_stages == 1
