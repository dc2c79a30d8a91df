"""Layouts, rates and times that were published of the models trained since 2022, next to their predictions."""

from __future__ import annotations

from reference_runs.catalog import reference_run
from reference_runs.published import load_table
from reference_runs.published_tables import PUBLISHED
from reference_runs.run import ReferenceRun, Workload
from reference_runs.stack import stack
from suite.predict.analytic.megatron_layers import by_kind, kept_by_layer
from suite.predict.analytic.parameters import active_parameter_count, layer_tensors, parameter_count, total_elements
from suite.predict.analytic.stage_layers import stage_layers
from suite.predict.analytic.stage_memory import peak_bytes, stage_memory
from suite.predict.machine_model.model import prepared_row
from suite.predict.recorded_run.published import measured_figures
from tests.support.layouts import machine_of

# published or derived, see `show NAME`: all parameters, and those that a token passes as the source prints them
COUNTS = {
    "mixtral-8x7b": (46_702_792_704, "13B"),
    "mixtral-8x22b": (140_620_634_112, "39B"),
    "qwen3-30b-a3b": (30_532_122_624, "3B"),
    "qwen3-235b-a22b": (235_093_634_560, "22B"),
    "deepseek-v3": (671_026_419_200, "38B"),  # the paper prints 37B, without the tables outside the layers
    "kimi-k2": (1_026_408_232_448, "33B"),  # 32.6B in the paper
    "glm-4.5-air": (106_852_251_264, "13B"),  # 12B in the paper, without embedding and head
    "nemotron-h-56b": (56_324_350_464, "56B"),
    "qwen3-next-80b-a3b": (79_674_391_296, "4B"),  # 3B on the card, without embedding and head
    "gpt-oss-120b": (116_829_156_672, "6B"),  # 5.13B in the card, without the embedding
}


def test_models_have_their_published_parameters_to_the_unit() -> None:
    shapes = {name: reference_run(name).architecture for name in COUNTS}
    found = {
        name: (parameter_count(shape), f"{active_parameter_count(shape) / 1e9:.0f}B") for name, shape in shapes.items()
    }
    assert found == COUNTS
    dense = reference_run("llama3.1-405b").architecture
    assert active_parameter_count(dense) == parameter_count(dense)
    derived = {"grok-1": 316, "nemotron4-15b": 15.6, "nemotron4-340b": 341, "palm-540b": 540.4}
    counts = {name: parameter_count(reference_run(name).architecture) / 1e9 for name in derived}
    assert {name: round(counts[name], 1 if number % 1 else 0) for name, number in derived.items()} == derived


def test_deepseek_v3_is_released_with_its_module_of_multi_token_prediction() -> None:
    """A layer with experts, the projection of two hidden states, their norms and one before the head, and both tables.

    The release has 685B elements: of matrices in 8 bits the scale of each block of 128 x 128 too.
    """
    a = reference_run("deepseek-v3").architecture
    module = total_elements(layer_tensors(a)) + 2 * a.hidden * a.hidden + 3 * a.hidden
    assert f"{module / 1e9:.2f}" == "11.61"  # as the note of its parameters says
    tables = 2 * a.vocabulary * a.hidden
    stored = parameter_count(a) + module + tables
    scales = (stored - 2 * tables) // 128**2
    assert f"{stored / 1e9:.1f} and {(stored + scales) / 1e9:.0f}B" == "684.5 and 685B"


def ratios(run: ReferenceRun) -> list[float]:
    predicted, published = measured_figures(run, machine_of(run, own_software=True))
    assert len(predicted) == len(run.measured)
    return [left.value / right.value for left, right in zip(predicted, published, strict=True)]


def test_llama_3_405b_is_predicted_under_each_published_layout() -> None:
    """dp 64 and 128 at 8192 tokens; cp 16 at 131,072, whose time follows from the rate as 10.9 or 15.3 s."""
    run = reference_run("llama3.1-405b")
    assert [stage_layers(run.architecture, run.layout, stage=stage) for stage in range(16)] == [7, *14 * [8], 7]
    assert [(m.data_parallel, m.context_parallel, m.sequence) for m in run.measured] == [
        (64, None, None),
        (128, None, None),
        (8, 16, 131072),
    ]
    short, shorter, long = ratios(run)
    assert 0.9 < short < 1.1
    assert 0.9 < shorter < 1.1
    assert 1 < long < 15.278 / 10.903


