"""A training as options ask for it: the run with their values, and what is assumed where neither says anything."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

import msgspec

from reference_runs.accelerator import Accelerator, accelerator
from reference_runs.errors import InputError
from reference_runs.incomplete import IncompleteRecipe, missing_keys
from reference_runs.layout import Layout
from reference_runs.quantities import LARGEST, MOST, SMALLEST
from reference_runs.run import Architecture, Precision, ProductFormat, Recipe, ReferenceRun
from reference_runs.stack import GENERIC
from suite.predict.analytic.memory import bytes_per_parameter
from suite.predict.analytic.parameters import active_parameter_count, parameter_count
from suite.predict.analytic.usable_memory import usable_memory
from suite.predict.machine_model.model import RunMachine

USUAL_ACCELERATOR = "h100-sxm"
TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022, arXiv 2203.15556, table 3
# Tokens of a step by parameters, at most so many: Brown et al. 2020, arXiv 2005.14165, table 2.1, to a power of two;
# the largest as Touvron et al. 2023, arXiv 2307.09288, section 2.2
STEP_TOKENS = ((1e9, 2**19), (5e9, 2**20), (math.inf, 2**22))
STATE_SHARE = 0.8  # of the memory, where the number of accelerators is assumed; the rest is for activations
_RAMP_UP = ("batch_rampup_start", "batch_rampup_increment", "batch_rampup_samples")


class AskedTraining(NamedTuple):
    """Values that take the place of a run's own; None: as the run has it, or else what is usual.

    Args:
        precision: of weights, gradients and optimizer state.
        batch: samples of a step, over all accelerators.
        micro_batch: samples of one forward and backward pass.
        sequence: tokens of a sample.
        tokens: of the whole training.
    """

    precision: Precision | None = None
    batch: int | None = None
    micro_batch: int | None = None
    sequence: int | None = None
    tokens: int | None = None


class Assumed(NamedTuple):
    """Something that neither a run nor an option says.

    Args:
        words: the value, and why this one.
        option: changes it.
    """

    words: str
    option: str


class AskedRun(NamedTuple):
    """The run with what was asked and assumed.

    Args:
        on: accelerator to predict for in place of the run's own; None: the run's own.
        notes: what a reader may not expect of the answers, such as a sequence longer than the recorded one.
    """

    run: ReferenceRun
    ranks: int
    on: str | None
    assumed: tuple[Assumed, ...]
    notes: tuple[str, ...]


def asked_run(
    run: ReferenceRun, training: AskedTraining, *, on: str | None, ranks: int | None, layout: Layout | None = None
) -> AskedRun:
    """The run with the values of `training`, on accelerators that may be assumed; what it lacks is assumed.

    Args:
        on: accelerator in place of the run's own.
        ranks: accelerators in place of the run's own number.
        layout: the one that is asked about, if any; an assumed batch is divided by its replicas.

    Raises:
        InputError: no accelerator of that name.
    """
    assumed: list[Assumed] = []
    notes: list[str] = []
    architecture = _with_sequence(run.architecture, training.sequence, notes)
    recipe = _changed(run.recipe, _asked_values(training))
    if on is None and run.cluster is None:
        on = USUAL_ACCELERATOR
        assumed.append(Assumed(f"accelerator {on}", "--on"))
    device = accelerator(on or (run.cluster.accelerator if run.cluster else USUAL_ACCELERATOR))
    if "precision" in missing_keys(recipe):
        precision = Precision.BF16 if "bf16" in device.peak_flop_per_second else Precision.FP16
        recipe = _changed(recipe, {"precision": precision})
        assumed.append(Assumed(f"precision {precision}", "--precision"))
    number = layout.ranks if layout else ranks or own_ranks(run)
    if number is None:
        number = _holding(architecture, recipe, device)
        reason = "the model's state fits" if number == 1 else "the first power of 2 that holds the state"
        assumed.append(Assumed(f"{number:,} {'accelerator' if number == 1 else 'accelerators'}: {reason}", "--gpus"))
    if "global_batch" in missing_keys(recipe):
        batch = _usual_batch(architecture, _batch_unit(layout) if layout else number)
        recipe = _changed(recipe, {"global_batch": batch})
        words = f"batch of {batch:,} samples: {batch * architecture.sequence / 1e6:.2g} million tokens a step"
        assumed.append(Assumed(words, "--batch"))
    if "tokens" in missing_keys(recipe):
        tokens = TOKENS_PER_PARAMETER * active_parameter_count(architecture)
        recipe = _changed(recipe, {"tokens": tokens})
        assumed.append(Assumed(f"{tokens / 1e9:,.0f} billion tokens: {TOKENS_PER_PARAMETER} a parameter", "--tokens"))
    changed = msgspec.structs.replace(run, architecture=architecture, recipe=recipe)
    return AskedRun(changed, number, on, tuple(assumed), tuple(notes))


def machine_assumptions(machine: RunMachine, *, ranks: int) -> tuple[Assumed, ...]:
    """Network and software of the machine, as far as neither run nor an option names them."""
    found: list[Assumed] = []
    if machine.usual_network is not None:
        words = f"{8e-9 * machine.usual_network:,.0f} Gbit/s out of a node, as is usual for {machine.accelerator.name}"
        found.append(Assumed(words, "--network"))
    if machine.stack.name == GENERIC and machine.is_stack_assumed:
        proposed = proposed_stacks(machine.accelerator, ranks)
        words = f"{GENERIC} software; usual is {' or '.join(proposed)}"
        found.append(Assumed(words, "--stack"))
    return tuple(found)


def proposed_stacks(device: Accelerator, ranks: int) -> tuple[str, ...]:
    """Stacks that most people train with on so many such accelerators, by name, the likeliest first.

    Megatron-Core where several share a direct link, as its tensor parallelism needs; PyTorch everywhere.
    """
    return ("megatron-core", "pytorch") if ranks > 1 and device.board.direct_link else ("pytorch",)


def check_positive(given: dict[str, float | None]) -> None:
    """Refuse options or controls whose numbers are not above 0, or larger than the numbers of a run file may be.

    Raises:
        InputError: one is.
    """
    for name, value in given.items():
        least, most, words = (1, MOST, f"{MOST:,}") if isinstance(value, int) else (SMALLEST, LARGEST, f"{LARGEST:g}")
        if value is not None and not least <= value <= most:  # nor NaN
            allowed = f"a finite one above 0, up to {words}"
            raise InputError("not a usable number", got=value, allowed=allowed, where=name)


def own_ranks(run: ReferenceRun) -> int | None:
    """Accelerators that the run had; None where it does not say."""
    if run.cluster is not None and run.cluster.accelerators is not None:
        return run.cluster.accelerators
    return run.recorded_layout.ranks if run.recorded_layout is not None else None


def with_batch(recipe: Recipe, global_batch: int) -> Recipe:
    """The recipe with whole batches of that size, which it may lack."""
    return _changed(recipe, {"global_batch": global_batch, **dict.fromkeys(_RAMP_UP)})


def with_products(run: ReferenceRun, products: ProductFormat | None) -> ReferenceRun:
    """The run with its layers' matrix products in this format; None: as it has them."""
    if products is None:
        return run
    return msgspec.structs.replace(run, recipe=msgspec.structs.replace(run.recipe, product_format=products))


