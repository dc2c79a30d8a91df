from __future__ import annotations

import math

import msgspec
import pytest

from reference_runs import miniature as module
from reference_runs.catalog import accumulation, check_layout, global_batch_at, miniatures, reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout, parse_layout
from reference_runs.miniature import DEFAULT_STEPS, Miniature, in_batches, miniature
from reference_runs.miniature_shape import SCALES, scaled_architecture
from reference_runs.run import Architecture, ProductFormat, ReferenceRun
from suite.job.training_job import WARM_UP_STEPS
from suite.predict.analytic.parameters import parameter_count
from tests.support.launches import WHOLE_BATCHES
from tests.support.strategies import BLOOM

RUNS = [reference_run(name) for name in miniatures().values()]
CASES = [pytest.param(run, scale, id=f"{run.name}-{scale}") for run in RUNS for scale in SCALES]
SECTIONS = ("architecture", "recipe", "layout")


def recorded_value(run: ReferenceRun, section: str, name: str) -> object:
    """What the run records; of a layout that is not published None for its axes, else the usual value."""
    if section == "layout" and run.recorded_layout is None:
        return None if f"layout.{name}" in run.unpublished else getattr(Layout(), name)
    return getattr(getattr(run, section), name)


def changed(run: ReferenceRun, mini: Miniature) -> set[str]:
    return {
        f"{section}.{name}"
        for section in SECTIONS
        for name, value in msgspec.structs.asdict(getattr(mini, section)).items()
        if value != recorded_value(run, section, name)
    }


@pytest.mark.parametrize(("run", "scale"), CASES)
def test_every_changed_fact_is_listed_with_its_rule_and_every_other_as_kept(run: ReferenceRun, scale: str) -> None:
    mini = miniature(run, scale, ranks=2)
    assert {difference.key for difference in mini.scaled} == changed(run, mini)
    assert all(difference.rule not in ("", "kept") for difference in mini.scaled)
    fields = {f"{section}.{name}" for section in SECTIONS for name in msgspec.structs.asdict(getattr(mini, section))}
    assert {difference.key for difference in mini.kept} == fields - changed(run, mini)
    for difference in (*mini.scaled, *mini.kept):
        section, name = difference.key.split(".")
        assert difference.here == getattr(getattr(mini, section), name)
        assert difference.recorded == recorded_value(run, section, name)


@pytest.mark.parametrize(("run", "scale"), CASES)
def test_what_makes_the_run_itself_is_kept(run: ReferenceRun, scale: str) -> None:
    mini = miniature(run, scale, ranks=2)
    for section, names in {
        "architecture": "position norm embedding_norm activation residual mask biases tied_embeddings",
        "recipe": "objective precision optimizer beta1 beta2 epsilon weight_decay decay_of_vectors gradient_clip "
        "learning_rate_decay residual_init_scaled embedding_dropout hidden_dropout attention_dropout",
        "layout": "zero_stage recomputation schedule",
    }.items():
        for name in names.split():
            assert getattr(getattr(mini, section), name) == recorded_value(run, section, name), name


@pytest.mark.parametrize(("run", "scale"), CASES)
def test_ratios_are_kept(run: ReferenceRun, scale: str) -> None:
    large, mini = run.architecture, miniature(run, scale, ranks=1)
    small = mini.architecture
    ratio = (small.padded_vocabulary / small.hidden) / (large.padded_vocabulary / large.hidden)
    assert 1 / 2 <= ratio <= 2
    assert small.ffn_hidden * large.hidden == large.ffn_hidden * small.hidden
    recipe, recorded = mini.recipe, run.recipe
    assert recipe.minimum_learning_rate / recipe.learning_rate == pytest.approx(
        recorded.minimum_learning_rate / recorded.learning_rate
    )
    assert recipe.init_std**2 * small.hidden == pytest.approx(recorded.init_std**2 * large.hidden)
    assert recipe.learning_rate * small.hidden == pytest.approx(recorded.learning_rate * large.hidden)