def test_what_nvidia_measured_of_llama_is_predicted_within_a_tenth_and_every_other_layout_within_a_half() -> None:
    for name in ("llama3.1-8b", "llama3.1-70b"):
        assert all(0.9 < ratio < 1.1 for ratio in ratios(reference_run(name))), name
    for name in ("grok-1", "nemotron4-15b", "nemotron4-340b", "megascale-175b"):
        found = ratios(reference_run(name))
        assert all(0.5 < ratio < 2 for ratio in found), name
        assert len(found) >= 6


def test_expert_parallel_ranks_of_grok_are_counted_once() -> None:
    for measured in reference_run("grok-1").measured:
        assert measured.expert_parallel is not None
        assert measured.tensor_parallel is None
        axes = measured.data_parallel * measured.expert_parallel * (measured.pipeline_stages or 1)
        assert axes * 4 * (measured.context_parallel or 1) == measured.accelerators


GIB = 2**30


def stage_1(name: str, stack_name: str) -> tuple[float, dict[str, float]]:
    """GiB expected on a rank of stage 1 after the forward pass, and of each kind of activation that is kept."""
    run = reference_run(name)
    workload, layout = Workload(run.architecture, run.recipe, run.layout), run.layout
    keeping = stack(stack_name).switches.keeping
    micro_batches = run.recipe.global_batch // (layout.replicas * layout.micro_batch)
    memory = stage_memory(workload, stage=1, micro_batches=micro_batches, keeping=keeping)
    kept = [each for each in kept_by_layer(workload, keeping) if not layout.recomputed & {*each.modules}]
    kinds = by_kind(kept)
    in_flight = memory.activations / sum(kinds.values())  # layers times micro-batches
    return memory.after_forward / GIB, {kind: size * in_flight / GIB for kind, size in kinds.items()}


def test_what_the_page_says_of_llama_3_1_405b_and_memory() -> None:
    peak, kept = stage_1("llama3.1-405b", "llama-3")
    half = kept["activated half"]
    assert [round(size, 1) for size in (peak, half, sum(kept.values()))] == [83.7, 13.0, 76.6]
    assert round(peak - half, 1) == 70.7


def test_what_the_page_says_of_deepseek_v3_and_memory() -> None:
    peak, kept = stage_1("deepseek-v3", "hai-llm")
    outputs = 2 * 15 * 4 * 4096 * 8 * 7168 / GIB  # of experts, of 4 layers and 15 micro-batches
    assert [round(size, 1) for size in (peak, outputs)] == [58.1, 26.2]
    state = peak - sum(kept.values())
    assert round(state + (sum(kept.values()) + outputs) / 15 * 17, 1) == 93.5  # DualPipe's 17 in flight
    assert round(state + sum(kept.values()) / 15 * 17, 1) == 63.7


def test_rows_of_megatron_core_ran_in_the_memory_that_is_predicted() -> None:
    """But for five under ZeRO-3, most with activations on the host, which are not described, and three others."""
    bridge = "megatron_bridge_25_09_26_02"
    over, number = set(), 0
    for table in ("dgxc_24_11_bf16", "dgxc_25_02_grok1_moe", "mlperf_gpt3_h100_fp8", "nemo_24_07_fp8", bridge):
        for row in load_table(PUBLISHED / f"{table}.csv").rows:
            prepared, keeping = prepared_row(row), stack(row.stack).switches.keeping
            peak = peak_bytes(row.workload, micro_batches=prepared.micro_batches, keeping=keeping)
            number += 1
            if peak > prepared.device.board.memory_bytes:
                over.add((table, row.line))
    fully_sharded = {(bridge, line) for line in (4, 6, 32, 55, 74)}
    assert number == 160
    assert over == fully_sharded | {("dgxc_24_11_bf16", 38), ("nemo_24_07_fp8", 11), ("nemo_24_07_fp8", 16)}


def test_palm_fits_where_the_tensor_that_is_saved_from_each_layer_is_sharded() -> None:
    run = reference_run("palm-540b")
    workload = Workload(run.architecture, run.recipe, run.layout)
    assert stage_memory(workload, stage=0, micro_batches=1).after_forward < 32 * GIB
