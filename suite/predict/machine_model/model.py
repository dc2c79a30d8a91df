"""Machines of the fitted model: for a recorded run, and for a published row with its step time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from reference_runs.accelerator import (
    Accelerator,
    accelerator,
    dense_peak_flop_per_second,
    product_peak_flop_per_second,
)
from reference_runs.catalog import accumulation
from reference_runs.machine_model import MachineModel, chosen_edition, machine_model
from reference_runs.run import Architecture, Cluster, Precision, ProductFormat, Software, Workload
from reference_runs.stack import (
    GENERIC,
    UNNAMED,
    AttentionKernel,
    Generation,
    ReadStack,
    RecordedStack,
    Stack,
    reading,
    stack,
)
from reference_runs.this_cpu import THIS_CPU
from suite.machine.half_precision import WORK_DTYPES, Kernels
from suite.predict.analytic.gemm import EfficiencyTable
from suite.predict.analytic.machine import AcceleratorPeak, Machine, attention_clock_share
from suite.predict.analytic.step_time import RankTraffic, StepTime, step_time
from suite.predict.analytic.timed_stages import timed_stages
from suite.predict.analytic.traffic import step_traffic
from suite.predict.analytic.usable_memory import usable_memory
from suite.predict.machine_model.intervals import expected_error
from suite.predict.simulation.walked_memory import BY_FORMULA, unwalked

if TYPE_CHECKING:  # `reproduce` and `predict` read no published table
    from reference_runs.published import PublishedRow

FUSED_INSTEAD = {AttentionKernel.UNFUSED: AttentionKernel.FLASH_ATTENTION_2}  # where a layout fuses attention
GENERATION = {Generation.EARLY_2021: "libraries_early_2021", Generation.LATE_2021: "libraries_2021"}

_AS_NAMED = (  # parameters that a machine has under their names
    *("memory_efficiency", "link_efficiency", "link_latency_seconds", "network_efficiency", "network_latency_seconds"),
    *("power_share", "overlap_share", "overlap_cost", "misalignment", "kernel_seconds", "residual_passes"),
    *("score_passes", "loss_passes", "update_passes", "network_contention", "format_efficiency", "expert_slowdown"),
)


def family_of(model: MachineModel, accelerator_name: str) -> tuple[str, bool]:
    """The family of an accelerator, by its catalog name, and whether published rows of it determined the family.

    The last family stands in for accelerators that none names.
    """
    for name, family in model.families.items():
        if accelerator_name in family.accelerators:
            return name, accelerator_name in family.measured
    return list(model.families)[-1], False


def modelled_machine(
    model: MachineModel,
    values: Mapping[str, float],
    *,
    device: Accelerator,
    software: Stack,
    precision: Precision,
    product_format: ProductFormat,
    network_bytes_per_second: float | None,
    accelerators_per_node: int,
) -> Machine:
    """The machine with the parameters' `values`, each a number or an array with an entry a set of parameters.

    Raises:
        InputError: the accelerator has no peak in the dtype of `precision`, or in `product_format`.
    """
    board, (family_name, _) = device.board, family_of(model, device.name)
    fused = FUSED_INSTEAD.get(software.attention, software.attention)

    def value(name: str) -> float:
        names = (f"{name}.{product_format.value}", f"{name}.{family_name}", name)
        return next(values[each] for each in names if each in values)

    older = value(GENERATION[software.generation]) if software.generation in GENERATION else 1.0
    matrix = value("matrix_efficiency") * older
    kernel = model.families[family_name].attention[fused] * value("attention")
    clock = attention_clock_share(board.clock_share, matrix=matrix, attention=kernel)
    as_named: dict[str, Any] = {name: value(name) for name in _AS_NAMED}
    return Machine(
        peak_flop_per_second=dense_peak_flop_per_second(device, WORK_DTYPES[precision]),
        kernels=Kernels(cuda=device.name != THIS_CPU),
        memory_bytes=usable_memory(board).usable,
        host_bytes_per_second=board.host_bytes_per_second,
        memory_bytes_per_second=board.memory_bytes_per_second,
        matrix_efficiency=EfficiencyTable((1.0,), (1.0,), (1.0,), (((matrix * board.clock_share,),),)),
        fused_attention_efficiency=kernel * clock,
        exponential_flop=model.families[family_name].exponential_flop,
        link_bytes_per_second=board.link_bytes_per_second,
        direct_link=board.direct_link,
        network_bytes_per_second=network_bytes_per_second or board.link_bytes_per_second,
        usual_network_bytes_per_second=board.network_bytes_per_second,
        accelerators_per_node=accelerators_per_node,
        watts=board.watts,
        launch_seconds=value("launch_seconds") if software.python_launches else 0.0,
        inner_passes=1.0 if software.keeping.fused_chains else value("inner_passes"),
        product_overlap=1.0 - value("product_exposure"),
        score_product_overlap=0.0,
        step_overhead_seconds=value("step_overhead_seconds") if software.python_launches else 0.0,
        stack=software,
        product_peak_flop_per_second=product_peak_flop_per_second(device, product_format),
        **as_named,
    )


class RunMachine(NamedTuple):
    """A machine, the accelerator that it is made of, the software on it, and in words what of it was not recorded.

    Args:
        machine: None where the network between nodes is needed and not recorded; `missing` names the fact.
        uncertainty: relative error of a step time that is to be expected; None: unknown.
        product_peak: flop per second in the format of the layers' products; None: none of their own.
        beyond_tables: the part of `uncertainty` for what no published table measured.
        read_as: in words, how the stack was found.
        usual_network: bytes per second out of a node, where neither run nor caller gives them; None: one does, or no
            message leaves a node.
    """

    accelerator: Accelerator
    dtype: str
    stack: RecordedStack
    machine: Machine | None
    uncertainty: float | None
    missing: str
    notes: tuple[str, ...]
    product_peak: float | None = None
    beyond_tables: float = 0.0
    read_as: str = ""
    usual_network: float | None = None

    @property
    def is_calibrated(self) -> bool:
        """Whether published step times of the accelerator entered the fit."""
        return family_of(machine_model(), self.accelerator.name)[1]

    def with_memory_for(self, workload: Workload) -> tuple[RunMachine, tuple[str, ...]]:
        """The machine with the formula for memory, and a note, where its stack's own does not describe the workload."""
        unlike = unwalked(workload, self.stack.switches.keeping)
        if not unlike:
            return self, ()
        switches = msgspec.structs.replace(self.stack.switches, modules=BY_FORMULA[self.stack.switches.modules])
        software = msgspec.structs.replace(self.stack, switches=switches)
        machine = self.machine and msgspec.structs.replace(self.machine, stack=switches)
        note = f"memory by formula: that of {self.stack.name} is not described with {'; '.join(unlike)}"
        return self._replace(stack=software, machine=machine), (note,)

    @property
    def is_stack_assumed(self) -> bool:
        """Whether neither run nor caller names the software."""
        return self.read_as == UNNAMED

    @property
    def peak(self) -> AcceleratorPeak:
        """Peak of the accelerator in the run's dtype, whatever the network is.

        Raises:
            InputError: the accelerator has none.
        """
        return (
            self.machine.peak
            if self.machine
            else AcceleratorPeak(
                dense_peak_flop_per_second(self.accelerator, self.dtype), product_flop_per_second=self.product_peak
            )
        )


