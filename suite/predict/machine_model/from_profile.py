"""The machine that a calibration measured, as the time model needs it: what it measured, and what is assumed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from reference_runs.accelerator import Accelerator, Board, dense_peak_flop_per_second, known_gpu
from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.machine_model import machine_model
from reference_runs.run import Activation, Precision, ReferenceRun, Workload
from reference_runs.stack import RecordedStack, reading
from suite.machine.half_precision import WORK_DTYPES, Kernels, kernels_for
from suite.machine.profile import Profile
from suite.machine.timing_tables import Line, Subject, Table
from suite.predict.analytic.gemm import EfficiencyTable, ProductTables
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.memory import WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.memory_bound_operators import (
    BACKWARD,
    BACKWARD_SHARES,
    MASK_BYTES,
    RESIDUAL_OPERATORS,
    layer_operator_bytes,
    score_operator_bytes,
)
from suite.predict.analytic.usable_memory import usable_memory
from suite.predict.machine_model.model import RunMachine, asked_stack, recorded_network_bytes_per_second

# the measured operator that stands for each activation, of gated ones for their gate's; SiLU was not measured
MEASURED_ACTIVATION = {
    Activation.GELU: "gelu",
    Activation.GELU_TANH: "gelu_tanh",
    Activation.FAST_GELU: "gelu_tanh",
    Activation.RELU: "relu",
    Activation.GEGLU: "gelu",
    Activation.SWIGLU: "gelu",
    Activation.RELU_SQUARED: "relu",
    Activation.GEGLU_TANH: "gelu_tanh",
}
ADAM_BYTES = 28  # an element: weight, gradient and both moments read, all but the gradient written, in fp32
GIB = 2**30


def profiled_machine(
    profile: Profile,
    run: ReferenceRun,
    layout: Layout | None,
    *,
    network_bytes_per_second: float | None = None,
    stack_name: str | None = None,
) -> RunMachine:
    """Machines like the one that `profile` measured, with the software of `run` or the stack of this name.

    An accelerator is one rank of the profile while all its ranks work at once, and a node has as many as measured:
        products        share of the peak by shape and transposition, from the tables of NT (forward), NN and TN
        attention       fused: the rate of its largest point, forward and backward
        memory          bytes a second of the largest triad
        operators       their seconds an element where that is longer than their least bytes take
        update          the same of Adam
        kernels         the seconds of a call on a CPU, where the host computes itself; on CUDA the fixed seconds of an
                        addition, and a call's for the host, where the stack launches from Python
        links           latency a and bandwidth B of a ring of the largest group of n ranks that was measured, of its
                        line f + S u: a = f / (2 (n - 1)), B = 2 (n - 1) / n / u
    The peak is that of the data sheet where the catalog knows the GPU; otherwise the highest rate of any product. The
    network between nodes is `network_bytes_per_second`, or the run's; a step of its latency takes as long as one inside
    a node. What else no profile has is the fitted model's share of other machines, or none; `notes` names it.

    Raises:
        InputError: something that the run needs was not measured, or the profile has no memory size.
    """
    if run.recipe.product_format.casts:
        what, got = "products in recipe.product_format are not calibrated", run.recipe.product_format.value
        raise InputError(what, got=got, allowed="none, or --on with an accelerator's name", where="--machine")
    stages = layout is not None and layout.pipeline_stages > 1
    named = run.software.stack if run.software else None
    read = asked_stack(stack_name, stages=stages) if stack_name else reading(named, stages=stages)
    software = read.stack
    measured = _measured(profile, WORK_DTYPES[run.recipe.precision])
    network = network_bytes_per_second or recorded_network_bytes_per_second(run.cluster)
    if layout is not None and layout.ranks > profile.conditions.ranks and network is None:
        key = "cluster.network_interfaces_per_node and cluster.network_interface_bandwidth"
        missing = f"{key} are needed for the step time, but neither recorded nor in a machine profile"
        return RunMachine(measured.accelerator, measured.dtype, software, None, None, missing, (), read_as=read.how)
    bandwidth = profile.memory_bytes_per_second(ranks=profile.conditions.ranks)
    passes = _passes(profile, run, layout or Layout(), software, measured.dtype, bandwidth)
    machine = _machine(profile, measured, passes, software, network)
    machine = msgspec.structs.replace(machine, kernels=kernels_for(run.recipe.precision, profile.fingerprint.device))
    notes = [
        *_hardware_notes(profile, measured),
        *_layout_notes(profile, measured, layout, network or 0.0, asked=bool(network_bytes_per_second)),
        *_step_notes(profile, machine, software),
    ]
    return RunMachine(measured.accelerator, measured.dtype, software, machine, None, "", tuple(notes), read_as=read.how)


def profiled_operators(
    profile: Profile, precision: Precision, *, ranks: int, network_bytes_per_second: float | None, stack_name: str
) -> tuple[RunMachine, dict[str, float]]:
    """Machines like the one that `profile` measured, for operators that are priced one by one.

    As `profiled_machine`, but memory-bound operators are distinguished: how many times what their bytes take at the
    memory's bandwidth norms, softmax, cross-entropy, activations (GELU stands for all) and sums take, at least once.

    Raises:
        InputError: something that is needed was not measured, or the profile has no memory size.
    """
    read = asked_stack(stack_name, stages=False)
    measured = _measured(profile, WORK_DTYPES[precision])
    if ranks > profile.conditions.ranks and network_bytes_per_second is None:
        missing = f"--network is needed for more than the {profile.conditions.ranks} ranks that the profile has"
        return RunMachine(measured.accelerator, measured.dtype, read.stack, None, None, missing, ()), {}
    machine = _machine(profile, measured, {}, read.stack, network_bytes_per_second)
    width, dtype, shares = WEIGHT_ELEMENT_BYTES[precision], measured.dtype, BACKWARD_SHARES
    tables = {"norm": ("layer_norm", dtype, shares["norm"]), "softmax": ("softmax", "fp32", shares["softmax"])}
    tables["loss"] = ("cross_entropy", "fp32", float(BACKWARD))
    seconds = {name: _table_element_seconds(profile, *table) / (2 * width) for name, table in tables.items()}
    seconds["activation"] = _line_element_seconds(profile, "gelu", dtype, shares["activation"]) / (2 * width)
    seconds["sum"] = _line(profile, "add", "forward", dtype).seconds_per_unit / (3 * width)
    passes = {name: max(1.0, each * machine.memory_bytes_per_second) for name, each in seconds.items()}
    notes = [*_hardware_notes(profile, measured), *_step_notes(profile, machine, read.stack)]
    return RunMachine(measured.accelerator, dtype, read.stack, machine, None, "", tuple(notes)), passes


class _Measured(NamedTuple):
    """A profile's measurements of its ranks in one dtype.

    Args:
        known: whether the catalog has the accelerator.
        products: the tables by transposition.
        attention_flop_per_second: fused, of its largest point.
        link: latency in seconds and bytes a second of one step of a ring.
    """

    dtype: str
    accelerator: Accelerator
    known: bool
    peak_flop_per_second: float
    products: dict[str, Table]
    attention_flop_per_second: float
    link: tuple[float, float]


def _measured(profile: Profile, dtype: str) -> _Measured:
    known = known_accelerator(profile)
    device = known or _measured_accelerator(profile, dtype)
    return _Measured(
        dtype,
        device,
        known is not None,
        dense_peak_flop_per_second(device, dtype),
        {variant: _tables(profile, "product", variant, dtype)[0] for variant in ("NT", "NN", "TN")},
        _attention_rate(profile, dtype),
        _link(profile, dtype),
    )


def _machine(
    profile: Profile, measured: _Measured, passes: Mapping[str, Any], software: RecordedStack, network: float | None
) -> Machine:
    """The machine of the time model: measured where the profile has it, else fitted to other machines.

    Args:
        passes: those of the machine's operators.
    """
    model = machine_model().values()
    on_cuda = profile.fingerprint.device == "cuda"
    peak, (link_seconds, link_bandwidth) = measured.peak_flop_per_second, measured.link
    bandwidth = profile.memory_bytes_per_second(ranks=profile.conditions.ranks)
    call_seconds = _line(profile, "calls").seconds_per_unit
    kernel_seconds = _line(profile, "add", "forward", measured.dtype).fixed_seconds if on_cuda else call_seconds
    return Machine(
        peak_flop_per_second=peak,
        peak_is_measured=not measured.known,
        memory_bytes=usable_memory(measured.accelerator.board).usable,
        memory_bytes_per_second=bandwidth,
        memory_efficiency=1.0,
        matrix_efficiency=ProductTables(
            forward=_efficiencies(measured.products["NT"], peak),
            input_gradient=_efficiencies(measured.products["NN"], peak),
            weight_gradient=_efficiencies(measured.products["TN"], peak),
        ),
        fused_attention_efficiency=measured.attention_flop_per_second / peak,
        link_bytes_per_second=link_bandwidth,
        link_efficiency=1.0,
        direct_link=measured.accelerator.board.direct_link,
        link_latency_seconds=link_seconds,
        network_bytes_per_second=network or link_bandwidth,
        network_efficiency=model["network_efficiency"],
        network_latency_seconds=link_seconds,
        network_contention=model["network_contention"],
        accelerators_per_node=profile.conditions.ranks,
        watts=measured.accelerator.board.watts,
        power_share=model["power_share"],
        overlap_share=model["overlap_share"] if on_cuda else 0.0,
        overlap_cost=model["overlap_cost"] if on_cuda else 0.0,
        misalignment=model["misalignment"] if on_cuda else 1.0,
        kernel_seconds=kernel_seconds,
        launch_seconds=call_seconds if on_cuda and software.switches.python_launches else 0.0,
        stack=software.switches,
        **passes,
    )


def _hardware_notes(profile: Profile, measured: _Measured) -> Iterator[str]:
    """Description of an accelerator of this machine."""
    ranks, dtype, peak = profile.conditions.ranks, measured.dtype, measured.peak_flop_per_second
    measured_utc = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(profile.measured))
    yield (
        f"machine profile of node {profile.fingerprint.node}, measured {measured_utc}: {_hardware(profile)}; "
        f"an accelerator is one of its {ranks} ranks while all of them work"
    )
    if dtype != "fp32" and f"{dtype}_products" in profile.conditions.facts:
        yield f"{dtype} products {profile.conditions.facts[f'{dtype}_products']}, as measured"
    if not measured.known:
        yield f"mfu and hfu are shares of the highest {dtype} matrix rate measured, {peak / 1e9:,.1f} Gflop/s"
        yield f"assumed: a rank has 1 / {ranks} of the node's {profile.fingerprint.hardware['memory']}"
    largest = " x ".join(f"{axis.points[-1]:,.0f}" for axis in measured.products["NT"].axes)
    yield f"assumed: products above the largest measured one ({largest}) run at its rate"


def _layout_notes(
    profile: Profile, measured: _Measured, layout: Layout | None, network: float, *, asked: bool
) -> Iterator[str]:
    """The network that the run's layout needs beyond the measurements: the one `asked` for, or the run's."""
    if layout is None:
        return
    if layout.fused_attention:
        sequence = _tables(profile, "attention", "forward", measured.dtype)[0].axes[1].points[-1]
        rate = measured.attention_flop_per_second / 1e9
        largest = f"its largest measured sequence, {sequence:,.0f}"
        yield f"assumed: fused attention runs at the {rate:,.1f} Gflop/s of {largest}"
    if layout.ranks > profile.conditions.ranks:
        origin = "as asked for" if asked else "as recorded for the run"
        yield f"{8 * network / 1e9:,.0f} Gbit/s out of each node, {origin}; a profile has no network"
        step = "as inside the node" if profile.conditions.ranks > 1 else "as fitted to other machines"
        yield f"assumed: a step of a collective between nodes has the latency of {measured.link[0]:.2g} s, {step}"


def _step_notes(profile: Profile, machine: Machine, software: RecordedStack) -> Iterator[str]:
    """Notes on hidden traffic, on a step's cost beyond its operators, and on how far to trust it."""
    on_cuda = profile.fingerprint.device == "cuda"
    hidden = f"{machine.overlap_share:.0%} of the computation, as fitted to other machines" if on_cuda else "nothing"
    yield f"assumed: {hidden} hides data-parallel traffic; a step costs nothing beyond its operators"
    from suite.predict.simulation.step_correction import nearest_reference_step, step_correction  # for profiles alone

    if timed := nearest_reference_step(profile.reference_steps, ranks=profile.conditions.ranks, compiled=False):
        factor = step_correction(profile, timed, kernels=Kernels()).factor
        yield f"a step as small as a miniature's took {factor:.2f} times what its parts did there: not applied"
    yield f"software: {software.title} (`--stack`; {software.name})"
    yield "the error to expect is unknown: no published table holds for this machine"