def _asked_values(training: AskedTraining) -> dict[str, Any]:
    """Values of the recipe that were asked for."""
    values: dict[str, Any] = {}
    if training.precision is not None:
        values["precision"] = training.precision
    if training.batch is not None:
        values |= {"global_batch": training.batch, **dict.fromkeys(_RAMP_UP)}
    if training.tokens is not None:
        values["tokens"] = training.tokens
    return values


def _changed(recipe: Recipe, values: dict[str, Any]) -> Recipe:
    """The recipe with these values, of which it may lack some."""
    changes = dict(values)
    if isinstance(recipe, IncompleteRecipe):
        changes["missing"] = tuple(key for key in recipe.missing if key not in values)
    return msgspec.structs.replace(recipe, **changes)


def _with_sequence(architecture: Architecture, sequence: int | None, notes: list[str]) -> Architecture:
    if sequence is None or sequence == architecture.sequence:
        return architecture
    longest = architecture.sequence + (architecture.extra_positions or 0)
    if sequence > longest:
        notes.append(f"sequences of {sequence:,} tokens are longer than the {longest:,} that the run records")
    return msgspec.structs.replace(architecture, sequence=sequence)


def _holding(architecture: Architecture, recipe: Recipe, device: Accelerator) -> int:
    """The fewest accelerators, doubled from 1, that hold the sharded state in a share of their memory."""
    held = bytes_per_parameter(recipe.precision, recipe.kept_moments) * parameter_count(architecture)
    needed = held / (STATE_SHARE * usable_memory(device.board).usable)
    return 1 << max(0, math.ceil(math.log2(needed)))


def _batch_unit(layout: Layout) -> int:
    """Samples of which a batch of the layout is a multiple: a micro-batch for each replica and stage."""
    return layout.replicas * layout.micro_batch * (layout.accumulation or layout.pipeline_stages)


def _usual_batch(architecture: Architecture, unit: int) -> int:
    """Samples of a step of pre-training, a multiple of `unit`."""
    parameters = parameter_count(architecture)
    tokens: int = next(each for most, each in STEP_TOKENS if parameters < most)
    return unit * max(1, round(tokens / architecture.sequence / unit))


def check_micro_batch(batch: int, micro_batch: int | None) -> None:
    """Refuse a micro-batch that does not divide the batch.

    Raises:
        InputError: it does not.
    """
    if micro_batch is not None and batch % micro_batch:
        what = f"does not divide the batch of {batch:,} samples"
        raise InputError(what, got=micro_batch, allowed="a divisor, or another --batch", where="--micro-batch")


def another_number(layout: Layout, words: str, gpus: int) -> InputError:
    """The refusal of a layout of another number of accelerators than is asked for.

    Megatron-Core's data-parallel ranks contain those of experts: where the words mean that, it names the right ones.
    """
    data, experts = layout.data_parallel, layout.expert_parallel
    allowed = f"{gpus:,}"
    if experts > 1 and data % experts == 0 and layout.ranks == gpus * experts:
        own = re.sub(rf"dp{data}(?![0-9])", f"dp{data // experts}", words)
        allowed += f": {own}, where dp counts no ranks of ep"
    got = f"{words}, {layout.ranks:,} accelerators"
    return InputError("another number than --gpus", got=got, allowed=allowed, where="--layout")