@pytest.mark.parametrize(("sequence", "cpu", "cuda"), [(2048, 64, 1024), (8192, 256, 2048), (131072, 256, 2048)])
def test_a_long_sequence_is_halved_until_its_scores_can_be_stored(sequence: int, cpu: int, cuda: int) -> None:
    long = msgspec.structs.replace(BLOOM.architecture, sequence=sequence, sliding_window=sequence // 4)
    for scale, left in (("cpu", cpu), ("cuda", cuda)):
        small, _ = scaled_architecture(long, SCALES[scale])
        assert (small.sequence, small.sliding_window) == (left, left // 4)


@pytest.mark.parametrize("scale", SCALES)
def test_blooms_vocabulary_keeps_its_ratio_to_hidden_exactly(scale: str) -> None:
    large, small = BLOOM.architecture, miniature(BLOOM, scale, ranks=1).architecture
    assert small.padded_vocabulary * large.hidden == large.padded_vocabulary * small.hidden


@pytest.mark.parametrize(("scale", "least", "most"), [("cpu", 3e6, 5e6), ("cuda", 1e8, 2e8)])
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_the_size_fits_the_device(run: ReferenceRun, scale: str, least: float, most: float) -> None:
    small = miniature(run, scale, ranks=1).architecture
    stored = 1 if small.experts is None else 3  # a token passes a part of the experts
    assert least <= parameter_count(small) <= most * stored


@pytest.mark.parametrize(("run", "scale"), CASES)
@pytest.mark.parametrize("ranks", [1, 2, 4, 5, 8])
def test_steps_accumulate_as_many_micro_batches_as_recorded_up_to_a_limit(
    run: ReferenceRun, scale: str, ranks: int
) -> None:
    mini = miniature(run, scale, ranks=ranks)
    here = accumulation(mini.recipe, mini.layout)
    recorded = accumulation(run.recipe, run.recorded_layout or Layout())
    most = SCALES[scale].most_micro_batches / mini.layout.data_parallel
    stages = mini.layout.pipeline_stages
    assert here <= recorded or here == stages
    assert here % stages == 0
    assert min(recorded, most) <= here < min(recorded, most) + stages


def test_words_of_a_layout_set_the_batch() -> None:
    mini = miniature(BLOOM, "cpu", ranks=2)

    def batch(words: str) -> int:
        layout = parse_layout(words, base=mini.layout)
        return in_batches(mini.recipe, BLOOM, "cpu", layout, steps=DEFAULT_STEPS).global_batch

    assert mini.recipe.global_batch == 24
    assert batch("dp2") == batch("dp3,micro4") == batch("dp2,pp3") == 24
    assert batch("dp5") == 30
    assert batch("dp2,accumulate5") == 20
    assert batch("dp4,pp2") == 32


@pytest.mark.parametrize("scale", SCALES)
def test_blooms_heads_stay_no_power_of_two_so_that_alibi_interpolates(scale: str) -> None:
    heads = miniature(BLOOM, scale, ranks=1).architecture.heads
    assert not math.log2(heads).is_integer()


@pytest.mark.parametrize(("run", "scale"), CASES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 12])
def test_the_global_batch_divides_by_the_ranks(run: ReferenceRun, scale: str, ranks: int) -> None:
    mini = miniature(run, scale, ranks=ranks)
    check_layout(mini.workload, "here")
    share = mini.layout.data_parallel * mini.layout.micro_batch * accumulation(mini.recipe, mini.layout)
    assert mini.layout.ranks == ranks
    assert share == mini.recipe.global_batch


@pytest.mark.parametrize(("run", "scale"), CASES)
def test_ranks_change_the_layout_and_the_batch_alone(run: ReferenceRun, scale: str) -> None:
    one, four = (miniature(run, scale, ranks=ranks) for ranks in (1, 4))
    assert one.architecture == four.architecture
    batch = {key: getattr(four.recipe, key) for key in ("global_batch", "tokens", "warmup", "decay", *WHOLE_BATCHES)}
    assert msgspec.structs.replace(one.recipe, **batch) == four.recipe
    assert one.recipe.tokens * four.recipe.global_batch == four.recipe.tokens * one.recipe.global_batch
    axes = ("data_parallel", "tensor_parallel", "pipeline_stages", "accumulation")
    there = {axis: getattr(four.layout, axis) for axis in axes}
    assert msgspec.structs.replace(one.layout, **there) == four.layout


@pytest.mark.parametrize(("run", "scale"), CASES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 12])
def test_the_batch_ramps_up_by_whole_slices_and_is_whole_from_the_first_counted_step_on(
    run: ReferenceRun, scale: str, ranks: int
) -> None:
    mini = miniature(run, scale, ranks=ranks)
    seen, batches = 0, []
    for _ in range(WARM_UP_STEPS + 2):
        batches.append(global_batch_at(mini.recipe, seen))
        seen += batches[-1]
    full = mini.layout.data_parallel * mini.layout.pipeline_stages
    share = full * mini.layout.micro_batch
    assert all(batch % share == 0 for batch in batches)
    assert batches == sorted(batches)
    # one step earlier, which prepares the schedule of a pipeline
    assert set(batches[WARM_UP_STEPS - 1 :]) == {mini.recipe.global_batch}
    if run.recipe.batch_rampup_start is None:
        assert batches[0] == mini.recipe.global_batch
    else:
        exact = mini.recipe.global_batch * run.recipe.batch_rampup_start / run.recipe.global_batch
        assert batches[0] == share or abs(batches[0] - exact) <= share / 2
        assert batches[0] < mini.recipe.global_batch or full * 2 > SCALES[scale].global_batch