def run_machine(  # long: what is not recorded is noted on the way
    cluster: Cluster | None,
    precision: Precision,
    product_format: ProductFormat = ProductFormat.NONE,
    *,
    ranks: int,
    accelerator_name: str | None,
    network_bytes_per_second: float | None = None,
    software: Software | None = None,
    stack_name: str | None = None,
    stages: bool = False,
    architecture: Architecture | None = None,
) -> RunMachine | None:
    """The machine of `cluster`, or the same cluster built of `accelerator_name`; None where neither is given.

    Nodes have the cluster's size, or the accelerator's usual one where another accelerator is asked for. The network
    gives each node `network_bytes_per_second`, or is the cluster's, or the usual one of such nodes. The stack is the
    one of this name, or the one that `software` names; on another accelerator than the cluster's, with current
    libraries.

    Args:
        stages: pipeline stages split the layers.
        architecture: of the model, whose layers change the error to expect.

    Raises:
        InputError: unknown accelerator or stack, or an accelerator without a peak for the recipe's dtype or products.
    """
    name = accelerator_name if accelerator_name is not None or cluster is None else cluster.accelerator
    if name is None:
        return None
    device = accelerator(name)
    dtype = WORK_DTYPES[precision]
    dense_peak_flop_per_second(device, dtype, option="--precision")  # refused before anything else is said of it
    product_peak = product_peak_flop_per_second(device, product_format)
    elsewhere = cluster is None or accelerator(cluster.accelerator).name != device.name
    (recorded, how), libraries = _software(software, stack_name, device, elsewhere=elsewhere, stages=stages)
    notes: list[str] = []
    counted = cluster.accelerators_per_node if cluster and accelerator_name is None else None
    per_node = device.board.joined(counted or device.board.accelerators_per_node)
    if counted is None and ranks > 1:
        notes.append(f"{per_node} accelerators a node, as is usual for {device.name}")
    crosses_nodes = ranks > per_node
    network = network_bytes_per_second or recorded_network_bytes_per_second(cluster, accelerators=per_node)
    usual_network = None
    if network is None and crosses_nodes:
        network = usual_network = device.board.usual_network_bytes_per_second(per_node)
    model = machine_model()
    family_name, _ = family_of(model, device.name)
    unfitted = product_format.casts and product_format not in model.measured_products
    of_products = unfitted * model.unfitted_products
    of_stack = (not recorded.measured) * model.unmeasured_stack
    beyond = math.hypot(_accelerator_error(model, device.name), of_products, of_stack)
    uncertainty = expected_error([beyond], architecture)
    if network is None and crosses_nodes:
        words = f"step time: no network out of a node is recorded, and {device.name} has no usual one"
        return RunMachine(device, dtype, recorded, None, uncertainty, words, (), product_peak, beyond, how)
    if network is not None and usual_network is None and accelerator_name is not None and crosses_nodes:
        of_run = "for each accelerator as much as recorded for the run"
        origin = of_run if network_bytes_per_second is None else "as asked for"
        notes.append(f"{8 * network / 1e9:,.0f} Gbit/s out of each node, {origin}")
    machine = modelled_machine(
        model,
        model.values(),
        device=device,
        software=recorded.switches,
        precision=precision,
        product_format=product_format,
        network_bytes_per_second=network,
        accelerators_per_node=per_node,
    )
    notes.append(f"software: {recorded.title}{libraries} (`--stack`; {recorded.name})")
    of_edition = f" of edition {edition}," if (edition := chosen_edition()) else ""
    words = f"efficiencies{of_edition} {model.basis(family_name, device.name)}"
    notes.append(f"{words}: expect errors of {100 * uncertainty:.0f} %")
    if unfitted:
        words = f"products in {product_format.value} at the share of their peak that those in fp8-delayed reach"
        notes.append(f"{words}: that adds {100 * of_products:.0f} %")
    if architecture is not None and architecture.linear_heads is not None:
        notes.append("no model with linear attention or a state space has a published step time")
    if recorded.switches.needs_cuda and not device.runs_cuda:
        notes.append(f"{recorded.name} needs CUDA, which {device.name} does not run: predicted as if it did")
    if not recorded.measured:
        notes.append(f"no published step times tell of {recorded.name}: that adds {100 * model.unmeasured_stack:.0f} %")
    return RunMachine(
        device, dtype, recorded, machine, uncertainty, "", tuple(notes), product_peak, beyond, how, usual_network
    )


