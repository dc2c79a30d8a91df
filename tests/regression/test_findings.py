"""Each quantity of two sets of launches: what one launch decides, and what is only shown."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from suite.metrics.figures import Figure, Quantity
from suite.regression.findings import TOLERANCE, record_findings
from suite.regression.verdicts import ChangeVerdict


def record(*figures, losses=(), corpus="c", policy=None, **software):
    """One that ended well, as far as findings read it; its second rank's losses are all 0."""
    ranks = [SimpleNamespace(steps=[SimpleNamespace(loss=loss) for loss in one]) for one in (losses, [0.0])]
    return SimpleNamespace(
        begin=SimpleNamespace(
            corpus=SimpleNamespace(sha256=corpus),
            software={"suite": "0", "torch": "2", **software},
            policy={"deterministic": "True"} if policy is None else policy,
        ),
        end=SimpleNamespace(figures=list(figures), ranks=ranks),
    )


def figure(quantity, value, **where):
    return Figure(quantity=quantity, value=value, **where)


def of(quantity, before, after, **changes):
    """The finding of launches with these values; None: a launch without one."""
    sides = [
        [record(*([] if value is None else [figure(quantity, value)]), **changes) for value in side]
        for side in (before, after)
    ]
    (found,) = [one for one in record_findings("run", *sides) if one.quantity == quantity.value]
    assert (found.run, found.unit) == ("run", quantity.unit)
    assert (found.before_launches, found.after_launches) == (len(before), len(after))
    return found


REGRESSION, SAME, INCONCLUSIVE = ChangeVerdict.REGRESSION, ChangeVerdict.SAME, ChangeVerdict.INCONCLUSIVE
DISAGREE = "the baseline's launches disagree"
UNEQUAL = "one stack and seed, but not bit-equal"


def test_an_exact_figure_is_decided_by_one_launch_in_either_direction():
    for before, after, values, change, why in (
        ([7], [7], (7, 7), SAME, "exact"),
        ([7, 7, 7], [7, 7], (7, 7), SAME, "exact"),
        ([7], [6], (7, 6), REGRESSION, "exact: 1 less"),
        ([7000, 7000], [7000, 9000], (7000, 9000), REGRESSION, "exact: 2,000 more"),
        ([7, 8], [7], (7, 7), INCONCLUSIVE, DISAGREE),
        ([7, None], [7], (7, 7), INCONCLUSIVE, DISAGREE),
        ([7], [7, None], (7, 7), REGRESSION, "exact: some launches do not count it"),
        ([None], [7], (None, 7), REGRESSION, "not counted in the baseline"),
        ([7], [None], (7, None), REGRESSION, "no longer counted"),
        ([7, 8], [None], (7, None), REGRESSION, "no longer counted"),
        ([None], [7, 8], (None, 7), REGRESSION, "not counted in the baseline"),
        ([7, 8], [9, 6], (7, 9), INCONCLUSIVE, DISAGREE),
        ([7, 7], [7, 8, 9], (7, 8), REGRESSION, "exact: 1 more"),
        ([1], [0], (1, 0), REGRESSION, "exact: 1 less"),
        ([0], [5], (0, 5), REGRESSION, "exact: 5 more"),  # there is no ratio to nothing
    ):
        found = of(Quantity.PARAMETERS, before, after)
        assert ((found.before, found.after), found.change, found.why) == (values, change, why)
        assert found.ratio == (values[1] / values[0] if values[0] and values[1] is not None else None)


@pytest.mark.parametrize("quantity", [Quantity.ACTIVATION_BYTES, Quantity.PEAK_BYTES, Quantity.SENT_BYTES])
def test_bytes_are_the_same_up_to_their_tolerance_by_the_largest_launch_of_each_side(quantity):
    tolerance = TOLERANCE[quantity]
    assert tolerance in (0.02, 0.03)
    within, beyond = round(100_000 * (1 + tolerance)), round(100_000 * (1 + tolerance)) + 1
    said = [
        (of(quantity, [100_000, 50_000], [after, 40_000]).change, of(quantity, [100_000], [after]).why)
        for after in (100_000, 100_001, within, beyond, 200_000 - within, 200_000 - beyond)
    ]
    words = f"{100 * tolerance:.0f}%"
    assert said == [
        (SAME, "equal"),
        (SAME, f"within {words}"),
        (SAME, f"within {words}"),
        (REGRESSION, f"beyond {words}"),
        (SAME, f"within {words}"),
        (ChangeVerdict.IMPROVED, f"beyond {words}"),
    ]