def known_accelerator(profile: Profile) -> Accelerator | None:
    """The GPU of the profile's node as the catalog has it; None for a CPU and for what the catalog does not know."""
    return known_gpu(profile.fingerprint.hardware["gpus"]) if profile.fingerprint.device == "cuda" else None


def _measured_accelerator(profile: Profile, dtype: str) -> Accelerator:
    """One rank of the profile as an accelerator whose peak is what it reached."""
    ranks, where = profile.conditions.ranks, f"machine profile of node {profile.fingerprint.node}"
    hardware, on_cuda = profile.fingerprint.hardware, profile.fingerprint.device == "cuda"
    size, _, unit = hardware.get("memory", "").partition(" ")
    if on_cuda or unit != "GiB" or not size.isdecimal():
        got = hardware.get("gpus" if on_cuda else "memory", "nothing")
        raise InputError("the memory of an accelerator is not known", got=got, allowed="a GPU of `runs`", where=where)
    return Accelerator(
        name=f"ranks of {profile.fingerprint.node}",
        title=f"One of {ranks} ranks of {_hardware(profile)}",
        where=where,
        aliases=(),
        peak_flop_per_second={dtype: profile.achievable_flop_per_second(dtype, ranks=ranks)},
        board=Board(
            memory_bytes=int(size) * GIB // ranks,
            memory_bytes_per_second=profile.memory_bytes_per_second(ranks=ranks),
            link="measured",
            link_bytes_per_second_both_ways=2 * _link(profile, dtype)[1],
            direct_link=False,
            accelerators_per_node=ranks,
        ),
        facts={},
        sources={},
    )


