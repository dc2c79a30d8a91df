"""GPT-2's recorded runs on one simulated H100: one wait a step, no graph break, few launches.

Nothing here is a measurement of a GPU. Models have two of their layers, which all have the same graphs.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from benchmarks.simulated_step import CountedStep, LaunchKind
from reference_runs.catalog import reference_run
from tests.simulated_cuda.environment import ROOT, simulated_environment

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(900)]

LAYERS = 2
RUNS = pytest.mark.parametrize("run", ["gpt2-124m", pytest.param("gpt2-1558m", marks=pytest.mark.long)])


@functools.cache
def counted(run: str, scratch: Path, optimizations: str = "default") -> CountedStep:
    environment = simulated_environment(1, log=scratch / f"{run}-{optimizations}.log")
    command = [sys.executable, "-m", "benchmarks.simulated_step", run, "--layers", str(LAYERS)]
    command += ["--optimizations", optimizations]
    done = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=800)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=CountedStep)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("step")


@RUNS
def test_the_host_waits_once_a_step_for_the_loss_and_its_norm(run: str, scratch: Path) -> None:
    found = counted(run, scratch)
    assert found.step.waits == ["wait stream"]  # two fp32 numbers, read after the update
    assert found.step.launches_after_wait == 0


@RUNS
def test_blocks_and_loss_are_one_graph_each_without_a_break(run: str, scratch: Path) -> None:
    found = counted(run, scratch)
    # the first block is given hidden states, the others the residual stream and a branch; the loss
    assert (found.graphs, found.graph_breaks) == (3, 0)


@RUNS
def test_a_layer_s_launches_are_products_attention_and_compiled_kernels(run: str, scratch: Path) -> None:
    found = counted(run, scratch)
    passes = LAYERS * found.micro_batches
    chunks = sum(count for *_, count in found.step.products) - 12 * passes
    assert found.step.launches[LaunchKind.PRODUCT] == 12 * passes + chunks  # three for each of four matrices
    assert chunks % (3 * found.micro_batches) == 0
    assert found.step.launches[LaunchKind.ATTENTION] == 2 * passes  # forward and backward
    assert found.compiled_bytes > 0
    assert found.operator_bytes > 0


@RUNS
def test_a_sum_computed_with_the_next_norm_saves_passes_over_the_hidden_states(run: str, scratch: Path) -> None:
    """Each layer's sum saves a pass forward and four backward; the last is left to PyTorch, with two passes more."""
    apart, together = counted(run, scratch, "none"), counted(run, scratch, "across-blocks")
    states = 2 * reference_run(run).layout.micro_batch * reference_run(run).architecture.sequence
    passes = (apart.compiled_bytes - together.compiled_bytes) / apart.micro_batches
    assert passes / states / reference_run(run).architecture.hidden == pytest.approx(5 * LAYERS + 2, abs=0.1)
    assert apart.step.launches[LaunchKind.COMPILED] > together.step.launches[LaunchKind.COMPILED]


@RUNS
def test_epilogues_take_gelu_and_sums_over_tokens_from_the_compiled_kernels(run: str, scratch: Path) -> None:
    """Five kernels of a layer are gone. With M tokens, D hidden states, F of the expansion, in bf16 they move:

        4 M F + 6 M F           GELU, and its gradient
        2 M F + 6 M D + 2 M D   gradients of the biases of expansion, queries with keys and values, projection

    That of the contraction is summed in a kernel that stays. Partial sums add less than half a pass over hidden states.
    """
    plain, fused = counted(run, scratch, "none"), counted(run, scratch, "epilogues")
    architecture, layout = reference_run(run).architecture, reference_run(run).layout
    pass_bytes = 2 * layout.micro_batch * architecture.sequence * architecture.hidden
    layers = LAYERS * plain.micro_batches
    saved = (plain.compiled_bytes - fused.compiled_bytes) / layers
    assert round(saved / pass_bytes) == 6 * architecture.ffn_hidden / architecture.hidden + 4
    assert plain.step.products == fused.step.products
    gone = {kind: (plain.step.launches[kind] - fused.step.launches[kind]) / layers for kind in plain.step.launches}
    of_pytorch = dict.fromkeys((LaunchKind.OTHER, LaunchKind.CAST, LaunchKind.FILL), 1)
    assert {kind: number for kind, number in gone.items() if number} == {LaunchKind.COMPILED: 5, **of_pytorch}


@RUNS
@pytest.mark.skipif(find_spec("cudnn") is None, reason="nvidia-cudnn-frontend is not installed")
def test_cudnn_writes_one_gradient_of_queries_keys_and_values_which_no_kernel_joins(run: str, scratch: Path) -> None:
    apart = counted(run, scratch, "across-blocks")
    packed = counted(run, scratch, "packed-gradients,across-blocks")
    assert packed.graph_breaks == 0
    assert packed.step.launches[LaunchKind.ATTENTION] == apart.step.launches[LaunchKind.ATTENTION]
    passes = LAYERS * packed.micro_batches
    assert apart.step.launches[LaunchKind.COMPILED] - packed.step.launches[LaunchKind.COMPILED] == passes
    layout, shape = reference_run(run).layout, reference_run(run).architecture
    states = 2 * layout.micro_batch * shape.sequence * shape.hidden
    saved = (apart.compiled_bytes - packed.compiled_bytes) / passes
    assert saved == pytest.approx(6 * states, rel=1e-3)  # three gradients, read and written


@RUNS
def test_compiled_kernels_are_launched_while_the_one_before_them_ends_where_that_is_asked(
    run: str, scratch: Path
) -> None:
    dependent = counted(run, scratch, "across-blocks,dependent-launch")
    assert counted(run, scratch, "across-blocks").step.dependent == 0
    assert dependent.step.dependent == dependent.step.launches[LaunchKind.COMPILED]
    assert dependent.graph_breaks == 0


@RUNS
def test_a_captured_micro_batch_is_two_launches_of_the_host(run: str, scratch: Path) -> None:
    plain, captured = counted(run, scratch, "across-blocks"), counted(run, scratch, "across-blocks,micro-batch-graph")
    assert (plain.step.graphs, captured.step.graphs) == (0, 2 * captured.micro_batches)
    assert captured.step.waits == ["wait stream"]
    assert captured.graph_breaks == 0
    for kind in (LaunchKind.PRODUCT, LaunchKind.ATTENTION, LaunchKind.COMPILED):
        assert plain.step.launches[kind] > 0
        assert kind not in captured.step.launches
    besides = Counter(captured.step.launches)
    besides.subtract(captured.update.launches)
    del besides[LaunchKind.TENSOR_LISTS]  # zeros of the gradients, by their sizes
    # of a micro-batch tokens and targets go to the device, then to where the graph reads them, and its loss is copied;
    # the step's losses are stacked and added
    each = {LaunchKind.TRANSFER: 2 * captured.micro_batches, LaunchKind.CAST: 3 * captured.micro_batches}
    assert besides == {**each, LaunchKind.OTHER: 2}
