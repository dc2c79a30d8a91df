"""A rung as a plan: the run, with the recipe, layout and script that the rung's setting says."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import msgspec

from reference_runs.catalog import check_layout, miniatures, reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout, Offload
from reference_runs.miniature import miniature
from reference_runs.run import Architecture, Precision, Recipe
from suite.job.options import KernelChoice, Texts
from suite.ladder.rung import MOST_DIVISOR, STEPS, Need, Rung, RungSetting, Track, rungs_on, setting_above, setting_of
from suite.launch import network_namespaces
from suite.machine.packages import PACKAGES, compilation_missing
from suite.metrics.figures import Quantity, of_job
from suite.predict.executed_run.figures import memory_figures
from suite.predict.simulation.optimizations import RULES
from suite.reproduce.plan import Plan, check_seed
from suite.reproduce.supported import check_executable, check_executable_layout, check_fused_attention

# as a miniature's largest (see `reference_runs.miniature_shape.Scale`); never doubled
LOSS_SCALE, LOSS_SCALE_WINDOW = 4096.0, 1000
FAMILY = "gpt2"
WARMUP_SHARE = 0.1
# Of a GPU's memory: the rest is for its context, libraries' workspaces and what the allocator cannot use. Assumed, for
# want of a GPU: with more a rung may run out of memory, with less its steps have fewer samples than need be
USABLE_SHARE = 0.9
GIB = 2.0**30


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Target of the ladder: a run's shape and recipe on one kind of device.

    Args:
        host_names: of two machines for `ddp-hosts`, joined by `interface`; empty: network namespaces.
        memory_bytes: of each GPU; None on a CPU, and where nothing is to be kept to it.
        gpus: of this machine; None on a CPU, whose cores ranks share.
        divisor: of the declared samples of steps and micro-batches.
    """

    name: str
    architecture: Architecture
    recipe: Recipe
    device: str
    seed: int
    host_names: tuple[str, ...] = ()
    interface: str | None = None
    memory_bytes: int | None = None
    gpus: int | None = None
    divisor: int = 1


def target_of(name: str, *, device: str, seed: int) -> Target:
    """The run `name`: gpt2-mini on any device, one of the recorded GPT-2 runs on CUDA.

    Raises:
        InputError: another name, a recorded run without CUDA, or a seed out of range.
    """
    check_seed(seed)
    minis = {mini: run for mini, run in miniatures().items() if mini.startswith(FAMILY)}
    recorded = ("gpt2-124m", "gpt2-350m", "gpt2-774m", "gpt2-1558m")
    if name in minis:
        small = miniature(reference_run(minis[name]), device, ranks=1, steps=STEPS)
        return Target(name=name, architecture=small.architecture, recipe=small.recipe, device=device, seed=seed)
    if name not in recorded:
        raise InputError("no ladder for this run", got=repr(name), allowed=", ".join([*minis, *recorded]))
    if device != "cuda":
        raise InputError(f"{name} needs a GPU", got=device, allowed="cuda, or gpt2-mini", where="--device")
    run = reference_run(name)
    return Target(name=name, architecture=run.architecture, recipe=run.recipe, device=device, seed=seed)


def target_that_fits(target: Target, memory_bytes: int, texts: Texts) -> Target:
    """On GPUs of so much memory, with the declared samples halved until the larger baseline fits; to an eighth at most.

    That is the memory track's: 32 samples in one micro-batch, as in the second rung of the speed track.
    """
    target = msgspec.structs.replace(target, memory_bytes=memory_bytes)
    while target.divisor < MOST_DIVISOR:
        setting = setting_of(Track.MEMORY, (), divisor=target.divisor)
        if not why_too_large(planned(target, setting, "", texts), memory_bytes):
            break
        target = msgspec.structs.replace(target, divisor=2 * target.divisor)
    return target


def why_too_large(plan: Plan, memory_bytes: int | None) -> str:
    """Why a plan does not fit, by its predicted peak, in 90 % of a device's memory; empty where it does.

    The peak of PyTorch's operators also for Triton's, which keep no more.
    """
    if memory_bytes is None:
        return ""
    figures = memory_figures(plan.workload, plan.step_options)
    peak = of_job(figures, Quantity.PEAK_BYTES)
    if peak is None or peak <= USABLE_SHARE * memory_bytes:
        return ""
    samples = plan.recipe.global_batch
    return (
        f"predicted peak {peak / GIB:,.1f} GiB with {samples} sample{'s' if samples > 1 else ''} a step, "
        f"more than {USABLE_SHARE:.0%} of the GPU's {memory_bytes / GIB:,.1f}"
    )