def _hardware(profile: Profile) -> str:
    facts = profile.fingerprint.hardware
    if profile.fingerprint.device == "cuda":
        return facts["gpus"]
    return f"{facts.get('cpu', 'unknown CPU')}, {facts.get('cores', 'unknown')} cores"


def _tables(profile: Profile, operation: str, variant: str = "", dtype: str = "fp32") -> list[Table]:
    """The tables of an operation by all ranks at once, with the greatest reach first.

    A table reaches as far as the least of its axes' last points.
    """
    subject = Subject(operation=operation, variant=variant, dtype=dtype, ranks=profile.conditions.ranks)
    tables = [table for table in profile.tables if table.subject == subject]
    if not tables:
        raise InputError(f"the profile has no measurement of {subject}", allowed="calibrate again")
    return sorted(tables, key=lambda table: -min(axis.points[-1] for axis in table.axes))


def _line(profile: Profile, operation: str, variant: str = "", dtype: str = "fp32") -> Line:
    subject = Subject(operation=operation, variant=variant, dtype=dtype, ranks=profile.conditions.ranks)
    return profile.line(subject)


def _link(profile: Profile, dtype: str) -> tuple[float, float]:
    """Latency in seconds and bytes a second of one step of a ring; of a single rank, whose node has no link: what the
    fit found for the network, and no limit."""
    ranks = profile.conditions.ranks
    if ranks == 1:
        return machine_model().values()["network_latency_seconds"], math.inf
    line = _line(profile, "all_reduce", "", dtype)
    steps = 2 * (ranks - 1)
    return line.fixed_seconds / steps, steps / ranks * line.units_per_second


