"""The worked examples (GPT-2, LLaMA-2 70B, GPT-3 175B, Megatron 13B) are recorded as published."""

from __future__ import annotations

import pytest

from reference_runs.catalog import accumulation, reference_run
from reference_runs.errors import InputError
from reference_runs.run import ReferenceRun
from reference_runs.sourced import Kind
from suite.predict.analytic.parameters import parameter_count

GPT2 = ("gpt2-124m", "gpt2-350m", "gpt2-774m", "gpt2-1558m")
NAMES = (*GPT2, "llama2-70b", "gpt3-175b", "megatron-13b")
RUNS = {name: reference_run(name) for name in NAMES}
LAID_OUT = [name for name in NAMES if name != "llama2-70b"]

LLM_C = {
    "architecture.head_dim": 64,
    "architecture.vocabulary": 50257,
    "architecture.padded_vocabulary": 50304,
    "architecture.sequence": 1024,
    "architecture.position": "learned",
    "architecture.norm": "pre-layer-norm",
    "architecture.biases": True,
    "architecture.tied_embeddings": True,
    "recipe.objective": "causal-lm",
    "recipe.precision": "bf16",
    "recipe.optimizer": "adamw",
    "recipe.beta1": 0.9,
    "recipe.beta2": 0.95,
    "recipe.weight_decay": 0.1,
    "recipe.gradient_clip": 1.0,
    "recipe.learning_rate_decay": "cosine",
    "recipe.hidden_dropout": 0.0,
    "layout.data_parallel": 8,
    "layout.zero_stage": 1,
    "layout.recomputation": "none",
    "layout.fused_attention": True,
    "cluster.accelerators": 8,
}
CLAIMS: dict[str, dict[str, object]] = {
    "gpt2-124m": LLM_C
    | {
        "architecture.layers": 12,
        "architecture.hidden": 768,
        "architecture.heads": 12,
        "recipe.global_batch": 524_288 // 1024,
        "recipe.learning_rate": 6e-4,
        "recipe.minimum_learning_rate": 0.0,
        "recipe.warmup": 700 * 512,
        "layout.micro_batch": 64,
        "layout.accumulation": 1,
        "cluster.accelerator": "a100-sxm-80gb",
        "reported.step_seconds": 0.3,
    },
    "gpt2-350m": LLM_C
    | {
        "architecture.layers": 24,
        "architecture.hidden": 1024,
        "architecture.heads": 16,
        "recipe.global_batch": 524_288 // 1024,
        "recipe.learning_rate": 3e-4,
        "recipe.minimum_learning_rate": 0.0,
        "recipe.warmup": 700 * 512,
        "layout.micro_batch": 64,
        "layout.accumulation": 1,
        "cluster.accelerator": "a100-sxm-80gb",
        "reported.step_seconds": 0.82,
    },
    "gpt2-774m": LLM_C
    | {
        "architecture.layers": 36,
        "architecture.hidden": 1280,
        "architecture.heads": 20,
        "recipe.global_batch": 524_288 // 1024,
        "recipe.learning_rate": 2.5e-4,
        "recipe.minimum_learning_rate": 0.0,
        "recipe.warmup": 700 * 512,
        "layout.micro_batch": 32,
        "layout.accumulation": 2,
        "cluster.accelerator": "a100-sxm-80gb",
        "reported.step_seconds": 1.7,
    },
    "gpt2-1558m": LLM_C
    | {
        "architecture.layers": 48,
        "architecture.hidden": 1600,
        "architecture.heads": 25,
        "recipe.global_batch": 1_048_576 // 1024,
        "recipe.learning_rate": 6e-4,
        "recipe.minimum_learning_rate": 6e-5,
        "recipe.warmup": 700 * 1024,
        "layout.micro_batch": 16,
        "layout.accumulation": 8,
        "cluster.accelerator": "h100-sxm",
        "reported.step_seconds": 2.8,
    },
    "llama2-70b": {
        "architecture.layers": 80,
        "architecture.hidden": 8192,
        "architecture.heads": 64,
        "architecture.head_dim": 128,
        "architecture.kv_heads": 8,
        "architecture.ffn_hidden": 28672,
        "architecture.vocabulary": 32000,
        "architecture.padded_vocabulary": 32000,
        "architecture.sequence": 4096,
        "architecture.position": "rotary",
        "architecture.rotary_dim": 128,
        "architecture.rotary_base": 10000,
        "architecture.norm": "pre-rms-norm",
        "architecture.activation": "swiglu",
        "architecture.biases": False,
        "architecture.tied_embeddings": False,
        "recipe.global_batch": 4_194_304 // 4096,
        "recipe.tokens": 2 * 10**12,
        "recipe.epsilon": 1e-5,
        "recipe.learning_rate": 1.5e-4,
        "recipe.minimum_learning_rate": 1.5e-5,
        "recipe.warmup": 2000 * 1024,
        "cluster.accelerator": "a100-sxm-80gb",
        "cluster.accelerators": None,
        "cluster.network_interface_bandwidth": 25e9,
        "reported.mfu": 0.428,
        "reported.flop_convention": "6N",
        "reported.accelerator_seconds": 1_720_320 * 3600,
    },
    "gpt3-175b": {
        "architecture.layers": 96,
        "architecture.hidden": 12288,
        "architecture.heads": 96,
        "architecture.head_dim": 128,
        "architecture.ffn_hidden": 49152,
        "architecture.vocabulary": 50257,
        "architecture.padded_vocabulary": 51200,
        "architecture.sequence": 2048,
        "recipe.global_batch": 1536,
        "recipe.batch_rampup_start": 16,
        "recipe.batch_rampup_increment": 16,
        "recipe.batch_rampup_samples": 5_859_375,
        "recipe.tokens": 300 * 10**9,
        "recipe.precision": "fp16",
        "recipe.learning_rate": 6e-5,
        "recipe.minimum_learning_rate": 6e-6,
        "recipe.warmup": 183_105,
        "recipe.decay": 126_953_125,
        "recipe.init_std": 0.006,
        "layout.micro_batch": 1,
        "layout.data_parallel": 8,
        "layout.tensor_parallel": 8,
        "layout.pipeline_stages": 16,
        "layout.recomputation": "full",
        "cluster.accelerator": "a100-sxm-80gb",
        "cluster.accelerators": 1024,
        "cluster.network_interfaces_per_node": 8,
        "cluster.network_interface_bandwidth": 25e9,
        "reported.step_seconds": 32.0,
        "reported.hardware_flop_per_second": 138e12,
        "reported.flop_convention": "megatron-eq3-recomputed",
        "reported.hfu": 0.44,
        "reported.total_flop": 3.14e23,
        "reported.duration": 34 * 86400,
    },
    "megatron-13b": {
        "architecture.layers": 40,
        "architecture.hidden": 5120,
        "architecture.heads": 32,
        "architecture.head_dim": 160,
        "architecture.ffn_hidden": 20480,
        "architecture.vocabulary": 50257,
        "architecture.padded_vocabulary": 50432,
        "architecture.sequence": 2048,
        "recipe.global_batch": 1024,
        "recipe.batch_rampup_start": 16,
        "recipe.batch_rampup_increment": 16,
        "recipe.batch_rampup_samples": 5 * 10**6,
        "recipe.precision": "fp16",
        "recipe.beta2": 0.999,
        "recipe.learning_rate": 1e-4,
        "recipe.minimum_learning_rate": 1e-5,
        "layout.micro_batch": 1,
        "layout.data_parallel": 64,
        "layout.tensor_parallel": 2,
        "layout.pipeline_stages": 4,
        "layout.zero_stage": 1,
        "layout.recomputation": "full",
        "cluster.accelerator": "v100-sxm-32gb",
        "cluster.accelerators": 512,
        "cluster.accelerators_per_node": 4,
    },
}


