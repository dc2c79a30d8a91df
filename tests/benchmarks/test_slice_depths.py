"""How the seconds of a deeper slice follow from a smaller one's, and what is said of a prediction that misses."""

from __future__ import annotations

import pytest

from benchmarks.slice_depths import Depth, differences, main, verdict
from suite.job.slice import SlicePart, SliceTimes


def depth(layers: int, *, layer: float = 0.5, of_update: float = 1.0, parameters: int = 10) -> Depth:
    seconds = {
        SlicePart.EMBEDDING_FORWARD: [3.0],
        SlicePart.LAYER_FORWARD: [layer],
        SlicePart.LAYER_BACKWARD: [2 * layer],
        SlicePart.UPDATE: [of_update * (parameters * layers + 20)],
    }
    return Depth(layers, SliceTimes(seconds=seconds, updated_parameters=parameters * layers + 20))


def test_equal_layers_and_an_update_by_parameters_are_predicted_exactly() -> None:
    found = differences(
        [[depth(1), depth(2), depth(4)], [depth(3, layer=2.0), depth(6, layer=2.0), depth(12, layer=2.0)]]
    )
    assert {layers: [round(each, 12) for each in of] for layers, of in found.items()} == {
        2: [0.0],
        4: [0.0],
        6: [0.0],
        12: [0.0],
    }
    assert verdict(found) == 0


def test_slower_layers_than_predicted_show_with_their_sign() -> None:
    """Two layers of 3 s each in place of 1.5: 3 + 3 + 40 predicted, 3 + 6 + 40 measured."""
    assert differences([[depth(1), depth(2, layer=1.0)]]) == {2: [pytest.approx(46 / 49 - 1)]}


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ({2: [0.04, -0.049], 4: [0.0]}, 0),
        ({2: [0.06, 0.07, 0.08]}, 1),
        ({2: [0.06, 0.07, 0.01]}, 3),
        ({2: [0.06, 0.07, 0.01], 4: [-0.06]}, 1),
        ({2: [0.5, 0.04, 0.04]}, 0),
    ],
)
def test_a_median_beyond_the_limit_fails_or_with_a_range_across_it_is_undecided(
    found: dict[int, list[float]], code: int
) -> None:
    assert verdict(found) == code


def test_a_slice_that_is_not_there_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bloom-176b-slice", "--layers", "7", "--device", "cpu"]) == 2
    assert "allowed: 1 to 6" in capsys.readouterr().err
