from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

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
SECTIONS = ("architecture", "recipe", "layout")


def recorded_value(run: ReferenceRun, section: str, name: str) -> object:
    """Value that the run records; of a layout that is not published None for its axes, else the usual value."""
    if section == "layout" and run.recorded_layout is None:
        return None if f"layout.{name}" in run.unpublished else getattr(Layout(), name)
    return getattr(getattr(run, section), name)


def every_miniature(ranks: Sequence[int]) -> Iterator[tuple[ReferenceRun, str, int, Miniature]]:
    """Each recorded run's miniature of each scale on each of these numbers of ranks."""
    for run, scale, number in itertools.product(RUNS, SCALES, ranks):
        yield run, scale, number, miniature(run, scale, ranks=number)


def changed(run: ReferenceRun, mini: Miniature) -> set[str]:
    return {
        f"{section}.{name}"
        for section in SECTIONS
        for name, value in msgspec.structs.asdict(getattr(mini, section)).items()
        if value != recorded_value(run, section, name)
    }


def test_every_changed_fact_is_listed_with_its_rule_and_every_other_as_kept() -> None:
    wrong = []
    for run, _, _, mini in every_miniature([2]):
        names = {f"{section}.{name}" for section in SECTIONS for name in msgspec.structs.asdict(getattr(mini, section))}
        differ = changed(run, mini)
        assert {difference.key for difference in mini.scaled} == differ, mini.name
        assert {difference.key for difference in mini.kept} == names - differ, mini.name
        assert all(difference.rule not in ("", "kept") for difference in mini.scaled), mini.name
        for difference in (*mini.scaled, *mini.kept):
            section, name = difference.key.split(".")
            here, recorded = getattr(getattr(mini, section), name), recorded_value(run, section, name)
            if (difference.here, difference.recorded) != (here, recorded):
                wrong.append((mini.name, difference))
    assert wrong == []


def test_what_makes_the_run_itself_is_kept() -> None:
    kept = {
        "architecture": "position norm embedding_norm activation residual mask biases tied_embeddings",
        "recipe": "objective precision optimizer beta1 beta2 epsilon weight_decay decay_of_vectors gradient_clip "
        "learning_rate_decay residual_init_scaled embedding_dropout hidden_dropout attention_dropout",
        "layout": "zero_stage recomputation schedule",
    }
    wrong = [
        (mini.name, section, name)
        for run, _, _, mini in every_miniature([2])
        for section, names in kept.items()
        for name in names.split()
        if getattr(getattr(mini, section), name) != recorded_value(run, section, name)
    ]
    # Megatron-Core's modules, which are not executed
    assert wrong == [("deepseek-v3-mini", "layout", "recomputation")] * len(wrong)
    assert reference_run("deepseek-v3").layout.recomputed_modules


def test_ratios_are_kept() -> None:
    for run, _, _, mini in every_miniature([1]):
        large, small, recipe, recorded = run.architecture, mini.architecture, mini.recipe, run.recipe
        ratio = (small.padded_vocabulary / small.hidden) / (large.padded_vocabulary / large.hidden)
        assert 1 / 2 <= ratio <= 2, mini.name
        assert small.ffn_hidden * large.hidden == large.ffn_hidden * small.hidden, mini.name
        here = (
            recipe.minimum_learning_rate / recipe.learning_rate,
            recipe.init_std**2 * small.hidden,
            recipe.learning_rate * small.hidden,
        )
        there = (
            recorded.minimum_learning_rate / recorded.learning_rate,
            recorded.init_std**2 * large.hidden,
            recorded.learning_rate * large.hidden,
        )
        assert here == pytest.approx(there), mini.name


