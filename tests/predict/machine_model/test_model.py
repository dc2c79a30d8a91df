"""The machine that a prediction stands on."""

from __future__ import annotations

import math

import msgspec
import pytest

from reference_runs.accelerator import accelerator
from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.floors import FloorQuantity
from reference_runs.layout import Layout
from reference_runs.machine_model import fit_scores, machine_model
from reference_runs.run import Precision, Software
from reference_runs.stack import AttentionKernel, Generation
from suite.predict.analytic.gemm import efficiency
from suite.predict.analytic.step_time import StepTime
from suite.predict.machine_model.intervals import step_interval
from suite.predict.machine_model.model import RunMachine, run_machine
from suite.predict.machine_model.rival_stacks import rival_stacks

BLOOM = reference_run("bloom-176b")


def of(**changes: object) -> RunMachine:
    given: dict[str, object] = {
        "cluster": BLOOM.cluster,
        "precision": Precision.BF16,
        "ranks": 384,
        "accelerator_name": None,
    }
    found = run_machine(**(given | changes))  # type: ignore[arg-type]
    assert found is not None
    return found


def test_blooms_machine_is_its_accelerator_in_its_cluster() -> None:
    found = of()
    assert found.machine is not None
    assert found.accelerator.name == "a100-sxm-80gb"
    assert found.machine.peak_flop_per_second == 312e12
    assert found.machine.network_bytes_per_second == 4 * 12.5e9
    assert found.machine.link_bytes_per_second == 300e9
    assert found.machine.accelerators_per_node == 8
    assert found.machine.overlap_share == machine_model().parameters["overlap_share"].value


def test_each_of_other_accelerators_keeps_its_part_of_the_runs_network_and_it_is_said() -> None:
    found = of(accelerator_name="GB200")
    assert found.machine is not None
    assert found.machine.peak_flop_per_second == accelerator("gb200").peak_flop_per_second["bf16"]
    assert found.machine.network_bytes_per_second == 72 / 8 * 4 * 12.5e9
    assert found.machine.accelerators_per_node == accelerator("gb200").board.accelerators_per_node != 8
    words = "3,600 Gbit/s out of each node, for each accelerator as much as recorded for the run"
    assert words in found.notes
    assert any("400 Gbit/s out of each node, for each" in note for note in of(accelerator_name="h100-sxm").notes)
    assert any("accelerators a node, as is usual for gb200" in note for note in found.notes)


def test_a_run_that_counts_one_host_of_a_link_that_joins_several_has_all_of_them() -> None:
    for counted, joined in ((4, 72), (72, 72), (36, 36)):
        changes = {"accelerators_per_node": counted, "network_interfaces_per_node": counted}
        found = of(cluster=msgspec.structs.replace(BLOOM.cluster, accelerator="gb200", **changes))
        assert found.machine is not None
        assert found.machine.accelerators_per_node == joined
        assert found.machine.network_bytes_per_second == joined * 12.5e9


def test_several_nodes_without_a_recorded_network_have_the_usual_one_of_their_accelerator_or_no_time() -> None:
    cluster = msgspec.structs.replace(BLOOM.cluster, network_interface_bandwidth=None)
    assert of().usual_network is None
    found = of(cluster=cluster)
    assert found.machine is not None
    assert found.usual_network == found.machine.network_bytes_per_second
    without = of(cluster=msgspec.structs.replace(cluster, accelerator="tpu-v4"))
    assert without.machine is None
    assert "no network out of a node is recorded, and tpu-v4 has no usual one" in without.missing
    assert of(cluster=cluster, ranks=8).machine is not None
    assert of(cluster=None, ranks=8, accelerator_name="h100").machine is not None
    assert of(cluster=None, ranks=9, accelerator_name="h100").usual_network == 400e9


def test_without_cluster_and_accelerator_there_is_no_machine() -> None:
    assert run_machine(None, Precision.BF16, ranks=8, accelerator_name=None) is None