def _accelerator_error(model: MachineModel, name: str) -> float:
    """Relative error that an accelerator adds: without a published row, or one laboratory's with a single table's."""
    family_name, measured = family_of(model, name)
    family = model.families[family_name]
    if measured:
        return (
            model.spreads.laboratory if len(model.parameters[f"matrix_efficiency.{family_name}"].tables) == 1 else 0.0
        )
    return family.uncertainty if name in family.accelerators else model.unnamed_accelerator


def _software(
    software: Software | None, stack_name: str | None, device: Accelerator, *, elsewhere: bool, stages: bool
) -> tuple[ReadStack, str]:
    """The stack, and in words that it has newer libraries than recorded: on other accelerators (`elsewhere`).

    Software of NVIDIA's accelerators runs on no other vendor's as it is: there it is the generic one.
    """
    if stack_name is not None:
        return asked_stack(stack_name, later=machine_model().is_later(device.name), stages=stages), ""
    if elsewhere and not device.runs_cuda and device.name != THIS_CPU:
        return reading(GENERIC), ""
    read = reading(software.stack if software else None, stages=stages)
    if not elsewhere or read.stack.switches.generation is Generation.CURRENT:
        return read, ""
    current = msgspec.structs.replace(read.stack.switches, generation=Generation.CURRENT)
    return read._replace(stack=msgspec.structs.replace(read.stack, switches=current)), ", with current libraries"