@pytest.mark.parametrize(
    ("name", "key", "value"), [(name, key, value) for name, claims in CLAIMS.items() for key, value in claims.items()]
)
def test_a_worked_example_is_recorded_as_published(name: str, key: str, value: object) -> None:
    section, field = key.split(".")
    assert getattr(getattr(RUNS[name], section), field) == value
    assert key in RUNS[name].facts


@pytest.mark.parametrize(
    ("name", "key", "readings"),
    [
        ("gpt2-124m", "recipe.global_batch", {480}),
        ("gpt2-124m", "recipe.tokens", {600_000 * 491_520}),
        ("gpt2-124m", "recipe.minimum_learning_rate", {6e-5}),
        ("gpt2-124m", "recipe.warmup", {2000 * 480}),
        ("gpt2-124m", "recipe.decay", {600_000 * 480}),
        ("gpt2-124m", "layout.micro_batch", {12}),
        ("gpt2-124m", "layout.accumulation", {40 // 8}),
        ("gpt2-124m", "layout.zero_stage", {0}),
        ("gpt2-124m", "architecture.biases", {False}),
        ("gpt2-124m", "cluster.accelerator", {"a100-sxm-40gb", "a100-sxm"}),
        ("gpt2-124m", "reported.step_seconds", {0.576, 0.72, 0.135}),
        ("gpt2-124m", "reported.tokens_per_second", {1.1e6, 853_333}),
        ("gpt2-124m", "reported.mfu", {0.294}),
        ("gpt2-124m", "reported.parameters", {124_439_808}),
        ("gpt2-350m", "reported.parameters", {354_823_168}),
        ("gpt2-774m", "reported.parameters", {774_030_080}),
        ("gpt2-1558m", "reported.parameters", {1_557_611_200}),
        ("gpt2-1558m", "reported.step_seconds", {2.7}),
        ("llama2-70b", "architecture.ffn_hidden", {3 * 28672}),
        ("llama2-70b", "architecture.rotary_base", {1_000_000}),
        ("llama2-70b", "reported.parameters", {68_976_653_312}),
        ("llama2-70b", "reported.mfu", {0.462}),
        ("gpt3-175b", "recipe.global_batch", {3.2e6 / 2048}),
        ("gpt3-175b", "recipe.precision", {"fp16-gradient-copy"}),
        ("gpt3-175b", "layout.pipeline_stages", {12}),
        ("gpt3-175b", "cluster.accelerator", {"V100"}),
        ("gpt3-175b", "cluster.accelerators", {10_000}),
        ("gpt3-175b", "reported.parameters", {174_604_259_328, 174_600_000_000}),
        ("gpt3-175b", "reported.step_seconds", {31.5, 31.9}),
        ("gpt3-175b", "reported.hardware_flop_per_second", {140, 24.6}),
        ("gpt3-175b", "reported.mfu", {0.47, 0.42}),
        ("gpt3-175b", "reported.duration", {14.8}),
        ("megatron-13b", "architecture.heads", {40}),
        ("megatron-13b", "architecture.activation", {"relu", "swiglu"}),
        ("megatron-13b", "recipe.global_batch", {2048}),
        ("megatron-13b", "layout.data_parallel", {8, 32}),
        ("megatron-13b", "cluster.accelerators", {64, 256}),
        ("megatron-13b", "reported.parameters", {12_853_386_240, 12_853_473_280, 13_015_866_880}),
        ("megatron-13b", "measured.0.hardware_flop_per_second", {45}),
    ],
)
def test_what_other_sources_say_is_kept(name: str, key: str, readings: set[float | str]) -> None:
    fact = RUNS[name].facts[key]
    assert {reading.value for reading in fact.readings} == readings
    assert fact.why


@pytest.mark.parametrize("name", LAID_OUT)
def test_axes_multiply_to_the_accelerators_and_batches_to_the_global_batch(name: str) -> None:
    run = RUNS[name]
    layout = run.layout
    assert run.cluster is not None
    axes = layout.data_parallel * layout.tensor_parallel * layout.pipeline_stages
    assert axes == layout.ranks == run.cluster.accelerators
    assert layout.data_parallel * layout.micro_batch * accumulation(run.recipe, layout) == run.recipe.global_batch


def test_what_meta_did_not_publish_is_named_when_it_is_needed() -> None:
    run = RUNS["llama2-70b"]
    missing = ("layout.micro_batch", "layout.data_parallel", "layout.tensor_parallel", "layout.pipeline_stages")
    assert run.unpublished == missing
    assert run.recorded_layout is None
    assert run.facts["cluster.accelerators"].kind is Kind.NOT_PUBLISHED
    with pytest.raises(InputError) as refusal:
        _ = run.layout
    assert all(name in str(refusal.value) for name in missing)


def gpt_parameters(*, layers: int, hidden: int, rows: int, positions: int) -> int:
    """12 L h^2 + 13 L h, embedding, learned positions and the last LayerNorm, head tied."""
    return 12 * layers * hidden**2 + 13 * layers * hidden + rows * hidden + positions * hidden + 2 * hidden


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "rows", "positions"),
    [
        ("gpt2-124m", 12, 768, 50304, 1024),
        ("gpt2-350m", 24, 1024, 50304, 1024),
        ("gpt2-774m", 36, 1280, 50304, 1024),
        ("gpt2-1558m", 48, 1600, 50304, 1024),
        ("gpt3-175b", 96, 12288, 51200, 2048),
        ("megatron-13b", 40, 5120, 50432, 2048),
    ],
)
def test_parameters_are_those_of_the_stored_rows(
    name: str, layers: int, hidden: int, rows: int, positions: int
) -> None:
    run = RUNS[name]
    counted = gpt_parameters(layers=layers, hidden=hidden, rows=rows, positions=positions)
    without_padding = gpt_parameters(layers=layers, hidden=hidden, rows=50257, positions=positions)
    assert run.reported.parameters == counted == parameter_count(run.architecture)
    assert without_padding in {reading.value for reading in run.facts["reported.parameters"].readings}