def test_an_accelerator_without_the_recipes_dtype_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="v100-sxm-32gb has no peak_flop_per_second for the dtype; got 'bf16'"):
        of(accelerator_name="v100")
    assert of(accelerator_name="v100", precision=Precision.FP16_NO_MASTER).dtype == "fp16"
    assert of(precision=Precision.FP32).dtype == "fp32"


def test_the_software_is_the_runs_own_and_older_libraries_stay_with_their_machine() -> None:
    there, elsewhere = of(software=BLOOM.software), of(software=BLOOM.software, accelerator_name="h100")
    assert there.stack.name == elsewhere.stack.name == "deepspeed-pipeline"
    assert there.stack.switches.generation is Generation.EARLY_2021
    assert elsewhere.stack.switches == msgspec.structs.replace(there.stack.switches, generation=Generation.CURRENT)
    assert any(note.startswith(f"software: {there.stack.title} (`--stack`; ") for note in there.notes)
    assert any(f"{there.stack.title}, with current libraries (" in note for note in elsewhere.notes)
    asked = of(software=BLOOM.software, accelerator_name="h100", stack_name="deepspeed-pipeline")
    assert asked.stack == there.stack
    assert of().stack.name == "generic"


def test_older_libraries_multiply_at_their_share_of_the_rate() -> None:
    values = machine_model().values()
    for name, share in (
        ("deepspeed-pipeline", values["libraries_early_2021"]),
        ("megatron-lm-2021", values["libraries_2021"]),
        ("megatron-lm-2022", 1.0),
    ):
        machine = of(stack_name=name).machine
        assert machine is not None
        reached = efficiency(machine.matrix_efficiency, M=4096, N=4096, K=4096, element_bytes=2)
        assert reached == values["matrix_efficiency.ampere"] * share


def test_a_stack_that_launches_from_c_has_no_host_to_wait_for() -> None:
    python, c = of(stack_name="generic").machine, of(stack_name="llm-c").machine
    assert python is not None
    assert c is not None
    assert python.launch_seconds == machine_model().parameters["launch_seconds"].value > 0
    assert c.launch_seconds == c.step_overhead_seconds == 0


def test_the_error_to_expect_is_that_of_tables_that_a_fit_has_not_seen() -> None:
    tables = fit_scores().tables.values()
    unseen = sum(each.table_left_out for each in tables) / len(tables) / 100
    known = "deepspeed-pipeline"
    assert of(stack_name=known).uncertainty == pytest.approx(unseen, rel=1e-12)
    assert unseen > fit_scores().all_terms / 100
    # an accelerator that no table measured has its family's error besides, as the other leg of a right triangle
    family = machine_model().families["hopper"]
    assert "l40s" not in family.accelerators
    found = of(accelerator_name="l40s", stack_name=known)
    other_generation = machine_model().unnamed_accelerator
    assert found.uncertainty == pytest.approx(math.hypot(unseen, other_generation), rel=1e-12)
    near = of(accelerator_name="h200", stack_name=known)
    assert near.uncertainty == pytest.approx(math.hypot(unseen, family.uncertainty), rel=1e-12)
    assert other_generation > family.uncertainty > 0
    assert any("of hopper accelerators, as none of l40s is published" in note for note in found.notes)
    # one laboratory's difference is added where one table alone has the accelerator
    found = of(accelerator_name="gb200", stack_name=known)
    assert found.uncertainty == pytest.approx(math.hypot(unseen, machine_model().spreads.laboratory), rel=1e-12)
    assert found.is_calibrated
    # and so has a stack of which no row tells
    generic = of(stack_name="generic")
    assert generic.uncertainty == pytest.approx(math.hypot(unseen, machine_model().unmeasured_stack), rel=1e-12)
    assert any("no published step times tell of generic" in note for note in generic.notes)


def test_gemms_of_amd_reach_the_share_that_was_published_of_early_rocm() -> None:
    """493 and 650 of 1,307 Tflop/s are the floors of MI300X; the model's share lies between them."""
    (floor,) = (each for each in accelerator("mi300x").floors if each.quantity is FloorQuantity.BF16_GEMM)
    assert floor.upper is not None
    peak = accelerator("mi300x").peak_flop_per_second["bf16"]
    for name in ("mi300x", "mi325x", "mi350x", "mi355x"):
        machine = of(accelerator_name=name, stack_name="generic").machine
        assert machine is not None
        share = efficiency(machine.matrix_efficiency, M=8192, N=8192, K=8192, element_bytes=2)
        assert share == pytest.approx(math.sqrt(floor.lower * floor.upper) / peak, rel=0.01)