def test_a_first_loss_is_bit_equal_or_where_it_need_not_be_within_2_percent():
    undetermined = {"policy": {}}
    for before, after, changes, values, change, why in (
        ([9.5], [9.5, 9.5], {}, (9.5, 9.5), SAME, "bit-equal"),
        ([9.5], [9.5, 9.25], {}, (9.5, 9.25), REGRESSION, UNEQUAL),
        ([9.5, 9.5], [9.5, 9.75, 9.25], {}, (9.5, 9.75), REGRESSION, UNEQUAL),
        ([9.5, 9.25], [9.5, 9.0], {}, (9.5, 9.5), INCONCLUSIVE, DISAGREE),
        ([100.0], [102.0], undetermined, (100.0, 102.0), SAME, "within 2%"),
        ([100.0], [102.5], undetermined, (100.0, 102.5), REGRESSION, "beyond 2%; not deterministic"),
        ([100.0], [97.5], undetermined, (100.0, 97.5), REGRESSION, "beyond 2%; not deterministic"),
    ):
        found = of(Quantity.FIRST_LOSS, before, after, **changes)
        assert ((found.before, found.after), found.change, found.why) == (values, change, why)


def losses(*sides):
    return record_findings("run", *sides)[-1]


def test_losses_name_the_first_step_of_any_launch_that_leaves_the_first_ones():
    one, other, late = ([3.0, 2.0, 1.0], [3.0, 2.5, 0.5], [3.0, 2.0, 0.75])
    same = losses([record(losses=one)] * 2, [record(losses=one)])
    assert (same.change, same.why, same.before, same.after) == (SAME, "bit-equal in 3 steps", 1.0, 1.0)
    left = losses([record(losses=one)], [record(losses=late), record(losses=other)])
    assert (left.change, left.after) == (REGRESSION, 0.75)
    assert left.why == f"{UNEQUAL} from step 1 on"
    apart = losses([record(losses=one), record(losses=late)], [record(losses=one)])
    assert (apart.change, apart.why) == (INCONCLUSIVE, DISAGREE)
    assert (apart.before, apart.after) == (1.0, 1.0)
    without = record()
    without.end.ranks = []
    for other in (without, SimpleNamespace(begin=without.begin, end=None)):
        lone = losses([other], [record(losses=one)])
        assert (lone.before, lone.after) == (None, 1.0)
    none = losses([record()], [record()])
    assert (none.before, none.after, none.before_launches, none.after_launches) == (None, None, 1, 1)


def test_losses_of_another_stack_are_only_shown():
    for other, why in (
        ({"corpus": "d"}, "another corpus"),
        ({"corpus": "d", "torch": "3"}, "another corpus"),
        ({"torch": "3"}, "another software stack"),
        ({"numpy": "3"}, "another software stack"),
        ({"policy": {}}, "not deterministic"),
        ({"policy": {"deterministic": "False"}}, "not deterministic"),
        ({"suite": "1"}, ""),
    ):
        sides = [record(losses=[2.0, 1.0])], [record(losses=[2.0, 1.5], **other)]
        for before, after in (sides, sides[::-1]):
            found = losses(before, after)
            assert found.change is (ChangeVerdict.SHOWN if why else REGRESSION)
            assert found.why == (why or f"{UNEQUAL} from step 1 on")


def test_everything_but_the_seconds_of_the_step_is_found_in_the_order_of_the_vocabulary():
    figures = [
        figure(Quantity.PEAK_BYTES, 10, rank=1),
        figure(Quantity.STEP_SECONDS, 2.0, term="forward"),
        figure(Quantity.STEP_SECONDS, 3.0),
        figure(Quantity.PEAK_BYTES, 20),
        figure(Quantity.PARAMETERS, 5),
    ]
    found = record_findings("run", [record(*figures)], [record(*figures, figure(Quantity.TOKENS_PER_SECOND, 4.0))])
    order = [quantity.value for quantity in Quantity]
    places = [order.index(one.quantity) for one in found[:-1]]
    assert places == sorted(places)
    assert found[-1].quantity == "losses"
    by_key = {(one.quantity, one.term, one.rank): one for one in found}
    assert ("step_seconds", None, None) not in by_key
    peaks = [one.rank for one in found if one.quantity == "peak_bytes"]
    assert peaks == [None, 1]
    shown = by_key["step_seconds", "forward", None]
    assert (shown.change, shown.why, shown.before, shown.ratio) == (ChangeVerdict.SHOWN, "", 2.0, 1.0)
    lone = by_key["tokens_per_second", None, None]
    assert (lone.change, lone.why, lone.before, lone.after) == (ChangeVerdict.SHOWN, "of one side alone", None, 4.0)


def test_what_is_only_shown_is_the_median_of_the_launches_or_of_one_side_alone():
    found = of(Quantity.TOKENS_PER_SECOND, [1.0, 2.0, 9.0], [4.0, 6.0])
    assert (found.before, found.after, found.ratio) == (2.0, 5.0, 2.5)
    for before, after in (([None], [7]), ([7], [None])):
        found = of(Quantity.PEAK_BYTES, before, after)
        assert (found.before, found.after) == (before[0], after[0])
        assert (found.change, found.why, found.ratio) == (ChangeVerdict.SHOWN, "of one side alone", None)