def test_llama_has_the_parameters_of_its_shapes() -> None:
    h, kv, f = 8192, 8 * 128, 28672
    layer = h * h + 2 * h * kv + h * h + 3 * h * f + 2 * h
    run = RUNS["llama2-70b"]
    assert run.reported.parameters == 80 * layer + 2 * 32000 * h + h == parameter_count(run.architecture)
    # the released file stores the 64 rotary frequencies of each layer besides
    assert {reading.value for reading in run.facts["reported.parameters"].readings} == {
        run.reported.parameters + 80 * 64
    }


def equation_3(run: ReferenceRun, samples: int) -> float:
    """Flop of a step with full recomputation, arXiv 2104.04473: 96 B s L h^2 (1 + s / 6h + V / 16 L h)."""
    shape = run.architecture
    layers, h, s, v = shape.layers, shape.hidden, shape.sequence, shape.padded_vocabulary
    return 96 * samples * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))


@pytest.mark.parametrize(
    ("name", "measurement", "relative_rounding"),
    [
        # 138 Tflop/s is printed to 0.5, "around 32 seconds" to 0.5
        ("gpt3-175b", 0, 0.5 / 138 + 0.5 / 32),
        # 31.5 s is computed from 140 Tflop/s, to 0.05
        ("gpt3-175b", 1, 0.05 / 31.5),
        # 51.7 Tflop/s is computed from 17.25 s, to 0.05
        ("megatron-13b", 0, 0.05 / 51.7),
    ],
)
def test_published_rate_and_time_multiply_to_the_flop_of_equation_3(
    name: str, measurement: int, relative_rounding: float
) -> None:
    row = RUNS[name].measured[measurement]
    assert row.hardware_flop_per_second is not None
    assert row.step_seconds is not None
    flop = row.hardware_flop_per_second * row.step_seconds * row.accelerators
    assert flop == pytest.approx(equation_3(RUNS[name], row.global_batch), rel=relative_rounding)