def test_an_accelerator_that_no_row_measured_is_called_uncalibrated() -> None:
    names = ("h100", "a100", "h200", "gb300", "mi300x", "tpu-v5p")
    assert [name for name in names if of(accelerator_name=name).is_calibrated] == ["h100", "a100"]


def test_software_of_one_vendor_is_generic_on_anothers_accelerators_unless_it_is_asked_for() -> None:
    recorded = {"software": Software(stack="NeMo"), "ranks": 8}
    found = {
        name: of(accelerator_name=name, **recorded).stack.name for name in ("gb300", "mi300x", "tpu-v5p", "gaudi3")
    }
    assert found == {"gb300": of(accelerator_name="h100", **recorded).stack.name} | dict.fromkeys(
        ("mi300x", "tpu-v5p", "gaudi3"), "generic"
    )
    assert of(accelerator_name="mi300x", stack_name="nanotron").stack.name == "nanotron"


def test_an_accelerator_takes_the_parameters_of_its_family() -> None:
    model = machine_model()
    for name, family in (("a100", "ampere"), ("v100", "ampere"), ("h100", "hopper"), ("b200", "blackwell")):
        machine = of(accelerator_name=name, precision=Precision.FP16, stack_name="nanotron").machine
        assert machine is not None
        assert machine.memory_efficiency == model.parameters["memory_efficiency"].value
        share = efficiency(machine.matrix_efficiency, M=4096, N=4096, K=4096, element_bytes=2)
        assert share == model.parameters[f"matrix_efficiency.{family}"].value
        kernel = model.families[family].attention[AttentionKernel.FLASH_ATTENTION_2]
        assert machine.fused_attention_efficiency == kernel * model.parameters["attention"].value
        assert machine.kernel_seconds == model.parameters["kernel_seconds"].value


def test_the_error_to_expect_of_mixtures_is_at_least_that_of_published_ones_left_out() -> None:
    worst = max(kinds["mixtures"].release_left_out for kinds in fit_scores().later.values()) / 100
    known = "deepspeed-pipeline"
    assert of(stack_name=known, architecture=reference_run("deepseek-v3").architecture).uncertainty >= worst
    dense = of(stack_name=known, architecture=reference_run("llama3.1-8b").architecture)
    assert dense.uncertainty == of(stack_name=known).uncertainty < worst


def test_layers_that_no_table_has_are_as_uncertain_as_mixtures_and_noted() -> None:
    linear = reference_run("nemotron-h-56b").architecture
    step = StepTime(*(0.0 for _ in StepTime._fields))._replace(backward_seconds=1.0)
    assert step_interval(step, linear, 0.0) == step_interval(step, reference_run("deepseek-v3").architecture, 0.0)
    least, most = step_interval(step, reference_run("llama3.1-8b").architecture, 0.0)
    assert step_interval(step, linear, 0.0)[0] < least < most < step_interval(step, linear, 0.0)[1]
    words = "no model with linear attention or a state space has a published step time"
    assert words in of(architecture=linear).notes
    assert words not in of(architecture=BLOOM.architecture).notes


def test_software_that_needs_cuda_is_proposed_and_taken_where_it_runs_alone() -> None:
    layout = Layout(data_parallel=8, zero_stage=1)
    graph = "megatron-core-cuda-graph"
    for name, runs in (("h100-sxm", True), ("gaudi3", False), ("tpu-v5p", False), ("mi300x", False)):
        assert (graph in rival_stacks("generic", accelerator(name), layout)) is runs
        noted = f"{graph} needs CUDA, which {name} does not run: predicted as if it did"
        assert (noted in of(accelerator_name=name, stack_name=graph).notes) is not runs
