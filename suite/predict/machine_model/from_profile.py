"""The machine that a calibration measured, as the time model needs it: what it measured, and what is assumed beside."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping

from reference_runs.accelerator import Accelerator, Board, accelerator, dense_peak_flop_per_second
from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.machine_model import machine_model
from reference_runs.run import Activation, ReferenceRun, Workload
from reference_runs.stack import RecordedStack, stack, stack_of
from suite.machine.half_precision import Kernels, dtype_of
from suite.machine.profile import Profile
from suite.machine.timing_tables import Line, Subject, Table
from suite.predict.analytic.gemm import EfficiencyTable, ProductTables
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.memory import WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.memory_bound_operators import (
    BACKWARD,
    MASK_BYTES,
    RESIDUAL_OPERATORS,
    layer_operator_bytes,
    score_operator_bytes,
)
from suite.predict.machine_model.from_cluster import RunMachine, recorded_network_bytes_per_second
from suite.predict.simulation.step_correction import beside_parts, nearest_trial

# the measured operator that stands for each activation, of gated ones for their gate's; SiLU was not measured
MEASURED_ACTIVATION = {
    Activation.GELU: "gelu",
    Activation.GELU_TANH: "gelu_tanh",
    Activation.FAST_GELU: "gelu_tanh",
    Activation.RELU: "relu",
    Activation.GEGLU: "gelu",
    Activation.SWIGLU: "gelu",
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
    a node. What else no profile tells is the fitted model's share of other machines, or none; `notes` names it.

    Raises:
        InputError: something that the run needs was not measured, or the profile tells no memory size.
    """
    model = machine_model().values()
    found = stack(stack_name) if stack_name else stack_of(run.software.stack if run.software else None)
    recipe, on_cuda = run.recipe, profile.fingerprint.device == "cuda"
    dtype, ranks = dtype_of(recipe.precision), profile.conditions.ranks
    known = known_accelerator(profile)
    device = known or _measured_accelerator(profile, dtype)
    peak = dense_peak_flop_per_second(device, dtype)
    bandwidth = _bandwidth(profile)
    notes = [
        f"machine profile of node {profile.fingerprint.node}, measured {_day(profile.measured)}: {_hardware(profile)}; "
        f"an accelerator is one of its {ranks} ranks while all of them work"
    ]
    if dtype != "fp32" and f"{dtype}_products" in profile.conditions.facts:
        notes.append(f"{dtype} products {profile.conditions.facts[f'{dtype}_products']}, as measured")
    if known is None:
        notes.append(f"mfu and hfu are shares of the highest {dtype} matrix rate measured, {peak / 1e9:,.1f} Gflop/s")
        notes.append(f"assumed: a rank has 1 / {ranks} of the node's {profile.fingerprint.hardware['memory']}")
    tables = {variant: _product_table(profile, variant, dtype) for variant in ("NT", "NN", "TN")}
    largest = " x ".join(f"{axis.points[-1]:,.0f}" for axis in tables["NT"].axes)
    notes.append(f"assumed: products above the largest measured one ({largest}) run at its rate")
    attention = _attention_rate(profile, dtype)
    if layout is not None and layout.fused_attention:
        sequence = _tables(profile, "attention", "forward", dtype)[0].axes[1].points[-1]
        notes.append(
            f"assumed: fused attention runs at the {attention / 1e9:,.1f} Gflop/s of its largest measured sequence, "
            f"{sequence:,.0f}"
        )
    link_seconds, link_bandwidth = _link(profile, dtype)
    network = network_bytes_per_second or recorded_network_bytes_per_second(run.cluster)
    missing = ""
    if layout is not None and layout.ranks > ranks:
        if network is None:
            key = "cluster.network_interfaces_per_node and cluster.network_interface_bandwidth"
            missing = f"{key} are needed for the step time, but neither recorded nor in a machine profile"
        else:
            origin = "as asked for" if network_bytes_per_second else "as recorded for the run"
            notes.append(f"{8 * network / 1e9:,.0f} Gbit/s out of each node, {origin}; a profile has no network")
            step = "as inside the node" if ranks > 1 else "as fitted to other machines"
            notes.append(
                f"assumed: a step of a collective between nodes has the latency of {link_seconds:.2g} s, {step}"
            )
    overlap = model["overlap_share"] if on_cuda else 0.0
    hidden = f"{overlap:.0%} of the computation, as fitted to other machines" if on_cuda else "nothing"
    notes.append(f"assumed: {hidden} hides data-parallel traffic; a step costs nothing beyond its operators")
    if timed := nearest_trial(profile.trials, ranks=ranks, compiled=False):
        factor = beside_parts(profile, timed, kernels=Kernels()).factor
        notes.append(f"a step as small as a miniature's took {factor:.2f} times what its parts did there: not applied")
    notes.append(f"software: {found.title} (`--stack`; {found.name})")
    notes.append("the error to expect is unknown: no published table holds for this machine")
    if missing:
        return RunMachine(device, dtype, found, None, None, missing, ())
    machine = Machine(
        peak_flop_per_second=peak,
        peak_is_measured=known is None,
        memory_bytes=device.board.memory_bytes,
        memory_bytes_per_second=bandwidth,
        memory_efficiency=1.0,
        matrix_efficiency=ProductTables(
            forward=_efficiencies(tables["NT"], peak),
            input_gradient=_efficiencies(tables["NN"], peak),
            weight_gradient=_efficiencies(tables["TN"], peak),
        ),
        fused_attention_efficiency=attention / peak,
        link_bytes_per_second=link_bandwidth,
        link_efficiency=1.0,
        link_latency_seconds=link_seconds,
        network_bytes_per_second=network or link_bandwidth,
        network_efficiency=model["network_efficiency"],
        network_latency_seconds=link_seconds,
        network_contention=model["network_contention"],
        accelerators_per_node=ranks,
        watts=device.board.watts,
        power_share=model["power_share"],
        overlap_share=overlap,
        misalignment=model["misalignment"] if on_cuda else 1.0,
        kernel_seconds=_line(profile, "add", "forward", dtype).fixed_seconds if on_cuda else _call_seconds(profile),
        launch_seconds=_call_seconds(profile) if on_cuda and found.switches.python_launches else 0.0,
        stack=found.switches,
        **_passes(profile, run, layout or Layout(), found, dtype, bandwidth),
    )
    return RunMachine(device, dtype, found, machine, None, "", tuple(notes))