def asked_stack(name: str, *, later: bool = False, stages: bool) -> ReadStack:
    """The stack that an option names, as people write it: see `reading`.

    Raises:
        InputError: no stack is called so.
    """
    stack(name)
    return reading(name, later=later, stages=stages)


def recorded_network_bytes_per_second(cluster: Cluster | None, *, accelerators: int | None = None) -> float | None:
    """Bytes per second out of a node over all its interfaces; None where a run does not record them.

    Args:
        accelerators: of a node that has another number of them; each has its part of the recorded interfaces.
    """
    if cluster is None or cluster.network_interface_bandwidth is None or cluster.network_interfaces_per_node is None:
        return None
    recorded = cluster.network_interfaces_per_node * cluster.network_interface_bandwidth
    if accelerators is None or cluster.accelerators_per_node is None:
        return recorded
    return recorded * accelerators / cluster.accelerators_per_node


@cache
def catalogued(name: str) -> Accelerator:
    """The accelerator of that name in the catalog, read once: published rows name few, and each many times."""
    return accelerator(name)


class PreparedRow(NamedTuple):
    """A published row with what of its prediction no parameter changes.

    Args:
        alternatives: all that the row may have been, with their shares; empty where the table leaves nothing open.
    """

    row: PublishedRow
    device: Accelerator
    micro_batches: int
    traffic: tuple[RankTraffic, ...]
    alternatives: tuple[tuple[float, PreparedRow], ...] = ()


def prepared_row(row: PublishedRow) -> PreparedRow:
    """The row with the traffic of the stages that may be the slowest."""
    micro_batches = accumulation(row.recipe, row.layout)
    traffic = tuple(
        step_traffic(row.workload, stage=stage, micro_batches=micro_batches)
        for stage in timed_stages(row.architecture, row.layout)
    )
    alternatives = tuple((share, prepared_row(each)) for share, each in row.alternatives)
    return PreparedRow(row, catalogued(row.accelerator), micro_batches, traffic, alternatives)


def row_step_seconds(model: MachineModel, values: Mapping[str, Any], prepared: PreparedRow) -> Any:
    """Seconds of the row's step; where the values are arrays, an array with an entry a set of parameters.

    Of a row that may have been several, the mean of their logarithms by their shares.

    Raises:
        InputError: the accelerator has no peak in the row's dtype.
    """
    if prepared.alternatives:
        return math.prod(row_step_seconds(model, values, each) ** share for share, each in prepared.alternatives)
    time = row_step_time(model, values, prepared)
    return time.total_seconds - (time.overhead_seconds if prepared.row.composed else 0.0)


def row_step_time(model: MachineModel, values: Mapping[str, Any], prepared: PreparedRow) -> StepTime:
    """The row's step by term; of a row that may have been several, of the likeliest.

    Raises:
        InputError: the accelerator has no peak in the row's dtype.
    """
    machine = row_machine(model, values, prepared)
    workload = prepared.row.workload
    return step_time(workload, machine, micro_batches=prepared.micro_batches, traffic=prepared.traffic)


def row_machine(model: MachineModel, values: Mapping[str, Any], prepared: PreparedRow) -> Machine:
    """The machine that the row's step was measured on.

    Raises:
        InputError: the accelerator has no peak in the row's dtype.
    """
    row = prepared.row
    return modelled_machine(
        model,
        values,
        device=prepared.device,
        software=stack(row.stack).switches,
        precision=row.recipe.precision,
        product_format=row.recipe.product_format,
        network_bytes_per_second=row.network_bytes_per_second,
        accelerators_per_node=row.accelerators_per_node,
    )