def _efficiencies(table: Table, peak_flop_per_second: float) -> EfficiencyTable:
    """The share of the peak that the table's products reach."""
    rows, columns, depths = (axis.points for axis in table.axes)
    timings = iter(table.timings)
    shares = tuple(
        tuple(tuple(2 * m * n * k / next(timings).seconds / peak_flop_per_second for k in depths) for n in columns)
        for m in rows
    )
    return EfficiencyTable(rows, columns, depths, shares)


def _attention_rate(profile: Profile, dtype: str) -> float:
    """Flop a second of causal attention's largest point: 3.5 times the forward pass's 2 b s^2 d, in both passes."""
    passes = [_tables(profile, "attention", variant, dtype)[0] for variant in ("forward", "backward")]
    batch, sequence, width = (axis.points[-1] for axis in passes[0].axes)
    return 3.5 * 2 * batch * sequence**2 * width / sum(table.timings[-1].seconds for table in passes)


def _table_element_seconds(profile: Profile, operation: str, dtype: str, share: float) -> float:
    """Seconds an element of an operator's largest point in the forward pass, if `share` times that are the backward's.

    That share of both passes' seconds: a mean of the two by their bytes.
    """
    seconds = 0.0
    for variant in ("forward", "backward"):
        table = _tables(profile, operation, variant, dtype)[0]
        seconds += table.timings[-1].seconds / math.prod(axis.points[-1] for axis in table.axes)
    return seconds / (1 + share)