def refusals(target: Target) -> dict[str, str]:
    """Why rungs do not apply here, by their names: for what they need, or for a setting that is not executed.

    The setting is the rung's on top of those that do apply.
    """
    refused: dict[str, str] = {}
    applicable: list[Rung] = []
    for rung in rungs_on(target.device):
        setting = setting_above(rung, applicable, divisor=target.divisor)
        reason = refusal(rung, target) or not_executed(planned(target, setting, "", None))
        if reason:
            refused[rung.name] = reason
        else:
            applicable.append(rung)
    return refused


def not_executed(plan: Plan) -> str:
    """Why the suite does not execute a plan; empty where it does."""
    try:
        check_executable(plan.architecture, plan.recipe, "")
        check_layout(plan.workload, "")
        check_executable_layout(plan.workload, "")
        check_fused_attention(plan.recipe, plan.layout, plan.device, "")
    except InputError as error:
        return str(error)
    return ""


def refusal(rung: Rung, target: Target) -> str:
    """The need of a rung that this machine does not meet; empty where nothing is."""
    for need in rung.needs:
        if not _met(need, target):
            return need.value
    if {"compiled", "triton"} & rung.changes.keys() and (missing := compilation_missing(target.device)):
        return missing
    for rule in (RULES[name] for name in rung.changes.get("optimizations", ())):
        if not rule.is_installed:
            return f"{PACKAGES[rule.package].name} is not installed"
    ranks: int = rung.changes.get("data_parallel", 1)
    if target.gpus is not None and ranks > target.gpus and not (target.host_names and "hosts" in rung.changes):
        return f"{ranks} GPUs needed, {target.gpus} here"
    return ""


def _met(need: Need, target: Target) -> bool:
    match need:
        case Need.CUDA | Need.TRITON:
            return target.device == "cuda"
        case Need.CPU:
            return target.device == "cpu"
        case Need.LAYERS:
            return checkpoint_layers(target.architecture) > 1
        case Need.COMPILER:
            compiler = os.environ.get("CXX") or "g++"
            return bool((shutil.which(compiler) or shutil.which("c++")) and shutil.which("ninja"))
        case Need.NAMESPACES:
            return bool(target.host_names) or network_namespaces.why_not() is None


def checkpoint_layers(architecture: Architecture) -> int:
    """The integer nearest to the square root of the layers.

    With L layers in groups of d, each of whose inputs takes one unit and whose layers take A units while they are
    computed again, L / d + d A are held: least at d = sqrt(L / A), with A = 1 at sqrt(L) (Chen et al. 2016,
    arXiv 1604.06174, section 3). A layer of a transformer has A = 18 and more, and its least near d = 1 (see
    `suite.predict.analytic.activations.best_checkpoint_layers`); the rung shows the textbook's choice.
    """
    return round(math.sqrt(architecture.layers))


def planned(
    target: Target,
    setting: RungSetting,
    label: str,
    texts: Texts | None,
    *,
    steps: int = STEPS,
    trace: Path | None = None,
) -> Plan:
    """The plan of a setting; `label` is the script's rung in the record; without texts it cannot be launched."""
    architecture = target.architecture
    samples = setting.samples
    recipe = msgspec.structs.replace(
        target.recipe,
        precision=setting.precision,
        global_batch=samples,
        tokens=steps * samples * architecture.sequence,
        warmup=max(1, round(WARMUP_SHARE * STEPS)) * samples,
        decay=STEPS * samples,
        batch_rampup_start=None,
        batch_rampup_increment=None,
        batch_rampup_samples=None,
        initial_loss_scale=LOSS_SCALE if setting.precision is Precision.FP16 else None,
        loss_scale_window=LOSS_SCALE_WINDOW if setting.precision is Precision.FP16 else None,
    )
    layout = Layout(
        micro_batch=setting.micro_batch,
        data_parallel=setting.data_parallel,
        zero_stage=3 if setting.fully_sharded else 0,
        recomputation=setting.recomputation,
        checkpoint_layers=setting.layers_per_checkpoint or checkpoint_layers(architecture),
        offload=Offload.STATE if setting.offloads_state else Offload.NONE,
        fused_attention=setting.fused_attention,
    )
    return Plan(
        name=f"{target.name}-ladder",
        architecture=architecture,
        recipe=recipe,
        layout=layout,
        device=target.device,
        compiled=setting.compiled,
        steps=steps,
        seed=target.seed,
        kernels=KernelChoice.TRITON if setting.triton else KernelChoice.TORCH,
        training_options=setting.training_options(label, texts),
        hosts=setting.hosts,
        host_names=target.host_names if setting.hosts > 1 else (),
        interface=target.interface if setting.hosts > 1 else None,
        trace=trace,
    )