def test_the_rotated_part_of_a_head_is_even_and_keeps_its_share_to_within_one_pair() -> None:
    for name in ("gpt-neox-20b", "glm-130b"):
        large = reference_run(name).architecture
        for scale in SCALES:
            small = miniature(reference_run(name), scale, ranks=1).architecture
            assert large.rotary_dim is not None
            assert small.rotary_dim is not None
            assert small.rotary_dim % 2 == 0
            assert 0 <= small.rotary_dim - small.head_dim * large.rotary_dim / large.head_dim < 2


def test_the_schedule_covers_exactly_the_steps() -> None:
    for steps in (1, 7, 30, 400):
        recipe = miniature(BLOOM, "cpu", ranks=1, steps=steps).recipe
        assert recipe.decay == steps * recipe.global_batch
        assert recipe.tokens == recipe.decay * miniature(BLOOM, "cpu", ranks=1).architecture.sequence
        assert recipe.warmup == max(1, round(steps / 10)) * recipe.global_batch


def test_gradients_travel_in_several_messages() -> None:
    for scale in SCALES:
        mini = miniature(BLOOM, scale, ranks=2)
        assert 4 * parameter_count(mini.architecture) > 2 * mini.layout.bucket_bytes


def test_a_miniature_multiplies_in_its_precision_and_says_so() -> None:
    run = reference_run("deepseek-v3")
    assert run.recipe.product_format is ProductFormat.FP8_BLOCKWISE
    small = miniature(run, "cuda", ranks=1)
    assert small.recipe.product_format is ProductFormat.NONE
    assert {"recipe.product_format", "recipe.moments"} <= {fact.key for fact in small.scaled}


def test_a_change_without_a_rule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = module._rules

    def without_sequence(architecture: Architecture, w: int, scale: module.Scale) -> dict[str, str]:
        return {key: rule for key, rule in rules(architecture, w, scale).items() if key != "architecture.sequence"}

    monkeypatch.setattr(module, "_rules", without_sequence)
    with pytest.raises(InputError, match=r"architecture\.sequence changes without a rule"):
        miniature(BLOOM, "cpu", ranks=1)


def test_a_miniature_has_the_name_that_its_run_gives_it() -> None:
    for name, run in miniatures().items():
        assert reference_run(run).miniature == name
        assert miniature(reference_run(run), "cpu", ranks=1).name == name


def test_a_run_that_names_no_miniature_has_one_by_the_same_rules() -> None:
    own = msgspec.structs.replace(BLOOM, miniature=None)
    small, named = miniature(own, "cpu", ranks=2), miniature(BLOOM, "cpu", ranks=2)
    assert small.name == "bloom-176b-mini"
    assert msgspec.structs.replace(small, name=named.name) == named


def test_a_miniature_of_a_run_without_a_layout_is_data_parallel() -> None:
    small = miniature(msgspec.structs.replace(BLOOM, recorded_layout=None), "cpu", ranks=4)
    assert (small.layout.data_parallel, small.layout.ranks) == (4, 4)
    assert small.layout.zero_stage == 0