def _line_element_seconds(profile: Profile, operation: str, dtype: str, share: float) -> float:
    """The same of an operator that was measured as a line."""
    lines = [_line(profile, operation, variant, dtype) for variant in ("forward", "backward")]
    return sum(line.seconds_per_unit for line in lines) / (1 + share)


def _passes(
    profile: Profile, run: ReferenceRun, layout: Layout, software: RecordedStack, dtype: str, bandwidth: float
) -> dict[str, float]:
    """How many times its least bytes an operator takes at the bandwidth of the memory, at least once.

    Less than once is an operator in the caches: its measured sizes fit there, those of a run do not. A mean over the
    operators of a kind counts their bytes; bias and rotation count as the activation does.
    """
    width = WEIGHT_ELEMENT_BYTES[run.recipe.precision]
    workload = Workload(run.architecture, run.recipe, layout)
    moved = layer_operator_bytes(workload)

    def times(element_seconds: float, element_bytes: float) -> float:
        return max(1.0, element_seconds * bandwidth / element_bytes)

    def mean(names: Iterable[str]) -> float:
        known = [name for name in names if name in moved]
        total = sum(moved[name] for name in known)
        return sum(passes[name] * moved[name] for name in known) / total if total else 1.0

    shares = BACKWARD_SHARES
    dropout = times(_line_element_seconds(profile, "dropout", dtype, shares["dropout"]), 2 * width + MASK_BYTES)
    passes = {
        "norm": times(_table_element_seconds(profile, "layer_norm", dtype, shares["norm"]), 2 * width),
        "residual add": times(_line(profile, "add", "forward", dtype).seconds_per_unit, 3 * width),
        "dropout": dropout,
        "softmax": times(_table_element_seconds(profile, "softmax", "fp32", shares["softmax"]), 2 * width),
        "attention dropout": dropout,
    }
    measured = MEASURED_ACTIVATION[run.architecture.activation]
    activation = _line_element_seconds(profile, measured, dtype, shares["activation"])
    loss = times(_table_element_seconds(profile, "cross_entropy", "fp32", BACKWARD), width)
    return {
        "residual_passes": mean(RESIDUAL_OPERATORS),
        "inner_passes": times(activation, 2 * width),
        "score_passes": mean(score_operator_bytes(workload)),
        "loss_passes": loss / software.switches.loss_share,
        "update_passes": times(_line(profile, "adam").seconds_per_unit, ADAM_BYTES),
    }