def known_accelerator(profile: Profile) -> Accelerator | None:
    """The GPU of the profile's node as the catalog has it; None for a CPU and for what the catalog does not know."""
    if profile.fingerprint.device != "cuda":
        return None
    models = set(profile.fingerprint.hardware["gpus"].split(", "))
    try:
        return accelerator(models.pop()) if len(models) == 1 else None
    except InputError:
        return None


def _measured_accelerator(profile: Profile, dtype: str) -> Accelerator:
    """One rank of the profile as an accelerator whose peak is what it reached."""
    ranks, where = profile.conditions.ranks, f"machine profile of node {profile.fingerprint.node}"
    size, _, unit = profile.fingerprint.hardware.get("memory", "").partition(" ")
    if profile.fingerprint.device == "cuda" or unit != "GiB" or not size.isdecimal():
        got = profile.fingerprint.hardware.get("gpus" if profile.fingerprint.device == "cuda" else "memory", "nothing")
        raise InputError("the memory of an accelerator is not known", got=got, allowed="a GPU of `runs`", where=where)
    bandwidth = _bandwidth(profile)
    return Accelerator(
        name=f"ranks of {profile.fingerprint.node}",
        title=f"One of {ranks} ranks of {_hardware(profile)}",
        where=where,
        aliases=(),
        peak_flop_per_second={dtype: profile.achievable_flop_per_second(dtype, ranks=ranks)},
        board=Board(
            memory_bytes=int(size) * GIB // ranks,
            memory_bytes_per_second=bandwidth,
            link="measured",
            link_bytes_per_second_both_ways=2 * _link(profile, dtype)[1],
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


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


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


def _bandwidth(profile: Profile) -> float:
    return profile.memory_bytes_per_second(ranks=profile.conditions.ranks)


def _call_seconds(profile: Profile) -> float:
    return _line(profile, "calls").seconds_per_unit


def _link(profile: Profile, dtype: str) -> tuple[float, float]:
    """Latency in seconds and bytes a second of one step of a ring; of a single rank, whose node has no link: what the
    fit found for the network, and no limit."""
    ranks = profile.conditions.ranks
    if ranks == 1:
        return machine_model().values()["network_latency_seconds"], math.inf
    line = _line(profile, "all_reduce", "", dtype)
    steps = 2 * (ranks - 1)
    return line.fixed_seconds / steps, steps / ranks * line.units_per_second


def _product_table(profile: Profile, variant: str, dtype: str) -> Table:
    return _tables(profile, "product", variant, dtype)[0]


def _efficiencies(table: Table, peak_flop_per_second: float) -> EfficiencyTable:
    """The share of the peak that the table's products reach."""
    rows, columns, depths = (axis.points for axis in table.axes)
    timings = iter(table.timings)

    def share(flop: float) -> float:
        return flop / next(timings).seconds / peak_flop_per_second

    efficiencies = tuple(tuple(tuple(share(2 * m * n * k) for k in depths) for n in columns) for m in rows)
    return EfficiencyTable(rows, columns, depths, efficiencies)


def _attention_rate(profile: Profile, dtype: str) -> float:
    """Flop a second of causal attention's largest point: 3.5 times the forward pass's 2 b s^2 d, in both passes."""
    passes = [_tables(profile, "attention", variant, dtype)[0] for variant in ("forward", "backward")]
    batch, sequence, width = (axis.points[-1] for axis in passes[0].axes)
    return 3.5 * 2 * batch * sequence**2 * width / sum(table.timings[-1].seconds for table in passes)


def _table_element_seconds(profile: Profile, operation: str, dtype: str) -> float:
    """Seconds an element of an operator's largest point, the mean over three passes: the backward one counts twice."""
    seconds = 0.0
    for variant in ("forward", "backward"):
        table = _tables(profile, operation, variant, dtype)[0]
        seconds += table.timings[-1].seconds / math.prod(axis.points[-1] for axis in table.axes)
    return seconds / (1 + BACKWARD)


def _line_element_seconds(profile: Profile, operation: str, dtype: str) -> float:
    """The same of an operator that was measured as a line."""
    lines = [_line(profile, operation, variant, dtype) for variant in ("forward", "backward")]
    return sum(line.seconds_per_unit for line in lines) / (1 + BACKWARD)


def _passes(
    profile: Profile, run: ReferenceRun, layout: Layout, found: RecordedStack, dtype: str, bandwidth: float
) -> dict[str, float]:
    """How many times its least bytes an operator takes at the bandwidth of the memory, at least once.

    Less than once is an operator in the caches: its measured sizes fit there, those of a run do not. A mean over the
    operators of a kind counts their bytes; bias and rotation count as the activation does.
    """
    w = WEIGHT_ELEMENT_BYTES[run.recipe.precision]

    def times(element_seconds: float, element_bytes: float) -> float:
        return max(1.0, element_seconds * bandwidth / element_bytes)

    dropout = times(_line_element_seconds(profile, "dropout", dtype), 2 * w + MASK_BYTES)
    activation = MEASURED_ACTIVATION[run.architecture.activation]
    of_operator = {
        "norm": times(_table_element_seconds(profile, "layer_norm", dtype), 2 * w),
        "residual add": times(_line(profile, "add", "forward", dtype).seconds_per_unit, 3 * w),
        "dropout": dropout,
        "softmax": times(_table_element_seconds(profile, "softmax", "fp32"), 2 * w),
        "attention dropout": dropout,
    }
    moved = layer_operator_bytes(Workload(run.architecture, run.recipe, layout))
    return {
        "residual_passes": _mean(of_operator, moved, RESIDUAL_OPERATORS),
        "inner_passes": times(_line_element_seconds(profile, activation, dtype), 2 * w),
        "score_passes": _mean(of_operator, moved, score_operator_bytes(Workload(run.architecture, run.recipe, layout))),
        "loss_passes": times(_table_element_seconds(profile, "cross_entropy", "fp32"), w) / found.switches.loss_share,
        "update_passes": times(_line(profile, "adam").seconds_per_unit, ADAM_BYTES),
    }


def _mean(values: Mapping[str, float], weights: Mapping[str, int], names: Iterable[str]) -> float:
    known = [name for name in names if name in weights]
    total = sum(weights[name] for name in known)
    return sum(values[name] * weights[name] for name in known) / total if total else 1.0
