from __future__ import annotations

import math
from typing import NamedTuple

import pytest

from reference_runs.catalog import reference_run, run_names
from reference_runs.run import FlopConvention, PublishedMeasurement, ReferenceRun
from reference_runs.sourced import Kind
from suite.predict.analytic.parameters import parameter_count

RUNS = {name: reference_run(name) for name in run_names()}
PEAK_FLOP_PER_SECOND = 312e12  # A100, dense, fp16 and bf16


def equation_3_flop(run: ReferenceRun, *, samples: float) -> float:
    """arXiv 2104.04473, equation 3, as printed: one more forward pass included, V the padded vocabulary."""
    b, s = samples, run.architecture.sequence
    layers, h, v = run.architecture.layers, run.architecture.hidden, run.architecture.padded_vocabulary
    return 96 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))


def half_of_last_place(value: float) -> float:
    """Half a unit of the last printed decimal place: 105.22 -> 0.005, 126 -> 0.5."""
    decimals = f"{value:.10f}".rstrip("0").partition(".")[2]
    return float(0.5 * 10.0 ** -len(decimals))


@pytest.mark.parametrize("name", RUNS)
def test_the_shapes_hold_the_reported_parameters(name: str) -> None:
    assert RUNS[name].reported.parameters == parameter_count(RUNS[name].architecture)


@pytest.mark.parametrize("name", RUNS)
def test_every_source_is_cited_and_every_assumption_is_explained(name: str) -> None:
    run = RUNS[name]
    cited = " ; ".join(
        text for fact in run.facts.values() for text in [fact.source, *(reading.source for reading in fact.readings)]
    )
    words = {word.strip("();,") for word in cited.split()}
    assert set(run.sources) <= words
    for fact in run.facts.values():
        if fact.kind is Kind.ASSUMED:
            assert len(fact.why) > 5
            assert len(fact.effect) > 3
        for reading in fact.readings:
            assert fact.why
            assert reading.value != fact.value


class Claims(NamedTuple):
    """What the documents say of a run: its layout as (dp, tp, pp), and its size."""

    tokens: int
    global_batch: int
    axes: tuple[int, int, int]
    accelerators: int
    accelerator: str
    zero_stage: int
    measured_data_parallel: tuple[int, ...]


