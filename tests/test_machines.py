"""The machine that a prediction stands on."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs import plain_machine
from reference_runs.accelerator import accelerator
from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.run import Precision
from suite.machines import RunMachine, run_machine

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
    assert found.machine.overlap_share == plain_machine.load().assumptions.overlap_share


def test_another_accelerator_keeps_the_runs_network_and_says_so() -> None:
    found = of(accelerator_name="GB200")
    assert found.machine is not None
    assert found.machine.peak_flop_per_second == accelerator("gb200").peak_flop_per_second["bf16"]
    assert found.machine.network_bytes_per_second == 4 * 12.5e9
    assert found.machine.accelerators_per_node == accelerator("gb200").board.accelerators_per_node != 8
    assert "400 Gbit/s out of each node, as recorded for the run" in found.notes
    assert any("accelerators a node, as is usual for gb200" in note for note in found.notes)


def test_several_nodes_without_a_recorded_network_have_no_time_and_the_fact_is_named() -> None:
    cluster = msgspec.structs.replace(BLOOM.cluster, network_interface_bandwidth=None)
    found = of(cluster=cluster)
    assert found.machine is None
    assert "cluster.network_interface_bandwidth" in found.missing
    assert of(cluster=cluster, ranks=8).machine is not None
    assert of(cluster=None, ranks=8, accelerator_name="h100").machine is not None
    assert of(cluster=None, ranks=9, accelerator_name="h100").machine is None


def test_without_cluster_and_accelerator_there_is_no_machine() -> None:
    assert run_machine(None, Precision.BF16, ranks=8, accelerator_name=None) is None


def test_an_accelerator_without_the_recipes_dtype_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="v100-sxm-32gb has no peak_flop_per_second for the dtype; got 'bf16'"):
        of(accelerator_name="v100")
    assert of(accelerator_name="v100", precision=Precision.FP16_NO_MASTER).dtype == "fp16"
    assert of(precision=Precision.FP32).dtype == "fp32"
