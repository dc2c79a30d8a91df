"""The vocabulary of figures: what is exact, what is a job's own, and maxima over ranks and processes."""

from __future__ import annotations

from suite.metrics.figures import (
    EXACT,
    Figure,
    Quantity,
    StepTerm,
    last_loss,
    of_job,
    of_processes,
    with_maximum_over_ranks,
)


def bytes_of(rank: int | None, value: int, *, term: str | None = None, stage: int | None = None) -> Figure:
    return Figure(quantity=Quantity.PEAK_BYTES, value=value, rank=rank, term=term, stage=stage)


def test_every_quantity_has_its_unit_and_what_is_counted_is_exact() -> None:
    units = {
        **{"model_flop": "flop", "peak_bytes": "byte", "step_seconds": "s", "mfu": "1", "cost": "1"},
        **{"tokens_per_second": "token/s", "energy_joules": "J"},
    }
    assert {name: Quantity(name).unit for name in units} == units
    assert all(quantity.unit for quantity in Quantity)
    assert {Quantity.PARAMETERS, Quantity.MESSAGES, Quantity.PAYLOAD_BYTES, Quantity.MODEL_FLOP} <= EXACT
    assert not EXACT & {Quantity.STEP_SECONDS, Quantity.PEAK_BYTES, Quantity.SENT_BYTES, Quantity.FIRST_LOSS}


def test_a_step_has_nine_terms_and_the_last_is_what_is_left() -> None:
    assert len(StepTerm) == 9
    assert list(StepTerm)[-1] is StepTerm.UNEXPLAINED


def test_a_key_leaves_out_value_convention_and_tolerance_and_tells_all_else_apart() -> None:
    one = Figure(quantity=Quantity.MFU, value=0.4, convention="a", tolerance=0.1, rank=2, stage=1, axis="dp", term="t")
    other = Figure(quantity=Quantity.MFU, value=0.5, convention="b", rank=2, stage=1, axis="dp", term="t")
    assert one.key == other.key == ("mfu", "dp", None, 2, 1, "t")
    changes = [{}, {"axis": "tp"}, {"operation": "x"}, {"rank": 0}, {"stage": 2}, {"term": "u"}]
    assert len({Figure(quantity=Quantity.MFU, value=1, **changed).key for changed in changes}) == len(changes)  # type: ignore[arg-type]


def test_a_job_s_figure_is_no_rank_s_and_no_term_s() -> None:
    figures = [bytes_of(0, 5), bytes_of(None, 7, term="activations"), bytes_of(None, 9), bytes_of(None, 11)]
    assert of_job(figures, Quantity.PEAK_BYTES) == 9
    assert of_job(figures, Quantity.MFU) is None
    assert of_job(figures[:2], Quantity.PEAK_BYTES) is None


def test_the_last_loss_is_the_mean_of_the_last_three_or_of_fewer() -> None:
    assert last_loss([100.0, 1.0, 2.0, 6.0]) == 3.0
    assert last_loss([1.0, 2.0]) == 1.5


def test_the_largest_of_the_ranks_comes_first_without_rank_and_stage() -> None:
    figures = [bytes_of(0, 3, stage=0), bytes_of(1, 8, stage=1), bytes_of(2, 5, stage=1), bytes_of(0, 1, term="t")]
    first, *rest = with_maximum_over_ranks(figures)
    assert (first.value, first.rank, first.stage) == (8, None, None)
    assert rest[:3] == figures[:3]
    assert [(figure.value, figure.rank, figure.term) for figure in rest[3:]] == [(1, None, "t"), (1, 0, "t")]


def test_one_process_keeps_its_figures_and_several_are_numbered_after_the_largest() -> None:
    single = [bytes_of(None, 4)]
    assert of_processes([single]) is single
    several = of_processes([single, [bytes_of(None, 6)]])
    assert [(figure.value, figure.rank) for figure in several] == [(6, None), (4, 0), (6, 1)]
    assert of_processes([]) == []