CLAIMS = {
    "bloom-176b": Claims(366 * 10**9, 2048, (8, 4, 12), 384, "a100-sxm-80gb", 1, (8,)),
    "opt-175b": Claims(300 * 10**9, 992, (124, 8, 1), 992, "a100-sxm-80gb", 3, (124,)),
    "glm-130b": Claims(400 * 10**9, 4224, (24, 4, 8), 768, "a100-sxm-40gb", 1, (24,)),
    "codegeex-13b": Claims(850 * 10**9, 3072, (192, 8, 1), 1536, "ascend-910", 2, ()),
    "gpt-neox-20b": Claims(150_000 * 1536 * 2048, 1536, (12, 2, 4), 96, "a100-sxm-40gb", 1, (12,)),
    "mt-nlg-530b": Claims(270 * 10**9, 1920, (8, 8, 35), 2240, "a100-sxm-80gb", 0, (8, 10, 12)),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_runs_are_recorded_as_published(name: str) -> None:
    run, claims = RUNS[name], CLAIMS[name]
    layout, cluster = run.layout, run.cluster
    assert cluster is not None
    assert run.recipe.tokens == claims.tokens
    assert run.recipe.global_batch == claims.global_batch
    assert (layout.data_parallel, layout.tensor_parallel, layout.pipeline_stages) == claims.axes
    assert math.prod(claims.axes) == cluster.accelerators == claims.accelerators
    assert cluster.accelerator == claims.accelerator
    assert layout.zero_stage == claims.zero_stage
    assert {m.data_parallel for m in run.measured} == set(claims.measured_data_parallel)
    assert layout.data_parallel * layout.micro_batch * (layout.accumulation or 0) == claims.global_batch


@pytest.mark.parametrize(
    ("name", "key", "readings"),
    [
        ("opt-175b", "recipe.tokens", {180 * 10**9}),
        ("opt-175b", "recipe.global_batch", {1024}),
        ("opt-175b", "recipe.gradient_clip", {0.3}),
        ("opt-175b", "recipe.learning_rate", {3e-5, 4e-5}),
        ("opt-175b", "architecture.padded_vocabulary", {51200}),
        ("opt-175b", "layout.zero_stage", {"zero2", "FSDP (ZeRO Stage 3)"}),
        ("opt-175b", "cluster.accelerators", {1024}),
        ("opt-175b", "reported.accelerator_seconds", {811_008}),
        ("opt-175b", "reported.duration", {34, 34.1, 62}),
        ("glm-130b", "recipe.learning_rate", {4e-5}),
        ("glm-130b", "recipe.minimum_learning_rate", {4e-6}),
        ("glm-130b", "recipe.embedding_gradient_shrink", {0.5, 1.0}),
        ("glm-130b", "reported.hardware_flop_per_second", {134, 141, 127}),
        ("codegeex-13b", "architecture.layers", {39}),
        ("codegeex-13b", "recipe.tokens", {213_000 * 3072 * 2048}),
        ("codegeex-13b", "software.stack", {"Megatron-LM"}),
        ("gpt-neox-20b", "recipe.global_batch", {1538}),
        ("gpt-neox-20b", "recipe.learning_rate", {0.97e-5}),
        ("gpt-neox-20b", "reported.step_seconds", {35.74, 43.92}),
        ("mt-nlg-530b", "layout.data_parallel", {10, 12, 16}),
        ("mt-nlg-530b", "cluster.accelerators", {2800, 3360, 4480}),
        ("mt-nlg-530b", "architecture.padded_vocabulary", {50272}),
        ("mt-nlg-530b", "reported.mfu", {0.297, 0.289, 0.273}),
    ],
)
def test_conflicting_readings_stand_beside_the_chosen_value(name: str, key: str, readings: set[object]) -> None:
    assert {reading.value for reading in RUNS[name].facts[key].readings} == readings


RATES = [
    pytest.param(name, place, measurement, id=f"{name}:{place}")
    for name, run in RUNS.items()
    for place, measurement in enumerate(run.measured)
    if measurement.step_seconds is not None and measurement.hardware_flop_per_second is not None
]


@pytest.mark.parametrize(("name", "place", "measurement"), RATES)
def test_published_rate_times_time_is_equation_3(name: str, place: int, measurement: PublishedMeasurement) -> None:
    run = RUNS[name]
    assert run.reported.flop_convention is FlopConvention.MEGATRON_RECOMPUTED
    rate = run.facts[f"measured.{place}.hardware_flop_per_second"]
    seconds = run.facts[f"measured.{place}.step_seconds"]
    assert rate.unit == "Tflop/s"
    assert seconds.unit == "s"
    assert isinstance(rate.value, (int, float))
    assert isinstance(seconds.value, (int, float))
    # both numbers are printed: the rate lies between those of the longest and the shortest time that print the same
    job_flop = equation_3_flop(run, samples=measurement.global_batch)
    slack = half_of_last_place(seconds.value)
    per_accelerator = job_flop / measurement.accelerators / 1e12
    lowest, highest = per_accelerator / (seconds.value + slack), per_accelerator / (seconds.value - slack)
    assert lowest - half_of_last_place(rate.value) <= rate.value <= highest + half_of_last_place(rate.value)


def test_every_run_with_a_measured_step_is_checked() -> None:
    # BLOOM prints five, OPT and GPT-NeoX one each, GLM two of three with a time, MT-NLG three
    assert len(RATES) >= 5 + 1 + 1 + 2 + 3


@pytest.mark.parametrize("name", [name for name in CLAIMS if RUNS[name].measured])
def test_measured_sizes_are_whole_replicas(name: str) -> None:
    layout = RUNS[name].layout
    for measurement in RUNS[name].measured:
        tensor_parallel = measurement.tensor_parallel or layout.tensor_parallel
        pipeline_stages = measurement.pipeline_stages or layout.pipeline_stages
        assert measurement.data_parallel * tensor_parallel * pipeline_stages == measurement.accelerators
        micro_batch = measurement.micro_batch or layout.micro_batch
        assert measurement.global_batch % (measurement.data_parallel * micro_batch) == 0


@pytest.mark.parametrize(
    ("name", "tflop_per_second"),
    # MT-NLG's are computed from its step time, 125.73 Tflop/s, rather than from the printed 126
    [("bloom-176b", 149.02), ("opt-175b", 147), ("gpt-neox-20b", 117), ("mt-nlg-530b", 125.73), ("glm-130b", 135.1)],
)
def test_utilisation_follows_from_the_rate(name: str, tflop_per_second: float) -> None:
    reported = RUNS[name].reported
    hfu = tflop_per_second * 1e12 / PEAK_FLOP_PER_SECOND
    # each is printed to three decimals; full recomputation executes four forward passes' worth, the model needs three
    assert reported.hfu == pytest.approx(hfu, abs=0.0005)
    assert reported.mfu == pytest.approx(0.75 * hfu, abs=0.0005)


def test_total_flop_of_opt_is_equation_3_for_300_billion_tokens() -> None:
    opt = RUNS["opt-175b"]
    samples = opt.recipe.tokens / opt.architecture.sequence
    # printed to three digits, 4.30e23
    assert opt.reported.total_flop == pytest.approx(equation_3_flop(opt, samples=samples), abs=0.005e23)
    corpus = 180e9 / opt.architecture.sequence
    assert equation_3_flop(opt, samples=corpus) == pytest.approx(0.6 * 4.30e23, rel=0.002)


@pytest.mark.parametrize(
    ("name", "key", "expected"),
    [
        ("opt-175b", "warmup", 2000 * 992),
        ("opt-175b", "decay", 300e9 / 2048),
        ("glm-130b", "batch_rampup_samples", 0.025 * 450e9 / 2048),
        ("glm-130b", "warmup", 0.005 * 450e9 / 2048),
        ("glm-130b", "decay", 0.9 * 450e9 / 2048),
        ("codegeex-13b", "warmup", 2000 * 3072),
        ("codegeex-13b", "decay", 200_000 * 3072),
        ("gpt-neox-20b", "warmup", 1500 * 1536),
        ("gpt-neox-20b", "decay", 150_000 * 1536),
        ("mt-nlg-530b", "batch_rampup_samples", 12e9 / 2048),
        ("mt-nlg-530b", "warmup", 1e9 / 2048),
        ("mt-nlg-530b", "decay", 340e9 / 2048),
    ],
)
def test_spans_in_samples_follow_from_the_published_steps_and_tokens(name: str, key: str, expected: float) -> None:
    assert getattr(RUNS[name].recipe, key) == math.floor(expected)


def test_codegeex_rates_are_averages_over_its_calendar() -> None:
    run = RUNS["codegeex-13b"]
    reported = run.reported
    assert reported.duration == 65 * 86400
    assert reported.parameters is not None
    # printed to one decimal of a Tflop/s, and to one token/s
    rate = 6 * reported.parameters * run.recipe.tokens / (65 * 86400 * 1536)
    assert reported.model_flop_per_second == pytest.approx(rate, abs=0.05e12)
    assert reported.tokens_per_second == pytest.approx(run.recipe.tokens / (65 * 86400), abs=0.5)


def test_small_init_of_gpt_neox_is_sqrt_2_over_5_hidden() -> None:
    run = RUNS["gpt-neox-20b"]
    # printed to three digits
    assert run.recipe.init_std == pytest.approx(math.sqrt(2 / (5 * run.architecture.hidden)), abs=0.000005)