@pytest.mark.parametrize(("sequence", "cpu", "cuda"), [(2048, 64, 1024), (8192, 256, 2048), (131072, 256, 2048)])
def test_a_long_sequence_is_halved_until_its_scores_can_be_stored(sequence: int, cpu: int, cuda: int) -> None:
    long = msgspec.structs.replace(BLOOM.architecture, sequence=sequence, sliding_window=sequence // 4)
    for scale, left in (("cpu", cpu), ("cuda", cuda)):
        small, _ = scaled_architecture(long, SCALES[scale])
        assert (small.sequence, small.sliding_window) == (left, left // 4)


def test_the_size_fits_the_device() -> None:
    sizes = {"cpu": (3e6, 5e6), "cuda": (1e8, 2e8)}
    for _, scale, _, mini in every_miniature([1]):
        least, most = sizes[scale]
        stored = 1 if mini.architecture.experts is None else 3  # a token passes a part of the experts
        assert least <= parameter_count(mini.architecture) <= most * stored, (mini.name, scale)


def test_steps_accumulate_as_many_micro_batches_as_recorded_up_to_a_limit() -> None:
    for run, scale, ranks, mini in every_miniature([1, 2, 4, 5, 8]):
        here = accumulation(mini.recipe, mini.layout)
        recorded = accumulation(run.recipe, run.recorded_layout or Layout())
        most = SCALES[scale].most_micro_batches / mini.layout.data_parallel
        stages = mini.layout.pipeline_stages
        case = (mini.name, scale, ranks)
        assert here <= recorded or here == stages, case
        assert here % stages == 0, case
        assert min(recorded, most) <= here < min(recorded, most) + stages, case


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


def test_bloom_keeps_its_ratio_of_vocabulary_to_hidden_and_heads_that_are_no_power_of_two() -> None:
    for scale in SCALES:
        large, small = BLOOM.architecture, miniature(BLOOM, scale, ranks=1).architecture
        assert small.padded_vocabulary * large.hidden == large.padded_vocabulary * small.hidden
        assert not math.log2(small.heads).is_integer()  # so that ALiBi interpolates


def test_the_global_batch_divides_by_the_ranks() -> None:
    for _, scale, ranks, mini in every_miniature([1, 2, 3, 4, 6, 12]):
        check_layout(mini.workload, f"{mini.name} {scale} {ranks}")
        share = mini.layout.data_parallel * mini.layout.micro_batch * accumulation(mini.recipe, mini.layout)
        assert (mini.layout.ranks, share) == (ranks, mini.recipe.global_batch), (mini.name, scale)


def test_ranks_change_the_layout_and_the_batch_alone() -> None:
    axes = ("data_parallel", "tensor_parallel", "pipeline_stages", "accumulation")
    spans = ("global_batch", "tokens", "warmup", "decay", *WHOLE_BATCHES)
    for run, scale in itertools.product(RUNS, SCALES):
        one, four = (miniature(run, scale, ranks=ranks) for ranks in (1, 4))
        assert one.architecture == four.architecture, one.name
        batch = {key: getattr(four.recipe, key) for key in spans}
        assert msgspec.structs.replace(one.recipe, **batch) == four.recipe, one.name
        assert one.recipe.tokens * four.recipe.global_batch == four.recipe.tokens * one.recipe.global_batch, one.name
        there = {axis: getattr(four.layout, axis) for axis in axes}
        assert msgspec.structs.replace(one.layout, **there) == four.layout, one.name


def test_the_batch_ramps_up_by_whole_slices_and_is_whole_from_the_first_counted_step_on() -> None:
    for run, scale, ranks, mini in every_miniature([1, 2, 3, 4, 6, 12]):
        case = (mini.name, scale, ranks)
        seen, batches = 0, []
        for _ in range(WARM_UP_STEPS + 2):
            batches.append(global_batch_at(mini.recipe, seen))
            seen += batches[-1]
        full = mini.layout.data_parallel * mini.layout.pipeline_stages
        share = full * mini.layout.micro_batch
        assert all(batch % share == 0 for batch in batches), case
        assert batches == sorted(batches), case
        # one step earlier, which prepares the schedule of a pipeline
        assert set(batches[WARM_UP_STEPS - 1 :]) == {mini.recipe.global_batch}, case
        if run.recipe.batch_rampup_start is None:
            assert batches[0] == mini.recipe.global_batch, case
        else:
            exact = mini.recipe.global_batch * run.recipe.batch_rampup_start / run.recipe.global_batch
            assert batches[0] == share or abs(batches[0] - exact) <= share / 2, case
            assert batches[0] < mini.recipe.global_batch or full * 2 > SCALES[scale].global_batch, case


def test_the_rotated_part_of_a_head_is_even_and_keeps_its_share_to_within_one_pair() -> None:
    for name in ("gpt-neox-20b", "glm-130b"):
        large = reference_run(name).architecture
        for scale in SCALES:
            small = miniature(reference_run(name), scale, ranks=1).architecture
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


def test_a_miniature_has_the_name_that_its_run_gives_it_or_one_of_the_runs() -> None:
    for name, run in miniatures().items():
        assert reference_run(run).miniature == name == miniature(reference_run(run), "cpu", ranks=1).name
    own = msgspec.structs.replace(BLOOM, miniature=None)
    small, named = miniature(own, "cpu", ranks=2), miniature(BLOOM, "cpu", ranks=2)
    assert small.name == "bloom-176b-mini"
    assert msgspec.structs.replace(small, name=named.name) == named


def test_a_miniature_of_a_run_without_a_layout_is_data_parallel() -> None:
    small = miniature(msgspec.structs.replace(BLOOM, recorded_layout=None), "cpu", ranks=4)
    assert (small.layout.data_parallel, small.layout.ranks) == (4, 4)
    assert small.layout.zero_stage == 0