def test_tr1_beat_its_plan_of_45_tflop_over_the_whole_printed_range_of_step_times() -> None:
    run = RUNS["megatron-13b"]
    flop = equation_3(run, 64)
    slowest, fastest = flop / 17.5 / 16, flop / 17 / 16
    assert 45e12 < slowest < 51.7e12 < fastest


@pytest.mark.parametrize(("name", "peak"), [*((name, 312e12) for name in GPT2[:3]), (GPT2[3], 989e12)])
def test_mfu_of_gpt2_is_palms_with_the_rows_that_have_a_token(name: str, peak: float) -> None:
    run = RUNS[name]
    shape, reported = run.architecture, run.reported
    assert reported.step_seconds is not None
    tokens = run.recipe.global_batch * 1024
    parameters = gpt_parameters(layers=shape.layers, hidden=shape.hidden, rows=50257, positions=1024)
    flop_a_token = 6 * parameters + 12 * shape.layers * shape.hidden * 1024
    assert reported.flop_convention == "palm"
    # both are printed as computed: half a unit of the last place
    assert reported.mfu == pytest.approx(flop_a_token * tokens / reported.step_seconds / 8 / peak, abs=0.0005)
    assert reported.tokens_per_second == pytest.approx(tokens / reported.step_seconds, abs=0.5)


def test_nanogpts_readings_follow_from_its_four_or_five_days() -> None:
    tokens, steps = 491_520, 600_000
    seconds = {reading.value for reading in RUNS["gpt2-124m"].facts["reported.step_seconds"].readings}
    assert {4 * 86400 / steps, 5 * 86400 / steps} < seconds
    rate = tokens / (4 * 86400 / steps)
    flop_a_token = 6 * 124_439_808 + 12 * 12 * 768 * 1024
    assert rate == pytest.approx(853_333, abs=0.5)
    assert flop_a_token * rate / 8 / 312e12 == pytest.approx(0.294, abs=0.0005)


def test_llamas_mfu_follows_from_its_accelerator_hours() -> None:
    run = RUNS["llama2-70b"]
    assert run.reported.accelerator_seconds is not None
    assert run.reported.parameters is not None
    peak_flop = run.reported.accelerator_seconds * 312e12
    six_n = 6 * run.reported.parameters
    attention = 12 * 80 * 8192 * 4096
    # three decimals
    assert run.reported.mfu == pytest.approx(six_n * run.recipe.tokens / peak_flop, abs=0.0005)
    assert (six_n + attention) * run.recipe.tokens / peak_flop == pytest.approx(0.462, abs=0.0005)


def test_gpt3s_utilisation_and_total_follow_from_its_rate_and_tokens() -> None:
    reported, recipe = RUNS["gpt3-175b"].reported, RUNS["gpt3-175b"].recipe
    # 44 % to half a percent; three decimals
    assert reported.hfu == pytest.approx(138 / 312, abs=0.005)
    assert reported.mfu == pytest.approx(0.75 * 138 / 312, abs=0.0005)
    # 6 N tokens, printed to three digits
    assert 6 * 174_604_259_328 * recipe.tokens == pytest.approx(reported.total_flop, abs=0.005e23)


@pytest.mark.parametrize("name", NAMES)
def test_learning_rate_decays_over_the_tokens_where_both_are_assumed_together(name: str) -> None:
    run = RUNS[name]
    if run.facts["recipe.decay"].source.startswith("calculation"):
        assert run.recipe.decay * run.architecture.sequence == run.recipe.tokens
    else:
        assert name in ("gpt3-175b", "megatron-13b")


def test_gpt2_says_that_150_ms_for_gpt3_125m_cannot_be_a100s() -> None:
    assert "136 %" in RUNS["gpt2-124m"].facts["reported.step_seconds"].note
    flop_a_token = 6 * gpt_parameters(layers=12, hidden=768, rows=50257, positions=2048) + 12 * 12 * 768 * 2048
    rate = flop_a_token * 524_288 / 0.15 / 8
    # integer percents, cut off rather than rounded; the sequence of 2048 is GPT-3's
    assert rate / 312e12 == pytest.approx(1.36, abs=0.01)
    assert rate / 989e12 == pytest.approx(0.43, abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_read_in_a_source_is_an_assumption(name: str) -> None:
    for key, fact in RUNS[name].facts.items():
        if fact.source.split()[0] in ("general_knowledge", "megatron"):
            assert fact.kind is Kind.ASSUMED, key
